package testdb

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supported says whether private servers can be run on this system.
func supported() error { return nil }

// own gives dir to the account that the server runs as: database servers
// refuse to run as root.
func own(dir string, accounts []string) error {
	cred, err := credential(accounts)
	if err != nil || cred == nil {
		return err
	}
	return os.Chown(dir, int(cred.Uid), int(cred.Gid))
}

// runAs makes cmd run in dir as that account.
func runAs(cmd *exec.Cmd, dir string, accounts []string) error {
	cred, err := credential(accounts)
	if err != nil {
		return err
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Setpgid: true}
	return nil
}

// credential is nil unless the caller is root.
func credential(accounts []string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range accounts {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("running as root, and there is none of the accounts %s to run the server as",
		strings.Join(accounts, ", "))
}

func startProcess(cmd *exec.Cmd, orphanSignal syscall.Signal) (*process, error) {
	p := &process{cmd: cmd, dead: make(chan struct{})}
	cmd.SysProcAttr.Pdeathsig = orphanSignal
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the
		// server ends, so this one stays until the server has.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			// How a killed server ended is of no interest.
			_ = cmd.Wait()
			close(p.dead)
		}
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

// kill stops the server before looking for its children, so that it cannot
// make new ones, nor notice their death and start over.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var pidfds []int
	defer func() {
		for _, fd := range pidfds {
			_ = unix.Close(fd)
		}
	}()
	for _, child := range descendants(p.cmd.Process.Pid) {
		fd, err := unix.PidfdOpen(child, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", child, err)
		}
		pidfds = append(pidfds, fd)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", child, err)
		}
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.dead
	for _, fd := range pidfds {
		if err := awaitExit(fd); err != nil {
			return err
		}
	}
	return nil
}

func awaitExit(pidfd int) error {
	deadline := time.Now().Add(stopTimeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("a child of the server is still there %s after it was killed", stopTimeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}

func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return signalAll(descendants(p.cmd.Process.Pid), syscall.SIGSTOP)
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

// descendants lists the processes below pid. PostgreSQL's each lead a session
// of their own, so that no process group holds them all.
func descendants(pid int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The command's name, in parentheses, may hold anything.
		end := bytes.LastIndexByte(text, ')')
		if end < 0 {
			continue
		}
		fields := strings.Fields(string(text[end+1:]))
		if len(fields) < 2 {
			continue
		}
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], child)
		}
	}
	var all []int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		all = append(all, children[queue[0]]...)
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// releaseSharedMemory removes the System V segment that a killed PostgreSQL
// leaves behind; its id is on the seventh line of its pid file.
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
