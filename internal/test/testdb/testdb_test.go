package testdb

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

func mustExec(t *testing.T, pool *sql.DB, query string) {
	t.Helper()
	if _, err := pool.Exec(query); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func count(t *testing.T, pool *sql.DB, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow("SELECT count(*) FROM " + table).Scan(&n); err != nil {
		t.Fatalf("count rows of %s: %v", table, err)
	}
	return n
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	Each(t, func(t *testing.T, db DB) {
		other := New(t, db.Driver)
		if db.Name == other.Name || db.DSN == other.DSN {
			t.Fatalf("two databases share the name %s", db.Name)
		}
		for _, pool := range []*sql.DB{db.Open(t), other.Open(t)} {
			mustExec(t, pool, "CREATE TABLE orders (id INT PRIMARY KEY)")
			mustExec(t, pool, "INSERT INTO orders VALUES (1)")
			if n := count(t, pool, "orders"); n != 1 {
				t.Errorf("a fresh database has %d rows after one insert", n)
			}
		}
	})
}

func TestDatabaseWithOpenTransactionIsDropped(t *testing.T) {
	t.Parallel()
	for driver, fresh := range map[string]func(testing.TB) DB{"mysql": MySQL, "postgres": Postgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			var db DB
			var forgotten *sql.DB
			var open *sql.Tx
			t.Run("test", func(t *testing.T) {
				db = fresh(t)
				var err error
				if forgotten, err = sql.Open(db.SQLDriver(), db.DSN); err != nil {
					t.Fatal(err)
				}
				mustExec(t, forgotten, "CREATE TABLE orders (id INT PRIMARY KEY)")
				if open, err = forgotten.Begin(); err != nil {
					t.Fatal(err)
				}
				if _, err := open.Exec("INSERT INTO orders VALUES (1)"); err != nil {
					t.Fatal(err)
				}
			})
			if forgotten == nil {
				t.Skip("-short: no database was made")
			}
			defer func() { _ = forgotten.Close() }()
			defer func() { _ = open.Rollback() }()
			if exists(t, fresh(t), db.Name) {
				t.Errorf("database %s is still there after its test", db.Name)
			}
		})
	}
}

func exists(t *testing.T, by DB, name string) bool {
	t.Helper()
	query := "SELECT count(*) FROM information_schema.schemata WHERE schema_name = '" + name + "'"
	if by.Driver == DriverPostgres {
		query = "SELECT count(*) FROM pg_database WHERE datname = '" + name + "'"
	}
	var n int
	if err := by.Open(t).QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func TestForgottenDatabasesAreDroppedAfterADay(t *testing.T) {
	t.Parallel()
	for driver, find := range map[string]func() (admin, error){"mysql": sharedMySQL, "postgres": sharedPostgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("-short: needs a server")
			}
			server, err := find()
			if err != nil {
				t.Fatal(err)
			}
			recent, err := server.create()
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := server.drop(recent.Name); err != nil {
					t.Error(err)
				}
			}()
			pool := recent.Open(t)
			old := strings.Replace(recent.Name, fmt.Sprint(mustMadeAt(t, recent.Name).Unix()),
				fmt.Sprint(time.Now().Add(-25*time.Hour).Unix()), 1)
			mustExec(t, pool, "CREATE DATABASE "+old)

			server.sweep()

			if exists(t, recent, old) {
				t.Errorf("%s, named as made 25 hours ago, is still there", old)
			}
			if !exists(t, recent, recent.Name) {
				t.Errorf("%s, made just now, is gone", recent.Name)
			}
		})
	}
}

func mustMadeAt(t *testing.T, name string) time.Time {
	t.Helper()
	made, ok := madeAt(name)
	if !ok {
		t.Fatalf("%s does not tell when it was made", name)
	}
	return made
}

func TestNamesTellWhenTheyWereMade(t *testing.T) {
	if age := time.Since(mustMadeAt(t, newName())); age < 0 || age > time.Minute {
		t.Errorf("a name made now says that it is %s old", age)
	}
	for _, name := range []string{"", "bedtest_", "bedtest_x_1", "orders", "mysql"} {
		if _, ok := madeAt(name); ok {
			t.Errorf("%q is taken for a test's database", name)
		}
	}
}

func TestADatabaseInUseIsNotTakenForFree(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: needs a server")
	}
	server, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	used := newName()
	used = used[:len(used)-6] + "freebd" // as the letters fall once in a hundred thousand names
	err = server.do(t.Context(), func(pool *sql.DB) error {
		defer func() {
			if err := server.drop(used); err != nil {
				t.Error(err)
			}
		}()
		if err := createPostgres(t.Context(), pool, used); err != nil {
			return err
		}
		names, err := column(t.Context(), pool, freeNames)
		if slices.Contains(names, used) {
			t.Errorf("%s is taken for free", used)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDSNsArePointedElsewhere(t *testing.T) {
	for _, c := range []struct{ name, driver, dsn, addr, via string }{
		{"mysql", "mysql", "root@tcp(127.0.0.1:3306)/a?parseTime=true", "127.0.0.1:3306", "root@tcp(127.0.0.1:9)/a?parseTime=true"},
		{"mysql socket", "mysql", "root@unix(/run/s.sock)/a", "/run/s.sock", "root@tcp(127.0.0.1:9)/a"},
		{"postgres URL", "postgres", "postgres://u:p@h:5432/a?sslmode=disable", "h:5432", "postgres://u:p@127.0.0.1:9/a?sslmode=disable"},
		{"postgres keywords", "postgres", "host=/run/pg port=5433 user=u", "/run/pg/.s.PGSQL.5433", "host=/run/pg port=5433 user=u host=127.0.0.1 port=9"},
		{"sqlite", "sqlite", "file:/x", "", "file:/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := DB{Driver: c.driver, DSN: c.dsn}
			if got := db.Addr(); got != c.addr {
				t.Errorf("Addr() = %q, want %q", got, c.addr)
			}
			via := db.Via("127.0.0.1:9")
			if via.DSN != c.via {
				t.Errorf("Via: DSN %q, want %q", via.DSN, c.via)
			}
			if c.addr != "" && via.Addr() != "127.0.0.1:9" {
				t.Errorf("Via: Addr() = %q", via.Addr())
			}
		})
	}
}

func TestMissingServerIsReportedWithWhatToDo(t *testing.T) {
	for driver, env := range map[string]string{"mysql": EnvMySQLDSN, "postgres": EnvPostgresDSN} {
		t.Run(driver, func(t *testing.T) {
			port := keptPort(t)
			t.Run("search", func(t *testing.T) {
				t.Setenv(env, "")
				t.Setenv(EnvMySQLPort, fmt.Sprint(port))
				t.Setenv(EnvPostgresPort, fmt.Sprint(port))
				_, err := Find(driver)
				if err == nil {
					t.Fatal("found a server where there is none")
				}
				for _, want := range []string{"make test", env, "-short", fmt.Sprint(port)} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error does not mention %q: %v", want, err)
					}
				}
			})
			t.Run("variable", func(t *testing.T) {
				dsn := map[string]string{
					"mysql":    "root:hidden@tcp(127.0.0.1:%d)/",
					"postgres": "postgres://root:hidden@127.0.0.1:%d/postgres?sslmode=disable",
				}[driver]
				t.Setenv(env, fmt.Sprintf(dsn, port))
				_, err := Find(driver)
				if err == nil {
					t.Fatal("found a server where there is none")
				}
				if !strings.Contains(err.Error(), env) || strings.Contains(err.Error(), "hidden") {
					t.Errorf("error should name %s and no password: %v", env, err)
				}
			})
		})
	}
}

func TestDatabaseIsHandedOnOnlyEmpty(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs a server")
	}
	server, err := sharedPostgres()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change string
		reused bool
	}{
		{"CREATE TABLE orders (id INT PRIMARY KEY)", true},
		{"CREATE SCHEMA bed; CREATE TABLE bed.orders (id INT); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE mood AS ENUM ('sad')", true},
		{"REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public RENAME TO other", true},
		{"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = 7', current_database()); END $$", false},
		{"SELECT lo_create(0)", false},
	} {
		db, err := server.take()
		if err != nil {
			t.Fatal(err)
		}
		pool, err := sql.Open("pgx", db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		describe := func() (text string) {
			const query = `SELECT string_agg(concat_ws(' ', nspname, nspowner::regrole, nspacl), '; ' ORDER BY nspname) || ': ' ||
				(SELECT count(*) FROM pg_class) || (SELECT count(*) FROM pg_type) || (SELECT count(*) FROM pg_proc)
				FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'`
			if err := pool.QueryRow(query).Scan(&text); err != nil {
				t.Fatal(err)
			}
			return text
		}
		before := describe()
		mustExec(t, pool, c.change)
		err = emptyPostgres(t.Context(), pool)
		if (err == nil) != c.reused {
			t.Errorf("after %q: %v", c.change, err)
		}
		if after := describe(); c.reused && after != before {
			t.Errorf("after %q it is\n%s\nand was\n%s", c.change, after, before)
		}
		_ = pool.Close()
		if err := server.give(db.Name); err != nil {
			t.Error(err)
		}
	}
}
