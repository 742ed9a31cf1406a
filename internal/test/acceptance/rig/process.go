package rig

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

// Process is bed-job or one of programs, running.
type Process struct {
	t   testing.TB
	Cmd *exec.Cmd
	Out bytes.Buffer
	// Dead is closed when it has ended and its last line was read.
	Dead chan struct{}

	mu    sync.Mutex
	lines []string // of its stderr, so far
	more  chan struct{}
}

// Start runs bed-job, or a program of this test binary. It is killed with the test if it
// still runs then.
func Start(t testing.TB, program string, args ...string) *Process {
	t.Helper()
	return start(t, program, nil, args...)
}

// StartWith is Start with one more variable of the environment.
func StartWith(t testing.TB, program, variable string) *Process {
	t.Helper()
	return start(t, program, []string{variable})
}

func start(t testing.TB, program string, env []string, args ...string) *Process {
	t.Helper()
	exe, err := os.Executable()
	if program == "bed-job" {
		exe, err = bedJobBinary()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, Cmd: exec.CommandContext(context.Background(), exe, args...), Dead: make(chan struct{}), more: make(chan struct{})}
	// The race detector would let each process sleep for a second at its end.
	p.Cmd.Env = append(append(os.Environ(), BeProgram+"="+program, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")), env...)
	p.Cmd.Stdout = &p.Out
	stderr, err := p.Cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.Dead)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, sc.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		_ = p.Cmd.Wait() // the status is read from ProcessState
	}()
	t.Cleanup(func() {
		_ = p.Cmd.Process.Kill()
		<-p.Dead
	})
	return p
}

// Said is what the process wrote to stderr so far.
func (p *Process) Said() (lines []string, more <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.lines), p.more
}

// Until waits for a line with text in it.
func (p *Process) Until(text string) {
	p.t.Helper()
	timeout := time.After(Patience)
	for {
		lines, more := p.Said()
		for _, line := range lines {
			if strings.Contains(line, text) {
				return
			}
		}
		select {
		case <-more:
		case <-p.Dead:
			if after, _ := p.Said(); len(after) == len(lines) {
				p.t.Fatalf("the process ended before it wrote %q:\n%s", text, strings.Join(lines, "\n"))
			}
		case <-timeout:
			// It writes the stacks of its goroutines, and ends.
			if p.Cmd.Process.Signal(syscall.SIGQUIT) == nil {
				<-p.Dead
			}
			lines, _ = p.Said()
			p.t.Fatalf("waited in vain until the process wrote %q:\n%s", text, strings.Join(lines, "\n"))
		}
	}
}

// Kill ends the process as a crash would, and waits until it is gone.
func (p *Process) Kill() {
	p.t.Helper()
	if err := p.Cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	WaitFor(p.t, "the killed process was gone", p.Dead)
	if status, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		p.t.Fatalf("the process ended by itself before it was killed: %v", p.Cmd.ProcessState)
	}
}

// Terminate sends SIGTERM and returns the exit status.
func (p *Process) Terminate() int {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	return p.Status()
}

// Status waits for the end of the process and returns its exit status.
func (p *Process) Status() int {
	p.t.Helper()
	WaitFor(p.t, "the process ended", p.Dead)
	return p.Cmd.ProcessState.ExitCode()
}

// Counted adds up what the job's lines say of its rounds.
func (p *Process) Counted() (delivered, lost int) {
	lines, _ := p.Said()
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

// JobFile writes a configuration of bed-job with a log, targets by data source, and the content of
// jobConfig.
func JobFile(t testing.TB, log testdb.DB, targets map[string]testdb.DB, jobConfig string) string {
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
