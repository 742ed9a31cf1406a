package asyncjob

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func realTarget(t *testing.T, db testdb.DB) delivery.Target {
	t.Helper()
	read := testdb.By[func(string) (delivery.Target, error)]{
		MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target,
	}.For(db.Driver)
	target, err := read(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// table makes the table of these tests: id is its key.
func table(t *testing.T, db testdb.DB) *sql.DB {
	t.Helper()
	pool := db.Open(t)
	mustExec(t, pool, "CREATE TABLE account (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL)")
	return pool
}

func mustExec(t *testing.T, pool *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := pool.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func rows(t *testing.T, pool *sql.DB, where string) (n int) {
	t.Helper()
	if err := pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM account WHERE "+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// addFor logs a unit with the target's settings.
func addFor(t *testing.T, s txlog.Storage, target delivery.Target, inDoubt bool, statements ...string) *entry.Unit {
	t.Helper()
	return add(t, s, "orders", "", func(u *entry.Unit) {
		u.Settings, u.InDoubt, u.Statements = target.Settings, inDoubt, nil
		for _, q := range statements {
			u.Statements = append(u.Statements, entry.Statement{SQL: q})
		}
	})
}

// addNamed is addFor for one statement with one parameter, written as "?".
func addNamed(t *testing.T, s txlog.Storage, target delivery.Target, query, name string) *entry.Unit {
	t.Helper()
	params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: name}})
	if err != nil {
		t.Fatal(err)
	}
	if target.Dialect.Flavor == sqltext.Postgres {
		query = strings.Replace(query, "?", "$1", 1)
	}
	return add(t, s, "orders", "", func(u *entry.Unit) {
		u.Settings = target.Settings
		u.Statements = []entry.Statement{{SQL: query, Params: params}}
	})
}

// executes matches the message that runs a statement with parameters.
func executes(db testdb.DB) func([]byte) bool {
	if db.Driver == testdb.DriverMySQL {
		return testproxy.MySQLExecute
	}
	return testproxy.PostgresExecute
}

func TestOutcomesOnRealDatabases(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool, target, store := table(t, db), realTarget(t, db), newStore(t)
		mustExec(t, pool, "INSERT INTO account VALUES (7, 'somebody')")
		addFor(t, store, target, false, "INSERT INTO account VALUES (1, 'single')")
		addFor(t, store, target, false, "INSERT INTO account VALUES (2, 'a')", "UPDATE account SET name = 'unit' WHERE id = 2")
		addNamed(t, store, target, "INSERT INTO account (id, name) VALUES (3, ?)", "with parameter")
		refused := addFor(t, store, target, false, "INSERT INTO account (id, nickname) VALUES (4, 'x')")
		duplicate := addFor(t, store, target, false, "INSERT INTO account VALUES (7, 'me')")
		addFor(t, store, target, true, "INSERT INTO account VALUES (7, 'somebody')")
		halfway := addFor(t, store, target, false, "INSERT INTO account VALUES (5, 'half')", "INSERT INTO account VALUES (7, 'me')")

		r := runOnce(t, newJob(t, store, Targets{"orders": target}, brittle()))
		if r.Claimed != 7 || r.Delivered != 4 || r.Assumed != 1 || r.Parked != 3 {
			t.Errorf("report: %v", r)
		}
		if n := rows(t, pool, "id = 1 AND name = 'single' OR id = 2 AND name = 'unit' OR id = 3 AND name = 'with parameter'"); n != 3 {
			t.Errorf("%d of 3 rows are there", n)
		}
		if n := rows(t, pool, "id IN (4, 5)"); n != 0 {
			t.Errorf("%d rows of parked units are there", n)
		}
		for _, u := range []*entry.Unit{refused, duplicate, halfway} {
			if got := get(t, store, u); !got.Parked || got.LastError == "" || got.InDoubt {
				t.Errorf("the unit is %+v", got)
			}
		}
	})
}

func TestALockHeldTooLongIsNoTry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db   func(testing.TB) testdb.DB
		init string // makes lock waits short
	}{
		"mysql":    {testdb.MySQL, "innodb_lock_wait_timeout=1"},
		"postgres": {testdb.Postgres, "lock_timeout=200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := c.db(t)
			pool := table(t, db)
			mustExec(t, pool, "INSERT INTO account VALUES (1, 'locked')")
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(t.Context(), "UPDATE account SET name = 'held' WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			sep := "?"
			if strings.Contains(db.DSN, "?") {
				sep = "&"
			}
			if name == "postgres" && !strings.Contains(db.DSN, "://") {
				sep = " "
			}
			db.DSN += sep + c.init
			target, store := realTarget(t, db), newStore(t)
			u := addFor(t, store, target, false, "UPDATE account SET name = 'new' WHERE id = 1")
			r := runOnce(t, newJob(t, store, Targets{"orders": target}, brittle()))
			if got := get(t, store, u); r.PushedBack != 1 || got.Tries != 0 || got.ContendedSince().IsZero() || got.InDoubt || got.Parked {
				t.Errorf("the unit is %+v, report %v", got, r)
			}
		})
	}
}

func TestAClosedPortIsAnOutage(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := fresh(t)
			closed := testproxy.New(t, db.Addr()) // nobody else gets its port
			closed.Refuse()
			target, store := realTarget(t, db.Via(closed.Addr())), newStore(t)
			u := addFor(t, store, target, false, "DELETE FROM account")
			r := runOnce(t, newJob(t, store, Targets{"orders": target}, brittle()))
			if r.Claimed != 0 || r.DataSources["orders"].Unreachable == nil {
				t.Errorf("report: %v", r)
			}
			if got := get(t, store, u); got.Tries != 0 || got.Parked {
				t.Errorf("the unit is %+v", got)
			}
		})
	}
}

// The answer of an INSERT is lost: the next try meets its own row.
func TestDuplicateAfterLostAnswerIsAssumedDelivered(t *testing.T) {
	t.Parallel()
	for name, fresh := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := fresh(t)
			pool := table(t, db)
			proxy := testproxy.New(t, db.Addr())
			target, store := realTarget(t, db.Via(proxy.Addr())), newStore(t)
			u := addNamed(t, store, target, "INSERT INTO account (id, name) VALUES (1, ?)", "once")
			j := newJob(t, store, Targets{"orders": target}, brittle())
			proxy.CutAfter(executes(db))
			if r := runOnce(t, j); r.Failed != 1 {
				t.Errorf("first round: %v", r)
			}
			if got := get(t, store, u); !got.InDoubt || got.Tries != 1 {
				t.Errorf("the unit is %+v", got)
			}
			if r := runOnce(t, j); r.Delivered != 1 || r.Assumed != 1 {
				t.Errorf("second round: %v", r)
			}
			if n := rows(t, pool, "id = 1"); n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
}

func TestOversizedPacketDoesNotBlockOtherUnits(t *testing.T) {
	t.Parallel()
	db := testdb.PrivateMariaDB(t, "--max-allowed-packet=1M").DB(t)
	pool := db.Open(t)
	mustExec(t, pool, "CREATE TABLE account (id INT PRIMARY KEY, name LONGTEXT NOT NULL)")
	target, store := realTarget(t, db), newStore(t)
	huge := fmt.Sprintf("INSERT INTO account VALUES (1, '%s')", strings.Repeat("x", 5<<20))
	single := addFor(t, store, target, false, huge)
	pair := addFor(t, store, target, false, "INSERT INTO account VALUES (2, '')", huge)
	addFor(t, store, target, false, "INSERT INTO account VALUES (3, 'small')")
	j := newJob(t, store, Targets{"orders": target}, brittle())
	if r := runOnce(t, j); r.Delivered != 1 || r.Failed+r.Parked != 2 {
		t.Errorf("first round: %v", r)
	}
	for range 2 {
		runOnce(t, j)
	}
	for _, u := range []*entry.Unit{single, pair} {
		if got := get(t, store, u); !got.Parked {
			t.Errorf("after three rounds: tries %d, parked %v, last error %s", got.Tries, got.Parked, got.LastError)
		}
	}
	if n := rows(t, pool, "id IN (1, 2)"); n != 0 {
		t.Errorf("%d rows of what cannot be delivered", n)
	}
}

func TestServerCrashDuringDeliveryIsNotATry(t *testing.T) {
	t.Parallel()
	for name, private := range map[string]func(testing.TB) *testdb.Server{
		"mysql":    func(t testing.TB) *testdb.Server { return testdb.PrivateMariaDB(t) },
		"postgres": func(t testing.TB) *testdb.Server { return testdb.PrivatePostgres(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := private(t)
			db := server.DB(t)
			pool := table(t, db)
			mustExec(t, pool, "INSERT INTO account VALUES (1, 'locked')")
			tx, err := pool.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), "UPDATE account SET name = 'held' WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			proxy := testproxy.New(t, server.Addr())
			target, store := realTarget(t, db.Via(proxy.Addr())), newStore(t)
			blocked := addNamed(t, store, target, "UPDATE account SET name = ? WHERE id = 1", "new")
			var behind []*entry.Unit
			for id := range 10 {
				behind = append(behind, addFor(t, store, target, false, fmt.Sprintf("INSERT INTO account VALUES (%d, 'behind')", 10+id)))
			}
			cfg := brittle()
			cfg.Concurrency = 1
			j := newJob(t, store, Targets{"orders": target}, cfg)
			// The statement has passed and waits for the lock when its message
			// has been let go.
			reached, release := proxy.Hold(executes(db))
			reports := make(chan Report, 1)
			go func() {
				r, _ := j.RunOnce(context.Background())
				reports <- r
			}()
			wait(t, "the delivery", reached)
			release()
			server.Kill()
			_ = tx.Rollback()
			var r Report
			select {
			case r = <-reports:
			case <-time.After(patience):
				t.Fatal("the round does not end")
			}
			if r.PushedBack != 11 || r.DataSources["orders"].Unreachable == nil {
				t.Errorf("report: %v", r)
			}
			if got := get(t, store, blocked); got.Tries != 0 || !got.InDoubt || got.Parked {
				t.Errorf("the unit that met the outage is %+v", got)
			}
			for _, u := range behind {
				if got := get(t, store, u); got.Tries != 0 || got.InDoubt || got.Leased {
					t.Fatalf("a unit behind it is %+v", got)
				}
			}
			if r := runOnce(t, j); r.Claimed != 0 || r.DataSources["orders"].Unreachable == nil {
				t.Errorf("a round during the outage: %v", r)
			}
			server.Start()
			if r := runOnce(t, j); r.Delivered != 11 {
				t.Errorf("the round after the outage: %v", r)
			}
			if n := rows(t, db.Open(t), "name IN ('new', 'behind')"); n != 11 {
				t.Errorf("%d of 11 writes arrived", n)
			}
		})
	}
}

func TestTwoRealJobsDeliverEachUnitOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, logDB testdb.DB) {
		targetDB := testdb.SQLite(t)
		pool, target := table(t, targetDB), realTarget(t, targetDB)
		mustExec(t, pool, "INSERT INTO account VALUES (0, '')")
		store, err := txlog.Open(t.Context(), logDB.SQLDriver(), logDB.DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		const units = 120
		for i := range units {
			// Not idempotent: a second delivery would show.
			addFor(t, store, target, false, fmt.Sprintf("UPDATE account SET name = name || 'x' WHERE id = 0 AND %d = %d", i, i))
		}
		cfg := brittle()
		cfg.TransactionLogFetchDataCount = 10
		var all sync.WaitGroup
		for range 2 {
			j := newJob(t, store, Targets{"orders": target}, cfg)
			all.Go(func() {
				for {
					if r, err := j.RunOnce(t.Context()); err != nil || r.Claimed == 0 {
						if err != nil {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		all.Wait()
		if n := left(t, store); n != 0 {
			t.Errorf("%d units are left", n)
		}
		if n := rows(t, pool, fmt.Sprintf("LENGTH(name) = %d", units)); n != 1 {
			t.Errorf("the units were not applied once each")
		}
	})
}
