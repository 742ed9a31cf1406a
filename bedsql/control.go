package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// sessionState is why a connection is pinned by a statement.
const sessionState = "the session holds state that another connection would not see"

// control runs what is no DML: it passes through, and what it means for the
// session and the open transaction is noted.
func (c *Conn) control(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (r attempt.Reply, err error) {
	if c.stagedTx != nil {
		if handled, err := c.stagedTx.control(s.class); handled {
			return attempt.Reply{Result: driver.RowsAffected(0), Rows: new(attempt.Rows)}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return r, err
	}
	if s.class.Kind == sqltext.Read && !s.class.Pins {
		r, err = c.bare(ctx, s, args, rows)
		if rows && c.tx != nil && (s.class.Locks || c.tx.readsLock) {
			r.Rows, err = c.complete(r.Rows, err)
		}
		c.readInTx(ctx, err)
		r.Rows = c.watch(ctx, r.Rows, err)
		return r, err
	}
	if err := c.admit(ctx, s); err != nil {
		return r, err
	}
	if c.ends(s) {
		res, err := c.endByText(ctx, s, args)
		return attempt.Reply{Result: res, Rows: new(attempt.Rows)}, err
	}
	r, err = c.bare(ctx, s, args, rows)
	if !errors.Is(err, driver.ErrSkip) {
		c.observe(ctx, s, err)
	}
	r.Rows = c.watch(ctx, r.Rows, err)
	return r, err
}

// readInTx notes a query inside a local transaction.
func (c *Conn) readInTx(ctx context.Context, err error) {
	if c.tx == nil || errors.Is(err, driver.ErrSkip) {
		return
	}
	c.tx.read = true
	if err != nil {
		c.failedInTx(ctx, err, false)
	}
}

// admit refuses what must not be sent: anything but the end of it into a
// transaction that the database has rolled back by itself, and several
// statements with a write among them where nothing may run unlogged. Before a
// transaction begins it looks for the table of receipts.
func (c *Conn) admit(ctx context.Context, s statement) error {
	if c.dead && c.tx == nil {
		return driver.ErrBadConn // it could commit what is still open
	}
	if t := c.tx; t != nil && t.lost != nil {
		switch s.class.Kind {
		case sqltext.Rollback, sqltext.Read, sqltext.Empty:
		default:
			return t.lostError()
		}
	}
	if s.class.Kind == sqltext.Multi && s.class.HasDML && c.stagedIn(ctx) != nil {
		return fmt.Errorf("%w: several statements in one text", ErrStaged)
	}
	if why := c.writesUnlogged(s); why != "" && !scopeOf(ctx).skip {
		if scopeOf(ctx).key != nil || c.tx != nil && c.tx.keyed != nil {
			return unusable(why)
		}
		if err := c.refuseUnlogged(why); err != nil {
			return err
		}
	}
	if c.tx != nil && c.tx.keyed != nil && (c.ends(s) || s.class.ImplicitCommit || s.class.Kind == sqltext.Rollback || s.class.Kind == sqltext.PrepareTransaction) {
		return unusable("a statement would end the transaction, use its Commit or Rollback")
	}
	switch s.class.Kind {
	case sqltext.Begin, sqltext.AutocommitOff, sqltext.Savepoint:
		if c.tx == nil && c.stagedIn(ctx) != nil {
			return fmt.Errorf("%w: begin a local transaction by BeginTx, not by a statement", ErrStaged)
		}
		if scopeOf(ctx).key != nil && c.tx == nil {
			return unusable("begin the transaction by BeginTx, not by a statement")
		}
		c.beforeBegin(ctx)
	}
	return nil
}

// writesUnlogged says why the writes in or before s, which is no DML itself,
// run unlogged; empty if there are none.
func (c *Conn) writesUnlogged(s statement) string {
	switch {
	case s.class.Kind == sqltext.PrepareTransaction && c.tx != nil && len(c.tx.statements) > 0:
		return "PREPARE TRANSACTION takes the writes of the transaction out of this session"
	case s.class.Kind == sqltext.Multi && s.class.HasDML:
		return "several statements in one text: no error could say which of them ran"
	}
	return ""
}

// ends reports whether s ends an open transaction that has writes to settle.
func (c *Conn) ends(s statement) bool {
	if c.tx == nil {
		return false
	}
	switch s.class.Kind {
	case sqltext.Commit:
		return true
	case sqltext.AutocommitOn:
		// Inside a BEGIN with autocommit on, it changes nothing.
		return c.autocommitOff
	case sqltext.ReleaseSavepoint:
		return c.tx.endsWith(s.class.Name)
	default:
		return s.class.ImplicitCommit
	}
}

// endByText settles the open transaction by a statement that commits it,
// explicitly or on its way (MySQL's DDL).
func (c *Conn) endByText(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
	t := c.tx
	var (
		res       driver.Result
		own       error // of a statement that commits on its way
		committed bool  // it did, and failed afterwards
	)
	swallowed, err := c.commit(ctx, ender{finish: func(ctx context.Context) ending {
		r, before, out := c.sendEnd(ctx, s, args)
		res = r
		if out.Err == nil || !s.class.ImplicitCommit {
			return ending{Outcome: out}
		}
		own = out.Err
		if !out.Class.Answered() {
			return ending{Outcome: out}
		}
		if before {
			return ending{Outcome: out, open: true}
		}
		switch c.afterImplicitCommit(ctx, &out) {
		case delivery.StillOpen:
			return ending{Outcome: out, open: true}
		case delivery.InDoubt:
			return ending{Outcome: out}
		default:
			committed = true
			return ending{}
		}
	}, undo: c.rollback(ctx, nil)})
	// A retry delivers the unit, and a soft transaction may swallow what became
	// of it, but not the statement that was to commit it.
	failed := own
	if err != nil && !swallowed {
		failed = err
	}
	switch {
	case failed == nil, committed:
		c.observe(ctx, s, own)
	case s.class.ImplicitCommit && c.tx != t:
		// To the caller the transaction goes on.
		c.lose(t, failed)
	}
	if failed != nil {
		return nil, failed
	}
	if res == nil {
		// A COMMIT that was swallowed by a soft transaction, or delivered by a
		// retry: it has no rows to tell of.
		res = driver.RowsAffected(0)
	}
	return res, nil
}

// failed notes what a statement that failed may have left behind.
func (c *Conn) failed(ctx context.Context, cl sqltext.Class, err error) {
	doubt := !c.failedInTx(ctx, err, false).Class.Answered()
	undo := c.rollback(ctx, nil)
	switch cl.Kind {
	case sqltext.Begin, sqltext.Savepoint:
		if doubt && c.tx == nil {
			c.undo(undo) // it may have begun a transaction that nobody knows of
		}
	case sqltext.RollbackTo:
		if doubt && c.tx != nil {
			c.tx.unreplayable(inDoubt)
		}
	case sqltext.Rollback:
		switch {
		case doubt:
			c.undo(undo)
		case !attempt.RolledBack(c.c.dialect, err):
			c.discard() // it may still be open
		}
		if c.tx != nil && !c.dead && (doubt || c.tx.lost != nil) {
			c.closed() // there is nothing left to roll back
		}
	case sqltext.Multi:
		if cl.Pins {
			c.pin("several statements in one text left the session in an unknown state")
		}
	}
}

// observe notes what a statement left behind in the session and the open
// transaction. err is its own.
func (c *Conn) observe(ctx context.Context, s statement, err error) {
	cl := s.class
	if why := c.writesUnlogged(s); why != "" && !errors.Is(err, driver.ErrBadConn) {
		if scopeOf(ctx).skip {
			c.countSkipped(ctx)
		} else {
			c.ranUnlogged(s, why)
		}
	}
	if err != nil {
		c.failed(ctx, cl, err)
		return
	}
	if t := c.tx; t != nil {
		switch cl.Kind {
		case sqltext.Read:
			t.read = true
		case sqltext.Savepoint:
			t.save(cl.Name)
		case sqltext.RollbackTo:
			t.rollbackTo(cl.Name)
			if t.keyed != nil {
				t.unreplayable("under its idempotency key, what it rolled back to a savepoint is part of the answer")
			}
		case sqltext.ReleaseSavepoint:
			t.releaseSavepoint(cl.Name)
		case sqltext.DDL, sqltext.Session, sqltext.Opaque, sqltext.Multi:
			t.unreplayable("it holds a statement that is not plain DML")
			t.moved = t.moved || cl.Kind != sqltext.DDL
		}
	} else if cl.Kind == sqltext.Savepoint && c.c.dialect.Flavor == txlog.FlavorSQLite {
		// Outside a transaction SQLite's SAVEPOINT begins one.
		t = c.open(ctx)
		t.save(cl.Name)
		t.bySavepoint = true
	}
	if cl.Pins {
		c.pinBy(s)
	}
	switch cl.Kind {
	case sqltext.Begin:
		if c.tx == nil {
			c.open(ctx)
		}
	case sqltext.Commit, sqltext.Rollback:
		c.closed()
		if cl.Chain && c.tx == nil {
			c.open(ctx)
		}
	case sqltext.AutocommitOff:
		c.autocommitOff = true
		if c.tx == nil {
			c.next()
		}
	case sqltext.AutocommitOn:
		if c.autocommitOff {
			// The transaction that was open is settled.
			c.autocommitOff = false
			c.tx = nil
		}
	case sqltext.PrepareTransaction:
		// What becomes of it, COMMIT PREPARED decides, in whatever session.
		c.closed()
	}
}
