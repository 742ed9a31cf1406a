package acceptance

import (
	"errors"
	"reflect"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// refusal is a statement that the database understands and says no to.
type refusal struct {
	name  string
	query string
	args  []any
	// own marks errors of the server itself rather than of a driver that never sent the statement,
	// so that the bare type assertion holds.
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

// enforced turns foreign keys on if the database has a setting for that.
func enforced(db testdb.DB) testdb.DB {
	if db.Driver == testdb.DriverSQLite {
		return withParam(db, "_pragma", "foreign_keys(1)")
	}
	return db
}

func TestRuleRefusedIsTheDriversOwnError(t *testing.T) {
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
