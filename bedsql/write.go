package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// execWrite runs a DML sent through Exec.
func (c *Conn) execWrite(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
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
		c.ranUnlogged(why)
	} else {
		c.c.cfg.Counters.Skipped.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pin(sessionState)
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

// ranUnlogged counts a write that ran unlogged, and warns of the first.
func (c *Conn) ranUnlogged(why string) {
	c.c.cfg.Counters.PassedThrough.Add(1)
	if !c.warned {
		c.warned = true
		c.c.log.WithField("reason", why).Warn("bed: writes on this connection run unlogged and unretried")
	}
}

// deliver logs, runs and settles one DML outside any local transaction.
func (c *Conn) deliver(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (delivery.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return delivery.Outcome{}, err
	}
	stored, err := c.store(s, args)
	if err != nil {
		return delivery.Outcome{}, err
	}
	soft := softFrom(ctx)
	if soft != nil {
		if err := soft.enter(); err != nil {
			return delivery.Outcome{}, err
		}
		defer soft.leave()
	}
	retry := side{c: c}
	defer retry.close()
	x := &listener.Execution{
		Unit: c.newUnit(soft, stored),
		// The rows of a Query cannot be invented, so its error is the caller's.
		KeepRefused: soft != nil && !rows,
	}
	x.Attempt = func(ctx context.Context, n int) delivery.Outcome {
		if n == 0 {
			return c.firstAttempt(ctx, s, args, rows)
		}
		conn, failed := retry.conn(ctx)
		if conn == nil {
			return failed
		}
		out := c.runOn(ctx, conn, s.query, args, rows, x.InDoubt())
		retry.used(out)
		return out
	}
	err = c.c.cfg.Bus.Execute(ctx, c.c.deliver, x)
	c.c.cfg.Counters.count(err)
	if err != nil {
		if soft != nil && !rows && soft.swallow(err) {
			return delivery.Outcome{Result: noResult{}}, nil
		}
		return delivery.Outcome{}, err
	}
	return x.Outcome, nil
}

// firstAttempt runs the write on the caller's own connection.
func (c *Conn) firstAttempt(ctx context.Context, s statement, args []driver.NamedValue, rows bool) delivery.Outcome {
	if err := c.ensure(ctx); err != nil {
		return delivery.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
	}
	var out delivery.Outcome
	if s.prepared == nil {
		out = c.runOn(ctx, c.inner, s.query, args, rows, false)
	} else {
		out = c.runPrepared(ctx, s, args, rows)
	}
	return c.lossy(out)
}

func (c *Conn) runOn(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue, rows, inDoubt bool) delivery.Outcome {
	if rows {
		return c.c.dialect.QueryOne(ctx, conn, query, args, inDoubt)
	}
	return c.c.dialect.ExecOne(ctx, conn, query, args, inDoubt)
}

func (c *Conn) runPrepared(ctx context.Context, s statement, args []driver.NamedValue, rows bool) delivery.Outcome {
	if err := ctx.Err(); err != nil {
		return c.c.dialect.Failed(err, true)
	}
	if rows {
		r, _, err := c.query(ctx, s, args)
		if err == nil {
			var buffered *delivery.Rows
			if buffered, err = delivery.Buffer(r); err == nil {
				return delivery.Outcome{Rows: buffered}
			}
		}
		return c.c.dialect.Failed(err, false)
	}
	res, _, err := c.exec(ctx, s, args)
	if err != nil {
		return c.c.dialect.Failed(err, false)
	}
	return delivery.Outcome{Result: res}
}

// store turns a statement into what the log keeps. An error means that
// nothing ran.
func (c *Conn) store(s statement, args []driver.NamedValue) (txlog.Statement, error) {
	args, err := c.c.dialect.Store(args)
	if err != nil {
		return txlog.Statement{}, fmt.Errorf("bed: nothing was run: %w", err)
	}
	params, err := txlog.EncodeParams(args)
	if err != nil {
		return txlog.Statement{}, fmt.Errorf("bed: nothing was run: %w", err)
	}
	return txlog.Statement{SQL: s.query, Params: params}, nil
}

func (c *Conn) newUnit(soft *SoftTransaction, statements ...txlog.Statement) *txlog.Unit {
	u := &txlog.Unit{
		ID:         txlog.NewID(),
		DataSource: c.c.target.DataSource,
		Settings:   c.c.target.Settings,
		Statements: statements,
	}
	u.TransactionID = u.ID
	if soft != nil {
		u.TransactionID = soft.id
	}
	return u
}

// count sorts a write's answer.
func (n *Counters) count(err error) {
	var refused *RefusedError
	switch {
	case err == nil:
		n.Delivered.Add(1)
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
