package asyncjob

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// limited makes an account with rights to the table account, and with the given rights to the
// existing bed_receipt. It returns the target for that account.
func limited(t *testing.T, db testdb.DB, rights string) (delivery.Target, *sql.DB) {
	t.Helper()
	pool := table(t, db)
	ddl, err := attempt.ReceiptSchema(db.Driver)
	must(t, err)
	mustExec(t, pool, ddl)
	name := "r" + db.Name[max(0, len(db.Name)-20):]
	read, dsn := mysql.Target, strings.Replace(db.DSN, "root@", name+":x@", 1)
	if db.Driver == testdb.DriverMySQL {
		name += "@'%'"
		mustExec(t, pool, "CREATE USER "+name+" IDENTIFIED BY 'x'")
		mustExec(t, pool, "GRANT ALL ON "+db.Name+".account TO "+name)
		t.Cleanup(func() { _, _ = pool.ExecContext(context.Background(), "DROP USER "+name) })
	} else {
		read, dsn = postgres.Target, strings.Replace(db.DSN, "postgres@", name+"@", 1)
		mustExec(t, pool, "CREATE ROLE "+name+" LOGIN")
		mustExec(t, pool, "GRANT ALL ON account TO "+name)
		t.Cleanup(func() {
			_, _ = pool.ExecContext(context.Background(), "DROP OWNED BY "+name)
			_, _ = pool.ExecContext(context.Background(), "DROP ROLE "+name)
		})
	}
	mustExec(t, pool, "GRANT "+rights+" ON bed_receipt TO "+name)
	target, err := read(dsn)
	must(t, err)
	return target, pool
}

func warnings(logger interface{ AllEntries() []*logrus.Entry }) (all []string) {
	for _, e := range logger.AllEntries() {
		if e.Level == logrus.WarnLevel {
			all = append(all, e.Message)
		}
	}
	return all
}

var servers = map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres}

func eachServer(t *testing.T, f func(t *testing.T, db testdb.DB)) {
	for name, make := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, make(t))
		})
	}
}

// Missing rights are reported with the statement that fixes them: once as a warning, in each
// report, and on each unit. No try is counted.
func TestMissingRightsAreReportedWithTheirGrant(t *testing.T) {
	t.Parallel()
	for kind := range servers {
		for what, rights := range map[string]string{"SELECT": "INSERT, UPDATE, DELETE", "INSERT": "SELECT, UPDATE, DELETE"} {
			t.Run(kind+"/"+what, func(t *testing.T) {
				t.Parallel()
				db := servers[kind](t)
				target, pool := limited(t, db, rights)
				store := newStore(t)
				for id := range 3 {
					addKept(t, store, target, "INSERT INTO account VALUES ("+string(rune('1'+id))+", 'x')")
				}
				cfg, hook := logged()
				cfg.UnknownDataSourceDelay = time.Millisecond
				job := newJob(t, store, Targets{"orders": target}, cfg)
				var rights *dialect.ReceiptRightsError
				for round := range 3 {
					for _, u := range mustList(t, store) {
						must(t, store.Retry(t.Context(), u.ID))
					}
					r := runOnce(t, job)
					ds := r.DataSources["orders"]
					if !errors.As(ds.Blocked, &rights) || r.PushedBack != 3 || !strings.Contains(r.String(), "waiting for an operator: orders") {
						t.Fatalf("round %d: %v, blocked by %v", round, r, ds.Blocked)
					}
				}
				for _, u := range mustList(t, store) {
					if u.Parked || u.Tries != 0 || u.InDoubt || !strings.HasPrefix(u.LastError, untilAnOperatorActs) || !strings.Contains(u.LastError, rights.Grant) {
						t.Errorf("a unit is %+v", u)
					}
				}
				told := 0
				for _, w := range warnings(hook) {
					if strings.HasPrefix(w, "the log holds units") && strings.Contains(w, rights.Grant) && !strings.Contains(w, "CREATE TABLE") {
						told++
					}
				}
				if told != 1 {
					t.Errorf("warned %d times: %q", told, warnings(hook))
				}
				mustExec(t, pool, rights.Grant)
				for _, u := range mustList(t, store) {
					must(t, store.Retry(t.Context(), u.ID))
				}
				if r := runOnce(t, job); r.Delivered != 3 || r.DataSources["orders"].Blocked != nil || left(t, store) != 0 {
					t.Errorf("after %s: %v", rights.Grant, r)
				}
			})
		}
	}
}

// addKept is addFor with a receipt.
func addKept(t *testing.T, s txlog.Storage, target delivery.Target, statement string) *entry.Unit {
	t.Helper()
	return add(t, s, "orders", "", func(u *entry.Unit) {
		u.Settings, u.Receipt, u.Statements = target.Settings, u.ID, []entry.Statement{{SQL: statement}}
	})
}

func TestReceiptsThatCannotBeDeletedNameTheGrant(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		target, pool := limited(t, db, "SELECT, INSERT, UPDATE")
		store := newStore(t)
		addKept(t, store, target, "INSERT INTO account VALUES (1, 'x')")
		cfg, hook := logged()
		job := newJob(t, store, Targets{"orders": target}, cfg)
		var rights *dialect.ReceiptRightsError
		if r := runOnce(t, job); r.Delivered != 1 || !errors.As(r.DataSources["orders"].Purge, &rights) {
			t.Fatalf("report %v, purge %v", r, r.DataSources["orders"].Purge)
		}
		mustExec(t, pool, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES ('old', 'old', '"+store.Identity()+"', 0, 1, 1, 1)")
		job.sources["orders"].purged = time.Time{}
		if r := runOnce(t, job); !errors.As(r.DataSources["orders"].Purge, &rights) {
			t.Errorf("the purge of what is due: %v", r.DataSources["orders"].Purge)
		}
		if all := warnings(hook); len(all) != 1 || !strings.Contains(all[0], rights.Grant) {
			t.Errorf("warned %q", all)
		}
		mustExec(t, pool, rights.Grant)
		job.sources["orders"].purged = time.Time{}
		if r := runOnce(t, job); r.DataSources["orders"].Purge != nil {
			t.Errorf("after %s: %v", rights.Grant, r.DataSources["orders"].Purge)
		}
		var n int
		if err := pool.QueryRow("SELECT COUNT(*) FROM bed_receipt WHERE id = 'old'").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d receipts are left that were due, %v", n, err)
		}
	})
}

func TestMissingReceiptTableIsReportedNotTried(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		target, pool := limited(t, db, "SELECT, INSERT, UPDATE, DELETE")
		mustExec(t, pool, "DROP TABLE bed_receipt")
		if db.Driver == testdb.DriverPostgres {
			mustExec(t, pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		}
		store := newStore(t)
		u := addKept(t, store, target, "INSERT INTO account VALUES (1, 'x')")
		job := newJob(t, store, Targets{"orders": target}, brittle())
		r := runOnce(t, job)
		if ds := r.DataSources["orders"]; ds.Blocked == nil || !strings.Contains(ds.Blocked.Error(), "bed_receipt") || r.PushedBack != 1 {
			t.Errorf("%v, blocked by %v", r, ds.Blocked)
		}
		if got := get(t, store, u); got.Parked || got.Tries != 0 || !strings.HasPrefix(got.LastError, untilAnOperatorActs) {
			t.Errorf("the unit is %+v", got)
		}
		ddl, err := attempt.ReceiptSchema(db.Driver)
		must(t, err)
		mustExec(t, pool, ddl)
		if db.Driver == testdb.DriverPostgres {
			mustExec(t, pool, "GRANT ALL ON bed_receipt TO PUBLIC")
		}
		must(t, store.Retry(t.Context(), u.ID))
		if r := runOnce(t, job); r.Delivered != 1 {
			t.Errorf("once it is there: %v", r)
		}
	})
}
