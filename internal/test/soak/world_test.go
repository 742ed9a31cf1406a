package soak

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

const (
	applications = 4
	jobs         = 2
	logName      = "log"
)

// database is a database under load, including the log's.
type database struct {
	name   string
	db     testdb.DB
	server *testdb.Server // nil if it is shared or SQLite
	direct *sql.DB        // of the bare driver, past the proxies
	// proxies in front of it, of the applications and the jobs; none before SQLite.
	proxies []*testproxy.Proxy
	// user is the account of the applications and the jobs.
	user string
	// setClock shifts the server's clock against the machine's; nil if that is impossible.
	setClock func(difference time.Duration) error
	// disk is the directory of a small file system of its own.
	disk string
}

type process struct {
	name string
	cmd  *exec.Cmd
	// in is its standard input. An application ends when its parent, the writer, is gone.
	in   *os.File
	dead chan struct{}
}

// world is a run with one kind of log.
type world struct {
	t       *testing.T
	o       options
	dir     string
	start   time.Time
	targets map[string]*database
	log     *database
	apps    [applications]*process
	jobs    [jobs]*process
	born    int // processes, so far
	// release is the current build: even for the first, odd for the next.
	release int
	// replaced are processes replaced by a later release.
	replaced []*process
	firstUse map[*process]usage
}

const ledgerM = `CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, request VARCHAR(80) NOT NULL);
CREATE TABLE effect (id BIGINT PRIMARY KEY AUTO_INCREMENT, request VARCHAR(80) NOT NULL, account BIGINT NOT NULL, n BIGINT NOT NULL CHECK (n < 1000 OR account >= 1000));
CREATE TABLE register (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, n BIGINT NOT NULL, request VARCHAR(80) NOT NULL);
CREATE TRIGGER audit AFTER UPDATE ON account FOR EACH ROW INSERT INTO effect (request, account, n) VALUES (NEW.request, NEW.id, NEW.balance - OLD.balance);
CREATE TRIGGER history AFTER UPDATE ON register FOR EACH ROW INSERT INTO effect (request, account, n) VALUES (NEW.request, NEW.id, NEW.n)`

const ledgerP = `CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, request VARCHAR(80) NOT NULL);
CREATE TABLE effect (id BIGSERIAL PRIMARY KEY, request VARCHAR(80) NOT NULL, account BIGINT NOT NULL, n BIGINT NOT NULL CHECK (n < 1000 OR account >= 1000));
CREATE TABLE register (id BIGINT PRIMARY KEY, value BIGINT NOT NULL, n BIGINT NOT NULL, request VARCHAR(80) NOT NULL);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO effect (request, account, n) VALUES (NEW.request, NEW.id, NEW.balance - OLD.balance)` +
	"\x00 RETURN NULL\x00 END $$;" + `
CREATE TRIGGER audit AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION audit();
CREATE FUNCTION history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO effect (request, account, n) VALUES (NEW.request, NEW.id, NEW.n)` +
	"\x00 RETURN NULL\x00 END $$;" + `
CREATE TRIGGER history AFTER UPDATE ON register FOR EACH ROW EXECUTE FUNCTION history()`

func newWorld(t *testing.T, o options, log string) *world {
	t.Helper()
	w := &world{t: t, o: o, start: time.Now(), targets: map[string]*database{}, firstUse: map[*process]usage{}}
	var err error
	if w.dir, err = os.MkdirTemp(o.dir, "log-in-"+log+"-"); err != nil { //nolint:usetesting // it may be kept
		t.Fatal(err)
	}
	w.targets[bankM], w.targets[bankP] = w.database(bankM, testdb.DriverMySQL), w.database(bankP, testdb.DriverPostgres)
	w.log = w.database(logName, log)
	w.exec(w.log, effects[log])
	if w.log.disk != "" {
		w.exec(w.log, "CREATE TABLE nemesis (filling BLOB)")
	}
	for name, ledger := range map[string]string{bankM: ledgerM, bankP: ledgerP} {
		for statement := range strings.SplitSeq(ledger, ";\n") {
			w.exec(w.targets[name], strings.ReplaceAll(statement, "\x00", ";"))
		}
		for i := range accounts {
			w.exec(w.targets[name], fmt.Sprintf("INSERT INTO account VALUES (%d, 0, '')", i+1))
		}
		w.makeRegisters(w.targets[name])
	}
	return w
}

// database makes a database, on its own server for runs that break servers.
func (w *world) database(name, driver string) *database {
	d := &database{name: name}
	switch {
	case driver == testdb.DriverSQLite && w.o.private:
		d.db = testdb.SQLiteAt(filepath.Join(w.smallDisk(d), "log.db"))
	case driver == testdb.DriverSQLite:
		d.db = testdb.SQLite(w.t)
	case driver == testdb.DriverMySQL && w.o.private:
		isolation := "--transaction-isolation=" + w.isolation(name, "REPEATABLE-READ", "SERIALIZABLE")
		d.server = testdb.PrivateMariaDB(w.t, w.ownClock(d, "--innodb-lock-wait-timeout=2", isolation)...)
	case driver == testdb.DriverPostgres && w.o.private:
		d.server = testdb.PrivatePostgres(w.t, w.ownClock(d, "lock_timeout=2000", "default_transaction_isolation="+w.isolation(name, "read committed", "serializable"))...)
	case driver == testdb.DriverMySQL:
		d.db = testdb.MySQL(w.t)
	default:
		d.db = testdb.Postgres(w.t)
	}
	if d.server != nil {
		d.db = d.server.DB(w.t)
	}
	d.direct = d.db.Open(w.t)
	if driver == testdb.DriverSQLite {
		return d
	}
	for range 2 {
		d.proxies = append(d.proxies, testproxy.New(w.t, d.db.Addr()))
	}
	if driver == testdb.DriverMySQL && d.server != nil {
		// An account with all rights may write to a read-only server.
		d.user = "app"
		w.exec(d, "CREATE USER app@'%'")
		w.exec(d, "GRANT ALL ON "+d.db.Name+".* TO app@'%'")
	}
	return d
}

// isolation chooses that of a database's server.
func (w *world) isolation(name, usual, strict string) string {
	if w.o.serializable && name != logName {
		return strict
	}
	return usual
}

func (w *world) exec(d *database, statement string) {
	w.t.Helper()
	if _, err := d.direct.ExecContext(w.t.Context(), statement); err != nil {
		w.t.Fatalf("%s: %s: %v", d.name, statement, err)
	}
}

// dsn is of a database behind a proxy, or of SQLite's file.
func (w *world) dsn(d *database, proxy int, params ...string) string {
	if d.proxies == nil {
		return d.db.DSN
	}
	db := d.db.Via(d.proxies[proxy].Addr())
	if db.Driver == testdb.DriverMySQL && d.user != "" {
		cfg, err := gomysql.ParseDSN(db.DSN)
		if err != nil {
			w.t.Fatal(err)
		}
		cfg.User = d.user
		db.DSN = cfg.FormatDSN()
	}
	for _, p := range params {
		if name, value, _ := strings.Cut(p, "="); strings.Contains(db.DSN, "?") {
			db.DSN += "&" + name + "=" + url.QueryEscape(value)
		} else {
			db.DSN += "?" + name + "=" + url.QueryEscape(value)
		}
	}
	return db.DSN
}

// startApp starts an application process by number. Their settings differ, and the job has to
// deliver with each.
func (w *world) startApp(i int) {
	w.born++
	m, p := []string{"bedDataSource=" + bankM}, []string{"bedDataSource=" + bankP}
	if (i+w.release)%2 == 1 {
		m, p = append(m, "interpolateParams=true"), append(p, "default_query_exec_mode=exec")
	}
	order, err := json.Marshal(appOrder{
		Name: fmt.Sprintf("app%d-%d", i, w.born), Dir: w.dir, Seed: w.o.seed, Start: w.start, Pause: w.o.pause, Lease: w.o.lease, Retention: w.o.retention,
		Release: w.release, Guarantee: w.o.guarantee, Contended: w.o.serializable,
		Targets:   map[string]string{bankM: w.dsn(w.targets[bankM], 0, m...), bankP: w.dsn(w.targets[bankP], 0, p...)},
		LogDriver: w.log.db.Driver, Log: w.dsn(w.log, 0),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), w.o.apps[w.release%len(w.o.apps)])
	cmd.Env = append(os.Environ(), appEnv+"="+string(order), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	w.apps[i] = w.begin(fmt.Sprintf("app%d-%d", i, w.born), cmd)
}

func (w *world) startJob(i int) {
	w.born++
	name := fmt.Sprintf("job%d-%d", i, w.born)
	var b strings.Builder
	batch, tries := 100-80*(w.release%2), 100_000
	if w.o.serializable {
		tries = 1
	}
	b.WriteString("targetDataSource:\n")
	for _, d := range w.targets {
		fmt.Fprintf(&b, "  %s: {driver: %s, dsn: %q}\n", d.name, d.db.Driver, w.dsn(d, 1))
	}
	fmt.Fprintf(&b, "transactionLogDataSource: {driver: %s, dsn: %q}\n", w.log.db.Driver, w.dsn(w.log, 1))
	fmt.Fprintf(&b, "jobConfig: {name: %s, cron: \"* * * * * ?\", maxDeliveryTryTimes: %d, maxDeliveryTryDelayMillis: 0, retryDelayMillis: 300, retryDelayMaxMillis: 1500, "+
		"deliveryTimeoutMillis: 5000, probeTimeoutMillis: 1000, leaseMillis: %d, concurrency: 4, transactionLogFetchDataCount: %d, unknownDataSourceDelayMillis: 1000, receiptRetentionMillis: %d, purgeIntervalMillis: %d}\n",
		name, tries, w.o.lease.Milliseconds(), batch, w.o.retention.Milliseconds(), w.o.purge.Milliseconds())
	file := filepath.Join(w.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.jobs[i] = w.begin(name, exec.CommandContext(context.Background(), w.o.bedJobs[w.release%len(w.o.bedJobs)], "run", "-c", file, "--log-timeout", "3s"))
}

func (w *world) begin(name string, cmd *exec.Cmd) *process {
	w.t.Helper()
	out, err := os.Create(filepath.Join(w.dir, name+".out"))
	if err != nil {
		w.t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, out, out
	p := &process{name: name, cmd: cmd, in: write, dead: make(chan struct{})}
	err = errors.Join(cmd.Start(), read.Close(), out.Close())
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(p.dead)
		_ = cmd.Wait() // the status is read from ProcessState
	}()
	w.t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.dead
	_ = p.in.Close()
}

func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // of one that has ended
}

// terminate ends a process in order, and demands success.
func (w *world) terminate(p *process) {
	w.t.Helper()
	for begun := time.Now(); !w.began(p) && time.Since(begun) < time.Minute; {
		time.Sleep(50 * time.Millisecond)
	}
	p.signal(syscall.SIGTERM)
	w.ended(p)
}

// ended waits for a process to end as requested, and demands success.
func (w *world) ended(p *process) {
	w.t.Helper()
	select {
	case <-p.dead:
		_ = p.in.Close()
		if status := p.cmd.ProcessState; status.ExitCode() != 0 {
			w.t.Errorf("%s was asked to end and ended with %v: %s", p.name, status, w.said(p))
		}
	case <-time.After(2 * time.Minute):
		p.signal(syscall.SIGQUIT)
		<-p.dead
		text, _ := os.ReadFile(filepath.Join(w.dir, p.name+".out"))
		at := max(0, bytes.Index(text, []byte("SIGQUIT: ")))
		w.t.Errorf("%s did not end: %s\n%s", p.name, text[max(0, at-4000):at], text[at:])
	}
}

func (w *world) said(p *process) string {
	text, _ := os.ReadFile(filepath.Join(w.dir, p.name+".out"))
	return string(text[max(0, len(text)-4000):])
}
