package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/txlog"
)

// inTx prepares a write inside the open transaction: it is turned into what
// the log keeps before it runs.
func (c *Conn) inTx(ctx context.Context, s statement, args []driver.NamedValue) (txlog.Statement, error) {
	if k := scopeOf(ctx).key; k != nil && (c.tx.keyed == nil || c.tx.keyed.key != k) {
		return txlog.Statement{}, unusable("the local transaction was begun without it")
	}
	if c.tx.readOnly {
		return txlog.Statement{}, unusable("the local transaction was begun as a read-only one")
	}
	if c.tx.lost != nil {
		return txlog.Statement{}, c.tx.lostError()
	}
	if err := c.withoutReceipts(); err != nil {
		return txlog.Statement{}, err
	}
	if scopeOf(ctx).skip {
		c.tx.unreplayable("some of its statements ran under Skip")
	}
	if s.class.NeedsSession || s.class.Pins {
		c.tx.unreplayable("a statement depends on its session")
	}
	c.tx.guarded = false
	if c.tx.replays() {
		var err error
		if c.tx.guarded, err = c.c.guard.check(s, c.tx.receipt); err != nil {
			return txlog.Statement{}, err
		}
	}
	stored, _, err := c.c.store(s, args)
	return stored, err
}

// writeInTx runs a DML inside the open transaction and adds it to its list.
func (c *Conn) writeInTx(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (r attempt.Reply, err error) {
	t := c.tx
	if t.unlogged {
		return c.writeUnlogged(ctx, s, args, rows)
	}
	stored, err := c.inTx(ctx, s, args)
	if err != nil {
		return r, err
	}
	if t.keyed != nil && t.keyed.replay != nil {
		return t.keyed.replayed(stored, rows)
	}
	if t.soft == nil {
		t.soft = scopeOf(ctx).soft
	}
	before := false
	var buffered *attempt.Rows
	if !rows {
		r.Result, before, err = c.send(ctx, s, args)
	} else if r, err = c.bare(ctx, s, args, true); errors.Is(err, driver.ErrSkip) {
		return r, err // database/sql brings it again, prepared
	} else {
		r.Rows, err = c.complete(r.Rows, err)
	}
	c.countInTx(ctx)
	if err == nil && rows && t.keyed != nil {
		buffered, err = attempt.BufferWrite(c.c.dialect, r.Rows)
	}
	if err != nil {
		if c.failedInTx(ctx, err, before).Maybe() {
			t.unreplayable(inDoubt)
		}
		if t.keyed != nil {
			t.keyed.failed(t, stored, err)
		}
		return attempt.Reply{}, err
	}
	t.add(stored, &c.c.cfg)
	if t.keyed != nil {
		t.keyed.ran(stored, r.Result, buffered)
	}
	if rows {
		t.unreplayable("a write returned rows, which a later one may carry")
		if buffered != nil {
			r.Rows = buffered.Again()
		}
		return r, nil
	}
	if t.replays() {
		c.c.guard.answered(s, args, r.Result, t.receipt)
	}
	if s.class.Insert && c.c.dialect.GeneratedIDs {
		if id, err := r.Result.LastInsertId(); err != nil || id != 0 {
			t.generated = true
		}
	}
	return r, nil
}

// countInTx counts a write that ran under Skip, or of which the guard told.
func (c *Conn) countInTx(ctx context.Context) {
	c.countSkipped(ctx)
	if c.tx.guarded {
		c.c.cfg.Counters.Guarded.Add(1)
	}
}

// countSkipped counts a write that ran under Skip.
func (c *Conn) countSkipped(ctx context.Context) {
	if scopeOf(ctx).skip {
		c.c.cfg.Counters.Skipped.Add(1)
	}
}

// complete reads rows to their end where an error among them could take the
// open transaction with it: MySQL sends the columns before it waits for the
// first lock, so that the victim of a deadlock hears of it from its rows.
func (c *Conn) complete(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil || c.tx == nil || c.c.dialect.Flavor != txlog.FlavorMySQL {
		return rows, err
	}
	buffered, err := attempt.BufferWrite(c.c.dialect, rows)
	if err != nil {
		return nil, err
	}
	return buffered, nil
}

// inDoubt is why a unit must not be run again of which one write may or may
// not have been applied: that one is not in the list.
const inDoubt = "the outcome of one of its statements is not known"

// failedInTx notes what an error inside a local transaction means for what
// follows. The error itself is the caller's.
func (c *Conn) failedInTx(ctx context.Context, err error, before bool) attempt.Outcome {
	out := attempt.Failed(c.c.dialect, err, before)
	if out.ConnLost {
		c.kill()
		return out
	}
	t := c.tx
	if t == nil {
		return out
	}
	if c.c.dialect.Flavor == txlog.FlavorPostgres && dberr.Of(err).State != "" {
		// Without a SQLSTATE the driver refused it (an argument that does not
		// fit) and the server's transaction is as good as before.
		t.aborted = true
	}
	if lost := c.c.dialect.TransactionLost; lost != nil && lost(ctx, c.inner, err) {
		c.lose(t, err)
	}
	return out
}

// lose leaves t open on the connection as a transaction that has ended
// without its COMMIT, so that nothing more is written into the session until
// the caller has rolled back.
func (c *Conn) lose(t *localTx, err error) {
	t.lost = err
	t.statements, t.bytes = nil, 0
	c.tx = t
}

func (t *localTx) lostError() error {
	return fmt.Errorf("%w: %w", ErrTransactionLost, t.lost)
}
