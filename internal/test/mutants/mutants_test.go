package mutants

import (
	"path/filepath"
	"testing"
)

func TestEveryMutantStillApplies(t *testing.T) {
	t.Parallel()
	root, all := loaded(t)
	for _, m := range all {
		if _, err := m.apply(root); err != nil {
			t.Error(err)
		}
	}
}

// loaded returns the repository's root and its mutants.
func loaded(t *testing.T) (root string, all []mutant) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err == nil {
		all, err = load(root)
	}
	if err != nil {
		t.Fatal(err)
	}
	return root, all
}
