// Command mutants puts the faults of testdata/mutants into the code, one after
// the other, and demands that the simulation notices each: that it
// fails with the claim that the mutant names, within the histories that it
// names. The tree itself stays as it is. Arguments are names of mutants; none
// means all.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(names []string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	all, err := load(root)
	if err != nil {
		return err
	}
	var alive []string
	for _, m := range all {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		begun := time.Now()
		seed, said, err := m.hunt(root)
		if err != nil {
			return err
		}
		took := time.Since(begun).Round(100 * time.Millisecond)
		if said == "" {
			fmt.Printf("caught  %s (%q, history %s, %v)\n", m.name, m.claim, seed, took)
			continue
		}
		alive = append(alive, m.name)
		fmt.Printf("ALIVE   %s (%q, %v)\n%s\n", m.name, m.claim, took, said)
	}
	if alive != nil {
		return fmt.Errorf("mutants that live: %s", strings.Join(alive, ", "))
	}
	return nil
}

// hunt runs the simulation on the mutant. It gives the seed of the history that
// broke the claim, or what was said if that is not the claim.
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
