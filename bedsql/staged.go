package bedsql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/internal/sqltext"
)

// Staged makes a soft transaction that only records: Exec under its context sends nothing. End
// writes the entries of all its writes in one durable step, for any databases, and then delivers
// them. It serves different data sources at the same time, and runs the writes for one data source
// in order and as one local transaction. Before that step nothing has happened anywhere. After it
// each part is delivered, even if the caller crashes, or parked if its database refuses it. If all
// are refused, End removes them.
//
// The data sources must share one transaction log. If the entries cannot be written, End returns
// ErrNotLogged and nothing was sent; only with Config.RunUnlogged, writes for a single data source
// then run unlogged. The Result of Exec returns ErrStaged until End has returned, then its rows
// and id, or the error of the write. A write that returns rows, or needs its session, is refused
// with ErrStaged, and so is any write beyond the Config.MaxUnitStatements or MaxUnitBytes of its
// data source. A query, or any other statement except DML (DDL, CALL), runs at once and does not
// see staged writes.
//
// A local transaction begun under the context records too. Its Commit adds its writes to the soft
// transaction; its Rollback drops them. The database begins no transaction, so its queries have
// neither snapshot nor locks. A BeginTx with an isolation level is refused with ErrStaged; a
// read-only one does begin. A context that ends before End discards everything.
//
// gorm asks for the generated id right after an INSERT, and takes ErrStaged for a failure: give
// its models keys of their own.
func Staged() TxOption {
	return func(s *SoftTransaction) { s.staged = newStaging() }
}

// staging holds the recorded writes of a staged soft transaction.
type staging struct {
	writes []*stagedWrite
	// sums are by data source; the sum of the compensations has an empty name.
	sums map[string]stagedSum
	// messages means that there are messages among the writes, unscoped a call of a service that may
	// not recognize keys. calls counts calls by data source.
	messages, unscoped bool
	calls              map[string]int
}

func newStaging() *staging { return &staging{sums: map[string]stagedSum{}, calls: map[string]int{}} }

// stagedSum is the size of the writes recorded for one unit.
type stagedSum struct {
	settings, session string
	statements, bytes int
}

// admit returns an error if writes for one unit cannot join the group; sum is the size of the unit
// with them.
func (g *staging) admit(writes []*stagedWrite) (sum stagedSum, err error) {
	c := writes[0].c
	if len(g.writes) > 0 {
		first := g.writes[0].c
		if first.cfg.Storage != c.cfg.Storage && first.receipts.LogIdentity != c.receipts.LogIdentity {
			return sum, fmt.Errorf("%w: %s and %s have different transaction logs, which cannot be written in one step",
				ErrStaged, first.target.DataSource, c.target.DataSource)
		}
	}
	if sum = g.sums[c.target.DataSource]; sum.statements > 0 && sum.settings != c.target.Settings {
		return sum, fmt.Errorf("%w: the data source %s was opened with different settings", ErrStaged, c.target.DataSource)
	}
	if sum.statements > 0 && sum.session != writes[0].session {
		return sum, fmt.Errorf("%w: the session of an earlier write for %s had other values of Config.SessionSettings", ErrStaged, c.target.DataSource)
	}
	if w := writes[0]; w.undo || g.sums[""].statements > 0 {
		switch {
		case g.messages || c.sendsMessages():
			return sum, fmt.Errorf("%w: a compensable group publishes no messages, because nothing compensates them: publish after its End, or in a soft transaction of their own", ErrStaged)
		case g.unscoped || w.unscoped():
			return sum, fmt.Errorf("%w: a service whose calls are in a compensable group is opened under ExactlyOnce, because only receipts tell what to undo", ErrStaged)
		}
	}
	sum = g.sums[writes[0].unit()]
	sum.settings, sum.session = c.target.Settings, writes[0].session
	for _, w := range writes {
		sum.statements++
		sum.bytes += len(w.statement.SQL) + len(w.statement.Params)
	}
	switch {
	case sum.statements > c.cfg.MaxUnitStatements:
		err = fmt.Errorf("%w: the writes for %s would be more than Config.MaxUnitStatements (%d)", ErrStaged, c.target.DataSource, c.cfg.MaxUnitStatements)
	case sum.bytes > c.cfg.MaxUnitBytes && sum.statements > 1:
		err = fmt.Errorf("%w: the writes for %s would be larger than Config.MaxUnitBytes (%d)", ErrStaged, c.target.DataSource, c.cfg.MaxUnitBytes)
	}
	return sum, err
}

// add adds admitted writes, with sum as the new size.
func (g *staging) add(sum stagedSum, writes ...*stagedWrite) {
	g.sums[writes[0].unit()] = sum
	g.messages = g.messages || writes[0].c.sendsMessages()
	g.unscoped = g.unscoped || writes[0].unscoped()
	g.writes = append(g.writes, writes...)
}

// keepFirst drops all writes but the first n.
func (g *staging) keepFirst(n int, why error) {
	gone := g.writes[min(n, len(g.writes)):]
	g.writes = g.writes[:len(g.writes)-len(gone)]
	for _, w := range gone {
		sum := g.sums[w.unit()]
		sum.statements--
		sum.bytes -= len(w.statement.SQL) + len(w.statement.Params)
		g.sums[w.unit()] = sum
	}
	drop(gone, why)
}

// stagedWrite is a recorded write, and the Result that its Exec returned.
type stagedWrite struct {
	c         *connector
	statement entry.Statement
	receipt   bool
	// id is a message's or a call's, called a call's write under its key. receiptKey is the receipt
	// at a service that recognizes keys.
	id, receiptKey string
	called         *keyed.Write
	// undo means a compensation, without a result.
	undo  bool
	order string // its order key
	trace string // the trace of a write under WithTx, which has left it by COMMIT
	// session is its session; empty without Config.SessionSettings.
	session string

	mu     sync.Mutex
	result driver.Result
}

// unscoped reports whether it is a call of a service that may not recognize keys.
func (w *stagedWrite) unscoped() bool { return w.c.dialect.Peer != nil && w.receiptKey == "" }

// unit names the write's unit: its data source, or an empty name for the compensation.
func (w *stagedWrite) unit() string {
	if w.undo {
		return ""
	}
	return w.c.target.DataSource
}

// get returns the result so far.
func (w *stagedWrite) get() driver.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.undo:
		return noResult{errUndoResult}
	case w.result == nil:
		return noResult{fmt.Errorf("%w: its result is known after End", ErrStaged)}
	}
	return w.result
}

func (w *stagedWrite) set(result driver.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result = result
}

func (w *stagedWrite) LastInsertId() (int64, error) { return w.get().LastInsertId() }

func (w *stagedWrite) RowsAffected() (int64, error) { return w.get().RowsAffected() }

// stagedTx is a local transaction that only records.
type stagedTx struct {
	c    *Conn
	ctx  context.Context
	soft *SoftTransaction
	// receipt means that its writes leave a receipt; undo makes them compensations.
	receipt, undo bool
	writes        []*stagedWrite
	under         scope // of its BeginTx
	savepoints
}

// Commit implements driver.Tx: it adds the list to the soft transaction.
func (t *stagedTx) Commit() error {
	t.c.stagedTx = nil
	err := t.soft.stage(t.ctx, t.writes...)
	if err != nil {
		drop(t.writes, because(fmt.Errorf("%w: the write was not recorded", ErrStaged), err))
	}
	return err
}

// Rollback implements driver.Tx: it drops the list.
func (t *stagedTx) Rollback() error {
	t.c.stagedTx = nil
	t.rollbackTo(0)
	return nil
}

// rollbackTo drops all writes but the first n.
func (t *stagedTx) rollbackTo(n int) {
	drop(t.writes[n:], errWithRolledBack)
	t.writes = t.writes[:n]
}

// drop gives its reason to writes that will not be sent.
func drop(writes []*stagedWrite, why error) {
	for _, w := range writes {
		w.called.Back()
		w.set(noResult{why})
	}
}

// begin begins a local transaction that only records.
func (s *SoftTransaction) begin(ctx context.Context, under scope, c *Conn, opts driver.TxOptions) (driver.Tx, error) {
	switch {
	case c.stagedTx != nil:
		return nil, fmt.Errorf("%w: a local transaction is open on the connection already", ErrStaged)
	case c.pinned != "":
		return nil, fmt.Errorf("%w: %s", ErrStaged, c.pinned)
	case opts.Isolation != 0:
		return nil, fmt.Errorf("%w: a local transaction with an isolation level, for none is begun in the database", ErrStaged)
	}
	if err := s.recording(); err != nil {
		return nil, err
	}
	c.stagedTx = &stagedTx{c: c, ctx: ctx, soft: s, receipt: s.exactlyOnceOn(under, c), undo: under.undo, under: under}
	return c.stagedTx, nil
}

// exactlyOnceOn reports whether a write staged in a scope leaves a receipt.
func (s *SoftTransaction) exactlyOnceOn(under scope, c *Conn) bool {
	if t := c.stagedTx; t != nil {
		return t.receipt || under.ordered
	}
	if !c.c.isSQL {
		return false
	}
	return s.key != nil || under.undo || s.home.compensable() || under.exactlyOnce(&c.c.cfg)
}

// record records a write instead of running it.
func (s *SoftTransaction) record(ctx context.Context, under scope, c *Conn, st statement) (r attempt.Reply, err error) {
	switch {
	case st.rows:
		return r, fmt.Errorf("%w: a write that returns rows cannot be staged", ErrStaged)
	case c.tx != nil:
		return r, fmt.Errorf("%w: the local transaction was begun outside of it", ErrStaged)
	case c.pinned != "":
		return r, fmt.Errorf("%w: %s", ErrStaged, c.pinned)
	case st.class.NeedsSession || st.class.Pins:
		return r, fmt.Errorf("%w: the statement depends on its session", ErrStaged)
	case under.unlogged:
		return r, fmt.Errorf("%w: a local transaction that only records cannot run a statement unlogged", ErrStaged)
	case c.c.target.NoSideConnection:
		return r, fmt.Errorf("%w: the connection of the delivery would reach another database (:memory:)", ErrStaged)
	}
	if c.c.shared != nil && s.home == nil {
		return r, c.c.shared
	}
	if !s.key.Covers(under.key) {
		return r, unusable("the staged soft transaction was begun without it")
	}
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if err := s.recording(); err != nil {
		return r, err
	}
	receipt := s.exactlyOnceOn(under, c)
	if err := c.c.guard.admit(st, receipt); err != nil {
		return r, err
	}
	stored, _, err := c.c.store(st.Call)
	if err != nil {
		return r, err
	}
	if t := c.stagedTx; t != nil && !under.ordered {
		under.order, under.ordered = t.under.order, t.under.ordered
	}
	order, err := orderKey(c.c, under)
	if err != nil {
		return r, err
	}
	undo := under.undo || c.stagedTx != nil && c.stagedTx.undo
	if undo {
		order = "" // it undoes what its group did, whatever was delivered since
	}
	w := &stagedWrite{c: c.c, statement: stored, receipt: receipt, order: order, id: under.id, called: under.called, receiptKey: under.receiptKey, undo: undo}
	if c.c.cfg.Bus != nil && s.home != nil {
		w.trace = c.c.cfg.Bus.TraceParent(ctx)
	}
	if w.receipt && (s.home == nil || s.home.looksAhead(c.c)) {
		if _, err := c.lookForReceipts(ctx, s.key != nil); err != nil && c.c.needsReceipts(err) {
			return r, err
		}
	}
	if c.c.target.Named {
		if err := c.readSettings(ctx); err != nil {
			return r, err
		}
		w.session = c.session.Facts.Session
	}
	if t := c.stagedTx; t != nil {
		t.writes = append(t.writes, w)
		return attempt.Reply{Result: w}, nil
	}
	if undo && c.c.dialect.Peer != nil {
		if err := c.c.forceReceipts(ctx); err != nil {
			return r, err
		}
	}
	if err := s.stage(ctx, w); err != nil {
		return r, err
	}
	return attempt.Reply{Result: w}, nil
}

// control follows savepoints inside a local transaction that only records; there is nothing to
// send.
func (t *stagedTx) control(cl sqltext.Class) (handled bool, err error) {
	at := t.find(cl.Name)
	switch cl.Kind {
	case sqltext.Savepoint:
		t.savepoints = append(t.savepoints, savepoint{name: cl.Name, len: len(t.writes)})
		return true, nil
	case sqltext.RollbackTo, sqltext.ReleaseSavepoint:
		if at < 0 {
			return true, fmt.Errorf("%w: there is no savepoint %s", ErrStaged, cl.Name)
		}
		if cl.Kind == sqltext.ReleaseSavepoint {
			t.savepoints = t.savepoints[:at]
		} else {
			t.rollbackTo(t.savepoints[at].len)
			t.savepoints = t.savepoints[:at+1]
		}
		return true, nil
	case sqltext.Control, sqltext.Rollback:
		return true, fmt.Errorf("%w: end the local transaction by its Commit or Rollback, not by a statement", ErrStaged)
	}
	return false, nil
}

// recording returns an error if nothing more can be recorded.
func (s *SoftTransaction) recording() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recordingLocked()
}

func (s *SoftTransaction) recordingLocked() error {
	if s.ended {
		return fmt.Errorf("%w (%s): the write was neither logged nor sent", ErrEnded, s.id)
	}
	if err := s.ctx.Err(); err != nil && s.home != nil {
		return fmt.Errorf("bed: the context of the soft transaction %s has ended: %w", s.id, err)
	} else if err != nil {
		return s.discarded(err)
	}
	return nil
}

func (s *SoftTransaction) discarded(why error) error {
	return fmt.Errorf("bed: the staged soft transaction %s is discarded: %w", s.id, why)
}

// stage adds writes for one data source to the group: all of them, or none.
func (s *SoftTransaction) stage(ctx context.Context, writes ...*stagedWrite) error {
	if s.home != nil {
		return s.home.stage(ctx, writes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.recordingLocked(); err != nil || len(writes) == 0 {
		return err
	}
	sum, err := s.staged.admit(writes)
	if w := writes[0]; err == nil && w.undo && s.staged.undone(w) == nil {
		err = notRecorded(nothingToUndo)
	}
	if err == nil {
		s.staged.add(sum, writes...)
	}
	return err
}

// Discard drops the recorded writes of a staged soft transaction: nothing ran, and nothing will.
// Everything after it, End included, gets ErrEnded. After End it does nothing. An immediate one
// merely ends. So does one made by WithTx: its writes belong to its transaction, so roll that
// back. If the transaction commits all the same, the job delivers the writes.
func (s *SoftTransaction) Discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	switch {
	case s.home != nil:
		s.problems = append(s.problems, because(ErrUnknownOutcome, fmt.Errorf("%w (%s): it was discarded, and the job delivers what its transaction commits", ErrEnded, s.id)))
	case s.staged != nil:
		drop(s.staged.writes, fmt.Errorf("%w: the soft transaction was discarded", ErrStaged))
		s.staged.writes = nil
		s.problems = append(s.problems, fmt.Errorf("%w (%s): it was discarded", ErrEnded, s.id))
	}
	if s.running == 0 {
		close(s.idle)
	}
}

// stagedIn returns the staged soft transaction of a statement.
func (c *Conn) stagedIn(under scope) *SoftTransaction {
	if c.stagedTx != nil {
		return c.stagedTx.soft
	}
	if under.soft != nil && under.soft.staged != nil && !under.unlogged && !under.soft.home.isOf(c) {
		return under.soft
	}
	return nil
}
