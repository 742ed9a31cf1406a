package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// bedJobBinary builds cmd/bed-job, as the tests themselves are built.
var bedJobBinary = sync.OnceValues(func() (string, error) {
	var err error
	if binaries, err = os.MkdirTemp("", "bed-acceptance-"); err != nil { //nolint:usetesting // for all tests
		return "", err
	}
	exe := filepath.Join(binaries, "bed-job")
	args := []string{"build", "-buildvcs=false", "-o", exe}
	if raceEnabled() {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "github.com/bedsql/bed/cmd/bed-job")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building bed-job: %w\n%s", err, out)
	}
	return exe, nil
})

func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// process is bed-job or one of programs, running.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	out bytes.Buffer
	// dead is closed when it has ended and its last line was read.
	dead chan struct{}

	mu    sync.Mutex
	lines []string // of its stderr, so far
	more  chan struct{}
}

// start runs bed-job, or a program of this test binary. It is killed with the test if it
// still runs then.
func start(t testing.TB, program string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if program == "bed-job" {
		exe, err = bedJobBinary()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.CommandContext(context.Background(), exe, args...), dead: make(chan struct{}), more: make(chan struct{})}
	// The race detector would let each process sleep for a second at its end.
	p.cmd.Env = append(os.Environ(), beProgram+"="+program, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	p.cmd.Stdout = &p.out
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.dead)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, sc.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		_ = p.cmd.Wait() // the status is read from ProcessState
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.dead
	})
	return p
}

// said is what the process wrote to stderr so far.
func (p *process) said() (lines []string, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.lines), p.more
}

// until waits for a line with text in it.
func (p *process) until(text string) {
	p.t.Helper()
	timeout := time.After(patience)
	for {
		lines, more := p.said()
		for _, line := range lines {
			if strings.Contains(line, text) {
				return
			}
		}
		select {
		case <-more:
		case <-p.dead:
			if after, _ := p.said(); len(after) == len(lines) {
				p.t.Fatalf("the process ended before it wrote %q:\n%s", text, strings.Join(lines, "\n"))
			}
		case <-timeout:
			// It writes the stacks of its goroutines, and ends.
			if p.cmd.Process.Signal(syscall.SIGQUIT) == nil {
				<-p.dead
			}
			lines, _ = p.said()
			p.t.Fatalf("waited in vain until the process wrote %q:\n%s", text, strings.Join(lines, "\n"))
		}
	}
}

// kill ends the process as a crash would, and waits until it is gone.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	waitFor(p.t, "the killed process was gone", p.dead)
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the process ended by itself before it was killed: %v", p.cmd.ProcessState)
	}
}

// terminate sends SIGTERM and returns the exit status.
func (p *process) terminate() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.status()
}

// status waits for the end of the process and returns its exit status.
func (p *process) status() int {
	p.t.Helper()
	waitFor(p.t, "the process ended", p.dead)
	return p.cmd.ProcessState.ExitCode()
}

// counted adds up what the job's lines say of its rounds.
func (p *process) counted() (delivered, lost int) {
	lines, _ := p.said()
	for _, line := range lines {
		at := strings.Index(line, "claimed ")
		if at < 0 {
			continue
		}
		var claimed, d, assumed, failed, parked, pushedBack, l int
		if _, err := fmt.Sscanf(line[at:], "claimed %d, delivered %d (assumed %d), failed %d, parked %d, pushed back %d, lost %d",
			&claimed, &d, &assumed, &failed, &parked, &pushedBack, &l); err == nil {
			delivered += d
			lost += l
		}
	}
	return delivered, lost
}

// jobFile writes a configuration of bed-job with a log, targets by data source, and the content of
// jobConfig.
func jobFile(t testing.TB, log testdb.DB, targets map[string]testdb.DB, jobConfig string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("targetDataSource:\n")
	for name, db := range targets {
		fmt.Fprintf(&b, "  %q: {driver: %s, dsn: %q}\n", name, db.Driver, db.DSN)
	}
	fmt.Fprintf(&b, "transactionLogDataSource: {driver: %s, dsn: %q}\njobConfig: {probeTimeoutMillis: 60000, %s}\n", log.Driver, log.DSN, jobConfig)
	file := filepath.Join(t.TempDir(), "bed-job.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
