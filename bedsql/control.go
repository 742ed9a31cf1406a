package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog"
)

// sessionState is why a connection is pinned by a statement.
const sessionState = "the session holds state that another connection would not see"

// control runs what is not DML: it passes through, and what it means for the
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
			r.Rows, err = c.tx.complete(r.Rows, err)
		}
		c.readInTx(ctx, err)
		if c.tx != nil && s.class.Moves {
			c.tx.move()
		}
		r.Rows = c.tx.watch(ctx, r.Rows, err)
		return r, err
	}
	if err := c.admit(ctx, s); err != nil {
		return r, err
	}
	if c.ends(s) {
		res, err := c.endByText(ctx, s, args)
		return attempt.Reply{Result: res, Rows: new(attempt.Rows)}, err
	}
	settings := c.before(ctx, &c.bareConn, s, c.tx != nil)
	r, err = c.bare(ctx, s, args, rows)
	if !errors.Is(err, driver.ErrSkip) {
		c.observe(ctx, s, settings, err)
	}
	r.Rows = c.tx.watch(ctx, r.Rows, err)
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

// admit refuses what must not be sent: into a transaction that the database has
// rolled back on its own, anything but its end; and several statements with a
// write among them where nothing may run unlogged. Before a transaction begins it
// looks for the table of receipts.
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
	if s.class.Kind == sqltext.Multi && s.class.HasDML && c.stagedIn(scopeOf(ctx)) != nil {
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
		if c.tx == nil && c.stagedIn(scopeOf(ctx)) != nil {
			return fmt.Errorf("%w: begin a local transaction by BeginTx, not by a statement", ErrStaged)
		}
		if scopeOf(ctx).key != nil && c.tx == nil {
			return unusable("begin the transaction by BeginTx, not by a statement")
		}
		c.beforeBegin(ctx)
	}
	return nil
}

// writesUnlogged says why the writes in or before s, which is not DML itself, run
// unlogged; empty if there are none.
func (c *Conn) writesUnlogged(s statement) string {
	switch {
	case s.class.Kind == sqltext.PrepareTransaction && c.tx != nil && len(c.tx.statements) > 0:
		return "PREPARE TRANSACTION takes the writes of the transaction out of this session"
	case s.class.Kind == sqltext.Multi && s.class.HasDML:
		return "several statements in one text: no error could say which of them ran"
	}
	return ""
}

// ends reports whether s ends an open transaction that has writes to deliver.
func (c *Conn) ends(s statement) bool {
	if c.tx == nil {
		return false
	}
	switch s.class.Kind {
	case sqltext.Commit:
		return true
	case sqltext.AutocommitOn:
		// Inside a BEGIN with autocommit on it changes nothing.
		return c.autocommitOff
	case sqltext.ReleaseSavepoint:
		return c.tx.endsWith(s.class.Name)
	default:
		return s.class.ImplicitCommit
	}
}

// endByText ends the open transaction by a statement that commits it, explicitly
// or implicitly (MySQL's DDL).
func (c *Conn) endByText(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
	t := c.tx
	var (
		res       driver.Result
		own       error // of a statement that commits implicitly
		committed bool  // it did, and failed afterwards
	)
	swallowed, err := ender{finish: func(ctx context.Context) ending {
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
		var end ending
		end, committed = c.afterImplicitCommit(ctx, out)
		return end
	}, undo: c.rollback(ctx, nil)}.commit(ctx, c)
	// A retry delivers the unit, and a soft transaction may swallow what became
	// of it; neither runs the statement that was to commit it.
	failed := own
	if err != nil && !swallowed {
		failed = err
	}
	switch {
	case failed == nil, committed:
		c.observe(ctx, s, nil, own)
	case s.class.ImplicitCommit && c.tx != t:
		// To the caller the transaction goes on.
		t.lose(failed)
	}
	if failed != nil {
		return nil, failed
	}
	if res == nil {
		// A COMMIT that a soft transaction swallowed, or a retry delivered: it
		// has no rows to report.
		res = driver.RowsAffected(0)
	}
	return res, nil
}

// failed notes what a failed statement may have left behind.
func (c *Conn) failed(ctx context.Context, cl sqltext.Class, err error) {
	doubt := !c.failedInTx(ctx, err, false).Class.Answered()
	undo := c.rollback(ctx, nil)
	switch cl.Kind {
	case sqltext.Begin, sqltext.Savepoint:
		if doubt && c.tx == nil {
			c.undo(undo) // it may have begun a transaction without anyone's knowing
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
// transaction. settings are those that it changes, err is its own.
func (c *Conn) observe(ctx context.Context, s statement, settings []assigned, err error) {
	cl := s.class
	if why := c.writesUnlogged(s); why != "" && !errors.Is(err, driver.ErrBadConn) {
		if scopeOf(ctx).skip {
			c.c.cfg.Counters.countSkipped(ctx)
		} else {
			c.ranUnlogged(s, why)
		}
	}
	if err != nil {
		c.failed(ctx, cl, err)
		return
	}
	if cl.Kind == sqltext.Session && !cl.Pins && c.tx == nil && c.c.dialect.Flavor == txlog.FlavorMySQL {
		c.nextTx = true
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
		c.putBack(ctx, &c.bareConn, settings)
		c.pinBy(s, settings)
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
			c.open(context.Background())
		}
	case sqltext.AutocommitOn:
		if c.autocommitOff {
			// The transaction that was open has ended.
			c.autocommitOff = false
			c.tx = nil
		}
	case sqltext.PrepareTransaction:
		// COMMIT PREPARED decides what becomes of it, in whatever session.
		c.closed()
	}
}

// Begin implements driver.Conn.
func (c *Conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements driver.ConnBeginTx. Its error is the driver's.
func (c *Conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if soft := c.stagedIn(scopeOf(ctx)); soft != nil && c.tx == nil && !opts.ReadOnly {
		return soft.begin(ctx, c, opts)
	}
	if c.dead {
		return nil, driver.ErrBadConn // its BEGIN could commit what is still open
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	if k := scopeOf(ctx).key; k != nil && !scopeOf(ctx).skip && !opts.ReadOnly {
		return k.begin(ctx, c, opts)
	}
	if !opts.ReadOnly {
		c.beforeBegin(ctx)
	}
	if c.tx != nil && c.c.dialect.Flavor != txlog.FlavorMySQL {
		// A BEGIN sent as text is open. The driver says what the database makes
		// of a second one; the writes so far are still to be committed.
		inner, err := attempt.BeginTx(ctx, c.inner, opts)
		if err != nil {
			return nil, err
		}
		return &tx{c: c, ctx: ctx, inner: inner}, nil
	}
	var (
		inner     driver.Tx
		failed    error
		committed bool // the open transaction, although none has begun
	)
	t := c.tx
	begin := func(ctx context.Context) ending {
		if inner, failed = attempt.BeginTx(ctx, c.inner, opts); failed == nil {
			return ending{}
		}
		out := c.lossy(attempt.Failed(c.c.dialect, failed, false))
		if t == nil || !out.Class.Answered() {
			return ending{Outcome: out}
		}
		var end ending
		end, committed = c.afterImplicitCommit(ctx, out)
		return end
	}
	// Where a transaction is open already (SET autocommit=0, a BEGIN sent as
	// text) MySQL commits it first.
	if swallowed, err := (ender{finish: begin, undo: c.rollback(ctx, nil)}).commit(ctx, c); err != nil && !swallowed {
		failed = err
	}
	if failed != nil {
		if t != nil && c.tx != t && !committed {
			t.lose(failed) // to the caller it goes on
		}
		return nil, failed
	}
	local := c.open(ctx)
	local.readsLock = sql.IsolationLevel(opts.Isolation) == sql.LevelSerializable
	local.readOnly = opts.ReadOnly && scopeOf(ctx).key != nil && !scopeOf(ctx).skip
	if opts.ReadOnly && local.receipt {
		// The table of receipts was not looked for, but SQLite's driver lets the
		// transaction write.
		local.receipt = false
		local.unreplayable("it was begun as a read-only one, and leaves no receipt")
	}
	return &tx{c: c, ctx: ctx, inner: inner}, nil
}

// rolledBack ends the local transaction by ROLLBACK and gives its error, after
// which the connection is not used again: the transaction may still be open.
func (c *Conn) rolledBack(ctx context.Context, tx driver.Tx) error {
	err := attempt.Rollback(ctx, c.c.dialect, &c.session, tx)
	if !attempt.RolledBack(c.c.dialect, err) {
		c.kill()
	}
	c.closed()
	return err
}

// beforeBegin looks for the table of receipts before a transaction begins:
// creating it later would commit the transaction where DDL does. If there is
// none, the transaction's first write gets the error: it may only read.
func (c *Conn) beforeBegin(ctx context.Context) {
	if c.tx != nil || c.pinned != "" || scopeOf(ctx).skip || !scopeOf(ctx).exactlyOnce(&c.c.cfg) {
		return
	}
	c.eraseInTurn(ctx)
	c.noReceipts = c.lookForReceipts(ctx, false)
}

// withoutReceipts says why the open transaction can leave no receipt; nil if it
// can, or need not.
func (c *Conn) withoutReceipts() error {
	switch {
	case !c.tx.receipt || c.c.receiptPlace.Load() != nil:
		return nil
	case c.noReceipts != nil:
		return c.noReceipts
	}
	return errNotLookedFor
}

// open begins the list of a local transaction.
func (c *Conn) open(ctx context.Context) *localTx {
	under := scopeOf(ctx)
	c.tx = &localTx{
		c:        c,
		under:    under,
		soft:     under.soft,
		unlogged: c.pinned != "" || under.skip,
		receipt:  under.exactlyOnce(&c.c.cfg),
	}
	return c.tx
}

// closed forgets the local transaction, which has ended one way or another.
func (c *Conn) closed() {
	c.tx = nil
	if c.autocommitOff {
		// Nothing begins the next one: its statements say what it belongs to.
		c.open(context.Background())
	}
}

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
		t.lose(err)
	}
	return out
}
