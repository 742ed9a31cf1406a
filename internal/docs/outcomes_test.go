package docs

import (
	"go/ast"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// uncaught are texts other than errors of a write: panics of database/sql and of the tables.
var uncaught = []string{"sql: Register", "sql: duplicate driverConn close", "sql: connection returned that was never out", "bed: no schema for "}

// TestEveryErrorHasAnOutcome checks that OutcomeOf knows the texts of all untyped errors of bed and
// database/sql, so that each meaning is a deliberate decision.
func TestEveryErrorHasAnOutcome(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile(filepath.Join(root, "listener/outcomes.txt"))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		outcome, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case !ok && strings.TrimSpace(line) != "" && line[0] != '#':
			t.Errorf("%q is no line of an outcome and a text", line)
		case ok:
			used[text] = false
			if got := bedsql.OutcomeOf(errorText(text)).String(); got != outcome {
				t.Errorf("%q is %s, and the list says %s", text, got, outcome)
			}
		}
	}
	goroot, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	std, err := filepath.Rel(here, filepath.Join(strings.TrimSpace(string(goroot)), "src/database/sql"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{"listener", "internal/dialect", "internal/attempt", "internal/besteffort", "internal/broker", "internal/keyed", "internal/removal", "internal/sender", "internal/service", std}
	if err := filepath.WalkDir(filepath.Join(root, "bedsql"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			path, err = filepath.Rel(root, path)
			dirs = append(dirs, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		for _, file := range parse(t, dir) {
			for text := range errorTexts(file) {
				known := false
				for beginning := range used {
					if strings.HasPrefix(text, beginning) {
						known, used[beginning] = true, true
					}
				}
				for _, beginning := range uncaught {
					known = known || strings.HasPrefix(text, beginning)
				}
				if !known {
					t.Errorf("%s makes an error %q, and listener/outcomes.txt does not say what it means for a write", dir, text)
				}
			}
		}
	}
	for text, is := range used {
		if !is {
			t.Errorf("listener/outcomes.txt has %q, with which no error begins", text)
		}
	}
}

type errorText string

func (e errorText) Error() string { return string(e) }

// errorTexts are the literals in a file passed to errors.New and fmt.Errorf for errors of bed or of
// database/sql, up to the first verb.
func errorTexts(file *ast.File) map[string]bool {
	texts := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		made, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !(isName(made.X, "errors") && made.Sel.Name == "New" || isName(made.X, "fmt") && made.Sel.Name == "Errorf") {
			return true
		}
		arg := call.Args[0]
		for sum, ok := arg.(*ast.BinaryExpr); ok; sum, ok = arg.(*ast.BinaryExpr) {
			arg = sum.X
		}
		text, _ := literal(arg)
		for _, of := range []string{"bed: ", "bedhttp: ", "sql: "} {
			if strings.HasPrefix(text, of) {
				if text == of+"%w" {
					continue // its cause says what it means
				}
				text, _, _ = strings.Cut(text, "%")
				texts[text] = true
			}
		}
		return true
	})
	return texts
}
