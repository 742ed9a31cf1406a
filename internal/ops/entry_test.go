package ops_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

var targetOf = testdb.By[func(string) (delivery.Target, error)]{
	MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target,
}

// withTarget adds a data source "target" to the rig, beside its log.
func withTarget(t *testing.T, log, target testdb.DB) *rig {
	t.Helper()
	r := newRig(t, log)
	tg, err := targetOf.For(target.Driver)(target.DSN)
	must(t, err)
	r.Store, err = ops.New(r.log, ops.Config{Targets: map[string]delivery.Target{"target": tg}, MinAge: time.Minute})
	must(t, err)
	return r
}

// parked adds a parked unit for the target.
func (r *rig) parked(t *testing.T, change func(*entry.Unit), statements ...entry.Statement) *entry.Unit {
	t.Helper()
	tg, err := targetOf.For(r.db.Driver)(r.db.DSN)
	must(t, err)
	u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: tg.Settings, Statements: statements}
	if change != nil {
		change(u)
	}
	must(t, r.log.Add(t.Context(), time.Hour, u))
	return r.park(t, u, duplicate)
}

func TestEntryShowsAttemptsTransactionAndNextStep(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := withTarget(t, db, testdb.SQLite(t))
		tx := entry.NewID()
		u := r.parked(t, func(u *entry.Unit) { u.TransactionID = tx }, entry.Statement{SQL: "INSERT INTO users VALUES (?)", Params: `["s3cr3t",12345678901234567]`})
		other := r.parked(t, func(u *entry.Unit) { u.TransactionID = tx }, entry.Statement{SQL: "UPDATE b"})
		d, err := r.Entry(t.Context(), u.ID)
		must(t, err)
		if d.ID != u.ID || d.NextIs != ops.NextOperator || d.NextTry != nil || len(d.Siblings) != 1 || d.Siblings[0].ID != other.ID || d.MoreSiblings || d.Verdict != string(ops.NotApplied) {
			t.Errorf("got %+v", d)
		}
		if len(d.Attempts) != 1 || d.Attempts[0].Origin != "caller" || d.Attempts[0].Class != "refused" || !strings.Contains(d.Attempts[0].Err, "Duplicate entry '?'") {
			t.Errorf("the attempts are %+v", d.Attempts)
		}
		d.Unit = nil
		for i := range d.Siblings {
			d.Siblings[i].Unit = nil
		}
		if text := fmt.Sprintf("%+v", d); strings.Contains(text, "s3cr3t") {
			t.Errorf("a value is shown: %s", text)
		}
		revealed, err := r.Reveal(t.Context(), u.ID, ann)
		must(t, err)
		if p := revealed.Statements[0].Parameters; len(p) != 2 || p[0].Value != "s3cr3t" || p[1].Value != "12345678901234567" || revealed.LastError != duplicate || revealed.Attempts[0].Err != duplicate {
			t.Errorf("got %+v", revealed)
		}
		wantAudit(t, r, "ann reveal "+u.ID+" 0 because")

		j, next := logdb.Journal(r.log), func(want ops.Next) {
			t.Helper()
			d, err := r.Entry(t.Context(), u.ID)
			must(t, err)
			if d.NextIs != want || d.Next == "" {
				t.Errorf("next is %q (%s), want %q", d.NextIs, d.Next, want)
			}
		}
		must(t, r.Act(t.Context(), ops.Retry, u.ID, ann))
		next(ops.NextJob)
		must(t, j.Beat(t.Context(), "a", "job", time.Minute))
		next(ops.NextRound)
		must(t, j.See(t.Context(), "target", "a", "job", "no route"))
		next(ops.NextReachable)
		must(t, r.Control(t.Context(), ops.Pause, "target", 0, ann))
		next(ops.NextResume)
		must(t, r.Control(t.Context(), ops.Resume, "target", 0, ann))
		must(t, j.See(t.Context(), "target", "a", "job", ""))
		claimed, err := r.log.Claim(t.Context(), entry.ClaimRequest{DataSource: "target", Limit: 1, Lease: time.Hour})
		must(t, err)
		next(ops.NextLease)
		must(t, r.log.Release(t.Context(), claimed[0], entry.Verdict{After: time.Hour}))
		next(ops.NextLater)
		_, err = r.Entry(t.Context(), entry.NewID())
		wantError(t, "another id", err, txlog.ErrNotFound)
	})
}

func TestTrialReportsChangesAndMakesNone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := withTarget(t, db, db)
		if db.Driver == testdb.DriverSQLite { // its log has a file of its own
			r = withTarget(t, testdb.SQLite(t), db)
		}
		pool := db.Open(t)
		run := func(texts ...string) {
			for _, text := range texts {
				_, err := pool.ExecContext(t.Context(), text)
				must(t, err)
			}
		}
		run("CREATE TABLE account (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO account VALUES (1, 10), (2, 20), (3, 30)")
		one := db.Driver
		param := testdb.By[string]{MySQL: "?", Postgres: "$1", SQLite: "?"}.For(one)
		settings := func(u *entry.Unit) {
			tg, err := targetOf.For(db.Driver)(db.DSN)
			must(t, err)
			u.Settings = tg.Settings
		}
		good := r.parked(t, settings, entry.Statement{SQL: "UPDATE account SET n = n + 1 WHERE id <= " + param, Params: `[2]`}, entry.Statement{SQL: "DELETE FROM account WHERE id = 3"})
		trial, err := r.Try(t.Context(), good.ID, ann)
		must(t, err)
		if len(trial.Rows) != 2 || trial.Rows[0] != 2 || trial.Rows[1] != 1 || trial.Error != "" {
			t.Errorf("got %+v", trial)
		}
		if db.Driver != testdb.DriverSQLite && len(trial.Notes) == 0 {
			t.Error("it is not said what a rollback does not undo")
		}
		bad := r.parked(t, settings, entry.Statement{SQL: "UPDATE account SET n = 0"}, entry.Statement{SQL: "INSERT INTO account VALUES (" + param + ", 1)", Params: `[1]`})
		trial, err = r.Try(t.Context(), bad.ID, ann)
		must(t, err)
		if trial.Error == "" || trial.Class != "duplicate key" || len(trial.Rows) != 1 || db.Driver == testdb.DriverMySQL && !strings.Contains(trial.Error, "Duplicate entry '?' for key") {
			t.Errorf("got %+v", trial)
		}
		unmet := r.parked(t, settings, entry.Statement{SQL: "UPDATE account SET n = 0 WHERE id > 3", Required: entry.AtLeast(2)})
		trial, err = r.Try(t.Context(), unmet.ID, ann)
		must(t, err)
		if !strings.Contains(trial.Error, "required at least 2 rows, changed 0") || trial.Class != "refused" {
			t.Errorf("got %+v", trial)
		}
		detail, err := r.Entry(t.Context(), unmet.ID)
		must(t, err)
		if detail.Statements[0].RequiredRows != ">=2" {
			t.Errorf("the entry is shown with %+v", detail.Statements[0])
		}
		// The wait for a lock is short, and its error names the lock.
		if db.Driver != testdb.DriverSQLite {
			tx, err := pool.BeginTx(t.Context(), nil)
			must(t, err)
			_, err = tx.ExecContext(t.Context(), "UPDATE account SET n = n WHERE id = 1")
			must(t, err)
			began := time.Now()
			trial, err = r.Try(t.Context(), good.ID, ann)
			must(t, err)
			if took := time.Since(began); took > 10*time.Second || trial.Error == "" || trial.Class != "contention" {
				t.Errorf("got %+v in %v", trial, took)
			}
			must(t, tx.Rollback())
		}
		var sum int
		must(t, pool.QueryRowContext(t.Context(), "SELECT SUM(n) FROM account").Scan(&sum))
		if sum != 60 {
			t.Errorf("the rows hold %d, want the 60 from before", sum)
		}
		// No lock is left.
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := pool.ExecContext(ctx, "UPDATE account SET n = n + 1"); err != nil {
			t.Errorf("a lock is left: %v", err)
		}

		for what, u := range map[string]*entry.Unit{
			"no DML":   r.parked(t, settings, entry.Statement{SQL: "DROP TABLE account"}),
			"a commit": r.parked(t, settings, entry.Statement{SQL: "COMMIT"}),
			"two":      r.parked(t, settings, entry.Statement{SQL: "UPDATE account SET n = 0; COMMIT"}),
			"another account's, in no session known": r.parked(t, func(u *entry.Unit) { settings(u); u.Session, u.Account = "", "another" },
				entry.Statement{SQL: "UPDATE account SET n = 0"}),
		} {
			_, err := r.Try(t.Context(), u.ID, ann)
			wantError(t, what, err, ops.ErrInvalid)
		}
		_, err = r.Try(t.Context(), r.parked(t, func(u *entry.Unit) { u.DataSource = "other" }, entry.Statement{SQL: "UPDATE account SET n = 0"}).ID, ann)
		wantError(t, "no target", err, ops.ErrNoTarget)
		_, err = r.Try(t.Context(), r.write(t, "target", "UPDATE account SET n = 0").ID, ann)
		wantError(t, "a leased one", err, txlog.ErrLeased)
		if got := r.audit(t); len(got) < 2 || !strings.HasPrefix(got[len(got)-1], "ann try "+good.ID) {
			t.Errorf("the audit says %q", got)
		}
	})
}

// A table without transactions is not tried: a rollback would not undo the trial.
func TestATableWithoutTransactionsIsNotTried(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	r := withTarget(t, db, db)
	pool := db.Open(t)
	for _, text := range []string{
		"CREATE TABLE plain (id INT PRIMARY KEY) ENGINE=MyISAM", "CREATE TABLE `of ``it` (id INT) ENGINE=InnoDB",
		"CREATE TABLE watched (id INT) ENGINE=InnoDB", "CREATE TRIGGER w AFTER INSERT ON watched FOR EACH ROW INSERT INTO plain VALUES (NEW.id)",
		"CREATE TABLE good (id INT PRIMARY KEY) ENGINE=InnoDB",
	} {
		_, err := pool.ExecContext(t.Context(), text)
		must(t, err)
	}
	for _, text := range []string{
		"INSERT INTO plain VALUES (1)", "INSERT INTO `plain` VALUES (1)", "INSERT INTO " + db.Name + ".plain VALUES (1)", "INSERT INTO `" + db.Name + "` . `plain` VALUES (1)",
		"UPDATE good, plain SET plain.id = 2 WHERE good.id = 1",
	} {
		_, err := r.Try(t.Context(), r.parked(t, nil, entry.Statement{SQL: text}).ID, ann)
		wantError(t, text, err, ops.ErrInvalid)
	}
	for _, text := range []string{"INSERT INTO good VALUES (1)", "INSERT INTO `of ``it` VALUES (1)", "INSERT INTO good VALUES ('plain')"} {
		trial, err := r.Try(t.Context(), r.parked(t, nil, entry.Statement{SQL: text}).ID, ann)
		must(t, err)
		if !strings.HasSuffix(text, "('plain')") && trial.Error != "" {
			t.Errorf("%s: got %+v", text, trial)
		}
	}
	var n int
	must(t, pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM plain").Scan(&n))
	if n != 0 {
		t.Errorf("%d rows were written", n)
	}
	// A trigger's table is not looked for: the server warns of it.
	trial, err := r.Try(t.Context(), r.parked(t, nil, entry.Statement{SQL: "INSERT INTO watched VALUES (1)"}).ID, ann)
	must(t, err)
	if len(trial.Notes) == 0 || !strings.HasPrefix(trial.Notes[0], "NOT ROLLED BACK") {
		t.Errorf("got %+v", trial)
	}
}

// A trial also checks constraints deferred to COMMIT.
func TestATrialSeesConstraintsThatAreDeferred(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	r := withTarget(t, db, db)
	for _, text := range []string{"CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (a INT REFERENCES a DEFERRABLE INITIALLY DEFERRED)"} {
		_, err := db.Open(t).ExecContext(t.Context(), text)
		must(t, err)
	}
	trial, err := r.Try(t.Context(), r.parked(t, nil, entry.Statement{SQL: "INSERT INTO b VALUES (1)"}).ID, ann)
	must(t, err)
	if trial.Error == "" || trial.Class != "refused" {
		t.Errorf("got %+v", trial)
	}
}
