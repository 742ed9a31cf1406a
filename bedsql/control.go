package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
)

// control runs a statement other than DML. The statement passes through, and control notes its
// effect on the session and the open transaction.
func (c *Conn) control(ctx context.Context, under scope, s statement) (r attempt.Reply, err error) {
	if c.stagedTx != nil {
		if handled, err := c.stagedTx.control(s.class); handled {
			return attempt.Reply{Result: driver.RowsAffected(0), Rows: new(attempt.Rows)}, err
		}
	}
	if err := c.ready(ctx); err != nil {
		return r, err
	}
	if s.class.Kind == sqltext.Read && !s.class.Pins {
		r, err = c.sendOnce(ctx, s)
		if s.rows && c.tx != nil && (s.class.Locks || c.tx.readsLock) {
			r.Rows, err = c.tx.complete(r.Rows, err)
		}
		if t := c.tx; t != nil && !errors.Is(err, driver.ErrSkip) {
			t.hasRead()
			if err != nil {
				c.failedInTx(ctx, err, false)
			}
		}
		if c.tx != nil && s.class.Moves {
			c.tx.move(changedSetting)
		}
		r.Rows = c.tx.watch(ctx, r.Rows, err)
		return r, err
	}
	if err := c.admit(ctx, under, s); err != nil {
		return r, err
	}
	if c.tx != nil && s.class.ImplicitCommit && s.class.Kind != sqltext.Control {
		res, err := c.endByDDL(ctx, under, s)
		return attempt.Reply{Result: res, Rows: new(attempt.Rows)}, err
	}
	r, err = c.sendOnce(ctx, s)
	if !errors.Is(err, driver.ErrSkip) {
		c.observe(ctx, under, s, err)
	}
	if c.tx == nil && (s.class.HasDML || s.class.Kind == sqltext.Control) {
		err = c.c.leftOpen(err)
	}
	r.Rows = c.tx.watch(ctx, r.Rows, err)
	return r, err
}

// admit refuses statements that must not be sent. After the database has rolled a transaction back
// on its own, it allows only the transaction's end. It also refuses statements that would make
// writes run unlogged against the configuration.
func (c *Conn) admit(ctx context.Context, under scope, s statement) error {
	if c.dead && c.tx == nil {
		return driver.ErrBadConn // it could commit what is still open
	}
	if err := c.tx.still(ctx); err != nil {
		return err
	}
	if t := c.tx; t != nil {
		switch kind := s.class.Kind; {
		case kind == sqltext.Rollback, kind == sqltext.Read, kind == sqltext.Empty:
		case t.state == txLost:
			return t.lostError()
		case t.unmet.err != nil && (kind == sqltext.Multi || kind == sqltext.Opaque || kind == sqltext.Control):
			return t.unmet.err // the statement could commit the write unseen
		}
	}
	if err := c.tx.carries(s); err != nil {
		return err
	}
	if err := under.unchecked(s, c.c.dialect.Flavor); err != nil {
		return err
	}
	if s.class.Kind == sqltext.Multi && s.class.HasDML && c.stagedIn(under) != nil {
		return fmt.Errorf("%w: several statements in one text", ErrStaged)
	}
	if why := c.writesUnlogged(s); why != "" && !under.unlogged {
		if under.key != nil || c.tx != nil && c.tx.keyed != nil {
			return unusable(why)
		}
		if under.ordered || c.tx != nil && (c.tx.under.ordered || len(c.tx.order) > 0) {
			return disordered(why)
		}
		if err := c.refuseUnlogged(why); err != nil {
			return err
		}
	}
	return c.tx.mark(ctx, s)
}

// carries protects the entries that t will write. It refuses a statement that could end t unseen,
// and a return to an unknown savepoint. t may be nil.
func (t *localTx) carries(s statement) error {
	if t == nil || !slices.ContainsFunc(t.homes, func(h *home) bool { return h.recorded() > 0 }) {
		return nil
	}
	flavor, kind := t.c.c.dialect.Flavor, s.class.Kind
	why := ""
	switch {
	case s.class.ImplicitCommit, kind == sqltext.Control,
		kind == sqltext.Multi && (flavor == sqltext.MySQL || endsWithin(flavor, s.SQL)),
		flavor == sqltext.MySQL && (kind == sqltext.Opaque || kind == sqltext.Session && executes(flavor, s.SQL)):
		why = "the statement could end the transaction of WithTx unseen, which has recorded a write: send it before that, and end the transaction by its Commit or Rollback"
	case kind == sqltext.RollbackTo && (t.find(s.class.Name) < 0 || flavor == sqltext.MySQL && strings.ContainsFunc(s.class.Name, func(r rune) bool { return r > '~' })):
		// MySQL also folds accents.
		why = "the savepoint was not seen being set, so that it is not known which recorded writes it would drop"
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrStaged, why)
}

// writesUnlogged returns the reason for writes in or before s to run unlogged, although s is not
// DML itself; empty without such writes.
func (c *Conn) writesUnlogged(s statement) string {
	switch {
	case s.class.Kind == sqltext.Control && c.tx != nil && len(c.tx.statements) > 0:
		return controlledByText
	case s.class.Kind == sqltext.Multi && s.class.HasDML:
		return "several statements in one text: no error could say which of them ran"
	}
	return ""
}

// endsWithin reports whether one of several statements begins with a word that may end a
// transaction.
func endsWithin(f sqltext.Flavor, text string) bool {
	first := true
	for t := range sqltext.Tokens(f, 0, text) {
		if first && slices.ContainsFunc([]string{"COMMIT", "END", "ROLLBACK", "ABORT", "PREPARE"}, t.Is) {
			return true
		}
		first = t.Text == ";"
	}
	return false
}

// observe notes the effect of a statement on the session and the open transaction. err is the
// statement's error.
func (c *Conn) observe(ctx context.Context, under scope, s statement, err error) {
	cl := s.class
	if why := c.writesUnlogged(s); why != "" && !errors.Is(err, driver.ErrBadConn) {
		if under.unlogged {
			c.c.cfg.Counters.Unlogged.Add(1)
		} else {
			c.ranUnlogged(s, why)
		}
	}
	if err != nil {
		doubt := !c.failedInTx(ctx, err, false).Class.Answered()
		switch {
		case cl.Kind == sqltext.RollbackTo && doubt && c.tx != nil:
			c.tx.unreplayable(inDoubt)
		case cl.Kind == sqltext.Multi && cl.Pins:
			c.pin("several statements in one text left the session in an unknown state", "")
		}
	}
	switch {
	case cl.Kind == sqltext.Control, cl.Kind == sqltext.Rollback, cl.Kind == sqltext.Savepoint && c.tx == nil:
		c.byText(s, err)
		return
	case err != nil:
		return
	}
	if cl.Kind == sqltext.Session && !cl.Pins && c.tx == nil && c.c.dialect.Flavor == sqltext.MySQL {
		c.nextTx = true
	}
	if t := c.tx; t != nil {
		switch cl.Kind {
		case sqltext.Read:
			t.hasRead()
		case sqltext.DDL:
			t.unreplayable(notPlainDML)
		case sqltext.Session, sqltext.Opaque, sqltext.Multi:
			t.move(notPlainDML)
		case sqltext.Savepoint:
			t.save(cl.Name)
		case sqltext.RollbackTo:
			t.rollbackTo(cl.Name)
		case sqltext.ReleaseSavepoint:
			t.releaseSavepoint(cl.Name)
		}
	}
	if cl.Pins {
		c.carry(ctx, s)
	}
}

const notPlainDML = "it holds a statement that is not plain DML"

// byText notes a statement that begins or ends a transaction, with its error. bed does not follow
// such a transaction. From now on everything in the session runs unlogged, and so does the rest of
// an open local transaction.
func (c *Conn) byText(s statement, err error) {
	if t := c.tx; t != nil && (err != nil || s.class.Kind != sqltext.Rollback) {
		t.tell(homeUnknown, time.Now())
	}
	c.closed()
	c.pinBy(s)
}

// Begin implements driver.Conn.
func (c *Conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements driver.ConnBeginTx. Its error is the driver's.
func (c *Conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if tx, home := kept.Found(ctx, c); tx != nil {
		if home != nil {
			return tx, c.identify(ctx, home)
		}
		return tx, nil
	}
	under := scopeOf(ctx)
	if under.confined && !opts.ReadOnly && kept.Of(ctx) == nil {
		if err := c.strays(under, statement{class: sqltext.Class{Kind: sqltext.DML}}); err != nil {
			return nil, err
		}
	}
	if under.undo && !opts.ReadOnly {
		if err := undoes(under.soft, under, c, statement{class: sqltext.Class{Kind: sqltext.DML}}); err != nil {
			return nil, err
		}
	}
	if soft := c.stagedIn(under); soft != nil && c.tx == nil && !opts.ReadOnly {
		return soft.begin(ctx, under, c, opts)
	}
	if c.tx != nil {
		return nil, errBegun
	}
	if k := under.key; k != nil && !under.unlogged && !opts.ReadOnly {
		return c.beginKeyed(ctx, k, opts)
	}
	if err := c.begins(ctx); err != nil {
		return nil, err
	}
	if !opts.ReadOnly {
		c.beforeBegin(ctx, under)
	}
	inner, err := attempt.BeginTx(ctx, c.inner, opts)
	if err != nil {
		if out := c.lossy(attempt.Failed(c.c.dialect, err, false)); !out.Class.Answered() {
			c.undo(ctx, nil) // it may have begun
		}
		return nil, err
	}
	local := c.open(ctx, opts)
	local.readsLock = local.level == sql.LevelSerializable
	if opts.ReadOnly && under.key != nil && !under.unlogged {
		local.mode = txReadOnly
	}
	if opts.ReadOnly && local.receipt {
		// The table of receipts was not looked for, but SQLite's driver lets the
		// transaction write.
		local.receipt = false
		local.unreplayable("it was begun as a read-only one, and leaves no receipt")
	}
	return &tx{c: c, ctx: ctx, inner: inner}, nil
}

// begins makes the connection ready for a BEGIN.
func (c *Conn) begins(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn // its BEGIN could commit what is still open
	}
	err := c.ready(ctx)
	if err != nil && c.c.dialect.Class(err) == dialect.Refused && c.c.dialClass(err) == dialect.Unreachable {
		err = attempt.Certain(err, dialect.Unreachable)
	}
	return err
}

var errBegun = errors.New("bed: nothing was begun: a local transaction is open on this connection")

// beforeBegin looks for the table of receipts before a transaction begins, because creating it
// later would commit the transaction on some databases. If there is no table, the transaction's
// first write gets the error: the transaction may only read.
func (c *Conn) beforeBegin(ctx context.Context, under scope) {
	if c.pinned != "" || under.unlogged || !under.exactlyOnce(&c.c.cfg) {
		return
	}
	c.eraseInTurn(ctx)
	if _, c.noReceipts = c.lookForReceipts(ctx, false); c.noReceipts == nil && under.ordered && !c.dead && c.inner != nil {
		c.noReceipts = attempt.EnsureOrder(ctx, c.c.dialect, c.inner, c.c.receipts)
	}
}

// withoutReceipts returns an error if the open transaction needs to leave a receipt and cannot.
func (c *Conn) withoutReceipts() error {
	switch {
	case !c.tx.receipt || c.c.target.Known(false) != nil:
		return nil
	case c.noReceipts != nil:
		return c.noReceipts
	}
	return errNotLookedFor
}

// open begins the list of a local transaction.
func (c *Conn) open(ctx context.Context, opts driver.TxOptions) *localTx {
	under := scopeOf(ctx)
	c.tx = &localTx{
		c: c, ctx: ctx, under: under, receipt: under.exactlyOnce(&c.c.cfg), level: sql.IsolationLevel(opts.Isolation), readOnly: opts.ReadOnly,
	}
	if c.pinned != "" || under.unlogged {
		c.tx.mode = txUnlogged
	}
	return c.tx
}

// closed forgets the local transaction, which has ended in some way.
func (c *Conn) closed() {
	c.tx.closed()
	c.tx = nil
}

// failedInTx notes the consequences of an error inside a local transaction. The error itself goes
// to the caller.
func (c *Conn) failedInTx(ctx context.Context, err error, before bool) attempt.Outcome {
	out := attempt.Failed(c.c.dialect, err, before)
	if out.ConnLost {
		c.dead = true
		return out
	}
	t := c.tx
	if t == nil {
		return out
	}
	if c.c.dialect.Flavor == sqltext.Postgres && dberr.Of(err).State != "" {
		// Without a SQLSTATE the driver refused it (an argument that does not fit), and the
		// server's transaction is unaffected.
		t.abort(true)
	}
	if lost := c.c.dialect.TransactionLost; lost != nil && lost(ctx, c.inner, err) {
		t.lose(err)
	}
	return out
}

// endByDDL ends the open transaction by a statement that commits it: MySQL's DDL.
func (c *Conn) endByDDL(ctx context.Context, under scope, s statement) (res driver.Result, failed error) {
	t := c.tx
	var (
		own       error // of the statement
		committed bool  // it did, and failed afterwards
	)
	swallowed, err := ender{finish: func(ctx context.Context) (end ending) {
		var before bool
		if res, before, own = c.send(ctx, s); own == nil {
			return end
		}
		end.Outcome = c.lossy(attempt.Failed(c.c.dialect, own, before))
		switch {
		case !end.Class.Answered():
		case before:
			end.open = true
		default:
			end, committed = c.afterImplicitCommit(ctx, end.Outcome)
		}
		return end
	}, undo: func() { c.undo(ctx, nil) }}.commit(ctx, c)
	// A retry delivers the unit, and a soft transaction may swallow its outcome. Neither runs the
	// committing statement.
	if failed = own; err != nil && (!swallowed || res == nil && own == nil) {
		failed = err
	}
	switch {
	case failed == nil, committed:
		c.observe(ctx, under, s, own)
	case c.tx != t:
		// To the caller the transaction goes on.
		t.lose(failed)
	}
	return res, failed
}

// afterImplicitCommit finds out how the open transaction ended after a statement with an implicit
// commit failed with out's error. committed reports that it did commit. If the outcome is unknown,
// it closes the connection.
func (c *Conn) afterImplicitCommit(ctx context.Context, out attempt.Outcome) (end ending, committed bool) {
	state := dialect.Committed
	if after := c.c.dialect.AfterImplicitCommit; after != nil {
		state = after(ctx, c.inner, out.Err)
	}
	switch state {
	case dialect.StillOpen:
		return ending{Outcome: out, open: true}, false
	case dialect.InDoubt:
		out.Class, out.ConnLost = dialect.Unknown, true
		c.dead = true
		_ = c.session.Close() // the caller's further statements must not end its transaction
		return ending{Outcome: out}, false
	default:
		return ending{}, true
	}
}

// rolledBack ends the local transaction by ROLLBACK and returns its error. After an error the
// connection is not used again: the transaction may still be open.
func (c *Conn) rolledBack(ctx context.Context, tx driver.Tx) error {
	err := attempt.Rollback(ctx, c.c.dialect, &c.session, tx)
	if !attempt.RolledBack(c.c.dialect, err) {
		c.dead = true
	}
	c.closed()
	return err
}

// undoTimeout bounds a ROLLBACK on bed's own initiative.
const undoTimeout = 5 * time.Second

// undo rolls back tx or, without it, by a statement. If it cannot, it takes the connection out of
// use: an open transaction must not go back to the pool.
func (c *Conn) undo(ctx context.Context, tx driver.Tx) {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	if !attempt.RolledBack(c.c.dialect, attempt.Rollback(ctx, c.c.dialect, &c.session, tx)) {
		c.dead = true
	}
}
