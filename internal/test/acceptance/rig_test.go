package acceptance

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// rig is an application's set-up on one kind of database: a target, a log of
// the same kind in a database of its own, and the job.
type rig struct {
	t testing.TB
	// db is the target as the wrapped driver reaches it.
	db testdb.DB
	// bare is a pool of the bare driver on the target.
	bare *sql.DB
	// wrapped is the application's pool.
	wrapped *sql.DB
	storage *txlog.SQLStorage
	// logDB is the log's database; bareLog is for logPool.
	logDB    testdb.DB
	bareLog  *sql.DB
	counters *bedsql.Counters
	cfg      bedsql.Config
}

var registered atomic.Int64

// newRig sets up db. change may alter the configuration before it is registered.
func newRig(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) *rig {
	t.Helper()
	logDB := freshLike(t, db)
	return newRigWithLog(t, db, logDB, change...)
}

func newRigWithLog(t testing.TB, db, logDB testdb.DB, change ...func(*bedsql.Config)) *rig {
	t.Helper()
	storage, err := txlog.Open(context.Background(), logDB.Driver, logDB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	r := &rig{t: t, db: db, bare: db.Open(t), storage: storage, logDB: logDB, counters: new(bedsql.Counters)}
	r.cfg = bedsql.Config{
		Storage: storage, Counters: r.counters, Logger: quiet(),
		RetryInitial: 2 * time.Millisecond, RetryMax: 20 * time.Millisecond,
		// No pause of the machine is to be taken for a failure.
		AttemptTimeout: time.Minute, RetryTimeout: time.Minute, LogTimeout: time.Minute,
	}
	for _, f := range change {
		f(&r.cfg)
	}
	r.wrapped = r.open(db.DSN)
	return r
}

// open opens a DSN of the rig's kind through a wrapped driver of its own name.
func (r *rig) open(dsn string) *sql.DB {
	r.t.Helper()
	pool, err := sql.Open(r.register(), dsn)
	if err != nil {
		r.t.Fatal(err)
	}
	pool.SetMaxOpenConns(testdb.MaxOpenConns)
	r.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// openTarget opens a target through a wrapped connector.
func (r *rig) openTarget(tgt delivery.Target) *sql.DB {
	r.t.Helper()
	c, err := bedsql.NewConnector(tgt, r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	pool := sql.OpenDB(c)
	pool.SetMaxOpenConns(testdb.MaxOpenConns)
	r.t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// register registers a wrapped driver of the rig's kind under a name of its own.
func (r *rig) register() (name string) {
	r.t.Helper()
	name = fmt.Sprintf("bed-%s-%d", r.db.Driver, registered.Add(1))
	if err := register(r.db.Driver)(name, r.cfg); err != nil {
		r.t.Fatal(err)
	}
	return name
}

func register(driver string) func(string, bedsql.Config) error {
	switch driver {
	case testdb.DriverMySQL:
		return mysql.Register
	case testdb.DriverPostgres:
		return postgres.Register
	case testdb.DriverSQLite:
		return sqlite.Register
	}
	panic("no package for the driver " + driver)
}

func target(driver string) func(string) (delivery.Target, error) {
	switch driver {
	case testdb.DriverMySQL:
		return mysql.Target
	case testdb.DriverPostgres:
		return postgres.Target
	case testdb.DriverSQLite:
		return sqlite.Target
	}
	panic("no package for the driver " + driver)
}

func targetOf(t testing.TB, db testdb.DB) delivery.Target {
	t.Helper()
	tgt, err := target(db.Driver)(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return tgt
}

// freshLike makes another empty database of the same kind.
func freshLike(t testing.TB, db testdb.DB) testdb.DB {
	t.Helper()
	switch db.Driver {
	case testdb.DriverMySQL:
		return testdb.MySQL(t)
	case testdb.DriverPostgres:
		return testdb.Postgres(t)
	case testdb.DriverSQLite:
		return testdb.SQLite(t)
	}
	panic("no databases for the driver " + db.Driver)
}

// exec runs statements on the bare driver.
func (r *rig) exec(statements ...string) {
	r.t.Helper()
	for _, s := range statements {
		if _, err := r.bare.Exec(s); err != nil {
			r.t.Fatalf("%s: %v", s, err)
		}
	}
}

// account makes the table account(id, balance) with one row for each balance.
func (r *rig) account(balances ...int) {
	r.t.Helper()
	r.exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
	for i, b := range balances {
		r.exec(fmt.Sprintf("INSERT INTO account VALUES (%d, %d)", i+1, b))
	}
}

func (r *rig) balance(id int) int {
	r.t.Helper()
	var b int
	if err := r.bare.QueryRow(fmt.Sprintf("SELECT balance FROM account WHERE id = %d", id)).Scan(&b); err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *rig) count(query string) int {
	r.t.Helper()
	var n int
	if err := r.bare.QueryRow(query).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// q writes a statement with ? in the target's own placeholders.
func (r *rig) q(query string) string { return placeholders(r.db.Driver, query) }

func placeholders(driver, query string) string {
	if driver != testdb.DriverPostgres {
		return query
	}
	out, n := make([]byte, 0, len(query)+8), 0
	for i := range len(query) {
		if query[i] != '?' {
			out = append(out, query[i])
			continue
		}
		n++
		out = fmt.Appendf(out, "$%d", n)
	}
	return string(out)
}

// logs returns the log's units.
func (r *rig) logs() []*txlog.Unit {
	r.t.Helper()
	units, err := r.storage.List(context.Background(), txlog.Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	return units
}

func (r *rig) wantNoLog() {
	r.t.Helper()
	units := r.logs()
	if allBehind(units) {
		eventually(r.t, "the removals after the calls were done", func() bool {
			units = r.logs()
			return len(units) == 0 || !allBehind(units)
		})
	}
	if len(units) != 0 {
		r.t.Fatalf("the log holds %d units, want none; first: %+v", len(units), units[0])
	}
}

// allBehind reports whether these are units whose removal, under exactly-once,
// the caller does not wait for.
func allBehind(units []*txlog.Unit) bool {
	for _, u := range units {
		if u.Receipt == "" || u.Parked || !u.Leased {
			return false
		}
	}
	return len(units) > 0
}

func (r *rig) wantOneLog() *txlog.Unit {
	r.t.Helper()
	units := r.logs()
	if len(units) != 1 {
		r.t.Fatalf("the log holds %d units, want 1", len(units))
	}
	return units[0]
}

// job makes a job over the rig's log that delivers to the target without delay.
func (r *rig) job(change ...func(*asyncjob.Config)) *asyncjob.Job {
	r.t.Helper()
	tgt := targetOf(r.t, r.db)
	return r.jobFor(asyncjob.Targets{tgt.DataSource: tgt}, change...)
}

func (r *rig) jobFor(targets asyncjob.Targets, change ...func(*asyncjob.Config)) *asyncjob.Job {
	r.t.Helper()
	cfg := asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, ProbeTimeout: time.Minute, Logger: quiet(),
	}
	for _, f := range change {
		f(&cfg)
	}
	job, err := asyncjob.New(r.storage, targets, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = job.Close() })
	return job
}

func (r *rig) runOnce(change ...func(*asyncjob.Config)) asyncjob.Report {
	r.t.Helper()
	report, err := r.job(change...).RunOnce(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
