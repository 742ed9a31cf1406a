package acceptance

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// states are statements that leave something behind in a session, and what tells
// whether it is there.
var states = map[string][]struct{ set, ask string }{
	testdb.DriverMySQL: {
		{"SET @x = 1", "SELECT @x IS NOT NULL"},
		{"SET foreign_key_checks = 0", "SELECT @@foreign_key_checks = 0"},
		{"CREATE TEMPORARY TABLE mine (id INT)", ""},
		{"SELECT GET_LOCK('bed %s', 0)", "SELECT IS_USED_LOCK('bed %s') IS NOT NULL"},
	},
	testdb.DriverPostgres: {
		{"SET search_path = pg_catalog", "SELECT current_setting('search_path') = 'pg_catalog'"},
		{"CREATE TEMPORARY TABLE mine (id INT)", "SELECT to_regclass('mine') IS NOT NULL"},
		{"SELECT pg_advisory_lock(4711)", "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"},
		{"SELECT set_config('bed.x', '1', false)", "SELECT current_setting('bed.x', true) = '1'"},
	},
	testdb.DriverSQLite: {
		{"PRAGMA recursive_triggers = ON", "PRAGMA recursive_triggers"},
		{"CREATE TEMPORARY TABLE mine (id INT)", "SELECT EXISTS (SELECT 1 FROM temp.sqlite_master)"},
	},
}

func TestNoConnectionGoesBackToThePoolWithTheStateOfItsSession(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		r.wrapped.SetMaxOpenConns(1)
		prepared, err := r.wrapped.Prepare(r.q("UPDATE account SET balance = ? WHERE id = ?"))
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
		for _, state := range states[db.Driver] {
			r.must(r.wrapped, inDatabase(state.set, db))
			if state.ask != "" {
				var there sql.NullBool
				if err := r.wrapped.QueryRow(inDatabase(state.ask, db)).Scan(&there); err != nil {
					t.Fatalf("%s: %v", state.ask, err)
				}
				if there.Bool {
					t.Errorf("%s: it is still there for the next user", state.set)
				}
			}
			write()
		}
		if n := r.counters.PassedThrough.Load(); n != 0 || adds != writes {
			t.Errorf("%d writes ran unlogged, %d were logged; want 0 and %d", n, adds, writes)
		}
		r.wantBalances(writes - 1)
		r.wantNoLog()
	})
}

// inDatabase puts the name of the database in for %s: user locks are the server's.
func inDatabase(text string, db testdb.DB) string {
	return strings.ReplaceAll(text, "%s", db.Name)
}

func TestASettingThatIsPutBackUnpins(t *testing.T) {
	t.Parallel()
	cases := map[string][]struct {
		away, back string
		unpins     bool
	}{
		testdb.DriverMySQL: {
			{"SET FOREIGN_KEY_CHECKS = 0", "SET FOREIGN_KEY_CHECKS = 1", true},
			{"SET @@SESSION.unique_checks = OFF, foreign_key_checks = 0", "SET SESSION foreign_key_checks = ON, unique_checks = 1", true},
			{"SET foreign_key_checks = 0, unique_checks = 0", "SET foreign_key_checks = 1", false},
			{"SET foreign_key_checks = 0", "SET foreign_key_checks = 2 - 1", false},
			{"SET lc_time_names = 'de_DE'", "SET lc_time_names = 'en_US'", true},
			{"SET foreign_key_checks = 0, @x = 1", "SET foreign_key_checks = 1", false},
			{"SET NAMES latin1", "SET NAMES utf8mb4", false},
		},
		testdb.DriverPostgres: {
			{"SET search_path = pg_catalog, public", "RESET search_path", true},
			{"SET SESSION statement_timeout TO '7s'", "SET statement_timeout TO DEFAULT", true},
			{"SET enable_seqscan = off", "SET enable_seqscan = on", true},
			{"SET enable_seqscan = off", "SET enable_hashjoin = on", false},
		},
		testdb.DriverSQLite: {
			{"PRAGMA recursive_triggers = ON", "PRAGMA recursive_triggers = OFF", true},
			{"PRAGMA recursive_triggers = 1", "PRAGMA defer_foreign_keys = 0", false},
		},
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, c := range cases[db.Driver] {
			adds := 0
			r := newRig(t, freshLike(t, db), func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
			r.account(100)
			conn := r.conn()
			r.must(conn, c.away)
			r.must(conn, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
			if adds != 0 {
				t.Errorf("%s: the write behind it was logged", c.away)
			}
			r.must(conn, c.back)
			r.must(conn, "UPDATE account SET balance = ? WHERE id = ?", 2, 1)
			if unpinned := adds == 1; unpinned != c.unpins {
				t.Errorf("%s, then %s: the write behind was logged: %v, want %v", c.away, c.back, unpinned, c.unpins)
			}
			r.wantBalances(2)
			r.wantNoLog()
		}
	})
}

// PostgreSQL takes a SET back when its transaction rolls back.
func TestASettingThatIsPutBackInATransactionThatMayRollBackStaysPinned(t *testing.T) {
	t.Parallel()
	adds := 0
	r := newRig(t, testdb.Postgres(t), func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
	r.exec("CREATE SCHEMA elsewhere", "CREATE TABLE elsewhere.account (id INT, balance INT)")
	r.account(100)
	conn := r.conn()
	r.must(conn, "SET search_path = elsewhere")
	tx, err := conn.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.must(tx, "RESET search_path")
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.must(conn, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
	if adds != 0 {
		t.Error("a write in another schema was logged as one of the usual one")
	}
	r.wantBalances(100)
}

func TestASettingThatOnlyLooksPutBackStaysPinned(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		away  string
		back  []string
		table string
	}{
		// The character set brings its default collation, not the one of the DSN.
		testdb.DriverMySQL: {"SET character_set_connection = latin1", []string{"SET character_set_connection = utf8mb4"}, "account"},
		// A list in quotes is one name.
		testdb.DriverPostgres: {"SET search_path = pg_catalog", []string{`SET search_path = '"$user", public'`}, "public.account"},
		// Ignored within a transaction.
		testdb.DriverSQLite: {"PRAGMA foreign_keys = ON", []string{"BEGIN", "PRAGMA foreign_keys = OFF", "COMMIT"}, "account"},
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := newRig(t, db, func(c *bedsql.Config) { c.Storage = countAdds(c.Storage, &adds) })
		r.account(100)
		c, conn := cases[db.Driver], r.conn()
		r.must(conn, c.away)
		for _, text := range c.back {
			r.must(conn, text)
		}
		r.must(conn, "UPDATE "+c.table+" SET balance = ? WHERE id = ?", 1, 1)
		if adds != 0 {
			t.Errorf("%s, then %q: the write behind was logged", c.away, c.back)
		}
		r.wantBalances(1)
	})
}

func TestAConnectionThatWasUsedRawIsClosedWhateverElsePinnedIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.Postgres(t))
	r.wrapped.SetMaxOpenConns(1)
	conn := r.conn()
	backend := func(q interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}) (pid int) {
		if err := q.QueryRowContext(context.Background(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := backend(conn)
	r.must(conn, "SET statement_timeout = '7s'")
	if err := conn.Raw(func(dc any) error {
		_, err := dc.(*bedsql.Conn).Raw(context.Background())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if backend(r.wrapped) == before {
		t.Error("the next user got the connection that was used raw")
	}
}
