package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// outcome is a row of the rule of truth.
type outcome string

const (
	delivered   outcome = "delivered"
	refused     outcome = "refused"
	pending     outcome = "pending"
	notAccepted outcome = "not accepted"
)

// wantOutcome checks that err tells the wanted row of the rule and no other,
// and that the log agrees with it.
func (r *rig) wantOutcome(want outcome, err error) {
	r.t.Helper()
	var got []outcome
	isPending, isNotLogged := errors.Is(err, bedsql.ErrPending), errors.Is(err, bedsql.ErrNotLogged)
	if err == nil {
		got = append(got, delivered)
	}
	if isPending {
		got = append(got, pending)
	}
	if isNotLogged {
		got = append(got, notAccepted)
	}
	if err != nil && !isPending && !isNotLogged {
		got = append(got, refused)
	}
	if len(got) != 1 || got[0] != want {
		r.t.Errorf("the error %v tells: %v, want %s alone", err, got, want)
	}
	logs := r.logs()
	if kept := want == pending; kept != (len(logs) == 1) || len(logs) > 1 {
		r.t.Errorf("%s, and the log holds %d units: %+v", want, len(logs), logs)
	}
}

// isDriversOwn makes the type assertion that gorm and ent make.
func isDriversOwn(db testdb.DB, err error) bool {
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

// holdsDriversOwn is isDriversOwn for an error that wraps it.
func holdsDriversOwn(db testdb.DB, err error) bool {
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

// withParam adds a parameter to a DSN of any of the three forms.
func withParam(db testdb.DB, key, value string) testdb.DB {
	sep := "?"
	if strings.Contains(db.DSN, "?") {
		sep = "&"
	}
	// A blank must not become "+", which pgx takes for what it is.
	db.DSN += sep + key + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
	return db
}

func TestRuleDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		res, err := r.wrapped.Exec(r.q("UPDATE account SET balance = ? WHERE id <= ?"), 90, 2)
		r.wantOutcome(delivered, err)
		if err != nil {
			t.FailNow()
		}
		bare, err := r.bare.Exec(r.q("UPDATE account SET balance = ? WHERE id <= ?"), 80, 2)
		if err != nil {
			t.Fatal(err)
		}
		n, nerr := res.RowsAffected()
		wantN, wantNErr := bare.RowsAffected()
		if n != wantN || !reflect.DeepEqual(nerr, wantNErr) {
			t.Errorf("RowsAffected = %d, %v; the driver's own says %d, %v", n, nerr, wantN, wantNErr)
		}
		_, iderr := res.LastInsertId()
		_, wantIDErr := bare.LastInsertId()
		if !reflect.DeepEqual(iderr, wantIDErr) {
			t.Errorf("LastInsertId gives the error %v, the driver's own %v", iderr, wantIDErr)
		}
		if n := r.counters.Delivered.Load(); n != 1 {
			t.Errorf("%d deliveries counted, want 1", n)
		}
	})
}

func TestRuleDeliveredChangesTheTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		for _, on := range []string{"text", "prepared"} {
			var err error
			if on == "text" {
				_, err = r.wrapped.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			} else {
				var st *sql.Stmt
				if st, err = r.wrapped.Prepare(r.q("UPDATE account SET balance = balance - ? WHERE id = ?")); err == nil {
					_, err = st.Exec(10, 1)
					_ = st.Close()
				}
			}
			r.wantOutcome(delivered, err)
		}
		if _, err := r.wrapped.Exec("INSERT INTO account VALUES (2, 5)"); err != nil {
			t.Error(err)
		}
		r.wantBalances(80, 5)
	})
}

// refusal is a statement that the database understands and says no to.
type refusal struct {
	name  string
	query string
	args  []any
	// own: the error is the server's own and not one of a driver that never
	// sent it, so that the bare type assertion holds.
	own bool
	// only names the one kind of database that has it.
	only string
}

var refusals = []refusal{
	{name: "syntax", query: "UPDATE account SET", own: true},
	{name: "unknown column", query: "UPDATE account SET nope = 1", own: true},
	{name: "unknown column in a prepared text", query: "UPDATE account SET nope = ?", args: []any{1}},
	{name: "unknown table", query: "DELETE FROM nope", own: true},
	{name: "duplicate key", query: "INSERT INTO account VALUES (?, ?)", args: []any{1, 5}, own: true},
	{name: "duplicate key in a text", query: "INSERT INTO account VALUES (1, 5)", own: true},
	{name: "unique index", query: "INSERT INTO guarded (id, mail) VALUES (?, ?)", args: []any{2, "a"}, own: true},
	{name: "not null", query: "UPDATE account SET balance = NULL WHERE id = 1", own: true},
	{name: "check", query: "INSERT INTO guarded (id, positive) VALUES (?, ?)", args: []any{2, -1}, own: true},
	{name: "foreign key, no parent", query: "INSERT INTO guarded (id, account_id) VALUES (?, ?)", args: []any{2, 99}, own: true},
	{name: "foreign key, has children", query: "DELETE FROM account WHERE id = ?", args: []any{1}, own: true},
	{name: "value too long", query: "INSERT INTO guarded (id, mail) VALUES (?, ?)", args: []any{2, "much too long"}, own: true},
	{name: "too few arguments", query: "UPDATE account SET balance = ? WHERE id = ?", args: []any{1}},
	{name: "too many arguments", query: "UPDATE account SET balance = 1 WHERE id = ?", args: []any{1, 2}, only: testdb.DriverMySQL},
	{name: "too many arguments", query: "UPDATE account SET balance = 1 WHERE id = ?", args: []any{1, 2}, only: testdb.DriverPostgres},
	{name: "number out of range", query: "UPDATE account SET balance = 99999999999 WHERE id = 1", own: true, only: testdb.DriverMySQL},
	{name: "number out of range", query: "UPDATE account SET balance = 99999999999 WHERE id = 1", own: true, only: testdb.DriverPostgres},
	{name: "a string for a number", query: "UPDATE account SET balance = 'x' WHERE id = 1", own: true, only: testdb.DriverMySQL},
	{name: "a string for a number", query: "UPDATE account SET balance = 'x' WHERE id = 1", own: true, only: testdb.DriverPostgres},
	{name: "division by zero", query: "UPDATE account SET balance = 1 / 0 WHERE id = 1", own: true, only: testdb.DriverPostgres},
	{name: "deferred constraint", query: "INSERT INTO late VALUES (?, ?)", args: []any{1, 99}, own: true, only: testdb.DriverPostgres},
	{name: "deferred constraint", query: "INSERT INTO late VALUES (?, ?)", args: []any{1, 99}, own: true, only: testdb.DriverSQLite},
	{name: "trigger", query: "INSERT INTO forbidden VALUES (1)", own: true},
}

// guarded makes the tables that the refusals are about.
func (r *rig) guarded() {
	r.t.Helper()
	r.account(100)
	long := ", CHECK (length(mail) <= 5)"
	if r.db.Driver != testdb.DriverSQLite {
		long = ""
	}
	r.exec("CREATE TABLE guarded (id INT PRIMARY KEY, mail VARCHAR(5) UNIQUE, positive INT CHECK (positive > 0), "+
		"account_id INT, FOREIGN KEY (account_id) REFERENCES account (id)"+long+")",
		"INSERT INTO guarded VALUES (1, 'a', 1, 1)",
		"CREATE TABLE forbidden (id INT)")
	switch r.db.Driver {
	case testdb.DriverMySQL:
		r.exec("CREATE TRIGGER no BEFORE INSERT ON forbidden FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
		return
	case testdb.DriverPostgres:
		r.exec("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
			"CREATE TRIGGER no BEFORE INSERT ON forbidden FOR EACH ROW EXECUTE FUNCTION no()")
	default:
		r.exec("CREATE TRIGGER no BEFORE INSERT ON forbidden BEGIN SELECT RAISE(ABORT, 'no'); END")
	}
	r.exec("CREATE TABLE late (id INT PRIMARY KEY, account_id INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
}

func (r *rig) wantGuardedUntouched() {
	r.t.Helper()
	r.wantBalances(100)
	if n := r.count("SELECT count(*) FROM guarded"); n != 1 {
		r.t.Errorf("%d rows in guarded, want the first alone", n)
	}
	if n := r.count("SELECT count(*) FROM forbidden"); n != 0 {
		r.t.Errorf("%d rows in forbidden, want none", n)
	}
	if r.db.Driver != testdb.DriverMySQL {
		if n := r.count("SELECT count(*) FROM late"); n != 0 {
			r.t.Errorf("%d rows in late, want none", n)
		}
	}
}

// enforced turns foreign keys on where that is a setting of the connection.
func enforced(db testdb.DB) testdb.DB {
	if db.Driver == testdb.DriverSQLite {
		return withParam(db, "_pragma", "foreign_keys(1)")
	}
	return db
}

func TestRuleRefusedIsTheDriversOwnErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, enforced(db))
		r.guarded()
		for i, c := range refusals {
			if c.only != "" && c.only != db.Driver {
				continue
			}
			query := r.q(c.query)
			_, want := r.bare.Exec(query, c.args...)
			if want == nil {
				t.Fatalf("%s: the bare driver accepts it", c.name)
			}
			before := r.counters.Refused.Load()
			_, err := r.wrapped.Exec(query, c.args...)
			r.wantRefusal(c, want, err)
			if n := r.counters.Refused.Load() - before; n != 1 {
				t.Errorf("%s: %d refusals counted, want 1", c.name, n)
			}
			st, err := r.wrapped.Prepare(query)
			if err == nil {
				_, err = st.Exec(c.args...)
				_ = st.Close()
			}
			if err == nil || errors.Is(err, bedsql.ErrPending) {
				t.Errorf("%s: prepared: %v, want a refusal", c.name, err)
			}
			if c.own && len(c.args) > 0 && !isDriversOwn(db, err) {
				t.Errorf("%s: prepared: %T is not the driver's own bare error", c.name, err)
			}
			r.wantNoLog()
			if t.Failed() {
				t.Fatalf("stopped at refusal %d, %s", i, c.name)
			}
		}
		r.wantGuardedUntouched()
	})
}

func (r *rig) wantRefusal(c refusal, want, err error) {
	r.t.Helper()
	r.wantOutcome(refused, err)
	if err == nil {
		return
	}
	if c.own && !isDriversOwn(r.db, err) {
		r.t.Errorf("%s: %T is not the driver's own bare error", c.name, err)
	}
	if c.own && !reflect.DeepEqual(err, want) || err.Error() != want.Error() {
		r.t.Errorf("%s: %#v\nis not what the bare driver says: %#v", c.name, err, want)
	}
	if errors.Unwrap(err) != nil && errors.Unwrap(want) == nil {
		r.t.Errorf("%s: %v was wrapped", c.name, err)
	}
}

func TestRuleRefusedInsideQuery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		rows, err := r.wrapped.Query(r.q("INSERT INTO account VALUES (?, ?) RETURNING id"), 1, 5)
		if err == nil {
			_ = rows.Close()
		}
		r.wantOutcome(refused, err)
		if !isDriversOwn(db, err) {
			t.Errorf("%T is not the driver's own bare error", err)
		}
	})
}

func TestRuleRefusedForLackOfPermission(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		reader := r.open(r.readOnly().DSN)
		_, err := reader.Exec(r.q("UPDATE account SET balance = ? WHERE id = 1"), 5)
		r.wantOutcome(refused, err)
		if !holdsDriversOwn(db, err) {
			t.Errorf("%T: %v does not hold the driver's own error", err, err)
		}
		r.wantBalances(100)
	})
}

// readOnly is the target as an account that may read it and nothing more.
func (r *rig) readOnly() testdb.DB {
	r.t.Helper()
	db, name := r.db, "reader_"+r.db.Name
	switch db.Driver {
	case testdb.DriverMySQL:
		cfg, err := mysql.ParseDSN(db.DSN)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(name) > 32 {
			name = name[len(name)-32:]
		}
		r.exec("CREATE USER "+name+" IDENTIFIED BY 'secret'", "GRANT SELECT ON "+db.Name+".* TO "+name)
		r.t.Cleanup(func() { r.exec("DROP USER " + name) })
		cfg.User, cfg.Passwd = name, "secret"
		db.DSN = cfg.FormatDSN()
	case testdb.DriverPostgres:
		r.exec("CREATE ROLE "+name+" LOGIN PASSWORD 'secret'", "GRANT SELECT ON account TO "+name)
		r.t.Cleanup(func() { r.exec("DROP OWNED BY "+name, "DROP ROLE "+name) })
		db = withParam(withParam(db, "user", name), "password", "secret")
	default:
		db = withParam(db, "mode", "ro")
	}
	return db
}

func TestRulePendingWhenTheConnectionIsLostAfterTheStatementWasSent(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			cut     func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}
			balance int
		}{
			"applied":     {(*testproxy.Proxy).CutAfter, 90},
			"not applied": {(*testproxy.Proxy).CutBefore, 100},
		} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db), noSyncRetry)
				r.account(100)
				c.cut(p, testproxy.Text("UPDATE account"))
				_, err := r.wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1")
				r.wantOutcome(pending, err)
				e := wantPending(t, err)
				if cause := errors.Unwrap(err); cause == nil {
					t.Errorf("%v unwraps to nothing", err)
				}
				u := r.wantOneLog()
				if e.LogID != u.ID || e.DataSource != u.DataSource || e.Parked || !u.InDoubt {
					t.Errorf("the error %+v does not tell of the log %+v, or that is not in doubt", e, u)
				}
				r.wantBalances(c.balance)
				if report := r.runOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.wantBalances(90)
				r.wantNoLog()
			})
		}
	})
}

func TestRulePendingWhenTheDatabaseGoesDown(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		r.must(r.wrapped, "UPDATE account SET balance = ? WHERE id = ?", 95, 1)
		p.Refuse()
		p.CutAll()
		_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.wantOutcome(pending, err)
		r.wantBalances(95)
		if report := r.runOnce(); report.Delivered != 0 || report.Failed != 0 {
			t.Errorf("the job, with the database down: %s", report)
		}
		p.Accept()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

func TestRulePendingWhenALockCannotBeHad(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(100)
		impatient := r.open(impatient(db).DSN)
		free := r.blockRow(1)
		_, err := impatient.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.wantOutcome(pending, err)
		if !holdsDriversOwn(db, err) {
			t.Errorf("%v does not unwrap to the driver's error", err)
		}
		if u := r.wantOneLog(); u.InDoubt {
			t.Error("the log is in doubt although the database answered")
		}
		free()
		r.wantBalances(100)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

// impatient is the target with the shortest wait for locks.
func impatient(db testdb.DB) testdb.DB {
	switch db.Driver {
	case testdb.DriverMySQL:
		return withParam(db, "innodb_lock_wait_timeout", "1")
	case testdb.DriverPostgres:
		return withParam(db, "lock_timeout", "50")
	default:
		return testdb.DB{Driver: db.Driver, Name: db.Name, DSN: strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(20)", 1)}
	}
}

func TestRuleDeliveredWhenALockComesFreeDuringTheRetries(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		bus := listener.NewBus(quiet())
		failed := make(chan struct{}, 64)
		sub := bus.Subscribe(func(ev listener.Event) {
			if ev.Type == listener.ExecuteFailure {
				failed <- struct{}{}
			}
		})
		defer sub.Close()
		r := newRig(t, db, func(c *bedsql.Config) { c.Bus, c.SyncMaxDeliveryTryTimes = bus, 60 })
		r.account(100)
		impatient := r.open(impatient(db).DSN)
		free := r.blockRow(1)
		done := make(chan error, 1)
		go func() {
			_, err := impatient.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			done <- err
		}()
		waitFor(t, "the first attempt failed", failed)
		free()
		r.wantOutcome(delivered, <-done)
		r.wantBalances(90)
	})
}

func TestRulePendingWhenTheCallersContextEndsWhileItRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			t.Run(cause.Error(), func(t *testing.T) {
				r := newRig(t, freshLike(t, db))
				r.account(100)
				// SQLite gets something to do, for it waits for locks
				// without looking at its context.
				update := "UPDATE account SET balance = balance - 10 WHERE id = 1"
				if db.Driver == testdb.DriverSQLite {
					update += " AND (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3000000) SELECT max(n) FROM c) > 0"
				} else {
					r.blockRow(1)
				}
				running := r.running("UPDATE account")
				ctx, end := endingContext(cause)
				defer end()
				done := make(chan error, 1)
				go func() {
					_, err := r.wrapped.ExecContext(ctx, update)
					done <- err
				}()
				running()
				end()
				err := <-done
				r.wantOutcome(pending, err)
				if !errors.Is(err, cause) {
					t.Errorf("%v does not unwrap to %v", err, cause)
				}
				if u := r.wantOneLog(); u.Leased {
					t.Error("the log was not handed over to the job")
				}
			})
		}
	})
}

// endingContext ends with cause when end is called.
func endingContext(cause error) (ctx context.Context, end func()) {
	if errors.Is(cause, context.Canceled) {
		return context.WithCancel(context.Background())
	}
	done := make(chan struct{})
	c := &deadlined{Context: context.Background(), done: done}
	var ended bool
	return c, func() {
		if !ended {
			ended = true
			close(done)
		}
	}
}

// deadlined is a context whose deadline passes when done is closed.
type deadlined struct {
	context.Context
	done chan struct{}
}

func (c *deadlined) Done() <-chan struct{} { return c.done }
func (c *deadlined) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// running gives a function that waits until a statement that holds text runs
// on the target.
func (r *rig) running(text string) func() {
	query := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '" + text + "%'"
	switch r.db.Driver {
	case testdb.DriverPostgres:
		query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() " +
			"AND state = 'active' AND query LIKE '" + text + "%'"
	case testdb.DriverSQLite:
		// Nobody can be asked. A write lock that is taken shows it: BEGIN
		// IMMEDIATE fails.
		return func() {
			conn, err := impatient(r.db).Open(r.t).Conn(context.Background())
			if err != nil {
				r.t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			eventually(r.t, "the statement holds the write lock", func() bool {
				if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
					return true
				}
				_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
				return false
			})
		}
	}
	return func() {
		eventually(r.t, "the statement runs", func() bool { return r.count(query) > 0 })
	}
}

func TestRuleAContextThatEndedBeforeSendsAndLogsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		ctx, cancel := context.WithCancel(context.Background())
		st, err := r.wrapped.Prepare("UPDATE account SET balance = 1")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		cancel()
		if _, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1"); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Exec: %v, want the context's own error", err)
		}
		if _, err := st.ExecContext(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("Stmt.Exec: %v, want the context's own error", err)
		}
		if adds != 0 {
			t.Errorf("%d logs were written", adds)
		}
		r.wantBalances(100)
	})
}

func TestRuleNotAcceptedWhenTheLogCannotBeWritten(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		if _, err := r.logDB.Open(t).Exec("DROP TABLE transaction_log"); err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"UPDATE account SET balance = 1", "DELETE FROM account"} {
			_, err := r.wrapped.Exec(query)
			if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
				t.Fatalf("%v, want ErrNotLogged and not ErrPending", err)
			}
			if !holdsDriversOwn(db, err) {
				t.Errorf("%v does not unwrap to what the log's database said", err)
			}
		}
		r.wantBalances(100)
		if n := r.counters.NotLogged.Load(); n != 2 {
			t.Errorf("%d writes counted as not accepted, want 2", n)
		}
	})
}

func TestRuleNotAcceptedWhenTheLogsDatabaseIsDown(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigLogBehindProxy(t, db)
		r.account(100)
		p.Refuse()
		p.CutAll()
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := r.wrapped.ExecContext(ctx, "UPDATE account SET balance = 1")
		// A pooled connection may have been found dead only by writing to it:
		// then it is not known that nothing arrived.
		if !errors.Is(err, bedsql.ErrNotLogged) && !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v, want ErrNotLogged or, if that is not known, ErrPending", err)
		}
		if errors.Is(err, bedsql.ErrNotLogged) && errors.Is(err, bedsql.ErrPending) {
			t.Errorf("%v is two things at once", err)
		}
		r.wantBalances(100)
		_, err = r.wrapped.Exec("UPDATE account SET balance = 2")
		r.wantOutcome(notAccepted, err)
		r.wantBalances(100)
		p.Accept()
		r.must(r.wrapped, "UPDATE account SET balance = ?", 3)
		r.wantBalances(3)
	})
}

func TestRuleParametersThatCannotBeKeptAreRefusedBeforeAnythingRuns(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	adds := 0
	r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
	r.account(100)
	_, err := r.wrapped.Exec("UPDATE account SET balance = $1 WHERE id = $2", make(chan int), 1)
	r.wantOutcome(refused, err)
	if err == nil || !strings.Contains(err.Error(), "1") {
		t.Errorf("%v does not name the parameter", err)
	}
	if adds != 0 {
		t.Errorf("%d logs were written", adds)
	}
	r.wantBalances(100)
}

func TestRuleWhatEndsPendingIsDeliveredOnceByTheJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100, 100)
		p.Refuse()
		for i := range 5 {
			_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1<<i)
			wantPending(t, err)
		}
		p.Accept()
		job := r.job()
		for range 2 {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		r.wantBalances(131, 100)
		r.wantNoLog()
	})
}

func TestRuleAnErrorOfTheJobParksWhatTheDatabaseRefusesLater(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		p.Refuse()
		_, err := r.wrapped.Exec("UPDATE account SET nope = 1")
		r.wantOutcome(pending, err) // nobody can know yet
		p.Accept()
		if report := r.runOnce(); report.Parked != 1 {
			t.Errorf("the job: %s, want it parked at once", report)
		}
		r.wantParked("nope")
		r.wantBalances(100)
	})
}

// countAdds counts the units that are written to a log.
func countAdds(s txlog.Storage, n *int) txlog.Storage {
	return &hookedStorage{Storage: s, onAdd: func(units []*txlog.Unit) error {
		*n += len(units)
		return nil
	}}
}

func TestRuleErrorsSayWhatWhereAndWhatNext(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	r := newRig(t, db, noSyncRetry)
	r.account(100)
	free := r.blockRow(1)
	_, err := r.open(impatient(db).DSN).Exec("UPDATE account SET balance = ?", 12345678)
	free()
	e := wantPending(t, err)
	for _, want := range []string{e.LogID, e.DataSource, "pending", "locked"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "12345678") {
		t.Errorf("%q holds a parameter's value", err)
	}
}
