package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
)

// ending is how an attempt to end the open transaction came out.
type ending struct {
	attempt.Outcome
	// open: it failed too early to end anything, the transaction is as before.
	open bool
}

// commit is a way to end the open transaction.
type commit struct {
	// finish commits it, in whatever form, and says how that ended.
	finish func(context.Context) ending
	// plain: finish is a mere COMMIT, which may as well be sent otherwise.
	plain bool
	// undo rolls back. It is called when the transaction may still be open and
	// must not be committed, because its log could not be written or is left
	// to others.
	undo func() error
}

// settle ends the open transaction: its writes are logged before and settled
// after it. swallowed says that err is kept for the End of a soft transaction.
func (c *Conn) settle(ctx context.Context, how commit) (swallowed bool, err error) {
	t := c.tx
	var e ending
	defer func() {
		if t != nil && t.keyed != nil && err != nil && !errors.Is(err, ErrPending) {
			t.keyed.back()
		}
		c.closed()
		if e.open && !errors.Is(err, ErrPending) {
			c.tx = t
		}
	}()
	end := func(ctx context.Context) attempt.Outcome {
		e = how.finish(ctx)
		if e.Err != nil && !e.Class.Answered() {
			// It may not have been sent, on a connection that still works.
			c.undo(how.undo)
		}
		return e.Outcome
	}
	if t != nil && t.keyed != nil {
		send := end
		receipts, _ := c.c.receiptsIn(t)
		end = func(ctx context.Context) attempt.Outcome {
			// The receipt was inserted at the beginning; the answer joins it now.
			if out := attempt.StoreAnswer(ctx, c.c.dialect, c.inner, t.keyed.request(), receipts, t.keyed.answer); out.Err != nil {
				if out.Class == delivery.Unknown {
					out.Class = delivery.Unreachable // COMMIT was not sent
				}
				c.undo(how.undo)
				return c.lossy(out)
			}
			return send(ctx)
		}
	}
	if t == nil || len(t.statements) == 0 || t.aborted || c.dead && attempt.Ping(ctx, c.inner) != nil {
		return false, end(ctx).Err
	}
	soft := t.soft
	if soft == nil {
		soft = softFrom(ctx)
	}
	receipts, known := c.c.receiptsIn(t)
	u := c.c.newUnit(t.receipt && known, soft, t.statements...)
	if soft != nil {
		if err := soft.enter(); err != nil {
			c.undo(how.undo)
			return false, err
		}
		defer soft.left(u)
	}
	u.NotReplayable = t.notReplayable
	if t.keyed != nil {
		k := t.keyed.request()
		u.ID, u.Receipt, u.Fingerprint = k.ID, k.Receipt, k.Fingerprint
		if soft == nil {
			u.TransactionID = u.ID
		}
	}
	retry := side{c: c}
	defer retry.close()
	x := c.c.execution(u)
	x.AnswerIsFinal = true
	x.Attempt = func(ctx context.Context, n int) attempt.Outcome {
		switch {
		case n > 0:
			return retry.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
				return c.c.replay(ctx, conn, u)
			})
		case u.Receipt != "" && t.keyed == nil:
			return unlessPanic(func() attempt.Outcome {
				return c.lossy(attempt.Commit(ctx, c.c.dialect, &c.session, u, receipts, how.plain && !t.moved, end, how.undo))
			}, c.kill)
		default:
			return unlessPanic(func() attempt.Outcome { return end(ctx) }, c.kill)
		}
	}
	if u.Receipt != "" {
		x.Void = func(ctx context.Context) attempt.Outcome { return retry.void(ctx, u) }
		x.Answered = func(ctx context.Context) attempt.Outcome { return retry.answered(ctx, u) }
	}
	err = c.c.cfg.Bus.Execute(ctx, c.c.deliver, x)
	c.c.cfg.Counters.count(err)
	if err == nil {
		if x.Outcome.Replayed && t.keyed != nil {
			t.keyed.key.replay()
		}
		return false, nil
	}
	if x.Attempts() == 0 || e.open && errors.Is(err, ErrPending) {
		c.undo(how.undo)
	}
	return soft != nil && soft.swallow(err), err
}

// undo rolls back, or takes the connection out of use: an open transaction
// must not go back to the pool.
func (c *Conn) undo(undo func() error) {
	if !attempt.RolledBack(c.c.dialect, undo()) {
		c.kill()
	}
}

// control is a statement that ends the open transaction, sent as text, run on
// the bare connection as one attempt. before is as for attempt.Exec.
func (c *Conn) control(ctx context.Context, s statement, args []driver.NamedValue) (res driver.Result, before bool, out attempt.Outcome) {
	res, before, err := c.exec(ctx, s, args)
	if err == nil {
		return res, before, attempt.Outcome{Result: res}
	}
	out = attempt.Failed(c.c.dialect, err, before)
	if !s.class.ImplicitCommit && (!before || out.Class.Answered()) {
		out = attempt.CommitFailed(ctx, c.c.dialect, &c.session, err)
	}
	return res, before, c.lossy(out)
}

// stillOpen reports whether the open transaction outlived the error of a
// statement that commits it on its way.
func (c *Conn) stillOpen(ctx context.Context, err error) bool {
	f := c.c.dialect.StillOpen
	return f != nil && f(ctx, c.inner, err)
}

// inDoubt reports whether the error of a statement that commits on its way may
// be that of this COMMIT (a failed certification), so that it is not known
// whether the transaction is committed or rolled back.
func (c *Conn) inDoubt(ctx context.Context, out *attempt.Outcome) bool {
	lost := c.c.dialect.TransactionLost
	if lost == nil || !lost(ctx, c.inner, out.Err) {
		return false
	}
	out.Class, out.ConnLost = delivery.Unknown, true
	c.discard()
	return true
}

// lossy takes the connection out of use when the attempt on it lost it.
func (c *Conn) lossy(out attempt.Outcome) attempt.Outcome {
	if out.ConnLost {
		c.kill()
	}
	return out
}
