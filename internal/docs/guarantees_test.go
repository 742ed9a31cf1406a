package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)

// docs/guarantees.md links each file of acceptance tests from one promise.
func TestGuaranteesLinkEveryAcceptanceTest(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "internal/test/acceptance/*/*_test.go"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files of tests were found: %v", len(files), err)
	}
	for _, more := range []string{"bedsql/message/publisher", "bedsql/message/once", "bedsql/message/group", "cmd/bed-job/internal/brokers/load"} {
		files = append(files, filepath.Join(root, more+"_test.go"))
	}
	page := read(t, "docs/guarantees.md")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !declared.Match(text) {
			continue
		}
		link := "](.." + filepath.ToSlash(strings.TrimPrefix(file, root)) + ")"
		if n := strings.Count(page, link); n != 1 {
			t.Errorf("docs/guarantees.md has %d links to %s: link it from the promise that its tests show", n, file)
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
	for _, heading := range []string{"The track record", "Bugs in similar projects"} {
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
