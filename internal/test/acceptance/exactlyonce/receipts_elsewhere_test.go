package exactlyonce

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Sessions with another search path leave their receipts elsewhere: there they are
// purged as well, and the job says where it cannot.
func TestReceiptsArePurgedInEveryAccessibleSchema(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"some at home": true, "none at home": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.Postgres(t), rig.ExactlyOnce)
			ddl, err := attempt.ReceiptSchema(r.DB.Driver)
			if err != nil {
				t.Fatal(err)
			}
			job := r.AccountOf(t, "job")
			schemas := []string{`"Tenant 1"`, "tenant2", "closed"}
			if own {
				schemas = append(schemas, "public")
			}
			for _, schema := range schemas {
				if schema != "public" {
					r.Exec("CREATE SCHEMA " + schema)
				}
				r.Exec(strings.Replace(ddl, "bed_receipt", schema+".bed_receipt", 1))
				if schema != "closed" {
					r.Exec("GRANT USAGE ON SCHEMA "+schema+" TO job_"+r.DB.Name, "GRANT ALL ON "+schema+".bed_receipt TO job_"+r.DB.Name)
				}
				for id, log := range map[string]string{"ours": r.Storage.Identity(), "another's": "another"} {
					r.Must(r.Bare, "INSERT INTO "+schema+".bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES (?, ?, ?, 0, 1, 1, 1)", id, id, log)
				}
			}
			tgt, err := rig.Target(r.DB.Driver)(job.DSN)
			if err != nil {
				t.Fatal(err)
			}
			logger, hook := logtest.NewNullLogger()
			work := r.JobFor(asyncjob.Targets{rig.DataSourceOf(t, r.DB): tgt}, func(c *asyncjob.Config) { c.Logger = logger })
			if _, err := work.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, schema := range schemas {
				want := 1
				if schema == "closed" {
					want = 2
				}
				if n := r.Count("SELECT COUNT(*) FROM " + schema + ".bed_receipt"); n != want {
					t.Errorf("%d receipts in %s, want %d", n, schema, want)
				}
			}
			said := 0
			for _, e := range hook.AllEntries() {
				if strings.Contains(e.Message, "GRANT USAGE ON SCHEMA closed TO job_") {
					said++
				}
			}
			if said != 1 {
				t.Errorf("%d lines say what right is missing", said)
			}
		})
	}
}

// init_connect may lead the application's sessions, and their receipts, into another
// database than the job's.
func TestReceiptsArePurgedWhereInitConnectLeads(t *testing.T) {
	t.Parallel()
	led := rig.WithDefaults(t, "--init-connect=USE elsewhere") // not for root
	admin, err := mysql.ParseDSN(led.DSN)
	if err != nil {
		t.Fatal(err)
	}
	admin.User = "root"
	r := rig.NewWithLog(t, led, testdb.NewLog(t, testdb.DriverMySQL), rig.ExactlyOnce)
	direct := led
	direct.DSN = admin.FormatDSN()
	r.Bare = direct.Open(t)
	r.Exec("CREATE DATABASE elsewhere")
	ddl, err := attempt.ReceiptSchema(r.DB.Driver)
	if err != nil {
		t.Fatal(err)
	}
	r.Exec(strings.Replace(ddl, "bed_receipt", "elsewhere.bed_receipt", 1))
	for id, log := range map[string]string{"ours": r.Storage.Identity(), "another's": "another"} {
		r.Must(r.Bare, "INSERT INTO elsewhere.bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES (?, ?, ?, 0, 1, 1, 1)", id, id, log)
	}
	r.DeliverTo(t, rig.DataSourceOf(t, r.DB), direct.DSN)
	if n := r.Count("SELECT COUNT(*) FROM elsewhere.bed_receipt"); n != 1 {
		t.Errorf("%d receipts, want the one of another log", n)
	}
}
