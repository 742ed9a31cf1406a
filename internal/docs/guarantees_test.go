package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// acceptance is where the tests of the promises are.
const acceptance = "internal/test/acceptance"

func TestTheGuaranteesNameEveryAcceptanceTestAndNoOther(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, acceptance, "*_test.go"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files of tests were found: %v", len(files), err)
	}
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			there[m[1]] = true
		}
	}
	page := read(t, "docs/guarantees.md")
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(page, -1) {
		if !there[m[1]] {
			t.Errorf("docs/guarantees.md names %s, which is not in %s", m[1], acceptance)
		}
	}
	for name := range there {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/guarantees.md does not name %s: add it to the promise that it shows", name)
		}
	}
}
