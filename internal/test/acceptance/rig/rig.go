package rig

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// InsertThree has no arguments, so that it reaches each database in one message with its text.
const InsertThree = "INSERT INTO account VALUES (3, 33)"

// Content reads rows to their end, as bytes or as the driver's values.
func Content(t testing.TB, rows *sql.Rows) (out [][]any) {
	t.Helper()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		row := make([]any, len(names))
		dest := make([]any, len(names))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		out = append(out, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// OpenStepwise is open with a round trip for each statement.
func (r *Rig) OpenStepwise() *sql.DB {
	r.T.Helper()
	tgt := TargetOf(r.T, r.DB)
	tgt.Dialect = Stepwise(tgt.Dialect)
	return r.OpenTarget(tgt)
}

const Increment = "UPDATE account SET balance = balance + ? WHERE id = ?"

// ConfigChange alters a configuration before it is registered.
type ConfigChange = func(*bedsql.Config)

// OnTarget makes an attempt on a connection of its own.
func (r *Rig) OnTarget(f func(*dialect.Dialect, driver.Conn) attempt.Outcome) attempt.Outcome {
	r.T.Helper()
	tgt := TargetOf(r.T, r.DB)
	conn, err := tgt.Connector.Connect(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return f(tgt.Dialect, conn)
}

// Returns reports whether writes can return rows on the target. Elsewhere it leaves a skipped
// subtest for the report.
func (r *Rig) Returns(t *testing.T) bool {
	t.Helper()
	return testdb.Knows(t, r.Bare, "INSERT INTO account VALUES (9, 9) RETURNING id")
}

// RenameBalance takes the column of the balance away, and gives it another name.
func (r *Rig) RenameBalance() {
	r.T.Helper()
	const rename = "ALTER TABLE account RENAME COLUMN balance TO amount"
	r.Exec(testdb.By[string]{MySQL: "ALTER TABLE account CHANGE balance amount INT NOT NULL", Postgres: rename, SQLite: rename}.For(r.DB.Driver))
}

// ExactlyOnce turns the guarantee on.
func ExactlyOnce(cfg *bedsql.Config) { cfg.Guarantee = bedsql.ExactlyOnce }

// Endless is an UPDATE that runs until it is interrupted.
const Endless = "UPDATE account SET balance = (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n) WHERE id = 2"

const SetBalance = "UPDATE account SET balance = ? WHERE id = ?"

const AddOne = "UPDATE account SET balance = balance + 1 WHERE id = 1"

var ErrLogDown = errors.New("the log's database is down")

func (r *Rig) OrderKeyOf(dataSource, key string) string {
	h := sha256.New()
	for _, s := range []string{r.Storage.Identity(), dataSource, key} {
		_ = binary.Write(h, binary.BigEndian, int64(len(s)))
		_, _ = h.Write([]byte(s))
	}
	return entry.OrderPrefix + hex.EncodeToString(h.Sum(nil))
}

func (r *Rig) WantPending(err error) *bedsql.PendingError {
	r.T.Helper()
	var p *bedsql.PendingError
	if !errors.As(err, &p) || bedsql.OutcomeOf(err) != bedsql.OutcomeAccepted {
		r.T.Fatalf("got %v (%v), want ErrPending", err, bedsql.OutcomeOf(err))
	}
	return p
}

// Deadlocks counts the deadlocks in this test's own log database. MySQL counts them per server;
// there it counts the ones in the log.
func (r *Rig) Deadlocks() (n int) {
	r.T.Helper()
	log := r.LogDB.Open(r.T)
	var err error
	if r.LogDB.Driver == "postgres" {
		err = log.QueryRow("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	} else {
		var kind, name, status string
		if err = log.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err == nil {
			_, latest, _ := strings.Cut(status, "LATEST DETECTED DEADLOCK")
			latest, _, _ = strings.Cut(latest, "\nTRANSACTIONS\n")
			n = strings.Count(latest, "`"+schemaOf(r)+"`.`transaction_log`")
		}
	}
	if err != nil {
		r.T.Fatal(err)
	}
	return n
}

func schemaOf(r *Rig) (name string) {
	r.T.Helper()
	if err := r.LogDB.Open(r.T).QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
		r.T.Fatal(err)
	}
	return name
}

// Rig is an application's set-up on one kind of database: a target, a log of
// the same kind in a database of its own, and the job.
type Rig struct {
	T testing.TB
	// DB is the target as the wrapped driver reaches it.
	DB testdb.DB
	// Bare is a pool of the bare driver on the target.
	Bare *sql.DB
	// Wrapped is the application's pool.
	Wrapped *sql.DB
	Storage *txlog.SQLStorage
	// LogDB is the log's database; bareLog is for logPool.
	LogDB    testdb.DB
	bareLog  *sql.DB
	Counters *bedsql.Counters
	Cfg      bedsql.Config
}

var Registered atomic.Int64

// New sets up db. change may alter the configuration before it is registered.
func New(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) *Rig {
	t.Helper()
	logDB := testdb.NewLog(t, db.Driver)
	return NewWithLog(t, db, logDB, change...)
}

func NewWithLog(t testing.TB, db, logDB testdb.DB, change ...func(*bedsql.Config)) *Rig {
	t.Helper()
	storage, err := txlog.Open(context.Background(), logDB.Driver, logDB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	r := &Rig{T: t, DB: db, Bare: db.Open(t), Storage: storage, LogDB: logDB, Counters: new(bedsql.Counters)}
	r.Cfg = bedsql.Config{
		Storage: storage, Counters: r.Counters, Logger: Quiet(),
		RetryInitial: 2 * time.Millisecond, RetryMax: 20 * time.Millisecond,
		// No pause of the machine is to be taken for a failure.
		AttemptTimeout: time.Minute, RetryTimeout: time.Minute, LogTimeout: time.Minute,
	}
	for _, f := range change {
		f(&r.Cfg)
	}
	r.Wrapped = r.Open(db.DSN)
	return r
}

// Open opens a DSN of the rig's kind through a wrapped driver of its own name.
func (r *Rig) Open(dsn string) *sql.DB {
	r.T.Helper()
	pool, err := sql.Open(r.Register(), dsn)
	if err != nil {
		r.T.Fatal(err)
	}
	pool.SetMaxOpenConns(testdb.MaxOpenConns)
	r.T.Cleanup(func() { _ = pool.Close() })
	return pool
}

// OpenTarget opens a target through a wrapped connector.
func (r *Rig) OpenTarget(tgt delivery.Target) *sql.DB {
	r.T.Helper()
	c, err := bedsql.NewConnector(tgt, r.Cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	pool := sql.OpenDB(c)
	pool.SetMaxOpenConns(testdb.MaxOpenConns)
	r.T.Cleanup(func() { _ = pool.Close() })
	return pool
}

// Register registers a wrapped driver of the rig's kind under a name of its own.
func (r *Rig) Register() (name string) {
	r.T.Helper()
	name = fmt.Sprintf("bed-%s-%d", r.DB.Driver, Registered.Add(1))
	if err := Register(r.DB.Driver)(name, r.Cfg); err != nil {
		r.T.Fatal(err)
	}
	return name
}

func Register(driver string) func(string, bedsql.Config) error {
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

func Target(driver string) func(string) (delivery.Target, error) {
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

func TargetOf(t testing.TB, db testdb.DB) delivery.Target {
	t.Helper()
	tgt, err := Target(db.Driver)(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return tgt
}

// FreshLike makes another empty database of the same kind.
func FreshLike(t testing.TB, db testdb.DB) testdb.DB {
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

// Exec runs statements on the bare driver.
func (r *Rig) Exec(statements ...string) {
	r.T.Helper()
	for _, s := range statements {
		if _, err := r.Bare.Exec(s); err != nil {
			r.T.Fatalf("%s: %v", s, err)
		}
	}
}

// Account makes the table account(id, balance) with one row for each balance.
func (r *Rig) Account(balances ...int) {
	r.T.Helper()
	r.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
	for i, b := range balances {
		r.Exec(fmt.Sprintf("INSERT INTO account VALUES (%d, %d)", i+1, b))
	}
}

func (r *Rig) Balance(id int) int {
	r.T.Helper()
	var b int
	if err := r.Bare.QueryRow(fmt.Sprintf("SELECT balance FROM account WHERE id = %d", id)).Scan(&b); err != nil {
		r.T.Fatal(err)
	}
	return b
}

func (r *Rig) Count(query string) int {
	r.T.Helper()
	var n int
	if err := r.Bare.QueryRow(query).Scan(&n); err != nil {
		r.T.Fatal(err)
	}
	return n
}

// Q writes a statement with ? in the target's own placeholders.
func (r *Rig) Q(query string) string { return Placeholders(r.DB.Driver, query) }

func Placeholders(driver, query string) string {
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

// Logs returns the log's units.
func (r *Rig) Logs() []*entry.Unit {
	r.T.Helper()
	units, err := r.Storage.List(context.Background(), txlog.Filter{})
	if err != nil {
		r.T.Fatal(err)
	}
	return units
}

func (r *Rig) WantNoLog() {
	r.T.Helper()
	units := r.Logs()
	if allBehind(units) {
		Eventually(r.T, "the removals after the calls were done", func() bool {
			units = r.Logs()
			return len(units) == 0 || !allBehind(units)
		})
	}
	if len(units) != 0 {
		r.T.Fatalf("the log holds %d units, want none; first: %+v", len(units), units[0])
	}
}

func allBehind(units []*entry.Unit) bool {
	for _, u := range units {
		if !behind(u) {
			return false
		}
	}
	return len(units) > 0
}

// behind reports whether this may be a unit whose removal, under exactly-once, the caller does not
// wait for.
func behind(u *entry.Unit) bool { return u.Receipt != "" && !u.Parked && u.Leased }

func (r *Rig) WantOneLog() *entry.Unit {
	r.T.Helper()
	units := r.Logs()
	if len(units) > 1 {
		Eventually(r.T, "the removals after the calls were done", func() bool {
			units = r.Logs()
			return len(units) <= 1 || !slices.ContainsFunc(units, behind)
		})
	}
	if len(units) != 1 {
		r.T.Fatalf("the log holds %d units, want 1", len(units))
	}
	return units[0]
}

// Job makes a job over the rig's log that delivers to the target without delay.
func (r *Rig) Job(change ...func(*asyncjob.Config)) *asyncjob.Job {
	r.T.Helper()
	tgt := TargetOf(r.T, r.DB)
	return r.JobFor(asyncjob.Targets{tgt.DataSource: tgt}, change...)
}

func (r *Rig) JobFor(targets asyncjob.Targets, change ...func(*asyncjob.Config)) *asyncjob.Job {
	r.T.Helper()
	cfg := asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, ProbeTimeout: time.Minute, Logger: Quiet(),
	}
	for _, f := range change {
		f(&cfg)
	}
	job, err := asyncjob.New(r.Storage, targets, cfg)
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = job.Close() })
	return job
}

func (r *Rig) RunOnce(change ...func(*asyncjob.Config)) asyncjob.Report {
	r.T.Helper()
	report, err := r.Job(change...).RunOnce(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	return report
}

func Quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// DeliverTo runs a job with the given DSN for a data source. The log is due.
func (r *Rig) DeliverTo(t *testing.T, dataSource, dsn string) asyncjob.Report {
	t.Helper()
	tgt, err := Target(r.DB.Driver)(dsn)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range r.Logs() {
		// A unit pushed back rests; an operator makes it due.
		if err := r.Storage.Retry(context.Background(), u.ID); err != nil {
			t.Fatal(err)
		}
	}
	report, err := r.JobFor(asyncjob.Targets{dataSource: tgt}).RunOnce(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// Form is a way to write a statement.
type Form struct {
	Text string
	// rows: it is sent through Query.
	Rows bool
}

func (r *Rig) Send(f Form) error {
	if !f.Rows {
		_, err := r.Wrapped.Exec(f.Text)
		return err
	}
	rows, err := r.Wrapped.Query(f.Text)
	if err != nil {
		return err
	}
	for rows.Next() {
		// A driver may find an error in a later row only.
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return rows.Close()
}
