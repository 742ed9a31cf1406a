package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each of packages is run by the real go test.
func TestTheSummaryShowsWhatFailedAndCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		test, last string
		want, no   []string
	}{
		"passes": {
			test: "func TestA(t *testing.T) { t.Log(\"quiet\"); t.Run(\"sub\", func(t *testing.T) {}) }\nfunc TestB(t *testing.T) { t.Skip(\"no server\") }",
			want: []string{"ok  \tm", "packages: 1; 1 skipped: no server"}, no: []string{"quiet", "PASS"}, last: "2 passed, 0 failed, 1 skipped",
		},
		"fails": {
			test: "func TestA(t *testing.T) { t.Log(\"quiet\") }\nfunc TestB(t *testing.T) { t.Log(\"loud\"); t.Error(\"wrong\") }",
			want: []string{"loud", "wrong", "--- FAIL: TestB", "FAIL\tm"}, no: []string{"quiet", "=== RUN"}, last: "1 passed, 1 failed, 0 skipped",
		},
		"panics": {
			test: "func TestA(t *testing.T) { panic(\"oh\") }",
			want: []string{"panic: oh", "main_test.go:", "FAIL\tm"}, last: "0 passed, 1 failed, 0 skipped",
		},
		"cut off": {
			test: "func TestA(t *testing.T) { t.Parallel(); t.Log(\"waits\"); select {} }\nfunc TestB(t *testing.T) { t.Parallel(); go panic(\"oh\"); select {} }",
			want: []string{"panic: oh", "FAIL\tm"}, last: "0 passed, 2 failed, 0 skipped",
		},
		"ends early": {
			test: "func TestMain(m *testing.M) { println(\"early\"); os.Exit(3) }",
			want: []string{"early", "FAIL\tm"}, last: "0 passed, 1 failed, 0 skipped",
		},
		"is not built": {
			test: "func TestA(t *testing.T) { wrong }",
			want: []string{"undefined: wrong", "FAIL\tm [build failed]"}, last: "0 passed, 1 failed, 0 skipped",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			source := "package m\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n" + c.test + "\n"
			for file, text := range map[string]string{"go.mod": "module m\n", "main_test.go": source} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("go", "test", "-json", "./...")
			cmd.Dir = dir
			tests, err := cmd.Output()
			var out strings.Builder
			s := newSummary(&out, false)
			if rerr := s.read(strings.NewReader("a line\n" + string(tests))); rerr != nil {
				t.Fatal(rerr)
			}
			s.close()
			if (err != nil) != (s.failed > 0) {
				t.Errorf("go test ended with %v, and %d failed", err, s.failed)
			}
			if !strings.HasPrefix(out.String(), "a line\n") || !strings.HasSuffix(out.String(), "\n"+c.last+"\n") {
				t.Errorf("it does not end with %q:\n%s", c.last, out.String())
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing in\n%s", want, out.String())
				}
			}
			for _, no := range c.no {
				if strings.Contains(out.String(), no) {
					t.Errorf("%q should not be in\n%s", no, out.String())
				}
			}
		})
	}
}
