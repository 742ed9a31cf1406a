package bedsql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/order"
	"github.com/bedsql/bed/internal/sqltext"
)

// localTx is the open local transaction on a connection, with the unit to be logged at its commit.
type localTx struct {
	c *Conn
	// ctx is BeginTx's context; at its end database/sql rolls back.
	ctx context.Context
	// fate is a homeState: homeUnknown once Commit was called.
	fate atomic.Uint32
	// under is the scope of its beginning; its soft transaction may come from the first write.
	under scope
	mode  txMode
	state txState
	// lost is the error that made it txLost.
	lost       error
	statements []entry.Statement
	bytes      int
	// notReplayable is why the unit must not run again; empty if it may.
	notReplayable string
	// tainted is why one more write would make it not replayable: the write may carry read or
	// generated values.
	tainted string
	// readsLock means that every query locks the rows it reads.
	readsLock bool
	savepoints
	unmet unmet
	// receipt means that its COMMIT leaves a receipt.
	receipt bool
	// keyed is its state under an idempotency key.
	keyed *keyed.Tx
	// marked means that the savepoint unseen was set before the last statement.
	marked bool
	// moved means that unqualified names may lead elsewhere in its session than in others.
	moved bool
	// homes are the soft transactions of WithTx whose entries its COMMIT writes. It then needs no
	// entry of its own.
	homes []*home
	level sql.IsolationLevel
	// readOnly is set for a read-only transaction.
	readOnly bool
	// order has the order keys of its writes.
	order []entry.Order
}

// txMode is the treatment of a local transaction's writes.
type txMode uint8

const (
	// txLogged remembers them, and logs them as one unit before COMMIT.
	txLogged txMode = iota
	// txUnlogged runs them unlogged. The transaction began under Unlogged or on a pinned
	// connection.
	txUnlogged
	// txReadOnly refuses them. The transaction began read-only under an idempotency key, and
	// leaves no receipt.
	txReadOnly
)

// txState is the database's treatment of a local transaction's statements.
type txState uint8

const (
	// txOpen runs them.
	txOpen txState = iota
	// txAborted means that PostgreSQL accepts only ROLLBACK, and answers COMMIT with a ROLLBACK.
	txAborted
	// txLost means that the database has rolled the transaction back by itself, and would commit a
	// write on its own. bed sends nothing until the caller has rolled back.
	txLost
)

// savepoints are the savepoints in a list of writes, oldest first.
type savepoints []savepoint

// savepoint remembers the length of the list.
type savepoint struct {
	name  string
	len   int
	bytes int
	// recorded are the numbers of writes that the homes had recorded.
	recorded []int
}

// find returns the index of the newest savepoint of that name, or -1.
func (s savepoints) find(name string) int {
	for i, v := range slices.Backward(s) {
		if v.name == name {
			return i
		}
	}
	return -1
}

func (t *localTx) unreplayable(why string) {
	t.notReplayable = cmp.Or(t.notReplayable, why)
}

// hasRead notes a query, whose rows a later write may carry.
func (t *localTx) hasRead() { t.tainted = "it read before it wrote" }

// move notes a change of the session, or of a setting of the transaction.
func (t *localTx) move(why string) {
	t.unreplayable(why)
	t.moved = true
}

// revive notes that an aborted transaction may go on.
func (t *localTx) revive() {
	if t.state == txAborted {
		t.abort(false)
	}
}

// abort notes that PostgreSQL has aborted t, or that it goes on.
func (t *localTx) abort(aborted bool) {
	if t.state = txOpen; aborted {
		t.state = txAborted
	}
	for _, h := range t.homes {
		h.note(func() { h.aborted = aborted })
	}
}

// lose leaves t open on the connection as a transaction that has ended without its COMMIT. Nothing
// more is then written into the session until the caller has rolled back.
func (t *localTx) lose(err error) {
	t.closed()
	t.state, t.lost = txLost, err
	t.statements, t.bytes = nil, 0
	t.c.tx = t
}

func (t *localTx) lostError() error {
	err := because(ErrTransactionLost, t.lost)
	if errors.Is(t.lost, errEndedUnseen) {
		return &UnknownOutcomeError{DataSource: t.c.c.target.DataSource, Cause: err}
	}
	return err
}

// add appends an executed write.
func (t *localTx) add(s entry.Statement, cfg *Config) {
	if t.tainted != "" {
		t.unreplayable(t.tainted)
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
	sp := savepoint{name: name, len: len(t.statements), bytes: t.bytes}
	for _, h := range t.homes {
		sp.recorded = append(sp.recorded, h.recorded())
	}
	t.savepoints = append(t.savepoints, sp)
}

// rollbackTo truncates the list. The savepoint itself stays, as in every
// database.
func (t *localTx) rollbackTo(name string) {
	t.revive()
	i := t.find(name)
	if i < 0 {
		// The database knows the savepoint and the list does not, so the list is no longer
		// reliable.
		t.unreplayable("it rolled back to a savepoint that was not seen being set")
		return
	}
	if i < t.unmet.savepoints {
		t.unmet = unmet{}
	}
	sp := t.savepoints[i]
	for i, h := range t.homes {
		n := 0 // it was met later
		if i < len(sp.recorded) {
			n = sp.recorded[i]
		}
		h.keepFirst(n)
	}
	t.statements, t.bytes = t.statements[:sp.len], sp.bytes
	t.savepoints = t.savepoints[:i+1]
	if t.keyed != nil {
		t.unreplayable("under its idempotency key, what it rolled back to a savepoint is part of the answer")
	}
}

func (t *localTx) releaseSavepoint(name string) {
	if i := t.find(name); i >= 0 {
		t.savepoints = t.savepoints[:i]
		t.unmet.savepoints = min(t.unmet.savepoints, i)
	}
}

// gone reports whether it was rolled back without a COMMIT, or is about to be: database/sql may
// roll back a little after its context has ended. t may be nil.
func (t *localTx) gone() bool {
	if t == nil {
		return false
	}
	fate := homeState(t.fate.Load())
	return fate == homeRolledBack || fate == homeOpen && t.ctx.Err() != nil
}

// commits notes that COMMIT is on its way, or done, unless a rollback came first. t may be nil.
func (t *localTx) commits() {
	if t != nil {
		t.fate.CompareAndSwap(uint32(homeOpen), uint32(homeUnknown))
	}
}

// tell reports t's outcome to every home writing in it; the first report wins. t may be nil.
func (t *localTx) tell(how homeState, sent time.Time) {
	if t == nil {
		return
	}
	t.fate.CompareAndSwap(uint32(homeOpen), uint32(how))
	for _, h := range t.homes {
		h.note(func() {
			if h.state == homeOpen {
				h.state, h.sent = how, sent
			}
		})
	}
}

// closed notes that t was rolled back, unless its COMMIT has an outcome. t may be nil.
func (t *localTx) closed() { t.tell(homeRolledBack, time.Time{}) }

// pinned notes why the session of t is pinned. unseen means that t may be rolled back, or committed,
// unseen.
func (t *localTx) pinned(why string, unseen bool) {
	for _, h := range t.homes {
		if unseen {
			h.note(func() { h.closed = errRaw })
		}
	}
	t.move(why)
	t.revive()
}

// ends returns the Ends of the soft transactions that write entries in t.
func (t *localTx) ends() (all []func(context.Context) error) {
	for _, h := range slices.Backward(t.homes) {
		all = append(all, h.soft.End)
	}
	return all
}

// exec runs a DML inside the open transaction and adds it to its list.
func (t *localTx) exec(ctx context.Context, under scope, s statement) (r attempt.Reply, err error) {
	c := t.c
	if t.mode == txUnlogged {
		under.ordered = under.ordered || t.under.ordered && !t.under.unlogged
		return c.passThrough(ctx, under, s)
	}
	if err := t.still(ctx); err != nil {
		return r, err
	}
	stored, args, guarded, err := t.admit(under, s)
	s.Args = args
	if err == nil {
		err = t.keepOrder(under)
	}
	if err != nil {
		return r, err
	}
	if t.keyed.Replays() {
		r, err := t.keyed.Replay(stored, s.rows)
		return r, c.c.keys.Refused(err)
	}
	if t.under.soft == nil && !under.soft.isHome() {
		t.under.soft = under.soft
	}
	before := false
	var buffered *attempt.Rows
	if s.Required.Given() {
		r, before, err = t.require(ctx, s)
	} else if !s.rows {
		r.Result, before, err = c.send(ctx, s)
	} else if r, err = c.sendOnce(ctx, s); errors.Is(err, driver.ErrSkip) {
		return r, err // database/sql brings it again, prepared
	} else {
		r.Rows, err = t.complete(r.Rows, err)
		r.Rows = t.watch(ctx, r.Rows, err)
	}
	if under.unlogged {
		c.c.cfg.Counters.Unlogged.Add(1)
	}
	if guarded {
		c.c.cfg.Counters.Guarded.Add(1)
	}
	if err == nil && s.rows && t.keyed != nil {
		buffered, err = attempt.BufferWrite(c.c.dialect, r.Rows)
	}
	if err != nil {
		if !isUnmet(err) && c.failedInTx(ctx, err, before).Maybe() {
			t.unreplayable(inDoubt)
		}
		if t.keyed.Failed(stored, err); t.keyed != nil {
			t.unreplayable("under its idempotency key, a statement that failed is part of the answer")
		}
		return attempt.Reply{}, err
	}
	t.add(stored, &c.c.cfg)
	if s.class.Moves {
		t.move(changedSetting)
	}
	t.keyed.Ran(stored, r.Result, buffered)
	if s.rows {
		t.unreplayable("a write returned rows, which a later one may carry")
		if buffered != nil {
			r.Rows = buffered.Again()
		}
		return r, nil
	}
	if s.class.Insert && c.c.dialect.GeneratedIDs {
		if id, err := r.Result.LastInsertId(); err != nil || id != 0 {
			if t.tainted == "" {
				t.tainted = "a statement after an INSERT may carry the id that the INSERT generated"
			}
		}
	}
	return r, nil
}

// admit returns an error if a write must not run in the open transaction. Otherwise it returns the
// statement to log and the args to send. guarded means that the guard found something in the
// write.
func (t *localTx) admit(under scope, s statement) (stored entry.Statement, args []driver.NamedValue, guarded bool, err error) {
	switch {
	case !t.keyed.Covers(under.key):
		err = unusable("the local transaction was begun without it")
	case t.mode == txReadOnly:
		err = unusable("the local transaction was begun as a read-only one")
	case t.state == txLost:
		err = t.lostError()
	case t.under.confined && !t.keeps():
		err = ErrOutsideRequest
	default:
		err = t.c.withoutReceipts()
	}
	if err != nil {
		return stored, nil, false, err
	}
	if under.unlogged {
		t.unreplayable("some of its statements ran under Unlogged")
	}
	if s.class.NeedsSession || s.class.Pins {
		t.unreplayable("a statement depends on its session")
	}
	if t.notReplayable == "" && t.tainted == "" {
		if guarded, err = t.c.c.guard.check(s, t.receipt); err != nil {
			return stored, nil, false, err
		}
	}
	stored, args, err = t.c.c.store(s.Call)
	return stored, args, guarded, err
}

// complete reads rows to their end if an error among them could end the open transaction. MySQL
// sends the columns before it waits for the first lock, so the victim of a deadlock gets the error
// from its rows.
func (t *localTx) complete(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil || t.c.c.dialect.Flavor != sqltext.MySQL {
		return rows, err
	}
	buffered, err := attempt.BufferBounded(t.c.c.dialect, rows)
	if err != nil {
		return nil, err
	}
	return buffered, nil
}

// inDoubt is the reason not to run a unit again after a write of unknown outcome, which is not in
// the list.
const inDoubt = "the outcome of one of its statements is not known"

// changedSetting is the reason not to run a unit again after a statement that changed a setting.
const changedSetting = "it changed a setting"

var errOwnRows = disordered("the own rows of a transaction of WithTx, of an HTTP request or of a consumer's message cannot wait; only what it records can")

// keepOrder puts a write in the open transaction under its order key.
func (t *localTx) keepOrder(under scope) error {
	if !under.ordered {
		under.order, under.ordered = t.under.order, t.under.ordered
	}
	key, err := orderKey(t.c.c, under)
	switch {
	case err != nil || key == "":
	case len(t.homes) > 0, t.keyed.Keeps(): // its COMMIT writes no entry that could wait for its turn
		err = errOwnRows
	case !t.receipt:
		err = disordered("the local transaction was begun without one")
	}
	if err == nil {
		t.order = order.With(t.order, key)
	}
	return err
}
