package soak

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

// rest lets the applications end.
func (w *world) rest() {
	w.t.Helper()
	var wg sync.WaitGroup
	for _, p := range w.apps {
		wg.Go(func() { w.terminate(p) })
	}
	wg.Wait()
	for _, p := range w.replaced {
		w.ended(p)
	}
}

// quiet waits until the jobs have worked the log off and purged the receipts, examines the
// processes, and ends them.
func (w *world) quiet() {
	w.t.Helper()
	w.until("all but ways back is worked off", 5*time.Minute, w.log, "SELECT COUNT(*) FROM transaction_log WHERE parked = 0 AND SUBSTR(id, 1, 33) <> SUBSTR(transaction_id, 1, 33)")
	w.exec(w.log, "UPDATE transaction_log SET next_try_time = 0 WHERE parked = 0 AND lease_token IS NULL") // a job looks at these once a minute
	w.until("the log is worked off", 5*time.Minute, w.log, "SELECT COUNT(*) FROM transaction_log WHERE parked = 0")
	if w.o.retention < time.Hour {
		// Receipts of parked entries stay as long as the entries.
		parked := "''"
		w.rows(w.log, "SELECT DISTINCT SUBSTR(id, 1, 33) FROM transaction_log", func(scan func(...any) error) error {
			var unit string
			err := scan(&unit)
			parked += ", '" + unit + "'"
			return err
		})
		for _, d := range w.targets {
			w.until("the receipts of "+d.name+" are purged", w.o.retention+5*time.Minute, d,
				"SELECT COUNT(*) FROM bed_receipt WHERE fingerprint IS NULL AND SUBSTR(unit_id, 1, 33) NOT IN ("+parked+")")
		}
	}
	w.use("when all is done", true, w.jobs[:])
	w.sessions()
	w.goroutines(w.jobs[0])
	for _, p := range w.jobs[1:] {
		w.terminate(p)
	}
	w.reports()
}

// usage is a process's resources, as reported by the system.
type usage struct{ files, memoryKiB int }

// An idle process may hold somewhat more than at first: another pooled connection, and memory kept
// by the garbage collector.
const (
	moreFiles      = 16
	moreMemoryKiB  = 96 << 10
	moreHeapKiB    = 16 << 10
	idleGoroutines = 60
	// preparedEach is for one connection: a driver's cache of all texts there are.
	preparedEach = 48
	sessionsEach = 12
)

// use logs the resources of processes, if the system reports them. The first application and the
// first job live as long as the run. In the end that job must not hold more than at first.
func (w *world) use(when string, idle bool, of []*process) {
	w.t.Helper()
	for _, p := range of {
		dir := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
		files, err := os.ReadDir(dir + "fd")
		if err != nil {
			continue
		}
		status, _ := os.ReadFile(dir + "status")
		_, resident, _ := strings.Cut(string(status), "VmRSS:")
		resident, _, _ = strings.Cut(strings.TrimSpace(resident), " ")
		now := usage{files: len(files)}
		now.memoryKiB, _ = strconv.Atoi(resident)
		w.t.Logf("%s: %s holds %d files and connections, %d KiB of memory", when, p.name, now.files, now.memoryKiB)
		first, known := w.firstUse[p]
		if !known {
			w.firstUse[p] = now
		} else if idle && p == w.jobs[0] && (now.files > first.files+moreFiles || now.memoryKiB > first.memoryKiB+moreMemoryKiB) {
			w.t.Errorf("%s holds %+v %s, and held %+v", p.name, now, when, first)
		}
	}
}

// sessions are those of the jobs alone: applications have ended.
func (w *world) sessions() {
	w.t.Helper()
	servers := []*database{w.targets[bankM], w.targets[bankP]}
	if w.log.proxies != nil {
		servers = append(servers, w.log)
	}
	for _, d := range servers {
		d.direct.SetMaxIdleConns(1)
		query, prepared := "SELECT GREATEST(0, COUNT(*) - %d) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()", ""
		if d.db.Driver == testdb.DriverMySQL {
			query = "SELECT GREATEST(0, COUNT(*) - %d) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
			prepared = "SELECT GREATEST(0, VARIABLE_VALUE - %d) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'PREPARED_STMT_COUNT'"
		}
		w.until("there are no more sessions on "+d.name+" than the jobs may have", time.Minute, d, fmt.Sprintf(query, sessionsEach*jobs))
		if prepared != "" && d.server != nil {
			w.until("there are no more prepared statements on "+d.name+" than the jobs may have", time.Minute, d, fmt.Sprintf(prepared, preparedEach*sessionsEach*jobs))
		}
	}
}

// goroutines ends a job in a way that makes it print its goroutines.
func (w *world) goroutines(p *process) {
	w.t.Helper()
	p.signal(syscall.SIGQUIT)
	<-p.dead
	_ = p.in.Close()
	text, err := os.ReadFile(filepath.Join(w.dir, p.name+".out"))
	if err != nil {
		w.t.Fatal(err)
	}
	n := strings.Count(string(text), "\ngoroutine ")
	w.t.Logf("%s has %d goroutines when it is idle", p.name, n)
	if n == 0 || n > idleGoroutines {
		w.t.Errorf("%s has %d goroutines when it is idle: %s", p.name, n, text[max(0, len(text)-200_000):])
	}
}

// reports reads the reports of applications after an orderly end.
func (w *world) reports() {
	w.t.Helper()
	for _, p := range slices.Concat(w.apps[:], w.replaced) {
		if !strings.HasPrefix(p.name, "app") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(w.dir, p.name+".report"))
		if err != nil {
			w.t.Errorf("%s left no report: %v; %s", p.name, err, w.said(p))
			continue
		}
		var r appReport
		if err := json.Unmarshal(text, &r); err != nil {
			w.t.Fatal(err)
		}
		w.t.Logf("%s, release %d of build %s: goroutines %d, %d at work, %d idle, %d in the end; KiB of heap %d, %d in the end; prepared statements on a connection %v",
			p.name, r.Release, r.Build, r.Goroutines[0], r.Goroutines[1], r.Goroutines[2], r.Goroutines[3], r.HeapKiB[0], r.HeapKiB[1], r.Prepared)
		switch {
		case r.Early:
			continue
		case r.Goroutines[3] > r.Goroutines[0]:
			w.t.Errorf("%s leaks goroutines:\n%s", p.name, r.Stacks)
		case len(r.Sockets) > 0:
			w.t.Errorf("%s has closed all, and these are open: %v\n%s", p.name, r.Sockets, r.Stacks)
		case r.HeapKiB[1] > r.HeapKiB[0]+moreHeapKiB:
			w.t.Errorf("%s has closed all, and its heap grew from %d to %d KiB", p.name, r.HeapKiB[0], r.HeapKiB[1])
		}
		if w.o.private && len(w.o.apps) > 1 && (r.Build == nextBuild) != (r.Release%2 == 1) {
			w.t.Errorf("%s is release %d and of build %q", p.name, r.Release, r.Build)
		}
		for target, n := range r.Prepared {
			if n > preparedEach {
				w.t.Errorf("%s: a connection to %s has %d prepared statements", p.name, target, n)
			}
		}
	}
}
