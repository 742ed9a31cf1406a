package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/cases"
)

// acceptance is the directory of the promises' tests.
const acceptance = "internal/test/acceptance"

var (
	declared = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	ofFiles  = regexp.MustCompile(`(?ms)^<!-- tests: (.*?) -->\n.*?^<!-- end -->$`)
)

// To list the tests of each promise, from the files named by its marker, run go test
// ./internal/docs -run Guarantees -update.
func TestTheGuaranteesNameEveryAcceptanceTest(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, acceptance, "*_test.go"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files of tests were found: %v", len(files), err)
	}
	for _, more := range []string{"bedsql/message/publisher", "bedsql/message/once", "bedsql/message/group", "cmd/bed-job/internal/brokers/load"} {
		files = append(files, filepath.Join(root, more+"_test.go"))
	}
	tests := map[string]string{} // by the name of their file
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if all := names(string(text), declared.String()); len(all) > 0 {
			name, path := filepath.Base(file), filepath.ToSlash(strings.TrimPrefix(file, root+string(filepath.Separator)))
			tests[strings.TrimSuffix(name, "_test.go")] = "- [" + name + "](../" + path + "): `" + strings.Join(all, "`,\n  `") + "`"
		}
	}
	page := ofFiles.ReplaceAllStringFunc(read(t, "docs/guarantees.md"), func(old string) string {
		of := ofFiles.FindStringSubmatch(old)[1]
		var list []string
		for _, name := range strings.Fields(of) {
			if tests[name] == "" {
				t.Errorf("docs/guarantees.md: %s has no %s_test.go with tests, or it is named twice", acceptance, name)
			}
			list = append(list, tests[name])
			delete(tests, name)
		}
		return "<!-- tests: " + of + " -->\n\n" + strings.Join(list, "\n") + "\n\n<!-- end -->"
	})
	for name := range tests {
		t.Errorf("docs/guarantees.md does not name %s: add it to the marker of the promise that its tests show", name)
	}
	cases.CheckText(t, "../docs/guarantees.md", page)
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
