package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// model is the text of the Promela model, all of its files together.
func model(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs/model/*.pml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files of the model were found: %v", len(files), err)
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

// names returns the distinct matches of pattern's first group in text.
func names(text, pattern string) []string {
	var found []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// table returns the fields of the lines of a file of docs/model.
func table(t *testing.T, file string, fields int) [][]string {
	t.Helper()
	var lines [][]string
	for line := range strings.Lines(read(t, "docs/model/"+file)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		parts := strings.Split(line, "|")
		if len(parts) != fields {
			t.Fatalf("docs/model/%s: %q has %d fields, want %d", file, line, len(parts), fields)
		}
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		lines = append(lines, parts)
	}
	return lines
}

func sameNames(t *testing.T, whose string, got []string, of string, want []string) {
	t.Helper()
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s has %s, %s does not", whose, name, of)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s has %s, %s does not", of, name, whose)
		}
	}
}

func TestModelHasExactlyTheProtocolsStatesAndSteps(t *testing.T) {
	t.Parallel()
	text := model(t)
	steps := names(text, `STEP\((\w+)\)`)
	steps = slices.DeleteFunc(steps, func(s string) bool { return s == "name" }) // its definition
	inDocs := append(named(section(t, read(t, "docs/protocol.md"), "States")),
		named(section(t, read(t, "docs/exactly-once.md"), "How receipts work"))...)
	if len(steps) < 30 {
		t.Fatalf("only %d steps were found in the model: %v", len(steps), steps)
	}
	sameNames(t, "docs/model", steps, "the tables of docs/protocol.md and docs/exactly-once.md", inDocs)
	states := names(read(t, "docs/protocol.md"), `(?m)^ +state "([^"]+)" as`)
	if len(states) != 5 {
		t.Fatalf("docs/protocol.md draws the states %q, want five", states)
	}
	_, entry, _ := strings.Cut(text, "/* The states of an entry.")
	entry, _, _ = strings.Cut(entry, "/* The states of a receipt.")
	sameNames(t, "docs/model", names(entry, `(?m)^#define [A-Z]+ +\d +/\* (.*) \*/$`), "docs/protocol.md", states)
}

func TestTheModelsClaimsAreExplained(t *testing.T) {
	t.Parallel()
	text := model(t)
	claims := append(names(text, `CLAIM\((\w+), `), names(text, `ltl (\w+)`)...)
	claims = slices.DeleteFunc(claims, func(s string) bool { return s == "name" })
	part := section(t, read(t, "docs/model/README.md"), "Claims")
	sameNames(t, "docs/model", claims, "docs/model/README.md", named(part))
}

func TestEveryModelMutantNamesConfigurationAndClaim(t *testing.T) {
	t.Parallel()
	text := model(t)
	configurations := map[string]bool{}
	for _, c := range table(t, "configurations.txt", 3) {
		configurations[c[0]] = true
	}
	claims := append(names(text, `CLAIM\((\w+), `), names(text, `ltl (\w+)`)...)
	var mutants []string
	for _, m := range table(t, "mutants.txt", 5) {
		mutants = append(mutants, m[0])
		if !configurations[m[1]] {
			t.Errorf("%s: there is no configuration %q", m[0], m[1])
		}
		if !slices.Contains(claims, m[3]) {
			t.Errorf("%s: there is no claim %q", m[0], m[3])
		}
		if m[4] == "" {
			t.Errorf("%s: what is it?", m[0])
		}
	}
	slices.Sort(mutants)
	if mutants = slices.Compact(mutants); len(mutants) < 20 {
		t.Errorf("there are %d mutants, want 20", len(mutants))
	}
	sameNames(t, "docs/model/mutants.txt", mutants, "the model", names(text, `\b(M_[A-Z0-9_]+)\b`))
}
