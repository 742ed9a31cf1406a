package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	ofModel      = regexp.MustCompile("^`(M_[A-Z0-9_]+)`: (.+)$")
	ofSimulation = regexp.MustCompile("^`([a-z-]+)`: (.+), history (\\d+)$")
)

// Each fault that is put into the model or the code is in the table with the
// claim that finds it, and there is no line that nothing finds.
func TestTheTableOfMutantsHasThemAllAndWhatFindsEach(t *testing.T) {
	t.Parallel()
	inModel := map[string][]string{}
	for _, m := range table(t, "mutants.txt", 5) {
		if name, claim := m[0], m[3]; !slices.Contains(inModel[name], claim) {
			inModel[name] = append(inModel[name], claim)
		}
	}
	type fault struct {
		claim     string
		histories int
	}
	inCode := map[string]fault{}
	files, err := filepath.Glob(filepath.Join(root, "testdata/mutants/*.txt"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d mutants of the code were found: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		field := func(name string) string {
			_, rest, _ := strings.Cut(string(text), "\n"+name+": ")
			value, _, _ := strings.Cut(rest, "\n")
			return value
		}
		n, err := strconv.Atoi(field("histories"))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		inCode[strings.TrimSuffix(filepath.Base(file), ".txt")] = fault{field("claim"), n}
	}
	for line := range strings.Lines(section(t, read(t, "docs/reliability.md"), "Faults that are put in")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.Contains(line, "`") {
			continue
		}
		model, code := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		if model == "" && code == "" {
			t.Errorf("nothing finds: %s", line)
		}
		if model != "" {
			switch m := ofModel.FindStringSubmatch(model); {
			case m == nil:
				t.Errorf("no mutant of the model: %q", model)
			case m[2] != "`"+strings.Join(inModel[m[1]], "`, `")+"`":
				t.Errorf("%s is found by %s, docs/model/mutants.txt says %s", m[1], m[2], inModel[m[1]])
			default:
				delete(inModel, m[1])
			}
		}
		if code != "" {
			m := ofSimulation.FindStringSubmatch(code)
			if m == nil {
				t.Errorf("no mutant of the code: %q", code)
				continue
			}
			want, ok := inCode[m[1]]
			if n, err := strconv.Atoi(m[3]); !ok || m[2] != want.claim || err != nil || n > want.histories {
				t.Errorf("%q: testdata/mutants says %+v", code, want)
			}
			delete(inCode, m[1])
		}
	}
	for name := range inModel {
		t.Errorf("%s of docs/model is not in the table", name)
	}
	for name := range inCode {
		t.Errorf("%s of testdata/mutants is not in the table", name)
	}
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
