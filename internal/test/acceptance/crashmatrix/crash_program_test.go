package crashmatrix

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/cases"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// crashOrder instructs the crashing program.
type crashOrder struct {
	crashScenario
	Driver string
	A, B   string // DSNs of the targets
	Log    string // DSN of the log
	Row    int
	// Die is the step of its suicide; 0 for never.
	Die int
	// Lose drops the answer to the first commit on A, so that a retry follows.
	Lose bool
	// Resend: a client sends the request once more when it has its answer.
	Resend bool
}

const crashEnv = "BED_ACCEPTANCE_CRASH"

// crashLease is longer than any pause of the disk: an entry that is not written
// within a lease is reported as not written. What a killed owner leaves behind is
// made old (rig.logAge) rather than waited for.
const crashLease = time.Minute

// crashProgram runs one scenario.
func crashProgram() int {
	var o crashOrder
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s := &rig.Steps{}
	if err := o.run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func (o *crashOrder) run(s *rig.Steps) error {
	ctx := context.Background()
	storage, err := o.openLog(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	parse := func(where string) func(string) (delivery.Target, error) {
		return func(dsn string) (delivery.Target, error) {
			t, err := rig.Target(o.Driver)(dsn)
			if err != nil {
				return t, err
			}
			t.DataSource = where
			return rig.CrashTarget(t, s, where), nil
		}
	}
	if o.byJob() {
		a, err := parse("A")(o.A)
		if err != nil {
			return err
		}
		job, err := asyncjob.New(storage, asyncjob.Targets{"A": a}, crashJob())
		if err != nil {
			return err
		}
		s.Begin(o.Die, o.Lose)
		_, _ = job.RunOnce(ctx) // what it leaves undone, the test's own job finishes
		_ = job.Close()
		s.End("")
		return nil
	}
	cfg := bedsql.Config{
		Storage: storage, Guarantee: o.guarantee(), Logging: o.Logging, Lease: crashLease, Logger: rig.Quiet(),
		RetryInitial: time.Millisecond, RetryMax: 5 * time.Millisecond,
	}
	pools := map[string]*sql.DB{}
	warm := ctx
	if o.ordered() {
		warm = bedsql.WithOrderKey(ctx, "warm")
	}
	for _, t := range []struct{ where, dsn string }{{"A", o.A}, {"B", o.B}} {
		if err := bedsql.RegisterDriver("crash-"+t.where, parse(t.where), cfg); err != nil {
			return err
		}
		if pools[t.where], err = sql.Open("crash-"+t.where, t.dsn); err != nil {
			return err
		}
		pools[t.where].SetMaxOpenConns(2)
		// The table of receipts is looked for before the steps are counted, and
		// what a connection keeps prepared is prepared.
		for range 3 {
			if err := plusOneBy(warm, pools[t.where], o.Driver, "account", 0); err != nil {
				return err
			}
		}
	}
	if pools["home"], err = o.openHome(s, cfg); err != nil {
		return err
	}
	if (strings.HasPrefix(o.By, "with and") || o.atHome()) && o.Driver != testdb.DriverSQLite {
		if pools["bed home"], err = o.openHome(s, cfg); err != nil {
			return err
		}
		for range 3 {
			if err := plusOneBy(ctx, pools["bed home"], o.Driver, "account", 0); err != nil {
				return err
			}
		}
	}
	// So are the removals behind these callers.
	for {
		logs, err := storage.List(ctx, txlog.Filter{Limit: 2})
		if err != nil {
			return err
		}
		if len(logs) == o.left() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.Begin(o.Die, o.Lose)
	err = crashCallers[o.By](context.WithValue(ctx, stepsKey{}, s), o, pools)
	told := "delivered"
	var undone *bedsql.CompensatedError
	switch {
	case errors.Is(err, bedsql.ErrPending):
		told = "pending"
	case errors.As(err, &undone):
		told = "compensated"
	case err != nil:
		told = "failed: " + err.Error()
	}
	s.Say(told)
	for _, p := range pools {
		_ = p.Close()
	}
	s.End(told)
	return nil
}

// openHome opens the log's database as that of an application.
func (o *crashOrder) openHome(s *rig.Steps, cfg bedsql.Config) (*sql.DB, error) {
	tgt, err := rig.Target(o.Driver)(o.Log)
	if err != nil {
		return nil, err
	}
	tgt.DataSource = "home"
	tgt = rig.CrashTarget(tgt, s, "home")
	c, err := bedsql.NewConnector(tgt, cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// openLog opens the log through a driver whose steps are counted.
func (o *crashOrder) openLog(ctx context.Context, s *rig.Steps) (*txlog.SQLStorage, error) {
	t, err := rig.Target(o.Driver)(o.Log)
	if err != nil {
		return nil, err
	}
	flavor := t.Dialect.Flavor
	logdb.Register("crash", logdb.Backend{
		Flavor: flavor,
		Connector: func(dsn string, _ logdb.Before) (driver.Connector, error) {
			if flavor == sqltext.MySQL {
				dsn += "&clientFoundRows=true"
			}
			t, err := rig.Target(o.Driver)(dsn)
			if err != nil {
				return nil, err
			}
			return &rig.CrashConnector{Connector: t.Connector, Steps: s, Where: "log"}, nil
		},
	})
	return txlog.Open(ctx, "crash", o.Log)
}

func crashJob() asyncjob.Config {
	return asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: 100,
		Lease: crashLease, Concurrency: 1, Logger: rig.Quiet(),
	}
}

// crashScenario is the work on the row o.Row. Each write adds one to a balance, so that a second
// application would show.
type crashScenario struct {
	Name string
	// By is who writes, and how: one of crashCallers, "job", or "job in order".
	By string
	// Writes are the tables, each as "A.account".
	Writes []string
	// Logging is when the entries are written.
	Logging bedsql.Logging
}

// byJob reports that there is no caller: the job delivers the log's entries.
func (s *crashScenario) byJob() bool { return strings.HasPrefix(s.By, "job") }

// ordered reports whether the writes are under one order key, and another each.
func (s *crashScenario) ordered() bool { return strings.HasSuffix(s.By, "in order") }

// left is how many of the writes are in the log before it begins.
func (s *crashScenario) left() int {
	switch {
	case s.byJob():
		return len(s.Writes)
	case strings.HasPrefix(s.By, "exec behind"):
		return 1
	}
	return 0
}

// guarantee is the guarantee of its writes. Under AtLeastOnce they set the value instead of adding
// one, so that a second time does no harm.
func (s *crashScenario) guarantee() bedsql.Guarantee {
	if strings.HasSuffix(s.By, "at least once") {
		return bedsql.AtLeastOnce
	}
	return bedsql.ExactlyOnce
}

// parts reports whether some of the writes may be promised and others not.
func (s *crashScenario) parts() bool {
	return s.By == "soft transaction" || s.By == "request with a staged group" || s.ordered()
}

// isRequest reports whether a client sends it, again if it gets no answer, or a broker.
func (s *crashScenario) isRequest() bool {
	return strings.HasPrefix(s.By, "request") || strings.HasPrefix(s.By, "message")
}

// publishes reports whether the consumer of a message publishes others.
func (s *crashScenario) publishes() bool { return s.By == "message that publishes" }

// calls reports whether A is written by calls.
func (s *crashScenario) calls() bool { return strings.HasSuffix(s.By, "call") }

// atHome reports whether a request or a message is handled by bed in the log's own database, which
// SQLite cannot do.
func (s *crashScenario) atHome() bool { return s.publishes() || s.By == "request with its own group" }

// runs are the names of its runs. If A is written, one run loses the answer to the first commit
// there, unless an order's write is logged before it begins.
func (s *crashScenario) runs() []string {
	if !(s.ordered() && s.left() > 0) && strings.Contains(strings.Join(s.Writes, " "), "A.") {
		return []string{s.Name, s.Name + ", first answer lost"}
	}
	return []string{s.Name}
}

// undoable reports whether the calls have compensations.
func (s *crashScenario) undoable() bool { return strings.HasSuffix(s.By, "an undoable call") }

// declines reports whether the service declines the call.
func (s *crashScenario) declines() bool { return strings.HasSuffix(s.Name, "declined") }

// overdue reports whether the job finds the group too old to be delivered.
func (s *crashScenario) overdue() bool { return strings.HasSuffix(s.Name, "overdue") }

// turns reports whether a part is refused, so that the group is undone.
func (s *crashScenario) turns() bool { return strings.HasSuffix(s.Name, "refused") || s.declines() }

// crashScenarios reads all that TestCrashMatrix runs.
func crashScenarios(t testing.TB) (list []crashScenario) {
	t.Helper()
	when := map[string]bedsql.Logging{"before": bedsql.LogBefore, "alongside": bedsql.LogAlongside, "on failure": bedsql.LogOnFailure}
	for _, c := range cases.Read(t, crashFile) {
		s := crashScenario{Name: c.In[0], By: c.In[1], Writes: strings.Split(c.In[3], ", ")}
		var known bool
		if s.Logging, known = when[c.In[2]]; !known {
			t.Fatalf("%s: the log is written before, alongside or on failure, not %q", c.Place, c.In[2])
		}
		if !s.byJob() && crashCallers[s.By] == nil {
			t.Fatalf("%s: nobody is called %q", c.Place, s.By)
		}
		list = append(list, s)
	}
	return list
}

// crashFile is the file of scenarios.
const crashFile = "crash/scenarios.txt"

// crashCallers make the writes of a scenario.
var crashCallers = map[string]func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error{
	"exec": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return o.each(func(db, table string) error {
			_, err := pools[db].ExecContext(ctx, plusOne(table, o.Row))
			return err
		})
	},
	"exec with parameters": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return o.each(func(db, table string) error { return plusOneBy(ctx, pools[db], o.Driver, table, o.Row) })
	},
	"exec that must change a row": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return o.each(func(db, table string) error {
			return plusOneBy(bedsql.RequireRows(ctx, 1), pools[db], o.Driver, table, o.Row)
		})
	},
	"exec in order":            crashInOrder,
	"exec behind one in order": crashInOrder,
	"local transaction": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		tx, err := pools["A"].BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := o.each(func(_, table string) error {
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		}); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	},
	"soft transaction": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return crashSoft(ctx, o, pools)
	},
	"with":               crashWith,
	"with at least once": crashWith,
	"staged that must change a row": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return crashSoft(bedsql.RequireRows(ctx, 1), o, pools, bedsql.Staged())
	},
	"request":                      crashRequest,
	"request with a staged group":  crashRequest,
	"request with its own group":   crashRequest,
	"call":                         crashCall,
	"staged with a call":           crashCall,
	"staged with an undoable call": crashCall,
	"with a call":                  crashCall,
	"message":                      crashMessage,
	"message that publishes":       crashMessage,
	"staged with compensation":     crashGroup,
	"with and compensation":        crashGroup,
	"staged soft transaction": func(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
		return crashSoft(ctx, o, pools, bedsql.Staged())
	},
}

// each calls f for each write of the scenario.
func (o *crashOrder) each(f func(db, table string) error) error {
	for _, w := range o.Writes {
		db, table, _ := strings.Cut(w, ".")
		if err := f(db, table); err != nil {
			return err
		}
	}
	return nil
}

func crashSoft(ctx context.Context, o *crashOrder, pools map[string]*sql.DB, opts ...bedsql.TxOption) error {
	ctx, soft, err := bedsql.Begin(ctx, opts...)
	if err != nil {
		return err
	}
	if err := o.each(func(db, table string) error {
		_, err := pools[db].ExecContext(ctx, plusOne(table, o.Row))
		return err
	}); err != nil {
		return err
	}
	return soft.End(ctx)
}

// crashInOrder makes the writes that are not in the log yet, one after the other.
func crashInOrder(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) (err error) {
	for _, w := range o.Writes[o.left():] {
		db, table, _ := strings.Cut(w, ".")
		if _, err = pools[db].ExecContext(bedsql.WithOrderKey(ctx, crashKey), o.plusOne(table)); err != nil && !errors.Is(err, bedsql.ErrPending) {
			return err
		}
	}
	return err
}

// crashKey is the order key.
const crashKey = "k"

// plusOne is plusOne, but for an order: each later write adds the same as the first, and changes no
// row if it comes before.
func (o *crashOrder) plusOne(table string) string {
	if o.ordered() && table != "account" {
		return fmt.Sprintf("UPDATE %s SET balance = balance + (SELECT a.balance FROM account AS a WHERE a.id = %d) WHERE id = %[2]d", table, o.Row)
	}
	return plusOne(table, o.Row)
}

func crashWith(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	tx, err := pools["home"].BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	ctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		return err
	}
	if err := o.each(func(db, table string) error {
		if db == "home" {
			_, err := tx.ExecContext(ctx, plusOne(table, o.Row))
			return err
		}
		text := plusOne(table, o.Row)
		if o.guarantee() == bedsql.AtLeastOnce {
			text = fmt.Sprintf("UPDATE %s SET balance = 1 WHERE id = %d", table, o.Row)
		}
		_, err := pools[db].ExecContext(ctx, text)
		return err
	}); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return soft.End(ctx)
}

// crashGroup makes a compensable group. In some scenarios B refuses its part. SQLite cannot
// compensate at home.
func crashGroup(ctx context.Context, o *crashOrder, pools map[string]*sql.DB) error {
	opt, commit := bedsql.Staged(), func() error { return nil }
	var own *sql.Tx
	if strings.HasPrefix(o.By, "with") {
		tx, err := pools["home"].BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		opt, commit, own = bedsql.WithTx(tx), tx.Commit, tx
	}
	ctx, soft, err := bedsql.Begin(ctx, opt)
	if err != nil {
		return err
	}
	undo := soft.Compensation(ctx)
	if err := o.each(func(db, table string) error {
		forward, back := rig.Executor(pools[db]), pools[db]
		if db == "home" {
			if back = pools["bed home"]; back == nil {
				return nil
			}
			forward = own
		}
		if _, err := forward.ExecContext(ctx, plusOne(table, o.Row)); err != nil {
			return err
		}
		_, err := back.ExecContext(undo, minusOne(table, o.Row))
		return err
	}); err != nil {
		return err
	}
	if o.turns() {
		if err := crashRefusal(ctx, pools["B"]); err != nil {
			return err
		}
	}
	if err := commit(); err != nil {
		return err
	}
	return soft.End(ctx)
}

// crashRefusal adds a part to a group that db refuses.
func crashRefusal(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(bedsql.RequireRows(ctx, 1), "DELETE FROM account WHERE id = -1")
	return err
}

func plusOne(table string, row int) string {
	return fmt.Sprintf("UPDATE %s SET balance = balance + 1 WHERE id = %d", table, row)
}

func minusOne(table string, row int) string {
	return fmt.Sprintf("UPDATE %s SET balance = balance - 1 WHERE id = %d", table, row)
}

// plusOneBy runs plusOne with parameters, under a text that comes again.
func plusOneBy(ctx context.Context, db *sql.DB, driverName, table string, row int) error {
	text := "UPDATE " + table + " SET balance = balance + ? WHERE id = ?"
	if driverName == testdb.DriverPostgres {
		text = "UPDATE " + table + " SET balance = balance + $1 WHERE id = $2"
	}
	_, err := db.ExecContext(ctx, text, 1, row)
	return err
}
