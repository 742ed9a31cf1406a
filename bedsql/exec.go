package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// write runs a DML. Rows of one sent through Query are read to the end before it
// counts as delivered, and are handed on buffered.
func (c *Conn) write(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (attempt.Reply, error) {
	under := scopeOf(ctx)
	switch soft := c.stagedIn(under); {
	case soft != nil && rows:
		return attempt.Reply{}, fmt.Errorf("%w: a write that returns rows cannot be staged", ErrStaged)
	case soft != nil:
		return soft.record(ctx, c, s, args)
	case c.tx != nil:
		return c.tx.write(ctx, under, s, args, rows)
	case c.pinned != "" || s.class.Pins || s.class.NeedsSession || under.skip:
		return c.writeUnlogged(ctx, under, s, args, rows)
	}
	return c.deliver(ctx, under, s, args, rows)
}

// writeUnlogged hands a write straight to the driver.
func (c *Conn) writeUnlogged(ctx context.Context, under scope, s statement, args []driver.NamedValue, rows bool) (attempt.Reply, error) {
	if under.key != nil && !under.skip {
		return attempt.Reply{}, unusable("the write would run unlogged")
	}
	why := c.whyUnlogged(under, s)
	if why != "" {
		if err := c.refuseUnlogged(why); err != nil {
			return attempt.Reply{}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return attempt.Reply{}, err
	}
	reply, err := c.bare(ctx, s, args, rows)
	if errors.Is(err, driver.ErrSkip) || errors.Is(err, driver.ErrBadConn) {
		return reply, err // what the driver did not take comes again from database/sql
	}
	if why != "" {
		c.ranUnlogged(s, why)
	} else {
		c.c.cfg.Counters.Skipped.Add(1)
	}
	if err == nil && s.class.Pins {
		c.pinBy(s, nil) // @v := …
	}
	return reply, err
}

// whyUnlogged says why a write runs unlogged; empty if Skip asked for it.
func (c *Conn) whyUnlogged(under scope, s statement) string {
	switch {
	case under.skip:
		return ""
	case c.pinned != "":
		return c.pinned
	case s.class.Pins || s.class.NeedsSession:
		return "the statement depends on its session"
	default: // in a transaction that was begun under Skip
		return ""
	}
}

// refuseUnlogged is the error of a write that could only run unlogged, if the
// configuration has it refused.
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

// unloggedAdvice tells how to avoid writes that run unlogged.
const unloggedAdvice = "put settings into the DSN, send one statement at a time, give session work a connection of its own " +
	"(sql.DB.Conn) that is closed behind it; bedsql.Skip where it is meant; Config.Pinned: bedsql.PinnedRefuse makes it an error"

// execution is a DML on its way outside any local transaction, with all that its
// attempts need.
type execution struct {
	besteffort.Delivery

	c *Conn
	// call is the DML on the caller's own connection.
	call delivery.Call
	// rows: it was sent through Query.
	rows bool
	unit txlog.Unit
	text [1]txlog.Statement
}

// deliver logs and runs one DML outside any local transaction.
func (c *Conn) deliver(ctx context.Context, under scope, s statement, args []driver.NamedValue, rows bool) (attempt.Reply, error) {
	if err := ctx.Err(); err != nil {
		return attempt.Reply{}, err
	}
	receipt := under.exactlyOnce(&c.c.cfg)
	found, err := c.c.guard.check(s, args, receipt)
	if err != nil {
		return attempt.Reply{}, err
	}
	if found {
		c.c.cfg.Counters.Guarded.Add(1)
	}
	x := &execution{c: c, call: s.call(args), rows: rows}
	if x.text[0], _, err = c.c.store(x.call); err != nil {
		return attempt.Reply{}, err
	}
	soft := under.soft
	if soft != nil {
		if err := soft.enter(); err != nil {
			return attempt.Reply{}, err
		}
		defer soft.left(&x.Delivery)
	}
	if receipt {
		c.eraseInTurn(ctx)
		if err := c.ensureReceipts(ctx, under.key != nil); err != nil {
			return attempt.Reply{}, err
		}
	}
	x.unit.Statements = x.text[:]
	x.Delivery = c.c.delivery(under, receipt, &x.unit, x)
	// The rows of a Query cannot be invented, so its error is the caller's.
	x.KeepRefused = soft != nil && !rows
	key := under.key
	var back func()
	if key != nil {
		if back, err = key.mark(&x.unit); err != nil {
			return attempt.Reply{}, err
		}
	}
	if err := c.c.deliverer.Deliver(ctx, &x.Delivery); err != nil {
		c.c.cfg.Counters.failed(err)
		if key != nil && !undecided(err) && !isParked(err) {
			back()
		}
		if soft != nil && !rows && soft.swallow(err) {
			return attempt.Reply{Result: noResult{}}, nil
		}
		return attempt.Reply{}, err
	}
	c.c.cfg.Counters.Delivered.Add(1)
	out := &x.Outcome
	c.c.guard.answered(s, args, out.Result, receipt)
	if out.Replayed && key != nil {
		key.replay()
	}
	switch {
	case !rows && out.Result == nil:
		return attempt.Reply{Result: lostResult{}}, nil
	case rows && out.Rows == nil:
		// An attempt delivered it whose rows were lost with its answer.
		return attempt.Reply{}, ErrRowsUnknown
	case rows:
		return attempt.Reply{Rows: out.Rows}, nil
	}
	return attempt.Reply{Result: out.Result}, nil
}

// First implements besteffort.Attempts, on the caller's own connection.
func (x *execution) First(ctx context.Context) attempt.Outcome {
	c := x.c
	return c.attempt(func() attempt.Outcome {
		if err := c.ensure(ctx); err != nil {
			return attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
		}
		return x.run(ctx, &c.session, x.call)
	})
}

// Again implements besteffort.Attempts, on another connection or on one whose
// session may have changed: what was prepared there may not be any more.
func (x *execution) Again(ctx context.Context) attempt.Outcome {
	anew := x.call
	anew.Stmt = nil
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.run(ctx, conn, anew) })
}

// run runs the write on conn, with its receipt if it has one.
func (x *execution) run(ctx context.Context, conn driver.Conn, call delivery.Call) attempt.Outcome {
	c := x.c.c
	if x.unit.Receipt == "" {
		return attempt.One(ctx, c.dialect, conn, call, x.rows, x.unit.InDoubt)
	}
	return c.withReceipt(ctx, conn, &x.unit, func() attempt.Outcome {
		return attempt.Apply(ctx, c.dialect, conn, []delivery.Call{call}, &x.unit, c.receipts, x.rows)
	})
}

// Void implements besteffort.Attempts.
func (x *execution) Void(ctx context.Context) attempt.Outcome {
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.c.c.void(ctx, conn, &x.unit) })
}

// NoteTold implements besteffort.Attempts.
func (x *execution) NoteTold(ctx context.Context) attempt.Outcome {
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.c.c.noteTold(ctx, conn, &x.unit) })
}

// undecided reports whether err leaves open whether the write is, or will be,
// applied.
func undecided(err error) bool {
	return errors.Is(err, ErrPending) || errors.Is(err, ErrUnknownOutcome)
}

// isParked reports whether err is a refusal that stays in the log.
func isParked(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// store turns a statement into what the log keeps, and gives the values that it
// keeps. If it gives an error, nothing ran.
func (c *connector) store(call delivery.Call) (txlog.Statement, []driver.NamedValue, error) {
	args, err := c.dialect.Store(call.Args)
	if err != nil {
		return txlog.Statement{}, nil, fmt.Errorf("bed: nothing was run: %w", err)
	}
	params, err := txlog.EncodeParams(args)
	if err != nil {
		return txlog.Statement{}, nil, fmt.Errorf("bed: nothing was run: %w", err)
	}
	return txlog.Statement{SQL: call.SQL, Params: params, Prepared: call.Prepared}, args, nil
}

// delivery makes the delivery of u, whose statements were written in a scope, and
// gives u its name and, if it leaves one, its receipt.
func (c *connector) delivery(under scope, receipt bool, u *txlog.Unit, a besteffort.Attempts) besteffort.Delivery {
	u.ID, u.DataSource, u.Settings = txlog.NewID(), c.target.DataSource, c.target.Settings
	u.TransactionID = u.ID
	if under.soft != nil {
		u.TransactionID = under.soft.id
	}
	d := besteffort.Delivery{
		Unit: u, Attempts: a, Logging: besteffort.Logging(c.cfg.Logging),
		Behind: c.cfg.Removal == RemovalBehind || c.cfg.Removal == RemovalByGuarantee && receipt,
	}
	if under.withLogging {
		d.Logging = besteffort.Logging(under.logging)
	}
	if receipt {
		u.Receipt = c.dialect.ReceiptID(u.ID)
		if place := c.receiptPlace.Load(); place != nil {
			u.Place = place.name
		} else {
			d.Logging = besteffort.LogBefore // the first attempt has to tell the log where the receipt will be
		}
	}
	return d
}

// noResult is what Exec returns in a soft transaction for a write that End
// will report: 0 rows.
type noResult struct{}

func (noResult) LastInsertId() (int64, error) { return 0, nil }
func (noResult) RowsAffected() (int64, error) { return 0, nil }

// lostResult is the Result of a write whose successful attempt lost its answer.
type lostResult struct{}

func (lostResult) LastInsertId() (int64, error) { return 0, ErrRowsUnknown }
func (lostResult) RowsAffected() (int64, error) { return 0, ErrRowsUnknown }
