package session

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// state is a statement with a lasting effect on the session, and a query for the effect.
type state struct {
	set, ask string
	// lock is set if other sessions see the effect: the server frees the locks of a closed
	// connection a moment later.
	lock bool
}

var states = testdb.By[[]state]{
	MySQL: []state{
		{set: "SET @x = 1", ask: "SELECT @x IS NOT NULL"},
		{set: "SET foreign_key_checks = 0", ask: "SELECT @@foreign_key_checks = 0"},
		{set: "CREATE TEMPORARY TABLE mine (id INT)"},
		{set: "SELECT GET_LOCK('bed %s', 0)", ask: "SELECT IS_USED_LOCK('bed %s') IS NOT NULL", lock: true},
	},
	Postgres: []state{
		{set: "SET search_path = pg_catalog", ask: "SELECT current_setting('search_path') = 'pg_catalog'"},
		{set: "CREATE TEMPORARY TABLE mine (id INT)", ask: "SELECT to_regclass('mine') IS NOT NULL"},
		{set: "SELECT pg_advisory_lock(4711)", ask: "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))", lock: true},
		{set: "SELECT set_config('bed.x', '1', false)", ask: "SELECT current_setting('bed.x', true) = '1'"},
	},
	SQLite: []state{
		{set: "PRAGMA case_sensitive_like = ON", ask: "SELECT 'a' NOT LIKE 'A'"},
		{set: "CREATE TEMPORARY TABLE mine (id INT)", ask: "SELECT EXISTS (SELECT 1 FROM temp.sqlite_master)"},
	},
}

func TestPoolGetsNoConnectionWithSessionState(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
		r.Account(100)
		r.Wrapped.SetMaxOpenConns(1)
		prepared, err := r.Wrapped.Prepare(r.Q("UPDATE account SET balance = ? WHERE id = ?"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = prepared.Close() }()
		writes := 0
		write := func() {
			t.Helper()
			if _, err := prepared.Exec(writes, 1); err != nil {
				t.Fatal(err)
			}
			writes++
		}
		write()
		for _, state := range states.For(db.Driver) {
			r.Must(r.Wrapped, inDatabase(state.set, db))
			if state.ask != "" {
				there := func() (there sql.NullBool) {
					t.Helper()
					if err := r.Wrapped.QueryRow(inDatabase(state.ask, db)).Scan(&there); err != nil {
						t.Fatalf("%s: %v", state.ask, err)
					}
					return there
				}
				if state.lock {
					rig.Eventually(t, "the server has freed "+state.set, func() bool { return !there().Bool })
				} else if there().Bool {
					t.Errorf("%s: it is still there for the next user", state.set)
				}
			}
			write()
		}
		if n := r.Counters.PassedThrough.Load(); n != 0 || adds != writes {
			t.Errorf("%d writes ran unlogged, %d were logged; want 0 and %d", n, adds, writes)
		}
		r.WantBalances(writes - 1)
		r.WantNoLog()
	})
}

// inDatabase puts the name of the database in for %s: user locks are the server's.
func inDatabase(text string, db testdb.DB) string {
	return strings.ReplaceAll(text, "%s", db.Name)
}

func TestRawConnectionIsClosedEvenIfPinnedOtherwise(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t))
	r.Wrapped.SetMaxOpenConns(1)
	conn := r.Conn()
	backend := func(q interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}) (pid int) {
		if err := q.QueryRowContext(context.Background(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := backend(conn)
	r.Must(conn, "SET statement_timeout = '7s'")
	if err := conn.Raw(func(dc any) error {
		_, err := dc.(*bedsql.Conn).Raw(context.Background())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if backend(r.Wrapped) == before {
		t.Error("the next user got the connection that was used raw")
	}
}
