package acceptance

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Whether a session takes writes decides neither values nor places, and passes.
func TestEntryWrittenWhileReadOnlyIsDeliveredLater(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := newRig(t, db, noSyncRetry)
	r.exec("CREATE TABLE said (id INT PRIMARY KEY)", "ALTER DATABASE "+db.Name+" SET default_transaction_read_only = on")
	_, err := r.open(db.DSN).Exec("INSERT INTO said VALUES (1)")
	wantPending(t, err)
	r.exec("SET default_transaction_read_only = off; ALTER DATABASE " + db.Name + " RESET default_transaction_read_only")
	r.drain(r.job())
	if n := r.count("SELECT COUNT(*) FROM said"); n != 1 {
		t.Errorf("%d rows, %+v", n, r.logs())
	}
}

// Two accounts share the name of a data source; what one wrote before it had reached the
// database is not delivered into the other's schema.
func TestEntryWithoutSessionStaysOutOfOtherSchemas(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := newRig(t, db, noSyncRetry)
	r.exec("CREATE TABLE public.said (id INT)")
	accounts := []string{}
	for _, name := range []string{"b", "c"} {
		of := r.accountOf(t, name, "CREATE SCHEMA $ AUTHORIZATION $", "CREATE TABLE $.said (id INT)", "ALTER TABLE $.said OWNER TO $")
		accounts = append(accounts, withParam(impatient(of), "bedDataSource", "x").DSN)
	}
	for i, name := range []string{"b", "c"} {
		pool := r.open(accounts[i])
		if err := pool.Ping(); err != nil {
			t.Fatal(err)
		}
		gate, err := r.bare.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gate.Exec("LOCK TABLE " + name + "_" + db.Name + ".said"); err != nil {
			t.Fatal(err)
		}
		_, err = pool.Exec("INSERT INTO said VALUES (1)")
		wantPending(t, err)
		_ = gate.Rollback()
	}
	_, err := r.open(withParam(r.accountOf(t, "a"), "bedDataSource", "x").Via(nobody).DSN).Exec("INSERT INTO said VALUES (2)")
	wantPending(t, err)
	tgt, err := target(r.db.Driver)(withParam(db, "bedDataSource", "x").DSN)
	if err != nil {
		t.Fatal(err)
	}
	report, err := r.jobFor(asyncjob.Targets{"x": tgt}).RunOnce(t.Context())
	if err != nil || report.Delivered != 2 || report.PushedBack != 1 {
		t.Errorf("%s, %v", report, err)
	}
	if u := r.wantOneLog(); !strings.Contains(u.LastError, "before its application had reached the database") {
		t.Errorf("the reason is %q", u.LastError)
	}
	for _, name := range []string{"b_" + db.Name, "c_" + db.Name} {
		if n := r.count("SELECT COUNT(*) FROM " + name + ".said WHERE id = 2"); n != 0 {
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
		blind := func(t *testing.T, r *rig, app testdb.DB, job, where string) {
			pool := r.open(withParam(app, "bedDataSource", "x").Via(nobody).DSN)
			_, err := pool.Exec("INSERT INTO said (id) VALUES (1)")
			wantPending(t, err)
			ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			r.stage(ctx, pool, "INSERT INTO said (id) VALUES (2)")
			wantPending(t, soft.End(context.Background()))
			// The second round meets what the first one left.
			for range 2 {
				if report := r.deliverTo(t, "x", job); report.PushedBack != 2 || report.Delivered != 0 {
					t.Errorf("a job of another account: %s, %+v", report, r.logs())
				}
			}
			for _, u := range r.logs() {
				if !strings.Contains(u.LastError, "before its application had reached the database") || !strings.Contains(u.LastError, `account "app`) || u.Tries != 0 || u.Parked {
					t.Errorf("it leaves %+v", u)
				}
			}
			if report := r.deliverTo(t, "x", app.DSN); report.Delivered != 2 {
				t.Errorf("a job of its account: %s, %+v", report, r.logs())
			}
			if n := r.count("SELECT COUNT(*) FROM " + where); n != 2 {
				t.Errorf("%d of 2 rows are what the application would have written", n)
			}
			r.wantNoLog()
		}
		t.Run(fmt.Sprint("postgres, ", guarantee), func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r := newRig(t, db, noSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.exec("CREATE TABLE public.said (id INT)")
			app := r.accountOf(t, "app", "CREATE SCHEMA $ AUTHORIZATION $", "CREATE TABLE $.said (id INT)", "ALTER TABLE $.said OWNER TO $")
			blind(t, r, app, db.DSN, "app_"+db.Name+".said")
		})
		t.Run(fmt.Sprint("mysql, ", guarantee), func(t *testing.T) {
			t.Parallel()
			db := withDefaults(t, "--init-connect=SET time_zone = '+09:00'") // not for root
			r := newRigWithLog(t, db, testdb.MySQL(t), noSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.exec("CREATE TABLE said (id INT, zone TEXT DEFAULT (@@time_zone))")
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
	poolers(t) // skips
	for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
		t.Run(fmt.Sprint(guarantee), func(t *testing.T) {
			t.Parallel()
			db := testdb.Postgres(t)
			r := newRig(t, db, noSyncRetry, func(c *bedsql.Config) { c.Guarantee = guarantee })
			r.exec("CREATE SCHEMA tenant", "CREATE TABLE public.said (id INT)", "CREATE TABLE tenant.said (id INT)")
			in := func(db testdb.DB) testdb.DB {
				return withParam(withParam(db, "bedDataSource", "x"), "options", "--search_path=tenant")
			}
			_, err := r.open(in(db).Via(nobody).DSN).Exec("INSERT INTO said VALUES (1)")
			wantPending(t, err)
			report := r.deliverTo(t, "x", in(testdb.PgBouncer(t, db, "ignore_startup_parameters=options")).DSN)
			if u := r.wantOneLog(); report.PushedBack != 1 || u.Tries != 0 || !strings.Contains(u.LastError, "search_path=tenant") || !strings.Contains(u.LastError, "search_path=postgres, public") {
				t.Errorf("a pooler that drops options: %s, %+v", report, u)
			}
			r.exec("ALTER DATABASE " + db.Name + " SET search_path = tenant")
			if report := r.deliverTo(t, "x", in(testdb.PgBouncer(t, db, "ignore_startup_parameters=options")).DSN); report.Delivered != 1 {
				t.Errorf("once the server sets them: %s, %+v", report, r.logs())
			}
			if n := r.count("SELECT COUNT(*) FROM tenant.said"); n != 1 || r.count("SELECT COUNT(*) FROM public.said") != 0 {
				t.Errorf("%d rows in the schema of the DSN", n)
			}
			r.wantNoLog()
		})
	}
}

func TestStagedWritesSurviveAChangedDatabaseDefault(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := newRig(t, db)
	r.exec("CREATE TABLE said (id INT)")
	pool := r.open(db.DSN)
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
	r.exec("ALTER DATABASE " + db.Name + " SET timezone = 'Asia/Tokyo'")
	r.must(pool, "INSERT INTO said VALUES (2)")
	staged()
	staged()
	if n := r.count("SELECT COUNT(*) FROM said"); n != 4 {
		t.Errorf("%d rows", n)
	}
}

// SQLite ignores foreign_keys inside a transaction: the connections of retries and of
// staged writes must not heed it either.
func TestIgnoredPragmaIsIgnoredOnEveryConnection(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	r := newRig(t, db)
	r.exec("CREATE TABLE parent (id INT PRIMARY KEY)", "CREATE TABLE child (p INT REFERENCES parent ON DELETE CASCADE)",
		"INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1)")
	r.wrapped.SetMaxOpenConns(1)
	tx := r.begin()
	r.must(tx, "PRAGMA foreign_keys = ON")
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.wrapped.ExecContext(ctx, "DELETE FROM parent WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	if err := soft.End(context.Background()); err != nil {
		t.Error(err)
	}
	if n := r.count("SELECT COUNT(*) FROM child"); n != 1 {
		t.Errorf("%d children: the DELETE cascaded", n)
	}
}
