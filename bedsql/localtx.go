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

// localTx is what is known of the local transaction that is open on a
// connection: the unit that will be logged when it commits.
type localTx struct {
	// soft is the soft transaction under which it was begun.
	soft *SoftTransaction
	// unlogged: it was begun under Skip or on a pinned connection.
	unlogged   bool
	statements []txlog.Statement
	bytes      int
	// why the unit must not be run again; empty if it may.
	notReplayable string
	// read: a query ran, whose rows a later write may carry.
	read bool
	// readsLock: every query locks what it reads.
	readsLock bool
	// generated: a write made an id, which a later one may carry.
	generated  bool
	savepoints []savepoint
	// bySavepoint: it was begun by its first savepoint, and ends with that.
	bySavepoint bool
	// lost is the error with which the database rolled the transaction back
	// by itself.
	lost error
	// aborted: PostgreSQL takes nothing more but ROLLBACK, and answers COMMIT
	// with one.
	aborted bool
}

// savepoint remembers how long the list was.
type savepoint struct {
	name  string
	len   int
	bytes int
}

func (t *localTx) unreplayable(why string) {
	if t.notReplayable == "" {
		t.notReplayable = why
	}
}

// add appends a write that ran.
func (t *localTx) add(s txlog.Statement, cfg *Config) {
	if t.read {
		t.unreplayable("it read before it wrote")
	}
	if t.generated {
		t.unreplayable("a statement after an INSERT may carry the id that the INSERT generated")
	}
	size := len(s.SQL) + len(s.Params)
	if len(t.statements) >= cfg.MaxUnitStatements {
		t.unreplayable(fmt.Sprintf("it has more than %d statements, of which the first are kept here", cfg.MaxUnitStatements))
		return
	}
	if t.bytes+size > cfg.MaxUnitBytes && len(t.statements) > 0 {
		t.unreplayable(fmt.Sprintf("its statements are larger than %d bytes, the first are kept here", cfg.MaxUnitBytes))
		return
	}
	t.statements = append(t.statements, s)
	t.bytes += size
}

func (t *localTx) save(name string) {
	t.savepoints = append(t.savepoints, savepoint{name, len(t.statements), t.bytes})
}

// find gives the index of the newest savepoint of that name, or -1.
func (t *localTx) find(name string) int {
	for i := len(t.savepoints) - 1; i >= 0; i-- {
		if t.savepoints[i].name == name {
			return i
		}
	}
	return -1
}

// rollbackTo truncates the list. The savepoint itself stays, as in every
// database.
func (t *localTx) rollbackTo(name string) {
	i := t.find(name)
	if i < 0 {
		// The database knew it and the list does not: trust the list no more.
		t.unreplayable("it rolled back to a savepoint that was not seen being set")
		return
	}
	sp := t.savepoints[i]
	t.statements, t.bytes = t.statements[:sp.len], sp.bytes
	t.savepoints = t.savepoints[:i+1]
	t.aborted = false
}

// endsWith reports whether releasing the savepoint commits the transaction.
func (t *localTx) endsWith(name string) bool {
	return t.bySavepoint && t.find(name) == 0
}

func (t *localTx) releaseSavepoint(name string) {
	if i := t.find(name); i >= 0 {
		t.savepoints = t.savepoints[:i]
	}
}

// open begins to keep the list of a local transaction.
func (c *Conn) open(ctx context.Context) *localTx {
	c.tx = &localTx{soft: softFrom(ctx), unlogged: c.pinned != "" || skipped(ctx)}
	return c.tx
}

// closed forgets the local transaction, which has ended one way or the other.
func (c *Conn) closed() {
	c.tx = nil
	if c.autocommitOff {
		c.next()
	}
}

// next opens the transaction that nobody begins where autocommit is off. What
// it belongs to, the statements in it say.
func (c *Conn) next() { c.open(context.Background()) }

// inTx prepares a write inside the open transaction: it is turned into what
// the log keeps before it runs.
func (c *Conn) inTx(ctx context.Context, s statement, args []driver.NamedValue) (txlog.Statement, error) {
	if c.tx.lost != nil {
		return txlog.Statement{}, c.tx.lostError()
	}
	if skipped(ctx) {
		c.tx.unreplayable("some of its statements ran under Skip")
	}
	if s.class.NeedsSession || s.class.Pins {
		c.tx.unreplayable("a statement depends on its session")
	}
	return c.store(s, args)
}

func (c *Conn) execInTx(ctx context.Context, s statement, args []driver.NamedValue) (driver.Result, error) {
	if c.tx.unlogged {
		return c.execThrough(ctx, s, args)
	}
	stored, err := c.inTx(ctx, s, args)
	if err != nil {
		return nil, err
	}
	t := c.tx
	if t.soft == nil {
		t.soft = softFrom(ctx)
	}
	res, before, err := c.exec(ctx, s, args)
	c.countSkipped(ctx)
	if err != nil {
		if c.failedInTx(ctx, err, before).Maybe() {
			t.unreplayable(inDoubt)
		}
		return nil, err
	}
	t.add(stored, &c.c.cfg)
	if s.class.Insert && c.c.dialect.GeneratedIDs {
		if id, err := res.LastInsertId(); err != nil || id != 0 {
			t.generated = true
		}
	}
	return res, nil
}

func (c *Conn) queryInTx(ctx context.Context, s statement, args []driver.NamedValue) (driver.Rows, error) {
	if c.tx.unlogged {
		return c.queryThrough(ctx, s, args)
	}
	stored, err := c.inTx(ctx, s, args)
	if err != nil {
		return nil, err
	}
	rows, err := c.complete(c.queryBare(ctx, s, args))
	if errors.Is(err, driver.ErrSkip) {
		return nil, err // database/sql brings it again, prepared
	}
	c.countSkipped(ctx)
	if err != nil {
		if t := c.tx; c.failedInTx(ctx, err, false).Maybe() {
			t.unreplayable(inDoubt)
		}
		return nil, err
	}
	c.tx.add(stored, &c.c.cfg)
	c.tx.unreplayable("a write returned rows, which a later one may carry")
	return rows, nil
}

// countSkipped counts a write that ran under Skip.
func (c *Conn) countSkipped(ctx context.Context) {
	if skipped(ctx) {
		c.c.cfg.Counters.Skipped.Add(1)
	}
}

// complete reads rows to their end where an error among them could take the
// open transaction with it: MySQL sends the columns before it waits for the
// first lock, so that the victim of a deadlock hears of it from its rows.
func (c *Conn) complete(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil || c.tx == nil || c.c.dialect.Flavor != delivery.MySQL {
		return rows, err
	}
	buffered, err := delivery.Buffer(rows)
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
func (c *Conn) failedInTx(ctx context.Context, err error, before bool) delivery.Outcome {
	out := c.c.dialect.Failed(err, before)
	if out.ConnLost {
		c.kill()
		return out
	}
	t := c.tx
	if t == nil {
		return out
	}
	if c.c.dialect.Flavor == delivery.Postgres && delivery.SQLState(err) != "" {
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

// ending is how an attempt to end the open transaction came out.
type ending struct {
	delivery.Outcome
	// open: it failed too early to end anything, the transaction is as before.
	open bool
}

// settle ends the open transaction by finish (its COMMIT in whatever form):
// its writes are logged before and settled after it. undo rolls back; it is
// called when the transaction may still be open and must not be committed,
// because its log could not be written or is left to others. swallowed says
// that err is kept for the End of a soft transaction.
func (c *Conn) settle(ctx context.Context, finish func(context.Context) ending, undo func() error) (swallowed bool, err error) {
	t := c.tx
	var e ending
	defer func() {
		c.closed()
		if e.open && !errors.Is(err, ErrPending) {
			c.tx = t
		}
	}()
	end := func(ctx context.Context) delivery.Outcome {
		e = finish(ctx)
		if e.Err != nil && !e.Class.Answered() {
			// It may not have been sent, on a connection that still works.
			c.undo(undo)
		}
		return e.Outcome
	}
	if t == nil || len(t.statements) == 0 || t.aborted || c.dead && delivery.Ping(ctx, c.inner) != nil {
		return false, end(ctx).Err
	}
	soft := t.soft
	if soft == nil {
		soft = softFrom(ctx)
	}
	if soft != nil {
		if err := soft.enter(); err != nil {
			c.undo(undo)
			return false, err
		}
		defer soft.leave()
	}
	u := c.newUnit(soft, t.statements...)
	u.NotReplayable = t.notReplayable
	retry := side{c: c}
	defer retry.close()
	x := &listener.Execution{Unit: u, AnswerIsFinal: true}
	x.Attempt = func(ctx context.Context, n int) delivery.Outcome {
		if n == 0 {
			return end(ctx)
		}
		conn, failed := retry.conn(ctx)
		if conn == nil {
			return failed
		}
		out := c.c.dialect.Replay(ctx, conn, u)
		retry.used(out)
		return out
	}
	err = c.c.cfg.Bus.Execute(ctx, c.c.deliver, x)
	c.c.cfg.Counters.count(err)
	if err == nil {
		return false, nil
	}
	if x.Attempts() == 0 || e.open && errors.Is(err, ErrPending) {
		c.undo(undo)
	}
	return soft != nil && soft.swallow(err), err
}

// undo rolls back, or takes the connection out of use: an open transaction
// must not go back to the pool.
func (c *Conn) undo(undo func() error) {
	err := undo()
	if err == nil {
		return
	}
	if lost := c.c.dialect.TransactionLost; c.dead || lost == nil || !lost(context.Background(), c.inner, err) {
		c.kill()
	}
}

// control is a statement that ends the open transaction, sent as text, run on
// the bare connection as one attempt. before is as for delivery.Exec.
func (c *Conn) control(ctx context.Context, s statement, args []driver.NamedValue) (res driver.Result, before bool, out delivery.Outcome) {
	res, before, err := c.exec(ctx, s, args)
	switch {
	case err == nil:
		out = delivery.Outcome{Result: res}
	case before, s.class.ImplicitCommit:
		out = c.lossy(c.c.dialect.Failed(err, before))
	default:
		out = c.lossy(c.c.dialect.CommitFailed(ctx, c.inner, err))
	}
	return res, before, out
}

// stillOpen reports whether the open transaction outlived the error of a
// statement that commits it on its way.
func (c *Conn) stillOpen(ctx context.Context, err error) bool {
	f := c.c.dialect.StillOpen
	return f != nil && f(ctx, c.inner, err)
}

// lossy takes the connection out of use when the attempt on it lost it.
func (c *Conn) lossy(out delivery.Outcome) delivery.Outcome {
	if out.ConnLost {
		c.kill()
	}
	return out
}
