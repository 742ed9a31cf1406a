package bedsql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
)

// ending is the outcome of an attempt to end the open transaction.
type ending struct {
	attempt.Outcome
	// open means that it failed too early to end anything: the transaction is as before.
	open bool
}

// ender is a way to end the open transaction.
type ender struct {
	// finish commits it, in any form, and returns the outcome.
	finish func(context.Context) ending
	// plain means that finish is a bare COMMIT, for which another form will do.
	plain bool
	// undo rolls back. It is called when the transaction may still be open and must not be
	// committed, because its entry could not be written or is left to the job.
	undo func()
}

// committing is a local transaction during its commit, with the unit of its writes.
type committing struct {
	besteffort.InFlight
	again
	ender

	c        *Conn
	t        *localTx
	unit     entry.Unit
	receipts attempt.Receipts
	// entries write the entries of WithTx.
	entries []dialect.Call
	ended   ending
}

// commit ends the open transaction. It logs the writes before COMMIT, and removes their entry
// after it. swallowed means that err is kept for the End of a soft transaction.
func (how ender) commit(ctx context.Context, c *Conn) (swallowed bool, err error) {
	t := c.tx
	x := &committing{ender: how, c: c, t: t}
	x.again = again{c, c.c, &x.unit}
	defer func() {
		if x.ended.open && !undecided(err) {
			c.tx = t // it goes on
			t.seal(false)
			return
		}
		if t.commits(); t != nil && err != nil && !undecided(err) {
			t.fate.Store(uint32(homeRolledBack))
		}
		c.closed()
	}()
	if t != nil && t.unmet.err != nil {
		how.undo()
		return false, t.unmet.err
	}
	gone := t != nil && c.dead && attempt.Ping(ctx, c.inner) != nil
	entries := t.seal(true)
	switch {
	case !entries && (t == nil || !t.keyed.Keeps() && (len(t.homes) == 0 || c.c.shared == nil)):
	case len(t.order) > 0: // sent before the transaction was met as that of WithTx
		how.undo()
		return false, errOwnRows
	default:
		return false, x.commitHome(ctx, gone, entries)
	}
	if t == nil || len(t.statements) == 0 || t.state == txAborted || gone {
		out := x.end(ctx)
		if gone && out.Err != nil && !out.Class.Answered() {
			return false, attempt.Certain(out.Err, dialect.Unreachable)
		}
		return false, c.c.leftOpen(out.Err)
	}
	if c.c.shared != nil {
		how.undo()
		return false, c.c.shared
	}
	if c.c.target.Named {
		if err := c.readSettings(ctx); err != nil {
			how.undo()
			return false, err
		}
	}
	under := t.under
	if under.soft == nil {
		under.soft = scopeOf(ctx).soft
	}
	soft := under.soft
	if soft.isHome() {
		soft, under.soft = nil, nil // its COMMIT is nothing of that one's
	}
	receipts, known := c.c.receiptsIn(t)
	x.receipts = receipts
	if soft != nil {
		if err := soft.enter(); err != nil {
			how.undo()
			return false, err
		}
		defer soft.left(&x.InFlight)
	}
	x.unit.Statements, x.unit.NotReplayable, x.unit.Order = t.statements, t.notReplayable, t.order
	x.InFlight = c.c.inFlight(under, t.keyed != nil || t.receipt && known, &x.unit, c, x)
	x.AnswerIsFinal = true
	if err = t.deliverer().Deliver(ctx, &x.InFlight); err == nil {
		c.c.cfg.Counters.Delivered.Add(1)
		if soft != nil {
			soft.arrive(c.c.target.DataSource)
		}
		return false, nil
	}
	c.c.cfg.Counters.failed(err)
	if x.Tries == 0 || x.ended.open && undecided(err) {
		x.undo()
	}
	return soft != nil && soft.swallow(err), err
}

// commitHome commits a transaction that holds entries, or the response to a request. With an entry
// of its own it would be delivered twice. After an unanswered COMMIT, End finds out the outcome,
// or the resent request does.
func (x *committing) commitHome(ctx context.Context, gone, entries bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, x.c.c.cfg.AttemptTimeout)
	defer cancel()
	if x.t.keyed.Keeps() {
		x.t.keyed.Kept.Ends = x.t.ends()
	}
	if entries && x.t.state != txAborted && !gone {
		if x.entries, err = x.t.entries(ctx); err != nil {
			x.undo()
			return err
		}
		x.t.keepEntries()
	}
	sent := time.Now()
	out := x.end(ctx)
	unanswered := out.Err != nil && !out.Class.Answered()
	var unwritten *dialect.EntriesError
	switch {
	case errors.As(out.Err, &unwritten):
		x.undo()
		return x.t.unwrittenEntries(unwritten.Err)
	case x.ended.open:
		return out.Err
	case out.Err == nil && x.t.state != txAborted:
		x.t.tell(homeCommitted, sent)
		return nil
	case out.Maybe() && !gone:
		x.t.tell(homeUnknown, sent)
		return &UnknownOutcomeError{DataSource: x.c.c.target.DataSource, Cause: fmt.Errorf("its COMMIT was not answered, End finds out, or the same request under its key: %w", out.Err)}
	}
	x.t.tell(homeRolledBack, sent)
	if unanswered {
		return attempt.Certain(out.Err, dialect.Unreachable)
	}
	return out.Err
}

// seal ends the recording at COMMIT, or lets it go on after one that ended nothing. It reports
// whether entries are to be written. t may be nil.
func (t *localTx) seal(sealed bool) (entries bool) {
	if t == nil {
		return false
	}
	for _, h := range t.homes {
		h.mu.Lock()
		h.sealed = sealed
		entries = entries || len(h.soft.staged.writes) > 0
		h.mu.Unlock()
	}
	return entries
}

// entries makes the units of what was recorded in t, and the calls that write their entries. It may
// issue the numbers of order keys in t.
func (t *localTx) entries(ctx context.Context) (calls []dialect.Call, err error) {
	for _, h := range t.homes {
		if err := h.makeUnits(ctx); err != nil {
			return nil, err
		}
		if len(h.units) == 0 {
			continue
		}
		c := h.units[0].c
		var units []*entry.Unit
		for _, u := range append(slices.Clip(h.units), h.undo) {
			if u != nil {
				units = append(units, &u.unit)
			}
		}
		inserts, err := logdb.Of(c.cfg.Storage).Within(ctx, visit{&t.c.session}, h.most, units...)
		if err != nil {
			return nil, h.unwritten(c, err)
		}
		for _, in := range inserts {
			calls = append(calls, dialect.Call{
				SQL: in.SQL, Args: attempt.Numbered(in.Args), Required: entry.Exactly(int64(in.Rows)), Entries: in.Find, Check: in.Check,
			})
		}
		if h.own != nil {
			r := h.own.c.receipts
			if place := h.own.c.target.Known(false); place != nil {
				r.Place = place.Name
			}
			calls = append(calls, r.Insertion(h.own.c.dialect.Flavor, &h.own.unit, false))
		}
	}
	return calls, nil
}

// unwrittenEntries is the error of COMMIT after err, a failure to write the entries of t.
func (t *localTx) unwrittenEntries(err error) error {
	h := t.homes[slices.IndexFunc(t.homes, func(h *home) bool { return len(h.units) > 0 })]
	c := h.units[0].c
	written := int64(-1)
	var rows *RowsError
	if errors.As(err, &rows) {
		written = rows.Got
	}
	return h.unwritten(c, logdb.Of(c.cfg.Storage).Elsewhere(err, written))
}

// end commits on the caller's own connection.
func (x *committing) end(ctx context.Context) attempt.Outcome {
	c := x.c
	if x.t != nil && x.t.keyed != nil {
		// The receipt was inserted at the beginning; the answer joins it now.
		receipts, _ := c.c.receiptsIn(x.t)
		if out := x.t.keyed.Store(ctx, c.c.dialect, c.inner, &x.unit, receipts); out.Err != nil {
			x.undo()
			return c.lossy(out)
		}
	}
	if len(x.entries) == 0 {
		x.ended = x.finish(ctx)
	} else {
		x.ended.Outcome = c.lossy(attempt.CommitEntries(ctx, c.c.dialect, &c.session, x.entries, x.plain, func(ctx context.Context) attempt.Outcome {
			x.ended = x.finish(ctx)
			return x.ended.Outcome
		}))
	}
	if x.ended.Err != nil && !x.ended.Class.Answered() {
		// It may not have been sent, and the connection still works.
		x.undo()
	}
	return x.ended.Outcome
}

func (x *committing) First(ctx context.Context) attempt.Outcome {
	c := x.c
	return c.onOwn(func() attempt.Outcome {
		if x.unit.Receipt == "" || x.t.keyed != nil {
			return x.end(ctx)
		}
		out := attempt.Commit(ctx, c.c.dialect, &c.session, &x.unit, x.receipts, x.plain && !x.t.moved, x.end, func() (lost bool) {
			x.undo()
			return c.dead
		})
		out, _ = c.c.target.Explain(ctx, &c.session, &x.unit, out)
		return out
	})
}
