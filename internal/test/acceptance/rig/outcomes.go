package rig

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func WantOutcomeOf(t testing.TB, what string, err error, want bedsql.Outcome) {
	t.Helper()
	if got := bedsql.OutcomeOf(err); got != want {
		t.Errorf("%s: %v is %v, want %v", what, err, got, want)
	}
}

// Impatient is the target with the shortest wait for locks.
func Impatient(db testdb.DB) testdb.DB {
	switch db.Driver {
	case testdb.DriverMySQL:
		return WithParam(db, "innodb_lock_wait_timeout", "1")
	case testdb.DriverPostgres:
		return WithParam(db, "lock_timeout", "50")
	default:
		return testdb.DB{Driver: db.Driver, Name: db.Name, DSN: strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(20)", 1)}
	}
}

// Running returns a function that waits for a statement containing text to run on the target.
func (r *Rig) Running(text string) func() {
	query := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '" + text + "%'"
	switch r.DB.Driver {
	case testdb.DriverPostgres:
		query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() " +
			"AND state = 'active' AND query LIKE '" + text + "%'"
	case testdb.DriverSQLite:
		// SQLite has no sessions to list. A taken write lock shows it: BEGIN IMMEDIATE fails.
		return func() {
			conn, err := Impatient(r.DB).Open(r.T).Conn(context.Background())
			if err != nil {
				r.T.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			Eventually(r.T, "the statement holds the write lock", func() bool {
				if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
					return true
				}
				_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
				return false
			})
		}
	}
	return func() {
		Eventually(r.T, "the statement runs", func() bool { return r.Count(query) > 0 })
	}
}

// Guarded makes the tables that the refusals are about.
func (r *Rig) Guarded() {
	r.T.Helper()
	r.Account(100)
	long := ", CHECK (length(mail) <= 5)"
	if r.DB.Driver != testdb.DriverSQLite {
		long = ""
	}
	r.Exec("CREATE TABLE guarded (id INT PRIMARY KEY, mail VARCHAR(5) UNIQUE, positive INT CHECK (positive > 0), "+
		"account_id INT, FOREIGN KEY (account_id) REFERENCES account (id)"+long+")",
		"INSERT INTO guarded VALUES (1, 'a', 1, 1)",
		"CREATE TABLE forbidden (id INT)")
	switch r.DB.Driver {
	case testdb.DriverMySQL:
		r.Exec("CREATE TRIGGER no BEFORE INSERT ON forbidden FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
		return
	case testdb.DriverPostgres:
		r.Exec("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
			"CREATE TRIGGER no BEFORE INSERT ON forbidden FOR EACH ROW EXECUTE FUNCTION no()")
	default:
		r.Exec("CREATE TRIGGER no BEFORE INSERT ON forbidden BEGIN SELECT RAISE(ABORT, 'no'); END")
	}
	r.Exec("CREATE TABLE late (id INT PRIMARY KEY, account_id INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
}

func (r *Rig) WantGuardedUntouched() {
	r.T.Helper()
	r.WantBalances(100)
	if n := r.Count("SELECT count(*) FROM guarded"); n != 1 {
		r.T.Errorf("%d rows in guarded, want the first alone", n)
	}
	if n := r.Count("SELECT count(*) FROM forbidden"); n != 0 {
		r.T.Errorf("%d rows in forbidden, want none", n)
	}
	if r.DB.Driver != testdb.DriverMySQL {
		if n := r.Count("SELECT count(*) FROM late"); n != 0 {
			r.T.Errorf("%d rows in late, want none", n)
		}
	}
}

// Enforced turns foreign keys on if the database has a setting for that.
func Enforced(db testdb.DB) testdb.DB {
	if db.Driver == testdb.DriverSQLite {
		return WithParam(db, "_pragma", "foreign_keys(1)")
	}
	return db
}

// ReadOnly is the target as an account that may read it and nothing more.
func (r *Rig) ReadOnly() testdb.DB {
	r.T.Helper()
	db, name := r.DB, "reader_"+r.DB.Name
	switch db.Driver {
	case testdb.DriverMySQL:
		cfg, err := mysql.ParseDSN(db.DSN)
		if err != nil {
			r.T.Fatal(err)
		}
		name = name[max(0, len(name)-16):] // MySQL 5.6 takes no longer one
		r.Exec("CREATE USER "+name+" IDENTIFIED BY 'secret'", "GRANT SELECT ON "+db.Name+".* TO "+name)
		r.T.Cleanup(func() { r.Exec("DROP USER " + name) })
		cfg.User, cfg.Passwd = name, "secret"
		db.DSN = cfg.FormatDSN()
	case testdb.DriverPostgres:
		r.Exec("CREATE ROLE "+name+" LOGIN PASSWORD 'secret'", "GRANT SELECT ON account TO "+name)
		r.T.Cleanup(func() { r.Exec("DROP OWNED BY "+name, "DROP ROLE "+name) })
		db = WithParam(WithParam(db, "user", name), "password", "secret")
	default:
		db = WithParam(db, "mode", "ro")
	}
	return db
}

// Soft opens a soft transaction.
func Soft(t testing.TB) (context.Context, *bedsql.SoftTransaction) {
	t.Helper()
	ctx, tx, err := bedsql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return ctx, tx
}

// Outcome is a row of the rule of truth.
type Outcome string

const (
	Delivered   Outcome = "delivered"
	Refused     Outcome = "refused"
	Pending     Outcome = "pending"
	NotAccepted Outcome = "not accepted"
)

// WantOutcome checks that err matches exactly one row of the rule, and that the log agrees.
func (r *Rig) WantOutcome(want Outcome, err error) {
	r.T.Helper()
	var got []Outcome
	isPending, isNotLogged := errors.Is(err, bedsql.ErrPending), errors.Is(err, bedsql.ErrNotLogged)
	if err == nil {
		got = append(got, Delivered)
	}
	if isPending {
		got = append(got, Pending)
	}
	if isNotLogged {
		got = append(got, NotAccepted)
	}
	if err != nil && !isPending && !isNotLogged {
		got = append(got, Refused)
	}
	if len(got) != 1 || got[0] != want {
		r.T.Errorf("the error %v tells: %v, want %s alone", err, got, want)
	}
	WantOutcomeOf(r.T, string(want), err, map[Outcome]bedsql.Outcome{
		Delivered: bedsql.OutcomeDelivered, Refused: bedsql.OutcomeRefused, Pending: bedsql.OutcomeAccepted, NotAccepted: bedsql.OutcomeNotAccepted,
	}[want])
	logs := r.Logs()
	if kept := want == Pending; kept != (len(logs) == 1) || len(logs) > 1 {
		r.T.Errorf("%s, and the log holds %d units: %+v", want, len(logs), logs)
	}
}

// IsDriversOwn makes the type assertion that gorm and ent make.
func IsDriversOwn(db testdb.DB, err error) bool {
	switch db.Driver {
	case testdb.DriverMySQL:
		_, ok := err.(*mysql.MySQLError)
		return ok
	case testdb.DriverPostgres:
		_, ok := err.(*pgconn.PgError)
		return ok
	default:
		_, ok := err.(*sqlite.Error)
		return ok
	}
}

// HoldsDriversOwn is isDriversOwn for an error that wraps it.
func HoldsDriversOwn(db testdb.DB, err error) bool {
	switch db.Driver {
	case testdb.DriverMySQL:
		var e *mysql.MySQLError
		return errors.As(err, &e)
	case testdb.DriverPostgres:
		var e *pgconn.PgError
		return errors.As(err, &e)
	default:
		var e *sqlite.Error
		return errors.As(err, &e)
	}
}

// WithParam adds a parameter to a DSN of any of the three forms.
func WithParam(db testdb.DB, key, value string) testdb.DB {
	sep := "?"
	if strings.Contains(db.DSN, "?") {
		sep = "&"
	}
	// A blank must not become "+", because pgx takes that literally.
	db.DSN += sep + key + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
	return db
}

// CountAdds counts the units that are written to a log.
func CountAdds(s txlog.Storage, n *int) txlog.Storage {
	return &HookedStorage{Storage: s, OnAdd: func(units []*entry.Unit) error {
		*n += len(units)
		return nil
	}}
}

// Staged opens a staged soft transaction.
func Staged(t testing.TB) (context.Context, *bedsql.SoftTransaction) {
	t.Helper()
	ctx, st, err := bedsql.Begin(context.Background(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Discard)
	return ctx, st
}

// Stage records a statement, with ? for parameters.
func (r *Rig) Stage(ctx context.Context, on Executor, query string, args ...any) sql.Result {
	r.T.Helper()
	res, err := on.ExecContext(ctx, r.Q(query), args...)
	if err != nil {
		r.T.Fatalf("%s: %v", query, err)
	}
	return res
}

func WantRows(t testing.TB, res sql.Result, want int64) {
	t.Helper()
	if n, err := res.RowsAffected(); n != want || err != nil {
		t.Errorf("RowsAffected: %d, %v; want %d", n, err, want)
	}
}

// WantResult checks that both methods of a Result give the same error.
func WantResult(t testing.TB, res sql.Result, want error) {
	t.Helper()
	_, rows := res.RowsAffected()
	_, id := res.LastInsertId()
	if !errors.Is(rows, want) || !errors.Is(id, want) {
		t.Errorf("RowsAffected: %v, LastInsertId: %v; want %v", rows, id, want)
	}
}

// WantLeft waits until the log holds a number of statements, for what was
// delivered is removed after its call returned, and then wants them to be one unit.
func (r *Rig) WantLeft(statements int) *entry.Unit {
	r.T.Helper()
	Eventually(r.T, "only what is not delivered is left in the log", func() bool { return r.Left() == statements })
	return r.WantOneLog()
}

// News sets up one rig on each kind of database, with one log for all.
func News(t testing.TB, logDB testdb.DB, change ...func(*bedsql.Config)) []*Rig {
	t.Helper()
	var shared txlog.Storage
	share := func(c *bedsql.Config) {
		if shared == nil {
			shared = c.Storage
		}
		c.Storage = shared
	}
	var rigs []*Rig
	for _, db := range []testdb.DB{testdb.MySQL(t), testdb.Postgres(t), testdb.SQLite(t)} {
		r := NewWithLog(t, db, logDB, append([]func(*bedsql.Config){share}, change...)...)
		r.Account(100, 100)
		rigs = append(rigs, r)
	}
	return rigs
}

// EachGuarantee runs f with either guarantee.
func EachGuarantee(t *testing.T, f func(t *testing.T, guarantee func(*bedsql.Config))) {
	t.Helper()
	t.Run("at least once", func(t *testing.T) {
		t.Parallel()
		f(t, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
	})
	t.Run("exactly once", func(t *testing.T) {
		t.Parallel()
		f(t, ExactlyOnce)
	})
}
