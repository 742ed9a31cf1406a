package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// execWrite runs a DML sent through Exec.
func (c *Conn) execWrite(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
	if soft := c.stagedIn(ctx); soft != nil {
		return c.stage(ctx, soft, s, args)
	}
	if c.tx != nil {
		return c.execInTx(ctx, s, args)
	}
	if c.runsUnlogged(ctx, s) {
		return c.execThrough(ctx, s, args)
	}
	out, err := c.deliver(ctx, s, args, false)
	if err != nil {
		return nil, err
	}
	if out.Result == nil {
		return lostResult{}, nil
	}
	return out.Result, nil
}

// queryWrite runs a DML sent through Query. Its rows are read to the end
// before it counts as delivered, and handed on buffered.
func (c *Conn) queryWrite(ctx context.Context, s statement, args []driver.NamedValue) (driver.Rows, error) {
	if c.stagedIn(ctx) != nil {
		return nil, fmt.Errorf("%w: a write that returns rows cannot be staged", ErrStaged)
	}
	if c.tx != nil {
		return c.queryInTx(ctx, s, args)
	}
	if c.runsUnlogged(ctx, s) {
		return c.queryThrough(ctx, s, args)
	}
	out, err := c.deliver(ctx, s, args, true)
	if err != nil {
		return nil, err
	}
	if out.Rows == nil {
		// Delivered by an attempt whose rows were lost with its answer.
		return nil, ErrRowsUnknown
	}
	return out.Rows, nil
}

// runsUnlogged says whether a write outside any transaction goes straight to
// the driver.
func (c *Conn) runsUnlogged(ctx context.Context, s statement) bool {
	return c.pinned != "" || s.class.Pins || s.class.NeedsSession || skipped(ctx)
}

// execThrough hands a write straight to the driver.
func (c *Conn) execThrough(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
	if keyFrom(ctx) != nil && !skipped(ctx) {
		return nil, unusable("the write would run unlogged")
	}
	if err := c.passing(ctx, s); err != nil {
		return nil, err
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	res, err := c.execBare(ctx, s, args)
	c.passed(ctx, s, err)
	return res, err
}

// queryThrough is execThrough for a write that returns rows.
func (c *Conn) queryThrough(ctx context.Context, s statement, args []driver.NamedValue) (driver.Rows, error) {
	if keyFrom(ctx) != nil && !skipped(ctx) {
		return nil, unusable("the write would run unlogged")
	}
	if err := c.passing(ctx, s); err != nil {
		return nil, err
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	rows, err := c.queryBare(ctx, s, args)
	c.passed(ctx, s, err)
	return rows, err
}

// why says why a write runs unlogged; empty when it was asked for by Skip.
func (c *Conn) why(ctx context.Context, s statement) string {
	switch {
	case skipped(ctx):
		return ""
	case c.pinned != "":
		return c.pinned
	case s.class.Pins || s.class.NeedsSession:
		return "the statement depends on its session"
	default: // in a transaction that was begun under Skip
		return ""
	}
}

// passing refuses a write that may not run unlogged.
func (c *Conn) passing(ctx context.Context, s statement) error {
	if why := c.why(ctx, s); why != "" {
		return c.refuseUnlogged(why)
	}
	return nil
}

// passed counts a write that ran unlogged and notes the session state that it
// left behind (@v := …). What the driver did not take, database/sql brings
// again.
func (c *Conn) passed(ctx context.Context, s statement, err error) {
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, driver.ErrBadConn) {
		return
	}
	if why := c.why(ctx, s); why != "" {
		c.ranUnlogged(s, why)
	} else {
		c.c.cfg.Counters.Skipped.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pinBy(s)
	}
}

// refuseUnlogged is the error of a write that could only run unlogged, if the
// configuration wants one.
func (c *Conn) refuseUnlogged(why string) error {
	if c.c.cfg.Pinned != PinnedRefuse {
		return nil
	}
	return fmt.Errorf("%w: %s; use a connection of its own for it, or bedsql.Skip", ErrPinned, why)
}

// ranUnlogged counts a write that ran unlogged, and warns of the first on this
// connection.
func (c *Conn) ranUnlogged(s statement, why string) {
	c.c.cfg.Counters.PassedThrough.Add(1)
	if c.warned {
		return
	}
	c.warned = true
	flavor := sqltext.Flavor(c.c.dialect.Flavor)
	fields := logrus.Fields{"reason": why, "statement": shown(flavor, s.query), "advice": unloggedAdvice}
	if c.pinnedBy != "" {
		fields["pinned_by"] = shown(flavor, c.pinnedBy)
	}
	c.c.log.WithFields(fields).Warn("bed: writes on this connection run unlogged and unretried")
}

// unloggedAdvice is the way out of writes that run unlogged.
const unloggedAdvice = "put settings into the DSN, send one statement at a time, give session work a connection of its own " +
	"(sql.DB.Conn) that is closed behind it; bedsql.Skip where it is meant; Config.Pinned: bedsql.PinnedRefuse makes it an error"

// delivered is a DML outside any local transaction on its way: all that its
// attempts need, in one piece.
type delivered struct {
	c    *Conn
	s    statement
	args []driver.NamedValue
	// rows: it was sent through Query.
	rows  bool
	retry side
	unit  txlog.Unit
	text  [1]txlog.Statement
	x     listener.Execution
}

// deliver logs, runs and settles one DML outside any local transaction.
func (c *Conn) deliver(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (attempt.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return attempt.Outcome{}, err
	}
	receipt := c.c.exactlyOnce(ctx)
	if err := c.c.guard.admit(s, receipt); err != nil {
		return attempt.Outcome{}, err
	}
	stored, err := c.store(s, args)
	if err != nil {
		return attempt.Outcome{}, err
	}
	soft := softFrom(ctx)
	d := &delivered{c: c, s: s, args: args, rows: rows, retry: side{c: c}, text: [1]txlog.Statement{stored}}
	if soft != nil {
		if err := soft.enter(); err != nil {
			return attempt.Outcome{}, err
		}
		defer soft.left(&d.unit)
	}
	defer d.retry.close()
	if receipt {
		c.eraseInTurn(ctx)
		if err := c.ensureReceipts(ctx); err != nil {
			return attempt.Outcome{}, err
		}
	}
	c.c.fill(&d.unit, receipt, soft, d.text[:])
	key := keyFrom(ctx)
	var back func()
	if key != nil {
		if back, err = key.mark(&d.unit); err != nil {
			return attempt.Outcome{}, err
		}
	}
	x := &d.x
	c.c.execute(x, &d.unit)
	// The rows of a Query cannot be invented, so its error is the caller's.
	x.KeepRefused = soft != nil && !rows
	x.Attempt = d.attempt
	if d.unit.Receipt != "" {
		x.Void, x.Answered = d.void, d.answered
	}
	err = c.c.cfg.Bus.Execute(ctx, c.c.deliver, x)
	c.c.cfg.Counters.count(err)
	if err != nil {
		if key != nil && !errors.Is(err, ErrPending) && !isParked(err) {
			back()
		}
		if soft != nil && !rows && soft.swallow(err) {
			return attempt.Outcome{Result: noResult{}}, nil
		}
		return attempt.Outcome{}, err
	}
	c.c.guard.answered(s, args, x.Outcome.Result, receipt)
	if x.Outcome.Replayed && key != nil {
		key.replay()
	}
	return x.Outcome, nil
}

// attempt is listener.Execution.Attempt.
func (d *delivered) attempt(ctx context.Context, n int) attempt.Outcome {
	if n == 0 {
		return d.first(ctx)
	}
	return d.retry.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
		if d.unit.Receipt != "" {
			return d.c.apply(ctx, conn, d.s.anew(d.args), &d.unit, d.rows)
		}
		return attempt.One(ctx, d.c.c.dialect, conn, d.s.anew(d.args), d.rows, d.x.InDoubt())
	})
}

// first is unlessPanic of the first attempt, without its closures.
func (d *delivered) first(ctx context.Context) attempt.Outcome {
	returned := false
	defer func() {
		if !returned {
			d.c.kill()
		}
	}()
	out := d.c.firstAttempt(ctx, d.s, d.args, &d.unit, d.rows)
	returned = true
	return out
}

// void is listener.Execution.Void.
func (d *delivered) void(ctx context.Context) attempt.Outcome { return d.retry.void(ctx, &d.unit) }

// answered is listener.Execution.Answered.
func (d *delivered) answered(ctx context.Context) attempt.Outcome {
	return d.retry.answered(ctx, &d.unit)
}

// isParked reports whether err is a refusal that stays in the log.
func isParked(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// firstAttempt runs the write on the caller's own connection.
func (c *Conn) firstAttempt(ctx context.Context, s statement, args []driver.NamedValue, u *txlog.Unit, rows bool) attempt.Outcome {
	if err := c.ensure(ctx); err != nil {
		return attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
	}
	var out attempt.Outcome
	switch {
	case u.Receipt != "":
		out = c.apply(ctx, &c.session, s.call(args), u, rows)
	default:
		out = attempt.One(ctx, c.c.dialect, c.inner, s.call(args), rows, false)
	}
	return c.lossy(out)
}

// apply runs the write with its receipt.
func (c *Conn) apply(ctx context.Context, conn driver.Conn, call delivery.Call, u *txlog.Unit, rows bool) attempt.Outcome {
	if out := c.c.findReceipts(ctx, conn, u); out.Err != nil {
		return out
	}
	return attempt.Apply(ctx, c.c.dialect, conn, []delivery.Call{call}, u, c.c.receipts, rows)
}

// store turns a statement into what the log keeps. An error means that
// nothing ran.
func (c *Conn) store(s statement, args []driver.NamedValue) (txlog.Statement, error) {
	stored, _, err := c.storeArgs(s, args)
	return stored, err
}

// storeArgs is store, and gives the values that the log keeps.
func (c *Conn) storeArgs(s statement, args []driver.NamedValue) (txlog.Statement, []driver.NamedValue, error) {
	args, err := c.c.dialect.Store(args)
	if err != nil {
		return txlog.Statement{}, nil, fmt.Errorf("bed: nothing was run: %w", err)
	}
	params, err := txlog.EncodeParams(args)
	if err != nil {
		return txlog.Statement{}, nil, fmt.Errorf("bed: nothing was run: %w", err)
	}
	return txlog.Statement{SQL: s.query, Params: params, Prepared: s.isPrepared()}, args, nil
}

// execution is what is delivered of a unit; how it is run, the caller adds.
func (c *connector) execution(u *txlog.Unit) *listener.Execution {
	x := new(listener.Execution)
	c.execute(x, u)
	return x
}

// execute is execution in place.
func (c *connector) execute(x *listener.Execution, u *txlog.Unit) {
	x.Unit, x.Dialect, x.Erase = u, c.dialect, c.erase
	x.Behind = c.cfg.Removal == RemovalBehind || c.cfg.Removal == RemovalByGuarantee && u.Receipt != ""
}

func (c *connector) newUnit(receipt bool, soft *SoftTransaction, statements ...txlog.Statement) *txlog.Unit {
	u := new(txlog.Unit)
	c.fill(u, receipt, soft, statements)
	return u
}

// fill is newUnit in place.
func (c *connector) fill(u *txlog.Unit, receipt bool, soft *SoftTransaction, statements []txlog.Statement) {
	u.ID = txlog.NewID()
	u.DataSource = c.target.DataSource
	u.Settings = c.target.Settings
	u.Statements = statements
	u.TransactionID = u.ID
	if soft != nil {
		u.TransactionID = soft.id
	}
	if receipt {
		u.Receipt = c.dialect.ReceiptID(u.ID)
		if place := c.place.Load(); place != nil {
			u.Place = *place
		}
	}
}

// count sorts a write's answer.
func (n *Counters) count(err error) {
	if err == nil {
		n.Delivered.Add(1)
		return
	}
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		n.Refused.Add(1)
	case errors.Is(err, ErrPending):
		n.Pending.Add(1)
	case errors.Is(err, ErrNotLogged):
		n.NotLogged.Add(1)
	default:
		n.Refused.Add(1)
	}
}

// noResult is what Exec returns in a soft transaction for a write that End
// will report: 0 rows.
type noResult struct{}

func (noResult) LastInsertId() (int64, error) { return 0, nil }
func (noResult) RowsAffected() (int64, error) { return 0, nil }

// lostResult is the Result of a write that was delivered by an attempt whose
// answer was lost.
type lostResult struct{}

func (lostResult) LastInsertId() (int64, error) { return 0, ErrRowsUnknown }
func (lostResult) RowsAffected() (int64, error) { return 0, ErrRowsUnknown }
