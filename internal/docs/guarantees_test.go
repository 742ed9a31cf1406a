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

func TestTheRecordNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range names(string(text), `(?m)^func (Test\w+)\(`) {
			there[name] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, "docs/reliability.md")
	for _, heading := range []string{"The track record", "Faults of relatives"} {
		rows := 0
		for line := range strings.Lines(section(t, page, heading)) {
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| fault |") {
				continue
			}
			rows++
			held := names(line, "`(Test\\w+)`")
			if len(held) == 0 {
				t.Errorf("%s: no test is named: %s", heading, line)
			}
			for _, name := range held {
				if !there[name] {
					t.Errorf("%s: there is no %s", heading, name)
				}
			}
		}
		if rows < 10 {
			t.Errorf("%s has %d rows", heading, rows)
		}
	}
}
