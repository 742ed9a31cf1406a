package docs

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	block    = regexp.MustCompile("(?ms)^```\\w*\n(.*?)^```$")
	fileName = regexp.MustCompile(`^(?://|#) (\S+\.(?:go|yaml))\n`)
	entryID  = regexp.MustCompile(`[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	// varying matches parts that change between runs: times, ages and durations.
	varying = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|\(\d+s\)|\bin [\d.]+m?s\b`)
)

// A reader of docs/tutorial.md who saves its files and enters its commands gets the printed output,
// except for ids, times and column widths.
func TestTutorialShowsWhatItsStepsPrint(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	at := filepath.Join(home, "tutorial")
	bin := buildTutorial(t)
	command := strings.NewReplacer("go mod init example.com/tutorial", ":", "go get github.com/bedsql/bed/cmd/bed-job@latest", ":", "go build github.com/bedsql/bed/cmd/bed-job", "cp "+bin+"/bed-job .", "go run ./", bin+"/")
	sh := startShell(t, home)
	ids := map[string]string{} // the page's and this run's
	steps := 0
	for _, body := range tutorialBlocks(t) {
		if file := fileName.FindStringSubmatch(body); file != nil {
			if err := os.WriteFile(filepath.Join(at, file[1]), []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, step := range strings.Split("\n"+body, "\n$ ")[1:] {
			steps++
			line, want, _ := strings.Cut(step, "\n")
			for of, is := range ids {
				line = strings.ReplaceAll(line, of, is)
			}
			got := sh(command.Replace(line))
			shown, are := entryID.FindAllString(want, -1), entryID.FindAllString(got, -1)
			for i := range min(len(shown), len(are)) {
				ids[shown[i]] = are[i]
				want = strings.ReplaceAll(want, shown[i], are[i])
			}
			if sameEachTime(got) != sameEachTime(want) {
				t.Fatalf("docs/tutorial.md: %s\nprints\n%s\nand is to print\n%s", line, got, want)
			}
		}
	}
	if steps < 30 || len(ids) < 3 {
		t.Errorf("only %d steps with %d entries were found", steps, len(ids))
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("the tutorial leaves %v behind: %v", left, err)
	}
}

func tutorialBlocks(t *testing.T) (bodies []string) {
	t.Helper()
	for _, m := range block.FindAllStringSubmatch(read(t, "docs/tutorial.md"), -1) {
		bodies = append(bodies, m[1])
	}
	return bodies
}

func sameEachTime(s string) string {
	return strings.Join(strings.Fields(varying.ReplaceAllString(s, "~")), " ")
}

// buildTutorial builds bed-job and the page's programs in another module, like a reader without the
// repository; this checkout replaces the released version.
func buildTutorial(t *testing.T) (bin string) {
	t.Helper()
	dir := t.TempDir()
	bin = t.TempDir()
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/tutorial\n\ngo 1.25.0\n\nrequire github.com/bedsql/bed v0.0.0\n\nreplace github.com/bedsql/bed => "+checkout+"\n")
	write("go.sum", read(t, "go.sum"))
	packages := []string{"github.com/bedsql/bed/cmd/bed-job"}
	for _, body := range tutorialBlocks(t) {
		if file := fileName.FindStringSubmatch(body); file != nil && filepath.Ext(file[1]) == ".go" {
			write(file[1], body)
			packages = append(packages, "./"+filepath.Dir(file[1]))
		}
	}
	if len(packages) != 3 {
		t.Fatalf("the programs are %v", packages)
	}
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-mod=mod", "-o", bin + "/"}, packages...)...)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off", "GONOSUMDB=*")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// startShell returns a function that enters a line in one shell and returns its standard output. A
// failing line fails the test.
func startShell(t *testing.T, dir string) func(line string) string {
	t.Helper()
	const ended = "-- ended "
	cmd := exec.CommandContext(t.Context(), "sh")
	cmd.Dir, cmd.Stderr = dir, t.Output()
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil || cmd.Start() != nil {
		t.Fatal(err1, err2)
	}
	t.Cleanup(func() {
		if err := in.Close(); err == nil {
			_ = cmd.Wait()
		}
	})
	lines := bufio.NewReader(out)
	return func(line string) string {
		t.Helper()
		if _, err := io.WriteString(in, line+"\necho \""+ended+"$?\"\n"); err != nil {
			t.Fatal(err)
		}
		var printed strings.Builder
		for {
			got, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if status, ok := strings.CutPrefix(got, ended); ok {
				if status != "0\n" {
					t.Fatalf("%s: exit status %s%s", line, status, printed.String())
				}
				return printed.String()
			}
			printed.WriteString(got)
		}
	}
}
