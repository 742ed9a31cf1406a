package cli

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// A stage is a log and a target in SQLite files with a configuration for both,
// for tests with a real process.
type stage struct {
	config string
	file   string
	target *sql.DB
	log    *txlog.SQLStorage
	env    []string // of the process, besides this one's
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir := t.TempDir()
	s := &stage{config: filepath.Join(dir, "bed-job.yaml"), file: filepath.Join(dir, "target.db")}
	logFile := filepath.Join(dir, "log.db")
	// This target waits long for a lock, so that a delivery to it runs while a test holds the lock.
	write(t, s.config, fmt.Sprintf(`targetDataSource:
  target: {driver: sqlite, dsn: "file:%s?mode=rw&_pragma=busy_timeout(60000)"}
transactionLogDataSource: {driver: sqlite, dsn: %q}
jobConfig: {cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, probeTimeoutMillis: 60000}
`, s.file, logFile))
	var err error
	if s.target, err = sql.Open("sqlite", s.file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.target.Close() })
	if _, err = s.target.Exec("CREATE TABLE a (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	if s.log, err = txlog.Open(t.Context(), "sqlite", logFile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.log.Close() })
	return s
}

// promise adds a due unit to the log.
func (s *stage) promise(t *testing.T, dataSource, query string) string {
	t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: dataSource, Statements: []entry.Statement{{SQL: query}}, Lease: entry.Lease{Token: "t"}}
	u.TransactionID = u.ID
	err := s.log.Add(t.Context(), time.Minute, u)
	if err == nil {
		err = s.log.Release(t.Context(), u, entry.Verdict{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return u.ID
}

func (s *stage) rows(t *testing.T) (n int) {
	t.Helper()
	if err := s.target.QueryRow("SELECT COUNT(*) FROM a").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// lock holds the target's write lock until it is called.
func (s *stage) lock(t *testing.T) (unlock func()) {
	t.Helper()
	conn, err := s.target.Conn(t.Context())
	if err == nil {
		_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	}
}

// A process is bed-job, running.
type process struct {
	*exec.Cmd
	lines chan string // of its stderr; closed at its end
}

func (s *stage) start(t *testing.T, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	p := &process{Cmd: exec.CommandContext(ctx, exe, append(args, "-c", s.config)...), lines: make(chan string, 1000)}
	p.Env = append(append(os.Environ(), beMain+"=1"), s.env...)
	stderr, err := p.StderrPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			p.lines <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		for range p.lines {
		}
		_ = p.Wait()
	})
	return p
}

// until reads the process's lines up to one with text in it.
func (p *process) until(t *testing.T, text string) {
	t.Helper()
	var seen []string
	for line := range p.lines {
		if seen = append(seen, line); strings.Contains(line, text) {
			return
		}
	}
	t.Fatalf("the process ended before it wrote %q:\n%s", text, strings.Join(seen, "\n"))
}

func (p *process) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// end waits for the process and returns its status, and the lines left.
func (p *process) end() (status int, rest string) {
	var all []string
	for line := range p.lines {
		all = append(all, line)
	}
	var exit *exec.ExitError
	if err := p.Wait(); err != nil && !errors.As(err, &exit) {
		return -1, err.Error()
	}
	return p.ProcessState.ExitCode(), strings.Join(all, "\n")
}

func TestTheProcessDeliversAndEndsOnASignal(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		if sig == syscall.SIGHUP && signal.Ignored(sig) {
			continue // these tests run under nohup, and so would the process
		}
		s := newStage(t)
		s.promise(t, "target", "INSERT INTO a VALUES (1)")
		p := s.start(t, "run")
		p.until(t, "bed-job is running")
		p.until(t, "delivered 1")
		p.signal(t, sig)
		if status, rest := p.end(); status != 0 || !strings.Contains(rest, `"msg":"bed-job has ended"`) {
			t.Errorf("after %v the status is %d and it wrote\n%s", sig, status, rest)
		}
		if n := s.rows(t); n != 1 || count(t, s.log, txlog.Filter{}) != 0 {
			t.Errorf("%d rows are there, want 1, and an empty log", n)
		}
	}
}

func TestASignalLetsWhatIsInFlightFinish(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	unlock := s.lock(t)
	s.promise(t, "target", "INSERT INTO a VALUES (1)")
	p := s.start(t, "run", "--log-level", "debug")
	p.until(t, `"msg":"delivering"`)
	p.signal(t, syscall.SIGTERM)
	p.until(t, "ending: finishing what is in flight")
	unlock()
	if status, rest := p.end(); status != 0 {
		t.Errorf("the status is %d and it wrote\n%s", status, rest)
	}
	if n := s.rows(t); n != 1 || count(t, s.log, txlog.Filter{}) != 0 {
		t.Errorf("%d rows are there, want 1, and an empty log", n)
	}
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	defer s.lock(t)()
	id := s.promise(t, "target", "INSERT INTO a VALUES (1)")
	p := s.start(t, "run", "--log-level", "debug")
	p.until(t, `"msg":"delivering"`)
	p.signal(t, syscall.SIGTERM)
	p.until(t, "ending: finishing what is in flight")
	for running := true; running; { // what comes within oneWish is no second wish
		select {
		case _, running = <-p.lines:
		case <-time.After(oneWish / 4):
			_ = p.Process.Signal(syscall.SIGTERM)
		}
	}
	p.end()
	if ended, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || !ended.Signaled() || ended.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", p.ProcessState)
	}
	if u, err := s.log.Get(t.Context(), id); err != nil || !u.InDoubt {
		t.Errorf("the log must stay, in doubt; it is %+v, %v", u, err)
	}
}

// A service manager, or a shell, signals the process and its group.
func TestRepeatedSignalCountsOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.env = []string{wishFor + "=1m"} // the process may be slow to get them
	unlock := s.lock(t)
	s.promise(t, "target", "INSERT INTO a VALUES (1)")
	p := s.start(t, "run", "--log-level", "debug")
	p.until(t, `"msg":"delivering"`)
	p.signal(t, syscall.SIGTERM)
	p.until(t, "ending: finishing what is in flight")
	for range 3 {
		p.signal(t, syscall.SIGTERM)
	}
	p.signal(t, syscall.SIGHUP)
	unlock()
	if status, rest := p.end(); status != 0 || !strings.Contains(rest, "bed-job has ended") {
		t.Errorf("the status is %d and it wrote\n%s", status, rest)
	}
	if n := s.rows(t); n != 1 || count(t, s.log, txlog.Filter{}) != 0 {
		t.Errorf("%d rows are there, want 1, and an empty log", n)
	}
}

// cutOff is a log with a broken idle connection.
type cutOff struct{ txlog.Storage }

func (cutOff) Close() error { return errors.New("write: broken pipe") }

func TestCommandIgnoresConnectionsCutWhileIdle(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: func(context.Context, dataSource, bool) (txlog.Storage, error) {
		return cutOff{unclosed{s.log}}, nil
	}}, config: s.config}
	for _, args := range [][]string{{"run", "--once"}, {"list"}, {"stats"}} {
		if r := h.run(t, args...); r.status != 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// once runs "run --once" within the test.
func (s *stage) once(t *testing.T) run {
	t.Helper()
	h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: openLog}, config: s.config}
	return h.run(t, "run", "--once")
}

func TestOnceMakesOneRound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.promise(t, "target", "INSERT INTO a VALUES (1)")
	refused := s.promise(t, "target", "INSERT INTO b VALUES (1)")
	if r := s.once(t); r.status != 0 || !strings.HasPrefix(r.out, "claimed 2, delivered 1 (assumed 0), failed 0, parked 1,") {
		t.Errorf("got %+v", r)
	}
	if u, err := s.log.Get(t.Context(), refused); err != nil || !u.Parked || s.rows(t) != 1 {
		t.Errorf("the refused one is %+v, %v; %d rows", u, err, s.rows(t))
	}
}

func TestOnceExitsWithOneForUnservedDataSource(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.promise(t, "target", "INSERT INTO a VALUES (1)")
	s.promise(t, "elsewhere", "INSERT INTO a VALUES (1)")
	if err := os.Rename(s.file, s.file+".away"); err != nil {
		t.Fatal(err)
	}
	r := s.once(t)
	if r.status != 1 {
		t.Errorf("status %d", r.status)
	}
	wantJSON(t, r.err, "fatal: data source elsewhere: the log names it, targetDataSource does not: add it there\n",
		"fatal: data source target: unreachable: ")
}

// Also when a round before has put them back and they rest.
func TestOnceExitsWithOneWhileEntriesAwaitOperators(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.promise(t, "target", "INSERT INTO a VALUES (1)")
	raw, err := sql.Open("sqlite", filepath.Join(filepath.Dir(s.file), "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	if _, err := raw.Exec("UPDATE transaction_log SET settings = '{\"settings\":\"mode=memory\"}'"); err != nil {
		t.Fatal(err)
	}
	s.promise(t, "elsewhere", "INSERT INTO a VALUES (1)")
	for round, claimed := range []string{"claimed 2,", "claimed 0,"} {
		r := s.once(t)
		for _, want := range []string{
			"data source target: entries cannot be delivered until an operator acts: bed: not sent: the entry was written with the settings",
			"data source elsewhere: the log names it",
		} {
			if r.status != 1 || !strings.Contains(r.err, want) || !strings.HasPrefix(r.out, claimed) {
				t.Errorf("round %d: status %d, %s\n%s\nwant in it\n%s", round, r.status, r.out, r.err, want)
			}
		}
	}
}

func TestNoCommandPrintsAPassword(t *testing.T) {
	t.Parallel()
	for _, source := range []string{
		`{driver: mysql, dsn: "root:s3cr3t-Pa55@tcp(127.0.0.1:1)/d?timeout=1s"}`,
		`{driver: postgres, dsn: "postgres://u:s3cr3t-Pa55@127.0.0.1:1/d?connect_timeout=1"}`,
		`{driver: postgres, dsn: "host=127.0.0.1 port=1 user=u password='s3cr3t-Pa55' dbname=d"}`,
	} {
		config := filepath.Join(t.TempDir(), "bed-job.yaml")
		write(t, config, "targetDataSource:\n  a: "+source+"\ntransactionLogDataSource: "+source+"\n")
		h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: openLog}, config: config}
		for _, args := range []string{"run --exit-if-log-unavailable", "run --once", "list", "show x", "stats", "retry x", "discard x --yes --reason x", "retry --parked"} {
			r := h.run(t, strings.Fields(args)...)
			if r.status != 1 || !strings.Contains(r.err, "the transaction log cannot be opened") {
				t.Errorf("%s: %+v", args, r)
			}
			if strings.Contains(r.out+r.err, "s3cr3t") || strings.Contains(r.out+r.err, "Pa55") {
				t.Errorf("%s printed the password:\n%s%s", args, r.out, r.err)
			}
		}
		// The log is available, and the target unreachable.
		s := newStage(t)
		s.promise(t, "a", "INSERT INTO a VALUES (1)")
		text, err := os.ReadFile(s.config)
		if err != nil {
			t.Fatal(err)
		}
		write(t, s.config, strings.Replace(string(text), "targetDataSource:\n", "targetDataSource:\n  a: "+source+"\n", 1))
		if r := s.once(t); r.status != 1 || strings.Contains(r.out+r.err, password) || !strings.Contains(r.err, "data source a: unreachable") {
			t.Errorf("%+v", r)
		}
	}
}

func TestLookingAtALogCreatesNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config, file := filepath.Join(dir, "bed-job.yaml"), filepath.Join(dir, "log.db")
	write(t, config, fmt.Sprintf("transactionLogDataSource: {driver: sqlite, dsn: %q}\n", file))
	h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: openLog}, config: config}
	if r := h.run(t, "stats"); r.status != 1 || !strings.Contains(r.err, file) {
		t.Errorf("got %+v", r)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
	write(t, file, "") // an empty file is an empty SQLite database
	if r := h.run(t, "list"); r.status != 1 || !strings.Contains(r.err, "transaction_log") {
		t.Errorf("got %+v", r)
	}
}
