package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each mutant of the code names its fault and the judge's failure that finds it, or another test, and
// docs/reliability.md counts the mutants of model and code.
func TestEveryCodeMutantNamesAJudgeFailure(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "testdata/mutants/*.txt"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d mutants of the code were found: %v", len(files), err)
	}
	judge := read(t, "internal/test/simulation/judge_test.go")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		what, _, _ := strings.Cut(string(text), "\n\n")
		field := func(name string) string {
			_, rest, _ := strings.Cut(string(text), "\n"+name+": ")
			value, _, _ := strings.Cut(rest, "\n")
			return value
		}
		if pkg := field("package"); pkg != "" {
			if !strings.Contains(testsOf(t, pkg), "\nfunc "+field("test")+"(t *testing.T)") || strings.TrimSpace(what) == "" {
				t.Errorf("%s: what is wrong, and which test of %s finds it?", file, pkg)
			}
			continue
		}
		if n, err := strconv.Atoi(field("histories")); err != nil || n <= 0 || strings.TrimSpace(what) == "" {
			t.Errorf("%s: what is wrong, and within how many histories is it found? %v", file, err)
		}
		if claim := field("claim"); claim == "" || !strings.Contains(judge, `"`+claim) {
			t.Errorf("%s: the judge has no failure %q", file, claim)
		}
	}
	var inModel []string
	for _, m := range table(t, "mutants.txt", 5) {
		inModel = append(inModel, m[0])
	}
	slices.Sort(inModel)
	page := strings.Join(strings.Fields(section(t, read(t, "docs/reliability.md"), "How it is tested")), " ")
	for _, want := range []string{
		fmt.Sprintf("[the model](model/mutants.txt) (%d)", len(slices.Compact(inModel))),
		fmt.Sprintf("[the code](../testdata/mutants) (%d)", len(files)),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/reliability.md does not say %q", want)
		}
	}
}

// testsOf is the text of a package's tests.
func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func TestEachClaimOfTheModelCanFail(t *testing.T) {
	t.Parallel()
	text := model(t)
	var broken []string
	for _, m := range table(t, "mutants.txt", 5) {
		broken = append(broken, m[3])
	}
	for _, claim := range slices.Concat(names(text, `CLAIM\((\w+), `), names(text, `ltl (\w+)`)) {
		if claim != "name" && !slices.Contains(broken, claim) {
			t.Errorf("no mutant of docs/model/mutants.txt breaks %s", claim)
		}
	}
}
