// Package writepath follows one plain INSERT through the code.
package writepath

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/bedsql/bed/"

// features are the words for features that a plain INSERT does not use.
var features = regexp.MustCompile(`(?i:order key|orderly|WithTx|compensat|compensable)|\bBehind\b|\.(Order|Undo|Group|home)\b|\bhome[A-Z]`)

// TestPlainInsertEntersNoFileOfAFeature lists the files that an INSERT enters. Those under shared
// define what every entry has, with the columns and fields of the features.
func TestPlainInsertEntersNoFileOfAFeature(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds a program with coverage")
	}
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"...", "-o", program, "./program") //nolint:gosec // the test's own
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for guarantee, shared := range sharedFiles {
		files := entered(t, program, guarantee)
		if slices.Contains(files, "bedsql/session_settings.go") {
			t.Errorf("%s: an INSERT enters the code of Config.SessionSettings", guarantee)
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join("..", "..", "..", file))
			if err != nil {
				t.Fatal(err)
			}
			switch word := features.Find(text); {
			case word != nil && !slices.Contains(shared, file):
				t.Errorf("%s: an INSERT enters %s, which mentions %q", guarantee, file, word)
			case word == nil && slices.Contains(shared, file):
				t.Errorf("%s: %s mentions no feature any more: take it off the list", guarantee, file)
			}
		}
		for _, file := range shared {
			if !slices.Contains(files, file) {
				t.Errorf("%s: an INSERT enters %s no more: take it off the list", guarantee, file)
			}
		}
	}
}

// Nor does a plain unit that a job claims: only asyncjob/decorated.go knows the features.
func TestJobMentionsFeaturesInOneFile(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "asyncjob", "*.go"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasSuffix(name, "_test.go") || slices.Contains([]string{"decorated.go", "doc.go", "report.go"}, name) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if word := features.Find(text); word != nil {
			t.Errorf("%s mentions %q", name, word)
		}
	}
}

// entered returns the files that one INSERT enters.
func entered(t *testing.T, program, guarantee string) (files []string) {
	t.Helper()
	dir, counters := t.TempDir(), t.TempDir()
	run := exec.Command(program, dir, counters, guarantee) //nolint:gosec // the test's own
	run.Env = append(os.Environ(), "GOCOVERDIR="+t.TempDir())
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	meta, err := filepath.Glob(filepath.Join(strings.TrimPrefix(run.Env[len(run.Env)-1], "GOCOVERDIR="), "covmeta.*"))
	if err != nil || len(meta) != 1 {
		t.Fatalf("%v, %v", meta, err)
	}
	if err := os.Rename(meta[0], filepath.Join(counters, filepath.Base(meta[0]))); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "covdata", "func", "-i="+counters).Output() //nolint:gosec // the test's own
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		file, _, _ := strings.Cut(line, ":")
		file, ours := strings.CutPrefix(file, module)
		if ours && !strings.HasSuffix(strings.TrimSpace(line), "\t0.0%") && !strings.HasPrefix(file, "internal/test/") && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
}
