package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// tick is the unit of the times in /proc.
const tick = 10 * time.Millisecond

// spent is the processor time of this process and of the servers. It shows the parts of a write's
// time even on a busy machine.
type spent struct{ here, mysql, postgres time.Duration }

func (s spent) minus(o spent) spent {
	return spent{s.here - o.here, s.mysql - o.mysql, s.postgres - o.postgres}
}

func (s spent) plus(o spent) spent {
	return spent{s.here + o.here, s.mysql + o.mysql, s.postgres + o.postgres}
}

// processes are the servers' processes: on Linux, with the servers on the same machine. 0 means
// that the processor time cannot be read.
type processes struct{ mysql, postgres int }

func (s *site) processes(ctx context.Context) processes {
	var p processes
	if file, err := s.text(ctx, testdb.DriverMySQL, "SELECT @@pid_file"); err == nil {
		if b, err := os.ReadFile(file); err == nil {
			p.mysql, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		}
	}
	if backend, err := s.text(ctx, testdb.DriverPostgres, "SELECT pg_backend_pid()"); err == nil {
		if pid, err := strconv.Atoi(backend); err == nil {
			p.postgres = stat(pid).parent
		}
	}
	return p
}

func (s *site) text(ctx context.Context, driver, query string) (answer string, err error) {
	p, err := s.create(driver)
	if err != nil {
		return "", err
	}
	pool, err := p.look()
	if err != nil {
		return "", err
	}
	return answer, pool.QueryRowContext(ctx, query).Scan(&answer)
}

// now reads the processor times so far.
func (p processes) now() spent {
	return spent{here: stat(os.Getpid()).own, mysql: stat(p.mysql).own, postgres: p.family(p.postgres)}
}

// family is the time of a process, of its living children, and of its dead ones.
func (p processes) family(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	parent := stat(pid)
	sum := parent.own + parent.buried
	for _, dir := range all {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if s := stat(child); s.parent == pid {
			sum += precise(child, s.own)
		}
	}
	return sum
}

// precise is the time of a single-threaded process to the nanosecond. Each of many may have had
// less than a tick.
func precise(pid int, ticks time.Duration) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return ticks
	}
	var ran int64
	if _, err := fmt.Sscan(string(b), &ran); err != nil || ran == 0 {
		return ticks
	}
	return time.Duration(ran)
}

// process is the entry of a process in /proc.
type process struct {
	parent      int
	own, buried time.Duration
}

func stat(pid int) process {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}
	}
	// The name, in parentheses, may hold anything.
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')'):]), " ")
	fields := strings.Fields(rest)
	const parent, user, system, buriedUser, buriedSystem = 1, 11, 12, 13, 14
	if len(fields) <= buriedSystem {
		return process{}
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return n
	}
	return process{
		parent: int(number(parent)),
		own:    time.Duration(number(user)+number(system)) * tick,
		buried: time.Duration(number(buriedUser)+number(buriedSystem)) * tick,
	}
}
