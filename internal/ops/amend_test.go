package ops_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// amending is a log and a target, whose column was renamed after writes were logged.
type amending struct {
	*rig
	target delivery.Target
	at     testdb.DB
}

func newAmending(t *testing.T, db testdb.DB) *amending {
	t.Helper()
	log := db
	if db.Driver == testdb.DriverSQLite {
		log = testdb.SQLite(t)
	}
	a := &amending{rig: withTarget(t, log, db), at: db}
	var err error
	a.target, err = targetOf.For(db.Driver)(db.DSN)
	must(t, err)
	a.run(t, "CREATE TABLE account (id INT PRIMARY KEY, n VARCHAR(40))", "INSERT INTO account VALUES (1, ''), (2, '')", "ALTER TABLE account RENAME COLUMN n TO amount")
	return a
}

func (a *amending) run(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		_, err := a.at.Open(t).ExecContext(t.Context(), text)
		must(t, err)
	}
}

// amounts is the content of the target.
func (a *amending) amounts(t *testing.T) string {
	t.Helper()
	var one, two string
	must(t, a.at.Open(t).QueryRowContext(t.Context(), "SELECT a.amount, b.amount FROM account a, account b WHERE a.id = 1 AND b.id = 2").Scan(&one, &two))
	return one + "|" + two
}

// set is a write of a column.
func (a *amending) set(column string, id int) string {
	mark := testdb.By[string]{MySQL: "?", Postgres: "$1", SQLite: "?"}.For(a.at.Driver)
	concat := "%[1]s || " + mark
	if a.at.Driver == testdb.DriverMySQL {
		concat = "CONCAT(%[1]s, ?)"
	}
	return fmt.Sprintf("UPDATE account SET %[1]s = "+concat+" WHERE id = %[2]d", column, id)
}

// stuck is a parked unit for the target.
func (a *amending) stuck(t *testing.T, v entry.Verdict, change func(*entry.Unit), statements ...entry.Statement) *entry.Unit {
	t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: a.target.Settings, Statements: statements}
	if change != nil {
		change(u)
	}
	must(t, a.log.Add(t.Context(), time.Hour, u))
	v.Park, v.Err = true, "no such column"
	must(t, a.log.Release(t.Context(), u, v))
	return u
}

func (a *amending) old(t *testing.T, id int) entry.Statement {
	return entry.Statement{SQL: a.set("n", id), Params: `["s3cr3t"]`}
}

// deliver has the job make one round.
func (a *amending) deliver(t *testing.T) {
	t.Helper()
	job, err := asyncjob.New(a.log, asyncjob.Targets{"target": a.target}, asyncjob.Config{Logger: quiet(), ProbeTimeout: time.Minute})
	must(t, err)
	_, err = job.RunOnce(t.Context())
	must(t, err)
}

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func receipted(u *entry.Unit) { u.Receipt = u.ID }

func TestAmendedWriteIsDeliveredAfterARenamedColumn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			verdict entry.Verdict
			change  func(*entry.Unit)
		}{
			"at least once":          {},
			"exactly once":           {change: receipted},
			"exactly once, in doubt": {entry.Verdict{InDoubt: true}, receipted},
		} {
			t.Run(name, func(t *testing.T) {
				a := newAmending(t, fresh(t, db))
				must(t, a.receipts(t))
				u := a.stuck(t, c.verdict, c.change, a.old(t, 1), a.old(t, 2))
				for n, params := range []string{"", `["other"]`} {
					done, err := a.Amend(t.Context(), u.ID, ops.Amendment{Statement: n + 1, SQL: a.set("amount", n+1), Parameters: params}, ann)
					must(t, err)
					if done.Unprepared != "" && n == 1 || done.ID != u.ID || done.Statement != n+1 {
						t.Errorf("got %+v", done)
					}
				}
				if got := a.get(t, u.ID); !got.Parked || got.InDoubt || a.amounts(t) != "|" {
					t.Errorf("after the amendment: %+v, %s", got, a.amounts(t))
				}
				must(t, a.Act(t.Context(), ops.Retry, u.ID, ann))
				a.deliver(t)
				if got := a.amounts(t); got != "s3cr3t|other" {
					t.Errorf("the target holds %s", got)
				}
				_, err := a.log.Get(t.Context(), u.ID)
				wantError(t, "the entry", err, txlog.ErrNotFound)
			})
		}
	})
}

func fresh(t *testing.T, db testdb.DB) testdb.DB { return testdb.New(t, db.Driver) }

// receipts makes the table of receipts.
func (a *amending) receipts(t *testing.T) error {
	conn, _, err := target.Dial(t.Context(), &a.target)
	must(t, err)
	defer func() { _ = conn.Close() }()
	return attempt.EnsureReceipts(t.Context(), a.target.Dialect, conn, attempt.Receipts{})
}

// A late attempt with the old text applies nothing.
func TestALateAttemptAtAnAmendedWriteAppliesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		must(t, a.receipts(t))
		u := a.stuck(t, entry.Verdict{InDoubt: true}, receipted, entry.Statement{SQL: a.set("amount", 1), Params: `["old"]`})
		_, err := a.Amend(t.Context(), u.ID, ops.Amendment{Parameters: `["new"]`}, ann)
		must(t, err)
		late := func() attempt.Outcome {
			conn, _, err := target.Dial(t.Context(), &a.target)
			must(t, err)
			defer func() { _ = conn.Close() }()
			return attempt.Replay(t.Context(), a.target.Dialect, conn, u, attempt.Receipts{LogIdentity: a.log.Identity(), Retention: time.Hour, KeyRetention: time.Hour})
		}
		if out := late(); !out.Voided {
			t.Errorf("a late attempt: %+v", out)
		}
		must(t, a.Act(t.Context(), ops.Retry, u.ID, ann))
		a.deliver(t)
		if out := late(); !out.Voided || a.amounts(t) != "new|" {
			t.Errorf("the target holds %s, a later attempt: %+v", a.amounts(t), out)
		}
	})
}

func TestAmendmentCutOffAfterItsReceiptSucceedsAgain(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		must(t, a.receipts(t))
		u := a.stuck(t, entry.Verdict{InDoubt: true}, receipted, a.old(t, 1))
		a.logRun(t, "ALTER TABLE bed_audit RENAME TO away") // the target has its receipt by then
		if _, err := a.Amend(t.Context(), u.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann); err == nil {
			t.Fatal("it was amended without an audit")
		}
		a.logRun(t, "ALTER TABLE away RENAME TO bed_audit")
		again, err := txlog.Open(t.Context(), a.db.Driver, a.db.DSN)
		must(t, err)
		t.Cleanup(func() { _ = again.Close() })
		a.Store, err = ops.New(again, ops.Config{Targets: map[string]delivery.Target{"target": a.target}})
		must(t, err)
		_, err = a.Amend(t.Context(), u.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann)
		must(t, err)
		must(t, a.Act(t.Context(), ops.Retry, u.ID, ann))
		a.deliver(t)
		if got := a.amounts(t); got != "s3cr3t|" {
			t.Errorf("the target holds %s", got)
		}
	})
}

func (a *amending) logRun(t *testing.T, text string) {
	t.Helper()
	_, err := a.db.Open(t).ExecContext(t.Context(), text)
	must(t, err)
}

// Behind a pooler, the verdict and the receipt may come from two sessions.
func TestAnAmendmentsReceiptIsInTheEntrysPlace(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		must(t, a.receipts(t))
		u := a.stuck(t, entry.Verdict{InDoubt: true}, func(u *entry.Unit) { receipted(u); u.Place = "else.where" }, a.old(t, 1))
		err := a.Supersede(t.Context(), u)
		wantError(t, "in another place", err, ops.ErrNotAmendable)
		var n int
		must(t, a.at.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bed_receipt").Scan(&n))
		if n != 0 || err == nil || !strings.Contains(err.Error(), "else.where") {
			t.Errorf("%d receipts, %v", n, err)
		}
	})
}

func TestOnlyWhatIsSurelyNotAppliedIsAmended(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		must(t, a.receipts(t))
		conn, _, err := target.Dial(t.Context(), &a.target)
		must(t, err)
		defer func() { _ = conn.Close() }()
		kept := attempt.Receipts{LogIdentity: a.log.Identity(), Retention: time.Hour, KeyRetention: time.Hour}
		good := entry.Statement{SQL: a.set("amount", 2), Params: `["x"]`}
		applied := a.stuck(t, entry.Verdict{InDoubt: true}, receipted, good)
		if out := attempt.Replay(t.Context(), a.target.Dialect, conn, applied, kept); !out.Delivered() {
			t.Fatal(out.Err)
		}
		void := a.stuck(t, entry.Verdict{}, receipted, good)
		if out := attempt.Void(t.Context(), a.target.Dialect, conn, void, kept); !out.Voided {
			t.Fatal(out.Err)
		}
		waiting := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
		must(t, a.log.Retry(t.Context(), waiting.ID))
		plain := func() string { return a.stuck(t, entry.Verdict{}, nil, a.old(t, 1)).ID }
		amended := ops.Amendment{SQL: a.set("amount", 1)}
		before := a.amounts(t)
		for what, c := range map[string]struct {
			id   string
			to   ops.Amendment
			want error
			says string
		}{
			"waiting":              {waiting.ID, amended, ops.ErrNotAmendable, "park it first"},
			"leased":               {a.write(t, "target", "UPDATE a").ID, amended, txlog.ErrLeased, ""},
			"unknown":              {entry.NewID(), amended, txlog.ErrNotFound, ""},
			"in doubt":             {a.stuck(t, entry.Verdict{InDoubt: true}, nil, a.old(t, 1)).ID, amended, ops.ErrNotAmendable, "look at the data"},
			"applied":              {applied.ID, amended, ops.ErrNotAmendable, "already applied"},
			"decided":              {void.ID, amended, ops.ErrNotAmendable, "never"},
			"in doubt, elsewhere":  {a.stuck(t, entry.Verdict{InDoubt: true}, func(u *entry.Unit) { receipted(u); u.Place = "else.where" }, a.old(t, 1)).ID, amended, ops.ErrNotAmendable, "bed_receipt"},
			"not replayable":       {a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { u.NotReplayable = "it read" }, a.old(t, 1)).ID, amended, ops.ErrNotAmendable, "it read"},
			"under a key":          {a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { receipted(u); u.Fingerprint = "f" }, a.old(t, 1)).ID, amended, ops.ErrNotAmendable, "idempotency key"},
			"not configured":       {a.stuck(t, entry.Verdict{}, func(u *entry.Unit) { u.DataSource = "other" }, a.old(t, 1)).ID, amended, ops.ErrNoTarget, ""},
			"several statements":   {a.stuck(t, entry.Verdict{}, nil, a.old(t, 1), a.old(t, 2)).ID, amended, ops.ErrInvalid, "2 statements"},
			"a statement too many": {plain(), ops.Amendment{Statement: 2, SQL: amended.SQL}, ops.ErrInvalid, "from 1 to 1"},
			"nothing new":          {plain(), ops.Amendment{}, ops.ErrInvalid, "needs"},
			"no DML":               {plain(), ops.Amendment{SQL: "DROP TABLE account"}, ops.ErrInvalid, "one DML"},
			"two":                  {plain(), ops.Amendment{SQL: amended.SQL + "; DELETE FROM account"}, ops.ErrInvalid, "one DML"},
			"a query":              {plain(), ops.Amendment{SQL: "SELECT 1"}, ops.ErrInvalid, "one DML"},
			"parameters":           {plain(), ops.Amendment{SQL: amended.SQL, Parameters: `{"s3cr3t":1}`}, ops.ErrInvalid, "parameters"},
			"a parameter":          {plain(), ops.Amendment{SQL: amended.SQL, Parameters: `[{"s3cr3t":1}]`}, ops.ErrInvalid, "parameter 1"},
			"refused":              {plain(), ops.Amendment{SQL: a.set("gone", 1)}, ops.ErrNotAmendable, "gone"},
		} {
			_, err := a.Amend(t.Context(), c.id, c.to, ann)
			wantError(t, what, err, c.want)
			if err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cr3t")) {
				t.Errorf("%s: the error is %v, want it to say %q", what, err, c.says)
			}
		}
		_, err = a.Amend(t.Context(), plain(), amended, ops.By{Who: "ann"})
		wantError(t, "without a reason", err, ops.ErrInvalid)
		if got := a.amounts(t); got != before {
			t.Errorf("the target holds %s, and held %s", got, before)
		}
		wantAudit(t, a.rig)
	})
}

func TestAmendmentIsMadeWhileTheTargetIsDown(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		down, err := targetOf.For(db.Driver)(strings.NewReplacer("127.0.0.1:", "127.0.0.1:1", "localhost:", "127.0.0.1:1").Replace(db.Via("127.0.0.1:1").DSN))
		must(t, err)
		if db.Driver == testdb.DriverSQLite {
			down, err = targetOf.For(db.Driver)(testdb.SQLiteAt(t.TempDir() + "/gone.db").DSN)
			must(t, err)
		}
		a.Store, err = ops.New(a.log, ops.Config{Targets: map[string]delivery.Target{"target": down}})
		must(t, err)
		plain, doubtful := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1)), a.stuck(t, entry.Verdict{InDoubt: true}, receipted, a.old(t, 1))
		done, err := a.Amend(t.Context(), plain.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann)
		must(t, err)
		if done.Unprepared == "" {
			t.Errorf("got %+v", done)
		}
		_, err = a.Amend(t.Context(), doubtful.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann)
		wantError(t, "in doubt", err, ops.ErrNotAmendable)
	})
}

func TestTheAuditKeepsAmendedTextsWholeAndMasked(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		long := strings.Repeat("x", 100_000) + "<end>"
		params, err := entry.EncodeParams(nil)
		must(t, err)
		raw, _ := json.Marshal([]any{"s3cr3t" + long})
		u := a.stuck(t, entry.Verdict{}, nil, entry.Statement{SQL: "/* " + long + " */ " + a.set("n", 1), Params: string(raw)})
		_, err = a.Amend(t.Context(), u.ID, ops.Amendment{SQL: a.set("amount", 1) + params, Parameters: `["hush"]`}, ann)
		must(t, err)
		page, err := a.Audit(t.Context(), ops.Page{})
		must(t, err)
		re, ok := ops.ReplacedBy(page.Records[0])
		if !ok || re.Entry != u.ID || re.Statement != 1 || re.Old.SQL != u.Statements[0].SQL || re.New.SQL != a.set("amount", 1) || page.Records[0].Who != "ann" || page.Records[0].Reason != "because" {
			t.Errorf("the audit says %.200s", page.Records[0].What)
		}
		if what := page.Records[0].What; strings.Contains(what, "s3cr3t") || strings.Contains(what, "hush") || !strings.Contains(what, `"type":"string","size":4`) {
			t.Errorf("the audit is not masked: %.200s", what)
		}
		page, err = a.RevealAudit(t.Context(), ops.Page{}, ann)
		must(t, err)
		if page.Records[0].Action != ops.Reveal {
			t.Errorf("the look is not audited: %+v", page.Records[0].Action)
		}
		if re, ok := ops.ReplacedBy(page.Records[1]); !ok || string(re.Old.Parameters) != string(raw) && !strings.HasSuffix(string(re.Old.Parameters), `<end>"]`) || string(re.New.Parameters) != `["hush"]` {
			t.Errorf("the audit says %.200s", page.Records[1].What)
		}
	})
}

// Of an amendment and a retry at the same time each comes wholly before the other.
func TestAmendmentAndRetryDoNotMix(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		a := newAmending(t, db)
		for range 8 {
			u := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
			var both sync.WaitGroup
			var amended error
			both.Go(func() { _, amended = a.Amend(t.Context(), u.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann) })
			both.Go(func() {
				if err := a.Act(context.WithoutCancel(t.Context()), ops.Retry, u.ID, ann); err != nil {
					t.Error(err)
				}
			})
			both.Wait()
			got := a.get(t, u.ID)
			switch {
			case got.Parked && amended == nil: // the retry is lost if the amendment parks what it made due
				t.Errorf("the retry was undone: %+v", got)
			case amended == nil != (got.Statements[0].SQL == a.set("amount", 1)):
				t.Errorf("the amendment says %v, the entry is %s", amended, got.Statements[0].SQL)
			case amended != nil:
				wantError(t, "the amendment", amended, ops.ErrNotAmendable)
			}
		}
	})
}

func TestParametersAreReadInEitherForm(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		"", `[42]`, `["a\u0000b",null,true,1.5]`, `[{"uint64":18446744073709551615},{"int8":-3},{"float32":1.5},{"float64":"NaN"},{"duration":"1h2m0s"}]`, `[{"[]byte":"text"},{"[]byte":{"base64":"AP8="}}]`,
		`[{"time":"2024-05-01T10:00:00Z"}]`, `[{"name":"id","value":1}]`,
	} {
		want, err := ops.ReadParameters(cmp.Or(params, "[]"))
		must(t, err)
		views, err := ops.Parameters(entry.Statement{Params: want}, true)
		must(t, err)
		shown, err := json.Marshal(views)
		must(t, err)
		if got, err := ops.ReadParameters(string(shown)); err != nil || got != want {
			t.Errorf("%s is shown as %s and read as %s, %v", params, shown, got, err)
		}
	}
	for _, bad := range []string{"x", "{}", "[", `[{"nosuch":1}]`, `[{"ordinal":2,"value":1}]`, `[{"ordinal":1,"type":"string"}]`, `[{"ordinal":2,"type":"string","value":"s3cr3t"}]`,
		`[{"ordinal":1,"type":"int64","value":"s3cr3t"}]`, `[{"ordinal":1,"type":"[]string","value":"s3cr3t"}]`, `[{"ordinal":1,"type":"[]byte","value":"s3cr3t","encoding":"base64"}]`} {
		_, err := ops.ReadParameters(bad)
		wantError(t, bad, err, ops.ErrInvalid)
		if err != nil && strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestAmendmentWithUnansweredCommitIsMadeOnce(t *testing.T) {
	t.Parallel()
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := fresh(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			p := testproxy.New(t, db.Addr())
			a := newAmending(t, db)
			a.rig = withTarget(t, db.Via(p.Addr()), db)
			for _, cut := range []func(func([]byte) bool) <-chan struct{}{p.CutAfter, p.CutBefore} {
				u := a.stuck(t, entry.Verdict{}, nil, a.old(t, 1))
				before := len(a.audit(t))
				struck := cut(commit)
				_, err := a.Amend(t.Context(), u.ID, ops.Amendment{SQL: a.set("amount", 1)}, ann)
				must(t, err)
				testproxy.Await(t, struck)
				if got := a.get(t, u.ID); !got.Parked || got.Statements[0].SQL != a.set("amount", 1) || len(a.audit(t)) != before+1 {
					t.Errorf("the entry is %+v, the audit %v", got, a.audit(t))
				}
			}
		})
	}
}
