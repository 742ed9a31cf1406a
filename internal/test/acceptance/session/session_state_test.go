package session

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// sessionState is a statement with a lasting effect on its session, and a write that depends on the
// effect.
type sessionState struct {
	name   string
	driver string
	state  string
	// query: state is sent through Query.
	query bool
	write string
}

// conn is a connection whose session is in this state.
func (s sessionState) conn(r *rig.Rig) *sql.Conn {
	r.T.Helper()
	conn := r.Conn()
	if !s.query {
		r.Must(conn, s.state)
		return conn
	}
	rows, err := conn.QueryContext(context.Background(), s.state)
	if err != nil {
		r.T.Fatal(err)
	}
	_ = rows.Close()
	return conn
}

var sessionStates = []sessionState{
	{name: "temporary table", driver: testdb.DriverMySQL, state: "CREATE TEMPORARY TABLE tmp (n INT)", write: "INSERT INTO tmp VALUES (1)"},
	{name: "user variable", driver: testdb.DriverMySQL, state: "SET @amount = 5", write: "UPDATE account SET balance = @amount"},
	{name: "session variable", driver: testdb.DriverMySQL, state: "SET SESSION sql_mode = ''", write: "UPDATE account SET balance = 5"},
	{name: "LOCK TABLES", driver: testdb.DriverMySQL, state: "LOCK TABLES account WRITE", write: "UPDATE account SET balance = 5"},
	{name: "user lock", driver: testdb.DriverMySQL, state: "SELECT GET_LOCK('bed', 0)", query: true, write: "UPDATE account SET balance = 5"},
	{name: "prepared by text", driver: testdb.DriverMySQL, state: "PREPARE p FROM 'SELECT 1'", write: "UPDATE account SET balance = 5"},

	{name: "temporary table", driver: testdb.DriverPostgres, state: "CREATE TEMP TABLE tmp (n INT)", write: "INSERT INTO tmp VALUES (1)"},
	{name: "SELECT INTO TEMP", driver: testdb.DriverPostgres, state: "SELECT id INTO TEMP tmp FROM account", write: "INSERT INTO tmp VALUES (1)"},
	{name: "search_path", driver: testdb.DriverPostgres, state: "SET search_path = other", write: "UPDATE account SET balance = 5"},
	{name: "set_config", driver: testdb.DriverPostgres, state: "SELECT set_config('search_path', 'other', false)", query: true, write: "UPDATE account SET balance = 5"},
	{name: "advisory lock", driver: testdb.DriverPostgres, state: "SELECT pg_try_advisory_lock(1)", query: true, write: "UPDATE account SET balance = 5"},
	{name: "role", driver: testdb.DriverPostgres, state: "SET ROLE postgres", write: "UPDATE account SET balance = 5"},
	{name: "time zone", driver: testdb.DriverPostgres, state: "SET TIME ZONE 'Asia/Tokyo'", write: "UPDATE account SET balance = 5"},

	{name: "temporary table", driver: testdb.DriverSQLite, state: "CREATE TEMP TABLE tmp (n INT)", write: "INSERT INTO tmp VALUES (1)"},
	{name: "attached database", driver: testdb.DriverSQLite, state: "ATTACH ':memory:' AS aside", write: "UPDATE account SET balance = 5"},
	{name: "pragma", driver: testdb.DriverSQLite, state: "PRAGMA case_sensitive_like = ON", write: "UPDATE account SET balance = 5"},
}

func TestSessionStatePinsItsConnection(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, s := range sessionStates {
			if s.driver != db.Driver {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				var hook *logtest.Hook
				adds := 0
				r := rig.New(t, rig.FreshLike(t, db), rig.Collecting(&hook), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
				r.Account(100)
				if db.Driver == testdb.DriverPostgres {
					r.Exec("CREATE SCHEMA other", "CREATE TABLE other.account (id INT, balance INT)", "INSERT INTO other.account VALUES (1, 1)")
				}
				conn := s.conn(r)
				for range 2 {
					r.Must(conn, s.write)
				}
				if adds != 0 {
					t.Errorf("%d entries were written: a retry elsewhere would not see the session's state", adds)
				}
				if n := r.Counters.PassedThrough.Load(); n != 2 {
					t.Errorf("%d writes counted as passed through, want 2", n)
				}
				if w := rig.Warnings(hook); len(w) != 1 {
					t.Errorf("warnings %q, want one for the connection", w)
				}
				if s.name == "search_path" || s.name == "set_config" {
					if n := r.Count("SELECT balance FROM other.account"); n != 5 {
						t.Errorf("the write went to the wrong schema")
					}
					r.WantBalances(100)
				}
				// Its errors are the driver's own, and unretried.
				if err := r.Fails(conn, "UPDATE account SET nope = 1"); !rig.IsDriversOwn(db, err) {
					t.Errorf("%T %v is not the driver's own bare error", err, err)
				}
			})
		}
	})
}

func TestPinnedRefuseMakesItAnError(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, s := range sessionStates {
			if s.driver != db.Driver {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				r := rig.New(t, rig.FreshLike(t, db), func(c *bedsql.Config) { c.Pinned = bedsql.PinnedRefuse })
				r.Account(100)
				if db.Driver == testdb.DriverPostgres {
					r.Exec("CREATE SCHEMA other", "CREATE TABLE other.account (id INT, balance INT)")
				}
				ctx := context.Background()
				conn := s.conn(r)
				if err := r.Fails(conn, s.write); !errors.Is(err, bedsql.ErrPinned) || errors.Is(err, bedsql.ErrPending) {
					t.Errorf("%v, want ErrPinned", err)
				}
				if _, err := conn.ExecContext(bedsql.Unlogged(ctx), s.write); err != nil {
					t.Errorf("under Unlogged: %v", err)
				}
				r.WantNoLog()
			})
		}
	})
}

func TestUseStatementMovesWritesToItsDatabase(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(100)
	elsewhere := rig.New(t, testdb.MySQL(t))
	elsewhere.Account(100)
	conn := r.Conn()
	r.Must(conn, "USE "+elsewhere.DB.Name)
	r.Must(conn, "UPDATE account SET balance = ? WHERE id = ?", 5, 1)
	r.WantBalances(100)
	elsewhere.WantBalances(5)
	if n := r.Counters.PassedThrough.Load(); n != 1 {
		t.Errorf("%d writes counted as passed through, want 1", n)
	}
}

func TestWriteThatReadsItsSessionIsNeverLogged(t *testing.T) {
	t.Parallel()
	for driver, writes := range (testdb.By[[]string]{
		MySQL: []string{
			"UPDATE account SET balance = @unset WHERE id = 2",
			"UPDATE account SET balance = LAST_INSERT_ID() WHERE id = 1",
			"UPDATE account SET balance = (@n := 5) WHERE id = 1",
		},
		Postgres: []string{"UPDATE account SET balance = pg_backend_pid() WHERE id = 1"},
		SQLite:   []string{"UPDATE account SET balance = last_insert_rowid() WHERE id = 1"},
	}).All() {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, driver)
			adds := 0
			r := rig.New(t, db, func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
			r.Account(100)
			for _, write := range writes {
				if _, err := r.Wrapped.Exec(write); err != nil {
					t.Errorf("%s: %v", write, err)
				}
			}
			if adds != 0 || int(r.Counters.PassedThrough.Load()) != len(writes) {
				t.Errorf("%d entries, %d counted as passed through; want 0 and %d", adds, r.Counters.PassedThrough.Load(), len(writes))
			}
		})
	}
}

func TestPinnedConnectionStaysPinnedIfConfigured(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		adds := 0
		r := rig.New(t, db, func(c *bedsql.Config) { c.Storage, c.KeepSessionState = rig.CountAdds(c.Storage, &adds), true })
		r.Account(100)
		r.Wrapped.SetMaxOpenConns(1)
		state := testdb.By[string]{MySQL: "SET @x = 1", Postgres: "SET search_path = public", SQLite: "PRAGMA case_sensitive_like = ON"}
		r.Must(r.Wrapped, state.For(db.Driver))
		r.Must(r.Wrapped, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
		tx := r.Begin()
		r.Must(tx, "UPDATE account SET balance = ? WHERE id = ?", 2, 1)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if adds != 0 || r.Counters.PassedThrough.Load() != 2 {
			t.Errorf("%d entries, %d counted as passed through; want 0 and 2", adds, r.Counters.PassedThrough.Load())
		}
		r.WantBalances(2)
	})
}

func TestWhatEndsWithItsTransactionDoesNotPin(t *testing.T) {
	t.Parallel()
	adds := 0
	r := rig.New(t, testdb.Postgres(t), func(c *bedsql.Config) { c.Storage = rig.CountAdds(c.Storage, &adds) })
	r.Account(100)
	conn := r.Conn()
	tx, err := conn.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Must(tx, "SET LOCAL search_path = public")
	r.Must(tx, "SELECT set_config('search_path', 'public', true)")
	r.Must(tx, "UPDATE account SET balance = ? WHERE id = ?", 1, 1)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	r.Must(conn, "UPDATE account SET balance = ? WHERE id = ?", 2, 1)
	if adds != 2 || r.Counters.PassedThrough.Load() != 0 {
		t.Errorf("%d entries, %d counted as passed through; want 2 and 0", adds, r.Counters.PassedThrough.Load())
	}
}

func TestUnloggedWritesWarningNamesStatementsAndRemedy(t *testing.T) {
	t.Parallel()
	state := testdb.By[string]{
		MySQL:    "SET @secret = 'hunter2'",
		Postgres: "SET application_name = 'hunter2'",
		SQLite:   "ATTACH ':memory:' AS aside",
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var hook *logtest.Hook
		r := rig.New(t, db, rig.Collecting(&hook))
		r.Account(100)
		conn := r.Conn()
		for _, statement := range []string{state.For(db.Driver), "UPDATE account SET balance = balance + 7654321 WHERE id = 1", "UPDATE account SET balance = 1"} {
			if _, err := conn.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		var told []*logrus.Entry
		for _, e := range hook.AllEntries() {
			if e.Level == logrus.WarnLevel {
				told = append(told, e)
			}
		}
		if len(told) != 1 {
			t.Fatalf("%d warnings, want 1: %v", len(told), rig.Warnings(hook))
		}
		line, err := told[0].String()
		if err != nil {
			t.Fatal(err)
		}
		if got := told[0].Data["statement"]; got != "UPDATE account SET balance = balance + ? WHERE id = ?" {
			t.Errorf("the statement is %q", got)
		}
		by, _ := told[0].Data["pinned_by"].(string)
		if first, _, _ := strings.Cut(state.For(db.Driver), " "); !strings.HasPrefix(by, first+" ") {
			t.Errorf("it is pinned by %q, want %q", by, state.For(db.Driver))
		}
		for _, want := range []string{"DSN", "sql.DB.Conn", "bedsql.Unlogged", "PinnedRefuse"} {
			if !strings.Contains(line, want) {
				t.Errorf("%q is missing in %s", want, line)
			}
		}
		for _, value := range []string{"hunter2", "7654321"} {
			if strings.Contains(line, value) {
				t.Errorf("the value %s is in %s", value, line)
			}
		}
	})
}

// A migrator takes a lock of its session first: golang-migrate by either of these, goose
// by PostgreSQL's if it is given a session locker.
func TestMigratorWarningNamesTheLock(t *testing.T) {
	t.Parallel()
	locks := map[string]string{testdb.DriverMySQL: "SELECT GET_LOCK('migration', 10)", testdb.DriverPostgres: "SELECT pg_advisory_lock(4711)"}
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		var hook *logtest.Hook
		r := rig.New(t, db, rig.Collecting(&hook))
		r.Account(100)
		conn := r.Conn()
		if _, err := conn.ExecContext(t.Context(), locks[db.Driver]); err != nil {
			t.Fatal(err)
		}
		r.Must(conn, rig.SetBalance, 1, 1)
		said := rig.Warnings(hook)
		if len(hook.AllEntries()) == 0 {
			t.Fatal("there is no warning")
		}
		if reason, _ := hook.LastEntry().Data["reason"].(string); !strings.Contains(reason, "lock, as migrators take one") {
			t.Errorf("the reason is %q: %v", reason, said)
		}
	})
}
