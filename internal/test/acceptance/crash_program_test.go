package acceptance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// crashOrder tells the crashing program what to do.
type crashOrder struct {
	Driver   string
	A, B     string // DSNs of the targets
	Log      string // DSN of the log
	Scenario string
	Row      int
	// Die is the step at which it kills itself; 0 for never.
	Die int
	// Lose: the answer to the first commit on A is lost, so that a retry follows.
	Lose bool
	// Logging is when its entries are written.
	Logging bedsql.Logging
}

// crashReport is what the program says of itself, in one line, when it ends or
// just before it kills itself.
type crashReport struct {
	// Told is what the caller was told: "delivered", "pending" or "failed: …";
	// empty when it was killed before.
	Told string
	// Steps are those that it made.
	Steps []string
}

const crashEnv = "BED_ACCEPTANCE_CRASH"

// crashLease is longer than any pause of the disk: an entry that is not written
// within a lease is told as not written. What a killed owner leaves behind is
// made old (rig.logAge) rather than waited for.
const crashLease = time.Minute

// crashProgram runs one scenario.
func crashProgram() int {
	var o crashOrder
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	s := &steps{}
	if err := o.run(s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func (o *crashOrder) run(s *steps) error {
	ctx := context.Background()
	storage, err := o.openLog(ctx, s)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	parse := func(where string) func(string) (delivery.Target, error) {
		return func(dsn string) (delivery.Target, error) {
			t, err := target(o.Driver)(dsn)
			if err != nil {
				return t, err
			}
			t.DataSource = where
			return crashTarget(t, s, where), nil
		}
	}
	if crashScenarios[o.Scenario].call == nil {
		a, err := parse("A")(o.A)
		if err != nil {
			return err
		}
		job, err := asyncjob.New(storage, asyncjob.Targets{"A": a}, crashJob())
		if err != nil {
			return err
		}
		s.begin(o.Die, o.Lose)
		_, _ = job.RunOnce(ctx) // what it leaves undone, the test's own job finishes
		_ = job.Close()
		s.end("")
		return nil
	}
	cfg := bedsql.Config{
		Storage: storage, Guarantee: bedsql.ExactlyOnce, Logging: o.Logging, Lease: crashLease, Logger: quiet(),
		RetryInitial: time.Millisecond, RetryMax: 5 * time.Millisecond,
	}
	var pools [2]*sql.DB
	for i, t := range []struct{ where, dsn string }{{"A", o.A}, {"B", o.B}} {
		if err := bedsql.RegisterDriver("crash-"+t.where, parse(t.where), cfg); err != nil {
			return err
		}
		if pools[i], err = sql.Open("crash-"+t.where, t.dsn); err != nil {
			return err
		}
		pools[i].SetMaxOpenConns(2)
		// The table of receipts is looked for before the steps are counted, and
		// what a connection keeps prepared is prepared.
		for range 3 {
			if err := plusOneBy(ctx, pools[i], o.Driver, 0); err != nil {
				return err
			}
		}
	}
	// So are the removals behind these callers.
	for {
		logs, err := storage.List(ctx, txlog.Filter{Limit: 1})
		if err != nil {
			return err
		}
		if len(logs) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	s.begin(o.Die, o.Lose)
	err = crashScenarios[o.Scenario].call(ctx, o, pools[0], pools[1])
	told := "delivered"
	switch {
	case errors.Is(err, bedsql.ErrPending):
		told = "pending"
	case err != nil:
		told = "failed: " + err.Error()
	}
	s.say(told)
	for _, p := range pools {
		_ = p.Close()
	}
	s.end(told)
	return nil
}

// openLog opens the log through a driver whose steps are counted.
func (o *crashOrder) openLog(ctx context.Context, s *steps) (*txlog.SQLStorage, error) {
	t, err := target(o.Driver)(o.Log)
	if err != nil {
		return nil, err
	}
	flavor := t.Dialect.Flavor
	txlog.RegisterBackend("crash", txlog.Backend{
		Flavor: flavor,
		Connector: func(dsn string) (driver.Connector, error) {
			if flavor == txlog.FlavorMySQL {
				dsn += "&clientFoundRows=true"
			}
			t, err := target(o.Driver)(dsn)
			if err != nil {
				return nil, err
			}
			return &crashConnector{Connector: t.Connector, steps: s, where: "log"}, nil
		},
	})
	return txlog.Open(ctx, "crash", o.Log)
}

func crashJob() asyncjob.Config {
	return asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: 100,
		Lease: crashLease, Concurrency: 1, Logger: quiet(),
	}
}

// crashScenario is what a caller does to the row o.Row: each write adds one to a
// balance, so that twice would show.
type crashScenario struct {
	// call is nil where the job delivers what is in the log.
	call func(ctx context.Context, o *crashOrder, a, b *sql.DB) error
	// other and b are whether it writes to the table other of A, and to B, besides
	// the table account of A.
	other, b bool
	// parts: some of its writes may be promised and others not.
	parts bool
	// modes: it is also run with the log alongside and on failure.
	modes bool
}

// crashScenarios are all that TestCrashMatrix runs.
var crashScenarios = map[string]crashScenario{
	"single DML": {modes: true, call: func(ctx context.Context, o *crashOrder, a, _ *sql.DB) error {
		_, err := a.ExecContext(ctx, plusOne("account", o.Row))
		return err
	}},
	"prepared DML": {call: func(ctx context.Context, o *crashOrder, a, _ *sql.DB) error {
		return plusOneBy(ctx, a, o.Driver, o.Row)
	}},
	"job": {other: true},
	"local transaction": {other: true, modes: true, call: func(ctx context.Context, o *crashOrder, a, _ *sql.DB) error {
		tx, err := a.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		for _, table := range []string{"account", "other"} {
			if _, err := tx.ExecContext(ctx, plusOne(table, o.Row)); err != nil {
				_ = tx.Rollback()
				return err
			}
		}
		return tx.Commit()
	}},
	"soft transaction": {other: true, b: true, parts: true, modes: true, call: func(ctx context.Context, o *crashOrder, a, b *sql.DB) error {
		return crashSoft(ctx, a, b, o.Row)
	}},
	"staged soft transaction": {other: true, b: true, call: func(ctx context.Context, o *crashOrder, a, b *sql.DB) error {
		return crashSoft(ctx, a, b, o.Row, bedsql.Staged())
	}},
}

func crashSoft(ctx context.Context, a, b *sql.DB, row int, opts ...bedsql.TxOption) error {
	ctx, soft, err := bedsql.Begin(ctx, opts...)
	if err != nil {
		return err
	}
	for _, db := range []*sql.DB{a, b} {
		if _, err := db.ExecContext(ctx, plusOne("account", row)); err != nil {
			return err
		}
	}
	if _, err := a.ExecContext(ctx, plusOne("other", row)); err != nil {
		return err
	}
	return soft.End(ctx)
}

func plusOne(table string, row int) string {
	return fmt.Sprintf("UPDATE %s SET balance = balance + 1 WHERE id = %d", table, row)
}

// plusOneBy runs plusOne on account with parameters, under a text that comes
// again.
func plusOneBy(ctx context.Context, db *sql.DB, driverName string, row int) error {
	text := "UPDATE account SET balance = balance + ? WHERE id = ?"
	if driverName == testdb.DriverPostgres {
		text = "UPDATE account SET balance = balance + $1 WHERE id = $2"
	}
	_, err := db.ExecContext(ctx, text, 1, row)
	return err
}

// begin starts to count steps.
func (s *steps) begin(die int, lose bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names, s.die, s.lose, s.counting = nil, die, lose, true
}

// say notes what the caller was told.
func (s *steps) say(told string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = told
}

// end reports a program that was not killed.
func (s *steps) end(told string) {
	s.say(told)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report()
	s.counting = false // what comes now is the log's closing
}

// report is called with mu held.
func (s *steps) report() {
	line, _ := json.Marshal(crashReport{Told: s.told, Steps: s.names})
	fmt.Fprintln(os.Stdout, string(line))
}

// durable reports whether the program had written its entry, and attempted
// whether it had begun to.
func (r *crashReport) durable() bool   { return r.made("after log INSERT INTO transaction_log") }
func (r *crashReport) attempted() bool { return r.made("before log INSERT INTO transaction_log") }

func (r *crashReport) made(prefix string) bool {
	for _, s := range r.Steps {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}
