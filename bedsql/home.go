package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/order"
	"github.com/bedsql/bed/txlog"
)

// DBTX is an open local transaction of the application: *sql.Tx, *sqlx.Tx, gorm's ConnPool, or
// anything else that runs statements in one.
type DBTX = entry.DBTX

// WithTx makes a soft transaction whose entries are rows of tx. tx is a local transaction of the
// application in a database on the transaction log's server. The entries commit with its own rows,
// or not at all. Statements sent through tx run now, as ever. A write under the context of Begin
// through another bed database is recorded at once, by an INSERT in tx. A savepoint, a deadlock, a
// crash or a lost COMMIT affects it in the same way as the rows. Writes under its context follow
// the rules of Staged; Results return ErrStaged until End.
//
// tx may belong to a wrapped or a bare driver. For PostgreSQL it must use the log's own database.
// For MySQL and MariaDB it must use the same server, with the rights to SELECT, INSERT and UPDATE
// in the log's schema. For SQLite it must belong to a bare driver on the log's own file, and it
// then holds the file's one write lock until it ends. If tx does not reach the log, the first
// write gets a *LogElsewhereError; tx stays usable. A write through the database of a wrapped tx
// is an error: use tx. One statement runs in tx at a time.
//
// Call End after Commit: it delivers the committed entries. Without it, or after a crash, the job
// delivers at its next round, whatever its MaxDeliveryTryDelay is. End returns ErrRolledBack after
// a Rollback, and ErrNotCommitted before the Commit. After an unanswered COMMIT, or if the entries
// of a bare driver's tx are missing, End finds out the outcome or returns ErrUnknownOutcome. The
// transaction may be long: no lease runs before End. COMMIT of a wrapped tx then needs no entry of
// its own, and an unanswered one is ErrUnknownOutcome.
//
// Begin returns an error for a nil tx and for a pool, which is not a transaction.
func WithTx(tx DBTX) TxOption {
	return func(s *SoftTransaction) {
		s.staged = &staging{sums: map[string]stagedSum{}}
		s.home = &home{soft: s, tx: tx, turn: make(chan struct{}, 1)}
		v := reflect.ValueOf(tx)
		_, pool := tx.(interface{ SetMaxOpenConns(int) })
		_, ends := tx.(interface{ Commit() error })
		_, cache := tx.(interface{ Reset() }) // gorm's of prepared statements
		switch {
		case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
			s.unusable = errors.New("bed: With needs an open local transaction, it was given nil")
		case pool || cache && !ends:
			s.unusable = fmt.Errorf("bed: With needs an open local transaction, it was given a pool of connections (%T): begin one by BeginTx", tx)
		}
	}
}

// homeState is the known state of the transaction of WithTx. Only a wrapped driver's transaction
// has a known state.
type homeState uint8

const (
	homeOpen homeState = iota
	homeCommitted
	homeRolledBack
	// homeUnknown means that COMMIT was sent and not answered.
	homeUnknown
)

// home is the application's transaction that holds a soft transaction's entries.
type home struct {
	soft *SoftTransaction
	tx   DBTX
	// turn is full while a write is being recorded in tx, or End is at work.
	turn chan struct{}

	// mu guards the fields below, and soft.staged.
	mu sync.Mutex
	// local is tx on its wrapped connection, and source is its data source. They are nil until a
	// statement of ours has met it, and for a bare driver.
	local  *localTx
	source string
	// before is another home that writes in local.
	before *home
	state  homeState
	// sent is when COMMIT was sent.
	sent time.Time
	// proved means that tx reaches the log.
	proved bool
	// distrusted means that a statement in tx may have undone or committed entries unseen.
	distrusted bool
	// rollbacks counts the rollbacks to savepoints.
	rollbacks int
	// writing is the data source of the entry being written.
	writing string
	units   []*stagedUnit
	// undo is the compensation, nil until one is recorded. own is the number of the part with the
	// transaction's own rows, from 1.
	undo *stagedUnit
	own  int
	// replayed are the units that an earlier request under the transaction's key recorded.
	replayed []*stagedUnit
}

var (
	errWithRolledBack = fmt.Errorf("%w: the write was rolled back", ErrStaged)
	errUseHome        = errors.New("bed: the write was neither logged nor sent: it is for the database of the transaction of WithTx, send it through that transaction")
	// errReplayed means that the receipt of the transaction's idempotency key answers it. The
	// entries recorded then are in the log or delivered.
	errReplayed = errors.New("bed: the transaction is answered by its idempotency key")
)

// rollbackTo begins the statements that roll back a half-written entry, here and in the log.
const rollbackTo = "ROLLBACK TO SAVEPOINT bed_"

const releaseGroup = "RELEASE SAVEPOINT bed_group"

// meet notes the wrapped connection on which a statement of ours arrives. It returns an error if
// the statement must not be sent there.
func (h *home) meet(c *Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := c.tx
	switch {
	case c.c.target.DataSource == h.writing:
		return errUseHome
	case t == nil || h.local != nil && h.local != t:
		return errors.New("bed: no local transaction is open on the connection of WithTx, or another one than before")
	case t.state == txLost:
		return t.lostError()
	case t.keyed.Replays():
		return errReplayed
	case h.local == nil:
		h.local, h.source, h.before = t, c.c.target.DataSource, t.home
		t.home = h
		h.distrusted = h.distrusted || c.pinned != "" && c.pinnedBy == "" // raw access
	}
	return nil
}

// isOf reports whether a statement under the soft transaction's context runs in the open
// transaction of c, and this may be the transaction of WithTx.
func (h *home) isOf(c *Conn) bool {
	if h == nil || c.tx == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local != nil {
		return h.local == c.tx
	}
	return !h.proved
}

// ended records how the transaction ended; the first report wins.
func (h *home) ended(how homeState, sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == homeOpen {
		h.state, h.sent = how, sent
	}
}

// distrust notes that our memory of the entries may be wrong. The log decides.
func (h *home) distrust() {
	for ; h != nil; h = h.before {
		h.mu.Lock()
		h.distrusted = true
		h.mu.Unlock()
	}
}

// entries is how many writes are recorded.
func (h *home) entries() int {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.soft.staged.writes)
}

// rollbackTo follows the transaction back to a savepoint.
func (h *home) rollbackTo(sp savepoint) {
	if h == nil {
		return
	}
	if sp.home != h && sp.home != nil {
		h.distrust() // others have written beside it
		return
	}
	h.before.distrust()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rollbacks++
	h.keepFirst(sp.entries)
}

// keepFirst drops all writes but the first n. The caller holds mu.
func (h *home) keepFirst(n int) {
	gone := map[*stagedWrite]bool{}
	for _, w := range h.soft.staged.writes[min(n, len(h.soft.staged.writes)):] {
		gone[w] = true
	}
	h.forget(func(w *stagedWrite) bool { return gone[w] })
}

// forget drops the writes that are rolled back. The caller holds mu.
func (h *home) forget(gone func(*stagedWrite) bool) {
	h.soft.staged.remove(gone, errWithRolledBack)
	stay := func(u *stagedUnit) bool {
		u.writes = slices.DeleteFunc(slices.Clone(u.writes), gone)
		return len(u.writes) > 0
	}
	if h.undo != nil && stay(h.undo) {
		h.restate(h.undo, &h.undo.unit)
	} else {
		h.undo = nil // with the marks of the units before it
	}
	var units []*stagedUnit
	for _, u := range h.units {
		if stay(u) {
			leaveGroup(u, h.undo)
			h.restate(u, &u.unit)
			units = append(units, u)
		} else {
			u.keyed.Back()
		}
	}
	h.units = units
}

// restate has unit hold the statements of u, and then those of more.
func (h *home) restate(u *stagedUnit, unit *entry.Unit, more ...*stagedWrite) {
	unit.Statements = make([]entry.Statement, 0, len(u.writes)+len(more))
	for _, writes := range [][]*stagedWrite{u.writes, more} {
		for _, w := range writes {
			if !w.undo {
				w.statement.Part = u.part
			}
			unit.Statements = append(unit.Statements, w.statement)
		}
	}
	unit.Order = slices.DeleteFunc(slices.Clone(unit.Order), func(o entry.Order) bool { // what was rolled back
		is := func(w *stagedWrite) bool { return w.order == o.Key }
		return !slices.ContainsFunc(u.writes, is) && !slices.ContainsFunc(more, is)
	})
	unit.Behind = ""
	if n := len(u.writes); n > 0 {
		unit.Behind = u.writes[n-1].behind
	}
	u.keyed.Mark(unit)
}

// looksAhead reports whether to look for the table of receipts before a write is recorded. Telling
// the log its place would need the lock on an SQLite file, and tx holds that.
func (h *home) looksAhead(c *connector) bool {
	s, ok := c.cfg.Storage.(interface{ Driver() string })
	return !ok || s.Driver() != "sqlite"
}

// stage records writes for one data source in the transaction: all of them, or none.
func (h *home) stage(ctx context.Context, writes []*stagedWrite) (err error) {
	if len(writes) == 0 {
		return nil
	}
	if err := h.soft.enter(); err != nil {
		return err
	}
	defer h.soft.leave()
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	h.mu.Lock()
	grouped := writes[0].undo || h.undo != nil
	before := len(h.soft.staged.writes)
	if _, err = h.soft.staged.admit(writes); err == nil && (grouped || len(writes) > 1) {
		h.writing = writes[0].unit()
	}
	h.mu.Unlock()
	if err == nil && len(writes) == 1 && !grouped {
		return h.add(ctx, writes[0])
	}
	if err != nil {
		return err
	}
	own := scope{features: features{own: h}}.in(ctx)
	if _, err := h.tx.ExecContext(own, "SAVEPOINT bed_group"); err != nil && !errors.Is(err, errReplayed) {
		return h.unwritten(writes[0].c, err)
	}
	for _, w := range writes {
		if err = h.add(ctx, w); err != nil {
			break
		}
	}
	if err == nil {
		if _, err = h.tx.ExecContext(own, releaseGroup); err == nil || errors.Is(err, errReplayed) {
			return nil
		}
		err = h.unwritten(writes[0].c, err)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(own), undoTimeout)
	defer cancel()
	_, uerr := h.tx.ExecContext(undo, rollbackTo+"group")
	if uerr == nil {
		_, uerr = h.tx.ExecContext(undo, releaseGroup)
	}
	h.mu.Lock()
	h.keepFirst(before)
	h.mu.Unlock()
	if uerr != nil {
		h.distrust()
		return fmt.Errorf("%w; roll back, the writes before it could not be undone: %w", err, uerr)
	}
	return err
}

// add records one write. The caller has the turn.
func (h *home) add(ctx context.Context, w *stagedWrite) error {
	log := logdb.Of(w.c.cfg.Storage)
	if log == nil {
		return h.unwritten(w.c, txlog.ErrLogElsewhere)
	}
	own := scope{features: features{own: h}}.in(ctx)
	if !h.looksAhead(w.c) {
		// SQLite runs in this process. An interrupted statement there may have taken effect.
		own = context.WithoutCancel(own)
	}
	left := "" // the receipt that was written for it
	for {
		a, err := h.begin(ctx, w)
		if err != nil {
			return err
		}
		if a.receipt != nil && a.receipt.ID == left {
			a.receipt = nil
		} else if a.receipt != nil {
			left = a.receipt.ID
		}
		there := 0
		if err = h.noteGroup(own, log, &a, w); err == nil {
			there, err = log.AddWithin(own, h.tx, &a.unit, len(a.unit.Statements)-1, a.prove)
		} else if errors.Is(err, errGroupGone) {
			continue
		}
		if done, err := h.added(a, w, there, err); done {
			return err
		}
	}
}

// addition is a write on its way into the transaction.
type addition struct {
	u *stagedUnit
	// unit is u's with the write.
	unit entry.Unit
	// prove means that the transaction has not yet been seen to reach the log.
	prove     bool
	rollbacks int
	// marked are the units that become parts of a group with this write. back is the group's
	// compensation if it gets one more part. receipt is the forward receipt to be written for the
	// transaction's own part.
	marked  []*stagedUnit
	back    *entry.Unit
	receipt *entry.Unit
}

// begin begins to record a write.
func (h *home) begin(ctx context.Context, w *stagedWrite) (a addition, err error) {
	if err := h.soft.recording(); err != nil {
		return a, err
	}
	c := w.c
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != homeOpen {
		return a, fmt.Errorf("%w (%s): its transaction has ended, and the write was neither logged nor sent", ErrEnded, h.soft.id)
	}
	if h.local != nil && h.source == c.target.DataSource && !w.undo {
		return a, errUseHome
	}
	if _, err := h.soft.staged.admit([]*stagedWrite{w}); err != nil {
		return a, err
	}
	h.writing = w.unit()
	if w.undo {
		return h.beginUndo(w)
	}
	known := slices.Concat(h.units, h.replayed)
	if i := slices.IndexFunc(known, func(u *stagedUnit) bool { return u.takes(w) }); i >= 0 {
		a.u = known[i]
	} else {
		a.u = &stagedUnit{c: c}
		keyed := h.soft.key != nil && !c.sendsMessages() // a message has the fate of the rows alone
		if err = a.u.open(h.soft, w.id, keyed, w.receipt || h.undo != nil); err != nil {
			return a, err
		}
		if c.cfg.Bus != nil {
			a.u.unit.TraceParent = c.cfg.Bus.TraceParent(ctx)
		}
	}
	if len(a.u.writes) == 0 {
		a.marked = a.u.awaitIn(h.units)
	}
	if h.undo != nil && len(a.u.writes) == 0 {
		if a.u.part == 0 {
			joinGroup(a.u, h.undo)
		}
		a.back = &h.undo.unit
	}
	if w.receipt && a.u.unit.Receipt == "" {
		return a, fmt.Errorf("%w: the first write for %s was at least once, and one to be delivered exactly once cannot join it", ErrStaged, h.writing)
	}
	a.unit, a.prove, a.rollbacks = a.u.unit, !h.proved, h.rollbacks
	if a.unit.Order = order.With(a.unit.Order, w.order); w.order != "" {
		a.u.RemoveLater = false
	}
	h.restate(a.u, &a.unit, w)
	return a, nil
}

// added notes the outcome of recording a write; there is the number of statements in its unit now.
// done is false if the caller must try again.
func (h *home) added(a addition, w *stagedWrite, there int, err error) (done bool, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writing = ""
	u, n := a.u, len(a.unit.Statements)
	switch {
	case errors.Is(err, errReplayed) && w.undo:
		return true, nil
	case errors.Is(err, errReplayed):
		u.writes = append(u.writes, w)
		h.restate(u, &u.unit)
		if !slices.Contains(h.replayed, u) {
			h.replayed = append(h.replayed, u)
		}
		return true, nil
	case err == nil && there < n-1: // a savepoint was rolled back that was not seen
		gone := u.writes[min(there, len(u.writes)):]
		h.forget(func(w *stagedWrite) bool { return slices.Contains(gone, w) })
		return false, nil
	case err == nil && there != n:
		err = errors.New("the transaction does not hold what was recorded in it")
	}
	if err != nil {
		if len(u.writes) == 0 {
			u.keyed.Back()
		}
		return true, h.unwritten(w.c, err)
	}
	h.distrusted = h.distrusted || h.rollbacks != a.rollbacks // was it before or after this one?
	h.proved = true
	sum, _ := h.soft.staged.admit([]*stagedWrite{w})
	h.soft.staged.add(sum, w)
	switch u.unit.Lease.Token, u.unit.AtOnce = a.unit.Lease.Token, true; {
	case len(u.writes) > 0:
	case w.undo:
		h.undo = u
	default:
		h.units = append(h.units, u)
		u.keyed.Within(h.local.gone)
	}
	w.behind = a.unit.Behind
	u.writes, u.unit.Order = append(u.writes, w), a.unit.Order
	h.restate(u, &u.unit)
	return true, nil
}

// unwritten is the error of a write that could not be recorded.
func (h *home) unwritten(c *connector, err error) error {
	switch {
	case errors.Is(err, errUseHome):
		return errUseHome
	case errors.Is(err, txlog.ErrLogElsewhere):
		e := &LogElsewhereError{DataSource: c.target.DataSource, Log: locationOf(c.cfg.Storage), Cause: err}
		if err == txlog.ErrLogElsewhere { //nolint:errorlint // the kind of log says no more
			e.Cause = nil
		}
		return e
	case errors.Is(err, txlog.ErrUnstorable):
		return attempt.Certain(fmt.Errorf("bed: the write was neither logged nor sent, the transaction log can never take it: %w", err), dialect.Refused)
	}
	return &NotLoggedError{DataSource: c.target.DataSource, Cause: err}
}

// locationOf returns the location of a log; empty if it has no location.
func locationOf(s txlog.Storage) string {
	if l, ok := s.(interface{ Location() string }); ok {
		return l.Location()
	}
	return ""
}

// runOwn runs a statement of bed's own in the open transaction, to write an entry of a soft
// transaction.
func (c *Conn) runOwn(ctx context.Context, h *home, s statement) (r attempt.Reply, err error) {
	if err := h.meet(c); err != nil {
		return r, err
	}
	before := false
	if s.rows {
		r, err = c.sendOnce(ctx, s)
	} else {
		r.Result, before, err = c.send(ctx, s)
	}
	switch {
	case errors.Is(err, driver.ErrSkip): // database/sql brings it again, prepared
	case err != nil:
		c.failedInTx(ctx, err, before)
	case strings.HasPrefix(s.SQL, rollbackTo):
		c.tx.revive()
	}
	return r, err
}
