package truth

import (
	"errors"
	"reflect"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
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

// bare is the bare driver's error; nil if the database does not refuse it.
func (c *refusal) bare(t *testing.T, r *rig.Rig) error {
	t.Helper()
	if c.only != "" && c.only != r.DB.Driver {
		return nil
	}
	_, err := r.Bare.Exec(r.Q(c.query), c.args...)
	switch {
	case err != nil:
	case c.name == "check" && r.Count("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'information_schema' AND table_name = 'CHECK_CONSTRAINTS'") == 0:
		r.Exec("DELETE FROM guarded WHERE id = 2")
		t.Run("check", func(t *testing.T) { t.Skip("the server reads CHECK constraints, and ignores them") })
	default:
		t.Fatalf("%s: the bare driver accepts it", c.name)
	}
	return err
}

func TestRuleRefusedIsTheDriversOwnError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.Enforced(db))
		r.Guarded()
		for i, c := range refusals {
			query, want := r.Q(c.query), c.bare(t, r)
			if want == nil {
				continue
			}
			before := r.Counters.Refused.Load()
			_, err := r.Wrapped.Exec(query, c.args...)
			wantRefusal(r, c, want, err)
			if n := r.Counters.Refused.Load() - before; n != 1 {
				t.Errorf("%s: %d refusals counted, want 1", c.name, n)
			}
			st, err := r.Wrapped.Prepare(query)
			if err == nil {
				_, err = st.Exec(c.args...)
				_ = st.Close()
			}
			if err == nil || errors.Is(err, bedsql.ErrPending) {
				t.Errorf("%s: prepared: %v, want a refusal", c.name, err)
			}
			if c.own && len(c.args) > 0 && !rig.IsDriversOwn(db, err) {
				t.Errorf("%s: prepared: %T is not the driver's own bare error", c.name, err)
			}
			r.WantNoLog()
			if t.Failed() {
				t.Fatalf("stopped at refusal %d, %s", i, c.name)
			}
		}
		r.WantGuardedUntouched()
	})
}

func wantRefusal(r *rig.Rig, c refusal, want, err error) {
	r.T.Helper()
	r.WantOutcome(rig.Refused, err)
	if err == nil {
		return
	}
	if c.own && !rig.IsDriversOwn(r.DB, err) {
		r.T.Errorf("%s: %T is not the driver's own bare error", c.name, err)
	}
	if c.own && !reflect.DeepEqual(err, want) || err.Error() != want.Error() {
		r.T.Errorf("%s: %#v\nis not what the bare driver says: %#v", c.name, err, want)
	}
	if errors.Unwrap(err) != nil && errors.Unwrap(want) == nil {
		r.T.Errorf("%s: %v was wrapped", c.name, err)
	}
}

func TestRuleRefusedInsideQuery(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		rows, err := r.Wrapped.Query(r.Q("INSERT INTO account VALUES (?, ?) RETURNING id"), 1, 5)
		if err == nil {
			_ = rows.Close()
		}
		r.WantOutcome(rig.Refused, err)
		if !rig.IsDriversOwn(db, err) {
			t.Errorf("%T is not the driver's own bare error", err)
		}
	})
}

func TestRuleRefusedForLackOfPermission(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		reader := r.Open(r.ReadOnly().DSN)
		_, err := reader.Exec(r.Q("UPDATE account SET balance = ? WHERE id = 1"), 5)
		r.WantOutcome(rig.Refused, err)
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("%T: %v does not hold the driver's own error", err, err)
		}
		r.WantBalances(100)
	})
}
