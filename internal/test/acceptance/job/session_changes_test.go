package job

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Whether a session takes writes decides neither values nor places, and passes.
func TestEntryWrittenWhileReadOnlyIsDeliveredLater(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := rig.New(t, db, rig.NoSyncRetry)
	r.Exec("CREATE TABLE said (id INT PRIMARY KEY)", "ALTER DATABASE "+db.Name+" SET default_transaction_read_only = on")
	_, err := r.Open(db.DSN).Exec("INSERT INTO said VALUES (1)")
	rig.WantPending(t, err)
	r.Exec("SET default_transaction_read_only = off; ALTER DATABASE " + db.Name + " RESET default_transaction_read_only")
	r.Drain(r.Job())
	if n := r.Count("SELECT COUNT(*) FROM said"); n != 1 {
		t.Errorf("%d rows, %+v", n, r.Logs())
	}
}

// Two accounts share the name of a data source; what one wrote before it had reached the
// database is not delivered into the other's schema.
func TestEntryWithoutSessionStaysOutOfOtherSchemas(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := rig.New(t, db, rig.NoSyncRetry)
	r.Exec("CREATE TABLE public.said (id INT)")
	accounts := []string{}
	for _, name := range []string{"b", "c"} {
		of := r.AccountOf(t, name, "CREATE SCHEMA $ AUTHORIZATION $", "CREATE TABLE $.said (id INT)", "ALTER TABLE $.said OWNER TO $")
		accounts = append(accounts, rig.WithParam(rig.Impatient(of), "bedDataSource", "x").DSN)
	}
	for i, name := range []string{"b", "c"} {
		pool := r.Open(accounts[i])
		if err := pool.Ping(); err != nil {
			t.Fatal(err)
		}
		gate, err := r.Bare.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gate.Exec("LOCK TABLE " + name + "_" + db.Name + ".said"); err != nil {
			t.Fatal(err)
		}
		_, err = pool.Exec("INSERT INTO said VALUES (1)")
		rig.WantPending(t, err)
		_ = gate.Rollback()
	}
	_, err := r.Open(rig.WithParam(r.AccountOf(t, "a"), "bedDataSource", "x").Via(nobody).DSN).Exec("INSERT INTO said VALUES (2)")
	rig.WantPending(t, err)
	tgt, err := rig.Target(r.DB.Driver)(rig.WithParam(db, "bedDataSource", "x").DSN)
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.JobFor(asyncjob.Targets{"x": tgt}).RunOnce(t.Context())
	if err != nil || report.Delivered != 2 || report.PushedBack != 1 {
		t.Errorf("%s, %v", report, err)
	}
	if u := r.WantOneLog(); !strings.Contains(u.LastError, "before its application had reached the database") {
		t.Errorf("the reason is %q", u.LastError)
	}
	for _, name := range []string{"b_" + db.Name, "c_" + db.Name} {
		if n := r.Count("SELECT COUNT(*) FROM " + name + ".said WHERE id = 2"); n != 0 {
			t.Errorf("%d rows of another account in %s", n, name)
		}
	}
}

// nobody listens there.
const nobody = "127.0.0.1:1"

// Writes logged before the application first reached the database are delivered as by its own
// account, or wait for a job of that account.
func TestEntryWithoutSessionIsDeliveredByItsAccount(t *testing.T) {
	t.Parallel()
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		blind := func(t *testing.T, r *rig.Rig, app testdb.DB, job, where string) {
			pool := r.Open(rig.WithParam(app, "bedDataSource", "x").Via(nobody).DSN)
			_, err := pool.Exec("INSERT INTO said (id) VALUES (1)")
			rig.WantPending(t, err)
			ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			r.Stage(ctx, pool, "INSERT INTO said (id) VALUES (2)")
			rig.WantPending(t, soft.End(context.Background()))
			// The second round meets what the first one left.
			for range 2 {
				if report := r.DeliverTo(t, "x", job); report.PushedBack != 2 || report.Delivered != 0 {
					t.Errorf("a job of another account: %s, %+v", report, r.Logs())
				}
			}
			for _, u := range r.Logs() {
				if !strings.Contains(u.LastError, "before its application had reached the database") || !strings.Contains(u.LastError, `account "app`) || u.Tries != 0 || u.Parked {
					t.Errorf("it leaves %+v", u)
				}
			}
			if report := r.DeliverTo(t, "x", app.DSN); report.Delivered != 2 {
				t.Errorf("a job of its account: %s, %+v", report, r.Logs())
			}
			if n := r.Count("SELECT COUNT(*) FROM " + where); n != 2 {
				t.Errorf("%d of 2 rows are what the application would have written", n)
			}
			r.WantNoLog()
		}
		t.Run(fmt.Sprint("postgres, ", guarantee), func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r := rig.New(t, db, rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.Exec("CREATE TABLE public.said (id INT)")
			app := r.AccountOf(t, "app", "CREATE SCHEMA $ AUTHORIZATION $", "CREATE TABLE $.said (id INT)", "ALTER TABLE $.said OWNER TO $")
			blind(t, r, app, db.DSN, "app_"+db.Name+".said")
		})
		t.Run(fmt.Sprint("mysql, ", guarantee), func(t *testing.T) {
			t.Parallel()
			db := rig.WithDefaults(t, "--init-connect=SET time_zone = '+09:00'") // not for root
			r := rig.NewWithLog(t, db, testdb.NewLog(t, testdb.DriverMySQL), rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.Exec("CREATE TABLE said (id INT, zone TEXT DEFAULT (@@time_zone))")
			cfg, err := mysql.ParseDSN(db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			cfg.User = "root"
			blind(t, r, db, cfg.FormatDSN(), "said WHERE zone = '+09:00'")
		})
	}
}

// The session's real settings are unknown then, and the DSN only states the intended ones. A
// session behind a pooler that drops them is a different one.
func TestUnreachedEntryNeedsSessionThatObeysItsDSN(t *testing.T) {
	t.Parallel()
	rig.Poolers(t) // skips
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		t.Run(fmt.Sprint(guarantee), func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r := rig.New(t, db, rig.NoSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.Exec("CREATE SCHEMA tenant", "CREATE TABLE public.said (id INT)", "CREATE TABLE tenant.said (id INT)")
			in := func(db testdb.DB) testdb.DB {
				return rig.WithParam(rig.WithParam(db, "bedDataSource", "x"), "options", "--search_path=tenant")
			}
			_, err := r.Open(in(db).Via(nobody).DSN).Exec("INSERT INTO said VALUES (1)")
			rig.WantPending(t, err)
			report := r.DeliverTo(t, "x", in(testdb.PgBouncer(t, db, "ignore_startup_parameters=options")).DSN)
			if u := r.WantOneLog(); report.PushedBack != 1 || u.Tries != 0 || !strings.Contains(u.LastError, "search_path=tenant") || !strings.Contains(u.LastError, "search_path=postgres, public") {
				t.Errorf("a pooler that drops options: %s, %+v", report, u)
			}
			r.Exec("ALTER DATABASE " + db.Name + " SET search_path = tenant")
			if report := r.DeliverTo(t, "x", in(testdb.PgBouncer(t, db, "ignore_startup_parameters=options")).DSN); report.Delivered != 1 {
				t.Errorf("once the server sets them: %s, %+v", report, r.Logs())
			}
			if n := r.Count("SELECT COUNT(*) FROM tenant.said"); n != 1 || r.Count("SELECT COUNT(*) FROM public.said") != 0 {
				t.Errorf("%d rows in the schema of the DSN", n)
			}
			r.WantNoLog()
		})
	}
}

func TestStagedWritesSurviveAChangedDatabaseDefault(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := rig.New(t, db)
	r.Exec("CREATE TABLE said (id INT)")
	pool := r.Open(db.DSN)
	pool.SetMaxIdleConns(0)
	staged := func() {
		t.Helper()
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pool.ExecContext(ctx, "INSERT INTO said VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		if err := soft.End(context.Background()); err != nil {
			t.Error(err)
		}
	}
	staged()
	r.Exec("ALTER DATABASE " + db.Name + " SET timezone = 'Asia/Tokyo'")
	r.Must(pool, "INSERT INTO said VALUES (2)")
	staged()
	staged()
	if n := r.Count("SELECT COUNT(*) FROM said"); n != 4 {
		t.Errorf("%d rows", n)
	}
}

// SQLite ignores foreign_keys inside a transaction: the connections of retries and of
// staged writes must not heed it either.
func TestIgnoredPragmaIsIgnoredOnEveryConnection(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	r := rig.New(t, db)
	r.Exec("CREATE TABLE parent (id INT PRIMARY KEY)", "CREATE TABLE child (p INT REFERENCES parent ON DELETE CASCADE)",
		"INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1)")
	r.Wrapped.SetMaxOpenConns(1)
	tx := r.Begin()
	r.Must(tx, "PRAGMA foreign_keys = ON")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wrapped.ExecContext(ctx, "DELETE FROM parent WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	if err := soft.End(context.Background()); err != nil {
		t.Error(err)
	}
	if n := r.Count("SELECT COUNT(*) FROM child"); n != 1 {
		t.Errorf("%d children: the DELETE cascaded", n)
	}
}
