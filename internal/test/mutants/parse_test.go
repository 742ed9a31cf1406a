package mutants

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutant is a fault for the code, and the check that must notice it.
type mutant struct {
	name string
	// claim is the broken claim of the simulation, histories the number of histories needed at
	// most, and test their test.
	claim     string
	histories int
	test      string
	// pkg is the package of another test that notices it, on SQLite; there is no claim then.
	pkg   string
	edits []edit
}

// edit replaces a unique text in a file.
type edit struct{ file, old, new string }

// load reads the mutants of the repository at root, by name.
func load(root string) (all []mutant, err error) {
	files, err := filepath.Glob(filepath.Join(root, "testdata", "mutants", "*.txt"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("there are no mutants in testdata/mutants"))
	}
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		m.name = strings.TrimSuffix(filepath.Base(file), ".txt")
		all = append(all, m)
	}
	return all, nil
}

// parse reads a mutant: remarks, "claim: …", "histories: …" and, unless it is the test of histories
// about everything, "test: …". For a fault beyond the simulation, they are "package: …" and
// "test: …". For each edit follow "-- file … --", "-- old --" and "-- new --" with their texts.
func parse(text string) (m mutant, err error) {
	m.test = "TestNoInterleavingOfWriters"
	var to *string
	for line := range strings.Lines(text) {
		bare := strings.TrimSuffix(line, "\n")
		file, isFile := strings.CutPrefix(bare, "-- file ")
		switch {
		case isFile:
			m.edits = append(m.edits, edit{file: strings.TrimSuffix(file, " --")})
			to = nil
		case bare == "-- old --" && len(m.edits) > 0:
			to = &m.edits[len(m.edits)-1].old
		case bare == "-- new --" && len(m.edits) > 0:
			to = &m.edits[len(m.edits)-1].new
		case to != nil:
			*to += line
		case strings.HasPrefix(bare, "claim: "):
			m.claim = strings.TrimPrefix(bare, "claim: ")
		case strings.HasPrefix(bare, "package: "):
			m.pkg = strings.TrimPrefix(bare, "package: ")
		case strings.HasPrefix(bare, "test: "):
			m.test = strings.TrimPrefix(bare, "test: ")
		case strings.HasPrefix(bare, "histories: "):
			if m.histories, err = strconv.Atoi(strings.TrimPrefix(bare, "histories: ")); err != nil {
				return m, err
			}
		}
	}
	if m.pkg == "" && (m.claim == "" || m.histories == 0) || len(m.edits) == 0 {
		return m, errors.New("it has no claim, no number of histories, no package or no edit")
	}
	return m, nil
}

// apply returns the mutant's versions of files in the repository at root.
func (m mutant) apply(root string) (files map[string]string, err error) {
	files = map[string]string{}
	for _, e := range m.edits {
		text, ok := files[e.file]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, err
			}
			text = string(read)
		}
		if n := strings.Count(text, e.old); n != 1 || e.old == "" {
			return nil, fmt.Errorf("mutant %s: the old text occurs %d times in %s, want once:\n%s", m.name, n, e.file, e.old)
		}
		files[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return files, nil
}
