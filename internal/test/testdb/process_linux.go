package testdb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// own gives dir to the server's account: database servers refuse to run as root.
func own(dir, account string) error {
	cred, err := credential(account)
	if err != nil || cred == nil {
		return err
	}
	return os.Chown(dir, int(cred.Uid), int(cred.Gid))
}

// runAs makes cmd run in dir as the given account.
func runAs(cmd *exec.Cmd, dir, account string) error {
	cred, err := credential(account)
	if err != nil {
		return err
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true}
	return nil
}

// credential is nil unless the caller is root.
func credential(account string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return nil, fmt.Errorf("running as root, and the server's own account is missing: %w", err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
}

// startProcess starts a server with its output in log, and closes log. Waiting for the server
// includes its children: all of them hold the pipe to log.
func startProcess(cmd *exec.Cmd, log *os.File, orphanSignal syscall.Signal) (*process, error) {
	p := &process{cmd: cmd, dead: make(chan struct{})}
	pipe := struct{ io.Writer }{log} // not the file itself, which the children would get in its place
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = pipe, pipe, stopTimeout
	cmd.SysProcAttr.Pdeathsig = orphanSignal
	started := make(chan error)
	go func() {
		// The kernel sends the signal at the end of the thread that started the server, so this
		// thread stays until the server ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			// How a killed server ended is of no interest.
			_ = cmd.Wait()
			close(p.dead)
		}
		_ = log.Close()
	}()
	return p, <-started
}

func (p *process) signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kill stops the server before looking for its children, so that it can neither make new ones nor
// notice their death and restart. It returns after the death of all.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	children := descendants(p.cmd.Process.Pid)
	err := errors.Join(signalAll(children, syscall.SIGKILL), p.signal(syscall.SIGKILL))
	<-p.dead
	for _, pid := range children {
		for alive(pid) { // it has let go of the pipe, but may not be through
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

// alive is false for a zombie.
func alive(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := p.Stat()
	return err == nil && stat.State != "Z"
}

func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	children := descendants(p.cmd.Process.Pid)
	err := signalAll(children, syscall.SIGSTOP)
	for _, pid := range append(children, p.cmd.Process.Pid) {
		for running(pid) {
			time.Sleep(time.Millisecond)
		}
	}
	return err
}

// running reports whether a thread goes on: SIGSTOP reaches each of them a little later.
func running(pid int) bool {
	threads, _ := procfs.AllThreads(pid)
	return slices.ContainsFunc(threads, func(t procfs.Proc) bool {
		stat, err := t.Stat()
		return err == nil && !strings.Contains("TtZX", stat.State)
	})
}

func (p *process) resume() error {
	if err := signalAll(descendants(p.cmd.Process.Pid), syscall.SIGCONT); err != nil {
		return err
	}
	return p.signal(syscall.SIGCONT)
}

func signalAll(pids []int, sig syscall.Signal) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// descendants lists the processes below pid. Each PostgreSQL process leads its own session, so that
// no process group holds them all.
func descendants(pid int) []int {
	children := map[int][]int{}
	procs, _ := procfs.AllProcs()
	for _, p := range procs {
		if stat, err := p.Stat(); err == nil { // else it has ended
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	var all []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		all = append(all, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// releaseSharedMemory removes the System V segment of a killed PostgreSQL; its id is on the seventh
// line of the pid file.
func releaseSharedMemory(dataDir string) {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return
	}
	if id, err := strconv.Atoi(fields[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}
