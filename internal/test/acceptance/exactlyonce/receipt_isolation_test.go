package exactlyonce

import (
	"database/sql/driver"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// eachIsolation runs f against a target at each level of isolation that its
// sessions can be made to begin with, and each way to make them.
func eachIsolation(t *testing.T, f func(t *testing.T, db testdb.DB)) {
	t.Helper()
	at := func(name string, db func(t *testing.T) testdb.DB) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, db(t))
		})
	}
	for _, level := range []string{"READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
		name := strings.ReplaceAll(level, " ", "-")
		at("mysql/DSN/"+name, func(t *testing.T) testdb.DB {
			return rig.WithParam(testdb.MySQL(t), "tx_isolation", "'"+name+"'")
		})
		at("postgres/database/"+name, func(t *testing.T) testdb.DB {
			db := testdb.Postgres(t)
			if _, err := db.Open(t).Exec("ALTER DATABASE " + db.Name + " SET default_transaction_isolation = '" + strings.ToLower(level) + "'"); err != nil {
				t.Fatal(err)
			}
			return db
		})
	}
	at("mysql/server", func(t *testing.T) testdb.DB { return rig.WithDefaults(t, "--transaction-isolation=READ-UNCOMMITTED") })
	at("mysql/init_connect", func(t *testing.T) testdb.DB {
		return rig.WithDefaults(t, "--init-connect=SET tx_isolation='READ-UNCOMMITTED'")
	})
	at("sqlite/shared cache", func(t *testing.T) testdb.DB {
		return rig.WithParam(rig.WithParam(testdb.SQLite(t), "cache", "shared"), "_pragma", "read_uncommitted(1)")
	})
}

// A transaction that holds a receipt may yet be rolled back.
func TestUncommittedReceiptCountsForNothing(t *testing.T) {
	t.Parallel()
	eachIsolation(t, func(t *testing.T, db testdb.DB) {
		var r *rig.Rig
		var p *testproxy.Proxy
		if db.Driver == testdb.DriverSQLite {
			r = rig.New(t, db)
		} else {
			r, p = rig.NewBehindProxy(t, db)
		}
		r.Account(0)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		r.ReceiptTable()
		u := r.WantOneLog()
		another, err := r.Bare.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = another.Rollback() }()
		if _, err := another.Exec(r.Q("INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, '', 0, 0, ?)"), u.Receipt, u.ID, int64(1)<<50); err != nil {
			t.Fatal(err)
		}
		look := func() attempt.Outcome {
			return r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
				out, err := attempt.Look(t.Context(), d, conn, u, rig.ReceiptsOf(r))
				if err != nil {
					out.Err = err
				}
				return out
			})
		}
		wantNone := func(out attempt.Outcome) {
			if out.Found || out.Err != nil {
				t.Errorf("the look: %+v", out)
			}
		}
		once := func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 }
		rollback := func() {
			if err := another.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
		if p == nil { // what another writes to a cache that is shared is waited for
			looked := make(chan attempt.Outcome, 1)
			go func() { looked <- look() }()
			select {
			case out := <-looked:
				wantNone(out)
				rollback()
			case <-time.After(300 * time.Millisecond):
				rollback()
				wantNone(<-looked)
			}
		} else {
			wantNone(look())
			p.CutBefore(testproxy.Text("INSERT INTO bed_receipt"))
			if report := r.RunOnce(once); report.Delivered != 0 {
				t.Errorf("the job reports %v", report)
			}
			rollback()
			r.WantOneLog()
			if err := r.Storage.Retry(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		}
		if report := r.RunOnce(once); report.Delivered != 1 {
			t.Errorf("then it reports %v", report)
		}
		r.WantBalances(1)
		r.WantNoLog()
	})
}

// Nor is a receipt missed that was committed after the session began.
func TestLateCommittedReceiptIsReadAtAnyIsolation(t *testing.T) {
	t.Parallel()
	eachIsolation(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		r.ReceiptTable()
		u := r.WantOneLog()
		out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			look := func() attempt.Outcome {
				out, err := attempt.Look(t.Context(), d, conn, u, rig.ReceiptsOf(r))
				if err != nil {
					t.Error(err)
				}
				return out
			}
			if out := look(); out.Found {
				t.Errorf("the look before: %+v", out)
			}
			r.Exec("INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('" + u.Receipt + "', '" + u.ID + "', '', 0, 0, 0)")
			return look()
		})
		if !out.Found {
			t.Errorf("the look after: %+v", out)
		}
	})
}
