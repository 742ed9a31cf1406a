package mutants

import (
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
		seed, said, err := m.hunt(root)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(begun).Round(100 * time.Millisecond)
		if said == "" {
			fmt.Printf("caught  %s (%q, history %s, %v)\n", m.name, m.claim, seed, took)
		} else {
			t.Errorf("ALIVE   %s (%q, %v)\n%s", m.name, m.claim, took, said)
		}
	}
}

// hunt runs the simulation on the mutant. It returns the seed of the history with the broken claim,
// or the output if another thing failed.
func (m mutant) hunt(root string) (seed, said string, err error) {
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
	model := exec.Command("go", "test", "-overlay", file, "-vet=off", "-count=1", "-timeout=15m", "-run=^"+m.test, "./internal/test/simulation")
	model.Dir = root
	model.Env = append(os.Environ(), fmt.Sprintf("BED_SIMULATE=%d", m.histories), "BED_SIMULATE_SEED=1", "BED_SIMULATE_UNTIL="+m.claim)
	out, err := model.CombinedOutput()
	if err != nil && strings.Contains(string(out), ": "+m.claim+", in ") {
		return strings.TrimSuffix(brokeAt.FindString(string(out)), " BED_SIMULATE=1"), "", nil
	}
	return "", string(out[:min(len(out), 2000)]), nil
}

var brokeAt = regexp.MustCompile(`\b\d+ BED_SIMULATE=1`)
