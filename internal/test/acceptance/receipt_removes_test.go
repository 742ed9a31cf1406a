package acceptance

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// applied writes the entry of a process that died between the COMMIT of a write
// and the removal of its entry.
func (r *rig) applied(query string) *txlog.Unit {
	r.t.Helper()
	params, err := txlog.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
	if err != nil {
		r.t.Fatal(err)
	}
	tgt, id := targetOf(r.t, r.db), txlog.NewID()
	u := &txlog.Unit{ID: id, DataSource: tgt.DataSource, Settings: tgt.Settings, Receipt: attempt.ReceiptID(tgt.Dialect, id),
		Statements: []txlog.Statement{{SQL: r.q(query), Params: params}}}
	out := r.onTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
		if u.Place, err = attempt.ReceiptPlace(r.t.Context(), d, conn, receiptsOf(r)); err != nil {
			r.t.Fatal(err)
		}
		if err := r.storage.Add(r.t.Context(), time.Minute, u); err != nil {
			r.t.Fatal(err)
		}
		return attempt.Replay(r.t.Context(), d, conn, u, receiptsOf(r))
	})
	if out.Err != nil {
		r.t.Fatal(out.Err)
	}
	r.execLog("UPDATE transaction_log SET lease_until = 1, next_try_time = 1")
	return u
}

// After a crash before the removal the write itself may have become impossible.
func TestEntryWithReceiptIsRemovedWhateverFails(t *testing.T) {
	t.Parallel()
	harms := map[string]func(r *rig, tgt *delivery.Target){
		"its column is renamed": func(r *rig, _ *delivery.Target) { r.exec("ALTER TABLE account RENAME COLUMN balance TO amount") },
		"its table is renamed":  func(r *rig, _ *delivery.Target) { r.exec("ALTER TABLE account RENAME TO ledger") },
		"its entry cannot be read": func(r *rig, _ *delivery.Target) {
			r.execLog("UPDATE transaction_log SET parameters = 'unreadable'")
		},
		"the job has other settings": func(_ *rig, tgt *delivery.Target) { tgt.Settings, tgt.With = "another=1", nil },
		"its account may not use its schema": func(r *rig, tgt *delivery.Target) {
			if r.db.Driver == testdb.DriverPostgres {
				role := strings.ReplaceAll(r.db.Name, "bedtest", "role")
				r.exec("CREATE ROLE "+role+" LOGIN", "GRANT ALL ON SCHEMA public TO "+role, "GRANT ALL ON bed_receipt TO "+role, "GRANT ALL ON shop.account TO "+role)
				r.t.Cleanup(func() { r.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
				*tgt = targetOf(r.t, testdb.DB{Driver: r.db.Driver, DSN: strings.Replace(r.db.DSN, "postgres@", role+"@", 1)})
			}
		},
	}
	for name, harm := range harms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := newRig(t, db)
				r.account(0)
				r.receiptTable()
				table := "account"
				if strings.Contains(name, "schema") && db.Driver == testdb.DriverPostgres {
					r.exec("CREATE SCHEMA shop", "ALTER TABLE account SET SCHEMA shop")
					table = "shop.account"
				}
				r.applied("UPDATE " + table + " SET balance = balance + ? WHERE id = 1")
				tgt := targetOf(t, db)
				name := tgt.DataSource
				harm(r, &tgt)
				report, err := r.jobFor(asyncjob.Targets{name: tgt}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 }).RunOnce(context.Background())
				if err != nil || report.Delivered != 1 {
					t.Errorf("the job reports %v, %v", report, err)
				}
				for _, u := range r.logs() {
					t.Errorf("it is still in the log: %s", fmt.Sprintf("parked %t, %s", u.Parked, u.LastError))
				}
			})
		})
	}
}

// Whether it is parked or removed its receipt decides, once it can be asked for.
func TestEntryWithUnreadableReceiptWaitsAndSaysWhy(t *testing.T) {
	t.Parallel()
	for driver, fresh := range map[string]func(testing.TB) testdb.DB{testdb.DriverMySQL: testdb.MySQL, testdb.DriverPostgres: testdb.Postgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fresh(t))
			r.account(0)
			r.receiptTable()
			name := r.applied("UPDATE account SET balance = balance + ? WHERE id = 1").DataSource
			r.execLog("UPDATE transaction_log SET statement_count = 2")
			free := r.lockAll("bed_receipt")
			lines := new(logLines)
			report := r.runOnce(func(c *asyncjob.Config) {
				c.Logger, c.ProbeTimeout, c.DeliveryTimeout = lines.logger(), 5*time.Second, 5*time.Second
			})
			if report.PushedBack != 1 || report.Parked != 0 {
				t.Errorf("the job reports %v", report)
			}
			if u := r.wantOneLog(); u.Parked || u.Tries != 0 || !u.InDoubt ||
				!strings.Contains(u.LastError, "statements are missing") || !strings.Contains(u.LastError, "it is parked once its receipt can be asked for: ") {
				t.Errorf("it leaves %+v", u)
			}
			if said := lines.String(); !strings.Contains(said, "neither delivered nor parked: its receipt cannot be asked for") {
				t.Errorf("the job says\n%s", said)
			}
			free()
			if report := r.deliverTo(t, name, r.db.DSN); report.Delivered != 1 {
				t.Errorf("once it can be asked for: %v, %+v", report, r.logs())
			}
			r.wantNoLog()
			r.wantBalances(1)
		})
	}
}
