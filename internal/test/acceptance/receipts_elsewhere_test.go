package acceptance

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
)

// Sessions with another search path leave their receipts elsewhere: there they are
// purged as well, and the job says where it cannot.
func TestReceiptsArePurgedInEveryAccessibleSchema(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"some at home": true, "none at home": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testdb.Postgres(t), exactlyOnce)
			ddl, err := attempt.ReceiptSchema(r.db.Driver)
			if err != nil {
				t.Fatal(err)
			}
			job := r.accountOf(t, "job")
			schemas := []string{`"Tenant 1"`, "tenant2", "closed"}
			if own {
				schemas = append(schemas, "public")
			}
			for _, schema := range schemas {
				if schema != "public" {
					r.exec("CREATE SCHEMA " + schema)
				}
				r.exec(strings.Replace(ddl, "bed_receipt", schema+".bed_receipt", 1))
				if schema != "closed" {
					r.exec("GRANT USAGE ON SCHEMA "+schema+" TO job_"+r.db.Name, "GRANT ALL ON "+schema+".bed_receipt TO job_"+r.db.Name)
				}
				for id, log := range map[string]string{"ours": r.storage.Identity(), "another's": "another"} {
					r.must(r.bare, "INSERT INTO "+schema+".bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES (?, ?, ?, 0, 1, 1, 1)", id, id, log)
				}
			}
			tgt, err := target(r.db.Driver)(job.DSN)
			if err != nil {
				t.Fatal(err)
			}
			logger, hook := logtest.NewNullLogger()
			work := r.jobFor(asyncjob.Targets{dataSourceOf(t, r.db): tgt}, func(c *asyncjob.Config) { c.Logger = logger })
			if _, err := work.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, schema := range schemas {
				want := 1
				if schema == "closed" {
					want = 2
				}
				if n := r.count("SELECT COUNT(*) FROM " + schema + ".bed_receipt"); n != want {
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
	led := withDefaults(t, "--init-connect=USE elsewhere") // not for root
	admin, err := mysql.ParseDSN(led.DSN)
	if err != nil {
		t.Fatal(err)
	}
	admin.User = "root"
	r := newRigWithLog(t, led, testdb.MySQL(t), exactlyOnce)
	direct := led
	direct.DSN = admin.FormatDSN()
	r.bare = direct.Open(t)
	r.exec("CREATE DATABASE elsewhere")
	ddl, err := attempt.ReceiptSchema(r.db.Driver)
	if err != nil {
		t.Fatal(err)
	}
	r.exec(strings.Replace(ddl, "bed_receipt", "elsewhere.bed_receipt", 1))
	for id, log := range map[string]string{"ours": r.storage.Identity(), "another's": "another"} {
		r.must(r.bare, "INSERT INTO elsewhere.bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone) VALUES (?, ?, ?, 0, 1, 1, 1)", id, id, log)
	}
	r.deliverTo(t, dataSourceOf(t, r.db), direct.DSN)
	if n := r.count("SELECT COUNT(*) FROM elsewhere.bed_receipt"); n != 1 {
		t.Errorf("%d receipts, want the one of another log", n)
	}
}
