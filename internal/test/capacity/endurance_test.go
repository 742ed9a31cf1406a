package capacity

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// endurance is the length, the rate and the sampling of a run. The target is unreachable in the
// third sixth; the second sixth shows the state before, the last one the state after. A short
// outage in the first sixth makes both processes allocate early the resources used only in outages.
type endurance struct {
	lasts, every time.Duration
	rate         int // a second
	tryDelay     time.Duration
	// judged are memory and times, not only counts.
	judged  bool
	engines []string
}

// endured returns the settings from the environment.
func endured(t *testing.T) endurance {
	t.Helper()
	text := os.Getenv("BED_TEST_ENDURANCE")
	if text == "" {
		return endurance{12 * time.Second, 250 * time.Millisecond, 100, asyncjob.NoDelay, false, []string{testdb.DriverMySQL, testdb.DriverPostgres}}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	e := endurance{d, 10 * time.Second, 500, 0, true, []string{testdb.DriverMySQL}}
	if on := os.Getenv("BED_TEST_ENDURANCE_ON"); on != "" {
		e.engines[0] = on
	}
	return e
}

func TestEnduranceThroughAnOutage(t *testing.T) {
	turn(t, "BED_TEST_ENDURANCE")
	e := endured(t)
	for _, engine := range e.engines {
		t.Run(engine, func(t *testing.T) {
			turn(t, "BED_TEST_ENDURANCE")
			private := func() testdb.DB {
				return testdb.PrivateMariaDB(t, "--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M", "--max-connections=500").DB(t)
			}
			if engine == testdb.DriverPostgres {
				private = func() testdb.DB {
					return testdb.PrivatePostgres(t, "shared_buffers=512MB", "max_wal_size=4GB", "max_connections=400").DB(t)
				}
			}
			(&marathon{endurance: e, t: t, target: private(), log: private()}).run()
		})
	}
}

// marathon is a run.
type marathon struct {
	endurance
	t             *testing.T
	target, log   testdb.DB
	bare, entries *sql.DB // the two past bed
	begun         time.Time
	// back is when the target was reachable again, drained when no older write was waiting any
	// more.
	back, drained time.Time
	samples       map[string][]taken
	waiting       []int // entries, at each sample of the application
}

type taken struct {
	at time.Duration // since begun
	sample
}

// report is a sample of a process, or its end.
type report struct {
	role   string
	sample sample
	ended  bool
	err    error
}

func (m *marathon) run() {
	m.bare, m.entries = m.target.Open(m.t), m.log.Open(m.t)
	m.samples, m.waiting = map[string][]taken{}, []int{0}
	for _, s := range []string{"CREATE TABLE line (n BIGINT NOT NULL)", "CREATE INDEX line_n ON line (n)"} {
		if _, err := m.bare.Exec(s); err != nil {
			m.t.Fatal(err)
		}
	}
	proxy, reports := testproxy.New(m.t, m.target.Addr()), make(chan report)
	job := m.start(theJob, proxy.Addr(), reports)
	m.awaitFirst(theJob, reports)
	m.start(theApplication, proxy.Addr(), reports)
	m.awaitFirst(theApplication, reports)
	m.begun = time.Now()
	m.write(proxy, reports)
	m.drain(reports)
	if err := job.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
	for r := range reports {
		if r.ended {
			if r.err != nil {
				m.t.Errorf("the job ended: %v", r.err)
			}
			break
		}
	}
	m.judge()
}

// awaitFirst waits for the first sample of a process, and so for its start.
func (m *marathon) awaitFirst(role string, reports <-chan report) {
	m.t.Helper()
	for r := range reports {
		if r.ended {
			m.t.Fatalf("the %s ended: %v", r.role, r.err)
		}
		if r.role == role {
			return
		}
	}
}

// write is while the application writes.
func (m *marathon) write(proxy *testproxy.Proxy, reports <-chan report) {
	m.t.Helper()
	moments := []time.Duration{m.lasts / 60, m.lasts / 30, m.lasts / 3, m.lasts / 2} // away, back, and again
	next, look := time.NewTimer(moments[0]), time.NewTicker(m.every/10)
	defer next.Stop()
	defer look.Stop()
	for {
		select {
		case r := <-reports:
			switch {
			case !r.ended:
				m.note(r)
			case r.role == theJob:
				m.t.Fatalf("the job ended: %v", r.err)
			case r.err != nil:
				m.t.Errorf("the application ended: %v", r.err)
				return
			default:
				return
			}
		case <-next.C:
			if len(moments)%2 == 0 {
				proxy.Refuse()
				proxy.CutAll()
			} else {
				proxy.Accept()
			}
			if moments = moments[1:]; len(moments) > 0 {
				next.Reset(time.Until(m.begun.Add(moments[0])))
			} else {
				m.back = time.Now()
			}
		case <-look.C:
			m.look()
		}
	}
}

// drain waits until the job has worked off the application's writes.
func (m *marathon) drain(reports <-chan report) {
	m.t.Helper()
	look, late := time.NewTicker(m.every/10), time.After(m.lasts+time.Minute)
	defer look.Stop()
	for {
		empty := scan(m.t, m.entries, "SELECT COUNT(*) FROM transaction_log") == "0" // and stays so
		if m.look(); empty {
			return
		}
		select {
		case r := <-reports:
			if r.ended {
				m.t.Fatalf("the %s ended: %v", r.role, r.err)
			}
		case <-look.C:
		case <-late:
			return // what is left is judged
		}
	}
}

// start has a process tell reports of itself.
func (m *marathon) start(role, target string, reports chan<- report) *exec.Cmd {
	m.t.Helper()
	order, err := json.Marshal(enduring{
		Role: role, Driver: m.target.Driver, Target: m.target.Via(target).DSN + "&bedDataSource=" + dataSource, Log: m.log.DSN,
		Writes: m.writes(), Rate: m.rate, Every: m.every, TryDelay: m.tryDelay,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, exe)
	// The race detector would let it sleep for a second at its end.
	cmd.Env = append(os.Environ(), enduringEnv+"="+string(order), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stderr = m.t.Output()
	_, err = cmd.StdinPipe() // which ends with this process
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	done := make(chan struct{})
	tell := func(r report) {
		r.role = role
		select {
		case reports <- r:
		case <-ctx.Done():
		}
	}
	go func() {
		defer close(done)
		for d := json.NewDecoder(out); ; {
			var s sample
			if d.Decode(&s) != nil {
				break // it has ended
			}
			tell(report{sample: s})
		}
		tell(report{ended: true, err: cmd.Wait()})
	}()
	m.t.Cleanup(func() {
		cancel()
		<-done
	})
	return cmd
}

func (m *marathon) writes() int { return int(m.lasts.Seconds()) * m.rate }

// note keeps a sample, and tells of each sixth one.
func (m *marathon) note(r report) {
	m.t.Helper()
	at := time.Since(m.begun)
	m.samples[r.role] = append(m.samples[r.role], taken{at, r.sample})
	if r.role != theApplication {
		return
	}
	n := 0
	if err := m.entries.QueryRow("SELECT COUNT(*) FROM transaction_log").Scan(&n); err != nil {
		m.t.Fatal(err)
	}
	m.waiting = append(m.waiting, n)
	if jobs := m.samples[theJob]; m.judged && len(m.waiting)%6 == 0 && len(jobs) > 0 {
		m.t.Logf("%v: %d entries, application: %v, job: %v", at.Round(time.Second), n, r.sample, jobs[len(jobs)-1].sample)
	}
}

// look checks whether the backlog of the outage is gone. Entries are in the order of their ids,
// which begin with the time.
func (m *marathon) look() {
	if m.back.IsZero() || !m.drained.IsZero() {
		return
	}
	oldest := int64(0)
	if err := m.entries.QueryRow("SELECT COALESCE(MIN(creation_time), 0) FROM (SELECT creation_time FROM transaction_log ORDER BY id LIMIT 1) AS oldest").Scan(&oldest); err != nil {
		m.t.Fatal(err)
	}
	if oldest == 0 || oldest > m.back.UnixMilli() {
		m.drained = time.Now()
		m.t.Logf("the backlog of an outage of %v at %d writes/s was gone %v after its end", m.lasts/6, m.rate, m.drained.Sub(m.back).Round(m.every/10))
	}
}

func (s sample) String() string {
	return fmt.Sprintf("heap %d KiB, RSS %d KiB, %d goroutines, %d sockets; %d delivered, %d pending, p50 %v, p99 %v, late %v",
		s.HeapKiB, s.RSSKiB, s.Goroutines, s.Sockets, s.Delivered, s.Pending,
		s.P50.Round(10*time.Microsecond), s.P99.Round(10*time.Microsecond), s.Late.Round(10*time.Microsecond))
}
