package exactlyonce

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

// After a crash before the removal the write itself may have become impossible.
func TestEntryWithReceiptIsRemovedWhateverFails(t *testing.T) {
	t.Parallel()
	harms := map[string]func(r *rig.Rig, tgt *delivery.Target){
		"its column is renamed": func(r *rig.Rig, _ *delivery.Target) { r.RenameBalance() },
		"its table is renamed":  func(r *rig.Rig, _ *delivery.Target) { r.Exec("ALTER TABLE account RENAME TO ledger") },
		"its entry cannot be read": func(r *rig.Rig, _ *delivery.Target) {
			r.ExecLog("UPDATE transaction_log SET parameters = 'unreadable'")
		},
		"the job has other settings": func(_ *rig.Rig, tgt *delivery.Target) { tgt.Settings, tgt.With = "another=1", nil },
		"its account may not use its schema": func(r *rig.Rig, tgt *delivery.Target) {
			if r.DB.Driver == testdb.DriverPostgres {
				role := strings.ReplaceAll(r.DB.Name, "bedtest", "role")
				r.Exec("CREATE ROLE "+role+" LOGIN", "GRANT ALL ON SCHEMA public TO "+role, "GRANT ALL ON bed_receipt TO "+role, "GRANT ALL ON shop.account TO "+role)
				r.T.Cleanup(func() { r.Exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
				*tgt = rig.TargetOf(r.T, testdb.DB{Driver: r.DB.Driver, DSN: strings.Replace(r.DB.DSN, "postgres@", role+"@", 1)})
			}
		},
	}
	for name, harm := range harms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db)
				r.Account(0)
				r.ReceiptTable()
				table := "account"
				if strings.Contains(name, "schema") && db.Driver == testdb.DriverPostgres {
					r.Exec("CREATE SCHEMA shop", "ALTER TABLE account SET SCHEMA shop")
					table = "shop.account"
				}
				r.Applied("UPDATE " + table + " SET balance = balance + ? WHERE id = 1")
				tgt := rig.TargetOf(t, db)
				name := tgt.DataSource
				harm(r, &tgt)
				report, err := r.JobFor(asyncjob.Targets{name: tgt}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 }).RunOnce(context.Background())
				if err != nil || report.Delivered != 1 {
					t.Errorf("the job reports %v, %v", report, err)
				}
				for _, u := range r.Logs() {
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
			r := rig.New(t, fresh(t))
			r.Account(0)
			r.ReceiptTable()
			name := r.Applied("UPDATE account SET balance = balance + ? WHERE id = 1").DataSource
			r.ExecLog("UPDATE transaction_log SET statement_count = 2")
			free := r.LockAll("bed_receipt")
			lines := new(rig.LogLines)
			report := r.RunOnce(func(c *asyncjob.Config) {
				c.Logger, c.ProbeTimeout, c.DeliveryTimeout = lines.Logger(), 5*time.Second, 5*time.Second
			})
			if report.PushedBack != 1 || report.Parked != 0 {
				t.Errorf("the job reports %v", report)
			}
			if u := r.WantOneLog(); u.Parked || u.Tries != 0 || !u.InDoubt ||
				!strings.Contains(u.LastError, "statements are missing") || !strings.Contains(u.LastError, "it is parked once its receipt can be asked for: ") {
				t.Errorf("it leaves %+v", u)
			}
			if said := lines.String(); !strings.Contains(said, "neither delivered nor parked: its receipt cannot be asked for") {
				t.Errorf("the job says\n%s", said)
			}
			free()
			if report := r.DeliverTo(t, name, r.DB.DSN); report.Delivered != 1 {
				t.Errorf("once it can be asked for: %v, %+v", report, r.Logs())
			}
			r.WantNoLog()
			r.WantBalances(1)
		})
	}
}
