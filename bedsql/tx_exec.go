package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/txlog"
)

// prepare prepares a write inside the open transaction: before it runs it is
// turned into what the log keeps.
func (t *localTx) prepare(under scope, s statement, args []driver.NamedValue) (txlog.Statement, error) {
	if k := under.key; k != nil && (t.keyed == nil || t.keyed.key != k) {
		return txlog.Statement{}, unusable("the local transaction was begun without it")
	}
	if t.readOnly {
		return txlog.Statement{}, unusable("the local transaction was begun as a read-only one")
	}
	if t.lost != nil {
		return txlog.Statement{}, t.lostError()
	}
	if err := t.c.withoutReceipts(); err != nil {
		return txlog.Statement{}, err
	}
	if under.skip {
		t.unreplayable("some of its statements ran under Skip")
	}
	if s.class.NeedsSession || s.class.Pins {
		t.unreplayable("a statement depends on its session")
	}
	t.guarded = false
	if t.replays() {
		var err error
		if t.guarded, err = t.c.c.guard.check(s, args, t.receipt); err != nil {
			return txlog.Statement{}, err
		}
	}
	stored, _, err := t.c.c.store(s.call(args))
	return stored, err
}

// write runs a DML inside the open transaction and adds it to its list.
func (t *localTx) write(ctx context.Context, under scope, s statement, args []driver.NamedValue, rows bool) (r attempt.Reply, err error) {
	c := t.c
	if t.unlogged {
		return c.writeUnlogged(ctx, under, s, args, rows)
	}
	stored, err := t.prepare(under, s, args)
	if err != nil {
		return r, err
	}
	if t.keyed != nil && t.keyed.replay != nil {
		return t.keyed.replayed(stored, rows)
	}
	if t.soft == nil {
		t.soft = under.soft
	}
	before := false
	var buffered *attempt.Rows
	if !rows {
		r.Result, before, err = c.send(ctx, s, args)
	} else if r, err = c.bare(ctx, s, args, true); errors.Is(err, driver.ErrSkip) {
		return r, err // database/sql brings it again, prepared
	} else {
		r.Rows, err = t.complete(r.Rows, err)
	}
	t.count(ctx)
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
	if s.class.Moves {
		t.move()
	}
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

// count counts a write that ran under Skip, or of which the guard warned.
func (t *localTx) count(ctx context.Context) {
	t.c.c.cfg.Counters.countSkipped(ctx)
	if t.guarded {
		t.c.c.cfg.Counters.Guarded.Add(1)
	}
}

// complete reads rows to their end where an error among them could end the open
// transaction: MySQL sends the columns before it waits for the first lock, so
// that the victim of a deadlock learns of it from its rows.
func (t *localTx) complete(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil || t.c.c.dialect.Flavor != txlog.FlavorMySQL {
		return rows, err
	}
	buffered, err := attempt.BufferWrite(t.c.c.dialect, rows)
	if err != nil {
		return nil, err
	}
	return buffered, nil
}

// inDoubt says why a unit must not be run again: one of its writes may or may not
// have been applied, and is not in the list.
const inDoubt = "the outcome of one of its statements is not known"

// lose leaves t open on the connection as a transaction that has ended without
// its COMMIT, so that nothing more is written into the session until the caller
// has rolled back.
func (t *localTx) lose(err error) {
	t.lost = err
	t.statements, t.bytes = nil, 0
	t.c.tx = t
}

func (t *localTx) lostError() error {
	return fmt.Errorf("%w: %w", ErrTransactionLost, t.lost)
}
