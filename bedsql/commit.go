package bedsql

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ending is how an attempt to end the open transaction came out.
type ending struct {
	attempt.Outcome
	// open says that it failed too early to end anything: the transaction is as
	// before.
	open bool
}

// ender is a way to end the open transaction.
type ender struct {
	// finish commits it, in whatever form, and says how that ended.
	finish func(context.Context) ending
	// plain says that finish is a bare COMMIT, which may also be sent in another
	// way.
	plain bool
	// undo rolls back. It is called when the transaction may still be open and
	// must not be committed, because its entry could not be written or is left to
	// the job.
	undo func() error
}

// committing is a local transaction that is being committed, with the unit of its
// writes.
type committing struct {
	besteffort.Delivery
	ender

	c        *Conn
	t        *localTx
	unit     txlog.Unit
	receipts attempt.Receipts
	ended    ending
}

// commit ends the open transaction: its writes are logged before COMMIT, and their
// entry is removed after it. swallowed says that err is kept for the End of a soft
// transaction.
func (how ender) commit(ctx context.Context, c *Conn) (swallowed bool, err error) {
	t := c.tx
	x := &committing{ender: how, c: c, t: t}
	defer func() {
		if t != nil && t.keyed != nil && err != nil && !undecided(err) {
			t.keyed.back()
		}
		c.closed()
		if x.ended.open && !undecided(err) {
			c.tx = t
		}
	}()
	if t == nil || len(t.statements) == 0 || t.aborted || c.dead && attempt.Ping(ctx, c.inner) != nil {
		return false, x.end(ctx).Err
	}
	soft := t.soft
	if soft == nil {
		soft = scopeOf(ctx).soft
	}
	receipts, known := c.c.receiptsIn(t)
	x.receipts = receipts
	if soft != nil {
		if err := soft.enter(); err != nil {
			c.undo(how.undo)
			return false, err
		}
		defer soft.left(&x.Delivery)
	}
	under := t.under
	under.soft = soft
	x.unit.Statements, x.unit.NotReplayable = t.statements, t.notReplayable
	x.Delivery = c.c.delivery(under, t.keyed != nil || t.receipt && known, &x.unit, x)
	x.AnswerIsFinal = true
	if t.keyed != nil {
		k := t.keyed.request()
		x.unit.ID, x.unit.Receipt, x.unit.Fingerprint = k.ID, k.Receipt, k.Fingerprint
		if soft == nil {
			x.unit.TransactionID = x.unit.ID
		}
	}
	if err = c.c.deliverer.Deliver(ctx, &x.Delivery); err == nil {
		c.c.cfg.Counters.Delivered.Add(1)
		if x.Outcome.Replayed && t.keyed != nil {
			t.keyed.key.replay()
		}
		return false, nil
	}
	c.c.cfg.Counters.failed(err)
	if x.Tries == 0 || x.ended.open && undecided(err) {
		c.undo(x.undo)
	}
	return soft != nil && soft.swallow(err), err
}

// end commits on the caller's own connection.
func (x *committing) end(ctx context.Context) attempt.Outcome {
	c := x.c
	if x.t != nil && x.t.keyed != nil {
		// The receipt was inserted at the beginning; the answer joins it now.
		receipts, _ := c.c.receiptsIn(x.t)
		if out := attempt.StoreAnswer(ctx, c.c.dialect, c.inner, x.t.keyed.request(), receipts, x.t.keyed.answer); out.Err != nil {
			if out.Class == delivery.Unknown {
				out.Class = delivery.Unreachable // COMMIT was not sent
			}
			c.undo(x.undo)
			return c.lossy(out)
		}
	}
	x.ended = x.finish(ctx)
	if x.ended.Err != nil && !x.ended.Class.Answered() {
		// It may not have been sent, and the connection still works.
		c.undo(x.undo)
	}
	return x.ended.Outcome
}

// First implements besteffort.Attempts.
func (x *committing) First(ctx context.Context) attempt.Outcome {
	c := x.c
	return c.attempt(func() attempt.Outcome {
		if x.unit.Receipt == "" || x.t.keyed != nil {
			return x.end(ctx)
		}
		out := attempt.Commit(ctx, c.c.dialect, &c.session, &x.unit, x.receipts, x.plain && !x.t.moved, x.end, x.undo)
		return c.c.withRights(ctx, &c.session, &x.unit, out)
	})
}

// Again implements besteffort.Attempts.
func (x *committing) Again(ctx context.Context) attempt.Outcome {
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.c.c.replay(ctx, conn, nil, &x.unit) })
}

// Void implements besteffort.Attempts.
func (x *committing) Void(ctx context.Context) attempt.Outcome {
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.c.c.void(ctx, conn, &x.unit) })
}

// NoteTold implements besteffort.Attempts.
func (x *committing) NoteTold(ctx context.Context) attempt.Outcome {
	return x.c.again(ctx, func(conn driver.Conn) attempt.Outcome { return x.c.c.noteTold(ctx, conn, &x.unit) })
}
