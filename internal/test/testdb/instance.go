package testdb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	dirPrefix = "bed-testdb-"
	// startTimeout allows for crash recovery on a busy machine.
	startTimeout = 5 * time.Minute
	stopTimeout  = time.Minute
	portAttempts = 20
)

// instance is a server of its own directory and port, running or not.
type instance struct {
	recipe recipe
	// extra are options of the server; those beginning with "env:" are variables of its
	// environment.
	extra []string
	dir   string
	port  int
	// kept keeps the port for it while it is not running.
	kept io.Closer
	// proc is nil while the server is not running.
	proc *process
}

func newInstance(r recipe, extra []string) (*instance, error) {
	// The server's account cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	inst := &instance{recipe: r, extra: extra, dir: dir}
	if err := inst.prepare(); err != nil {
		return nil, errors.Join(err, inst.close())
	}
	return inst, nil
}

func (i *instance) prepare() error {
	if err := own(i.dir, i.recipe.account); err != nil {
		return err
	}
	cmd, err := i.recipe.initialise(i.dir)
	if err != nil {
		return err
	}
	if err := runAs(cmd, i.dir, i.recipe.account); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make its data with %s: %w\n%s", filepath.Base(cmd.Path), err, out)
	}
	for range portAttempts {
		if i.port, i.kept, err = freePort(); err != nil {
			return err
		}
		// Somebody else may take the port before the server does.
		if err = i.start(); !errors.Is(err, errExited) {
			return err
		}
		_ = i.kept.Close()
	}
	return err
}

const envOption = "env:"

var errExited = errors.New("the server exited while starting")

func (i *instance) start() error {
	if i.running() {
		return nil
	}
	var options, env []string
	for _, o := range i.extra {
		if v, ok := strings.CutPrefix(o, envOption); ok {
			env = append(env, v)
		} else {
			options = append(options, o)
		}
	}
	cmd, err := i.recipe.serve(i.dir, i.port, options)
	if err != nil {
		return err
	}
	if err := runAs(cmd, i.dir, i.recipe.account); err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, env...)
	log, err := os.OpenFile(i.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	proc, err := startProcess(cmd, log, i.recipe.orphanSignal)
	if err != nil {
		return err
	}
	i.proc = proc
	return i.awaitReady()
}

func (i *instance) running() bool {
	if i.proc == nil {
		return false
	}
	select {
	case <-i.proc.dead: // of itself
		i.proc = nil
		return false
	default:
		return true
	}
}

// awaitReady polls, since there is no general signal of a server's readiness.
func (i *instance) awaitReady() error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-i.proc.dead:
			i.proc = nil
			return fmt.Errorf("%w; end of its log:\n%s", errExited, i.logTail())
		case <-deadline.C:
			return errors.Join(fmt.Errorf("no answer within %s: %w; end of its log:\n%s", startTimeout, last, i.logTail()), i.kill())
		case <-tick.C:
			if last = i.ping(); last == nil {
				return nil
			}
		}
	}
}

func (i *instance) kill() error {
	if !i.running() {
		return nil
	}
	proc := i.proc
	i.proc = nil
	return proc.kill()
}

func (i *instance) stop() error {
	if !i.running() {
		return nil
	}
	// A paused server would not notice.
	if err := errors.Join(i.proc.signal(i.recipe.stopSignal), i.proc.resume()); err != nil {
		return err
	}
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	select {
	case <-i.proc.dead:
		i.proc = nil
		return nil
	case <-deadline.C:
		return errors.Join(fmt.Errorf("still running %s after a request to stop; end of its log:\n%s", stopTimeout, i.logTail()), i.kill())
	}
}

// close ends the server and removes its data. An orderly end is unnecessary, because the data is
// not needed any more.
func (i *instance) close() error {
	err := i.kill()
	releaseSharedMemory(filepath.Join(i.dir, "data"))
	if i.kept != nil {
		_ = i.kept.Close()
	}
	return errors.Join(err, os.RemoveAll(i.dir))
}

func (i *instance) ping() error {
	if i.recipe.ready != nil {
		return i.recipe.ready(i.addr())
	}
	return i.admin().ping()
}

func (i *instance) admin() admin { return admin{driver: i.recipe.driver, dsn: i.recipe.dsn(i.port)} }

func (i *instance) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(i.port)) }

func (i *instance) logFile() string { return filepath.Join(i.dir, "server.log") }

func (i *instance) logTail() string {
	const lines = 30
	text, err := os.ReadFile(i.logFile())
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// freePort finds an unused port; see [Listen] for kept.
func freePort() (port int, kept io.Closer, err error) {
	l, kept, err := Listen(20000)
	if err != nil {
		return 0, nil, err
	}
	return l.Addr().(*net.TCPAddr).Port, kept, l.Close()
}

// keptPort is freePort's for as long as the test runs.
func keptPort(t testing.TB) int {
	t.Helper()
	port, kept, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	return port
}

// Listen takes a port of 127.0.0.1 between lowest and 10000 above it. Below 32000 the kernel
// assigns none to clients, so that no outgoing connection takes the port of a stopped server. No
// process gets the same port from Listen until kept is closed. kept is the UDP port of the same
// number.
func Listen(lowest int) (l net.Listener, kept io.Closer, err error) {
	const count = 10000
	for range portAttempts {
		addr := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(count))
		if kept, err = net.ListenPacket("udp", addr); err != nil {
			continue
		}
		if l, err = net.Listen("tcp", addr); err == nil {
			return l, kept, nil
		}
		_ = kept.Close()
	}
	return nil, nil, fmt.Errorf("no free port between %d and %d: %w", lowest, lowest+count, err)
}

// process is a running server and its children.
type process struct {
	cmd *exec.Cmd
	// dead is closed when the server has exited and was waited for.
	dead chan struct{}
}
