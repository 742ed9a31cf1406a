package ops_test

import (
	"context"
	"database/sql"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// grant is a row of the table of rights in docs/table.md.
type grant struct {
	accounts, rights string
	tables           []string
}

func documentedRights(t *testing.T) (all []grant) {
	t.Helper()
	page, err := os.ReadFile("../../docs/table.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "## Rights\n")
	section, _, _ = strings.Cut(section, "\n## ")
	names := regexp.MustCompile("`(\\w+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "| rights |") {
			continue
		}
		g := grant{accounts: cells[1], rights: strings.TrimSpace(cells[3])}
		for _, m := range names.FindAllStringSubmatch(cells[2], -1) {
			g.tables = append(g.tables, m[1])
		}
		all = append(all, g)
	}
	if len(all) == 0 {
		t.Fatal("docs/table.md has no table of rights")
	}
	return all
}

// account makes an account with the documented rights on the tables present in db, and returns its
// DSN for db.
func account(t *testing.T, db testdb.DB, name string, there map[string]bool) (dsn string) {
	t.Helper()
	pool := db.Open(t)
	exec := func(text string) {
		t.Helper()
		_, err := pool.ExecContext(t.Context(), text)
		must(t, err)
	}
	user := strings.ReplaceAll(name, " ", "") + db.Name[max(0, len(db.Name)-18):]
	dsn = strings.Replace(db.DSN, "postgres@", user+"@", 1)
	if db.Driver == testdb.DriverMySQL {
		dsn = strings.Replace(db.DSN, "root@", user+":x@", 1)
		user += "@'%'"
		exec("CREATE USER " + user + " IDENTIFIED BY 'x'")
		t.Cleanup(func() { _, _ = pool.ExecContext(context.Background(), "DROP USER "+user) })
	} else {
		exec("CREATE ROLE " + user + " LOGIN")
		t.Cleanup(func() {
			_, _ = pool.ExecContext(context.Background(), "DROP OWNED BY "+user)
			_, _ = pool.ExecContext(context.Background(), "DROP ROLE "+user)
		})
	}
	grants := documentedRights(t)
	if there["orders"] { // the application's own table
		grants = append(grants, grant{"application, job, console operate", "SELECT, INSERT, UPDATE, DELETE", []string{"orders"}})
	}
	for _, g := range grants {
		if !strings.Contains(g.accounts, name) {
			continue
		}
		for _, table := range g.tables {
			if !there[table] {
				continue
			}
			if db.Driver == testdb.DriverMySQL {
				table = db.Name + "." + table
			}
			exec("GRANT " + g.rights + " ON " + table + " TO " + user)
		}
	}
	return dsn
}

func TestDocumentedRightsSuffice(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			logDB, db := testdb.New(t, driver), testdb.New(t, driver)
			a := newAmending(t, db)
			must(t, a.receipts(t))
			_, err := db.Open(t).ExecContext(t.Context(), "CREATE TABLE orders (id INT PRIMARY KEY)")
			must(t, err)
			made, err := txlog.Open(t.Context(), driver, logDB.DSN)
			must(t, err)
			must(t, made.Close())
			log := map[string]bool{}
			for _, name := range []string{"transaction_log", "bed_log", "bed_order_key", "bed_order_queue", "bed_attempt", "bed_activity", "bed_audit", "bed_data_source"} {
				log[name] = true
			}
			target := map[string]bool{"orders": true, "bed_receipt": true}
			logger, hook := logtest.NewNullLogger()
			open := func(who string) *txlog.SQLStorage {
				t.Helper()
				s, err := txlog.Open(t.Context(), driver, account(t, logDB, who, log), txlog.WithoutCreate())
				must(t, err)
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			at := func(who string) delivery.Target {
				t.Helper()
				x, err := targetOf.For(driver)(account(t, db, who, target))
				must(t, err)
				x.DataSource = "target"
				return x
			}

			// The application makes writes, delivered at once and left to the job, and reads their
			// states.
			storage, reached := open("application"), at("application")
			connector, err := bedsql.NewConnector(reached, bedsql.Config{Storage: storage, Logger: logger, Guarantee: bedsql.ExactlyOnce})
			must(t, err)
			app := sql.OpenDB(connector)
			defer app.Close()
			_, err = app.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (1)")
			must(t, err)
			u := &txlog.Unit{ID: txlog.NewID(), DataSource: "target", Settings: reached.Settings, Statements: []txlog.Statement{{SQL: "INSERT INTO orders (id) VALUES (2)"}}}
			u.Receipt = u.ID
			must(t, storage.Add(t.Context(), time.Hour, u))
			must(t, storage.Release(t.Context(), u, txlog.Verdict{Attempts: []txlog.Attempt{{At: time.Now(), Origin: "caller", Class: "retryable", Err: "x"}}}))
			parked := &txlog.Unit{ID: txlog.NewID(), DataSource: "target", Settings: reached.Settings, Statements: []txlog.Statement{{SQL: "INSERT INTO orders (id) VALUES (3)"}}}
			parked.Receipt = parked.ID
			must(t, storage.Add(t.Context(), time.Hour, parked))
			must(t, storage.Release(t.Context(), parked, txlog.Verdict{Park: true, Err: "Error 1205 (HY000): Lock wait timeout exceeded"}))

			// The job delivers.
			jobs := open("job")
			job, err := asyncjob.New(jobs, asyncjob.Targets{"target": at("job")}, asyncjob.Config{Logger: logger, MaxDeliveryTryDelay: asyncjob.NoDelay})
			must(t, err)
			report, err := job.RunOnce(t.Context())
			must(t, err)
			if report.Delivered != 1 {
				t.Errorf("the job reports %v", report)
			}
			must(t, job.Close())
			if state, err := bedsql.Status(t.Context(), storage, u.ID); err != nil || state != txlog.StateDelivered {
				t.Errorf("the write is %v, %v", state, err)
			}

			// The console reads.
			read, err := ops.New(open("console read"), ops.Config{Targets: map[string]delivery.Target{"target": at("console read")}})
			must(t, err)
			d, err := read.Entry(t.Context(), parked.ID)
			must(t, err)
			if d.Verdict != string(ops.NotApplied) {
				t.Errorf("the verdict is %s: %s", d.Verdict, d.VerdictDetail)
			}
			_, err = read.Overview(t.Context(), ops.OverviewOptions{Hours: 1})
			must(t, err)
			_, err = read.Kinds(t.Context(), ops.Filter{})
			must(t, err)
			_, err = read.Audit(t.Context(), ops.Page{})
			must(t, err)
			if err := read.Act(t.Context(), ops.Retry, parked.ID, ann); err == nil {
				t.Error("an account that may only read has retried an entry")
			}

			// The console operates.
			operate, err := ops.New(open("console operate"), ops.Config{Targets: map[string]delivery.Target{"target": at("console operate")}})
			must(t, err)
			trial, err := operate.Try(t.Context(), parked.ID, ann)
			must(t, err)
			if trial.Error != "" {
				t.Errorf("the trial says %+v", trial)
			}
			_, err = operate.Reveal(t.Context(), parked.ID, ann)
			must(t, err)
			_, err = operate.Amend(t.Context(), parked.ID, ops.Amendment{SQL: "INSERT INTO orders (id) VALUES (4)"}, ann)
			must(t, err)
			must(t, operate.Control(t.Context(), ops.Pause, "target", 0, ann))
			must(t, operate.Control(t.Context(), ops.Resume, "target", 0, ann))
			for _, action := range []ops.Action{ops.Retry, ops.Park, ops.Discard} {
				must(t, operate.Act(t.Context(), action, parked.ID, ann))
			}
			for _, e := range hook.AllEntries() {
				if e.Level <= logrus.WarnLevel {
					t.Errorf("a log line says %s %v", e.Message, e.Data)
				}
			}
		})
	}
}
