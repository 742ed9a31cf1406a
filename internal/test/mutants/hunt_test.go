package mutants

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// chosen names the mutants to hunt, separated by blanks, or "all".
const chosen = "BED_MUTANTS"

func TestEveryMutantIsCaught(t *testing.T) {
	names := strings.Fields(os.Getenv(chosen))
	if len(names) == 0 {
		t.Skipf("%s names no mutants to hunt: scripts/mutants.sh does", chosen)
	}
	root, all := loaded(t)
	for _, m := range all {
		if names[0] != "all" && !slices.Contains(names, m.name) {
			continue
		}
		begun := time.Now()
		where, said, err := m.hunt(root)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(begun).Round(100 * time.Millisecond)
		if said == "" {
			fmt.Printf("caught  %s (%q, %s, %v)\n", m.name, cmp.Or(m.claim, m.test), where, took)
		} else {
			t.Errorf("ALIVE   %s (%q, %v)\n%s", m.name, cmp.Or(m.claim, m.test), took, said)
		}
	}
}

// hunt runs the simulation on the mutant, or its test. It returns where the claim broke, or the
// output if another thing failed.
func (m mutant) hunt(root string) (where, said string, err error) {
	files, err := m.apply(root)
	if err != nil {
		return "", "", err
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	replace := map[string]string{}
	for file, text := range files {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", "", err
	}
	test := []string{"test", "-overlay", file, "-vet=off", "-count=1", "-timeout=15m"}
	if m.pkg != "" {
		test = append(test, "-short", "-run=^"+m.test+"$", "./"+m.pkg)
	} else {
		test = append(test, "-run=^"+m.test, "./internal/test/simulation")
	}
	model := exec.Command("go", test...)
	model.Dir = root
	model.Env = append(os.Environ(), fmt.Sprintf("BED_SIMULATE=%d", m.histories), "BED_SIMULATE_SEED=1", "BED_SIMULATE_UNTIL="+m.claim)
	out, err := model.CombinedOutput()
	switch {
	case err != nil && m.pkg != "" && strings.Contains(string(out), "--- FAIL: "+m.test+" "):
		return m.pkg, "", nil
	case err != nil && m.pkg == "" && strings.Contains(string(out), ": "+m.claim+", in "):
		return "history " + strings.TrimSuffix(brokeAt.FindString(string(out)), " BED_SIMULATE=1"), "", nil
	}
	return "", string(out[:min(len(out), 2000)]), nil
}

var brokeAt = regexp.MustCompile(`\b\d+ BED_SIMULATE=1`)
