package bedsql

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/group"
	"github.com/bedsql/bed/internal/logdb"
)

// errGroupGone reports that an unseen rollback to a savepoint removed the compensation.
var errGroupGone = errors.New("bed: the compensation was rolled back")

// compensable reports whether the group has a compensation by now.
func (h *home) compensable() bool {
	if h == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.undo != nil
}

// beginUndo begins to record a compensation. The caller holds mu.
func (h *home) beginUndo(w *stagedWrite) (a addition, err error) {
	if a.u = h.undo; a.u == nil {
		a.u, h.own = newCompensation(h.soft, w.c), 0
		for _, u := range h.units {
			joinGroup(u, a.u)
		}
		a.marked = h.units
	}
	undo, source := a.u.unit.Undo, w.c.target.DataSource
	i := slices.IndexFunc(h.units, func(u *stagedUnit) bool { return u.c.target.DataSource == source })
	isOwn := h.own > 0 && undo.Parts[h.own-1].DataSource == source
	switch {
	case i >= 0:
		w.statement.Part = h.units[i].part
	case !isOwn && (h.own > 0 || h.local != nil && h.source != source):
		return a, notRecorded(nothingToUndo)
	case !isOwn:
		own := entry.Unit{}
		w.c.inFlight(scope{soft: h.soft}, true, &own, nil, nil)
		h.own = addPart(&a.u.unit, &own)
		fallthrough
	default:
		w.statement.Part = h.own
		if p := undo.Parts[h.own-1]; !slices.ContainsFunc(a.u.writes, func(w *stagedWrite) bool { return w.statement.Part == h.own }) {
			a.receipt = &entry.Unit{ID: p.Unit, TransactionID: h.soft.id, Receipt: p.Receipt, Statements: []entry.Statement{{Part: h.own}}}
		}
	}
	a.unit, a.prove, a.rollbacks = a.u.unit, !h.proved, h.rollbacks
	h.restate(a.u, &a.unit, w)
	return a, nil
}

// noteGroup writes a write's changes to its group into the transaction, before the row of the
// write. After an error the caller rolls the transaction back to before it. After errGroupGone the
// caller tries again.
func (h *home) noteGroup(ctx context.Context, log logdb.SQL, a *addition, w *stagedWrite) error {
	for _, u := range a.marked {
		if u.part > 0 && h.looksAhead(u.c) {
			if err := u.c.forceReceipts(ctx); err != nil {
				return err
			}
			if u.forced {
				u.c.leaveReceipt(&u.unit)
				a.unit.Undo.Parts[u.part-1].Place = u.unit.Place
			}
		}
		if err := log.MarkWithin(ctx, h.tx, &u.unit); err != nil {
			return err
		}
	}
	if a.receipt != nil {
		if err := h.leaveReceipt(ctx, a.receipt, w.c); err != nil {
			return err
		}
	}
	if a.back == nil {
		return nil
	}
	noted, err := log.NoteWithin(ctx, h.tx, a.back)
	if err == nil && !noted {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.forget(func(w *stagedWrite) bool { return w.undo })
		err = errGroupGone
	}
	return err
}

// leaveReceipt leaves the receipt of the transaction's own part of the group, in the transaction
// and in c's database.
func (h *home) leaveReceipt(ctx context.Context, u *entry.Unit, c *connector) error {
	r := c.receipts
	if place := c.target.Known(false); place != nil {
		r.Place = place.Name
	}
	if r.Place == "" && r.Schema == "" {
		return notRecorded("it is not known where the table bed_receipt of the transaction's database is, in which its part has to leave a receipt")
	}
	call := r.Insertion(c.dialect.Flavor, u)
	args := make([]any, len(call.Args))
	for i, a := range call.Args {
		args[i] = a.Value
	}
	if _, err := h.tx.ExecContext(ctx, call.SQL, args...); err != nil {
		return fmt.Errorf("the receipt of the transaction's own part cannot be written to %s: %w", r.Table(c.dialect.Flavor), err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local != nil && h.source != c.target.DataSource {
		return notRecorded(nothingToUndo)
	}
	return nil
}

// compensation returns the compensation of the group, with these units to deliver here; nil if there is
// no compensation.
func (e *homeEnd) compensation(ctx context.Context, ready []*stagedUnit) *stagedUnit {
	if e.undo == nil || e.sure {
		return e.undo
	}
	storage := e.undo.c.cfg.Storage
	ctx, cancel := context.WithTimeout(ctx, e.undo.c.cfg.LogTimeout)
	defer cancel()
	switch got, err := storage.Get(ctx, e.undo.unit.ID); {
	case err == nil && got.Unreadable == nil:
		e.undo.unit.Statements = got.Statements
		return e.undo
	case slices.ContainsFunc(ready, func(u *stagedUnit) bool { return u.unit.Group() }), len(ready) == 0 && len(e.problems) == 0:
		return e.undo
	}
	if state, err := Status(ctx, storage, e.undo.unit.ID); err != nil || state != StateDiscarded {
		return nil // it was rolled back to a savepoint
	}
	return e.undo
}

// deliver delivers the ready units, and returns End's report of the whole.
func (e *homeEnd) deliver(ctx context.Context, ready []*stagedUnit) (problems []error, panicked any) {
	name := e.source
	if name == "" {
		name = locationOf(e.soft.staged.writes[0].c.cfg.Storage)
	}
	g := group.Group{Open: len(e.problems) > 0, Compensating: e.discarded}
	back := e.compensation(ctx, ready)
	if back == nil {
		e.soft.arrive(name)
	}
	problems, whole, panicked := e.soft.deliver(ctx, ready, back, g, e.done...)
	if whole { // what was learnt of a unit before was not the last word
		for _, u := range e.done {
			u.answer(errors.Join(problems...))
		}
	}
	if !whole {
		problems = append(e.problems, problems...)
	}
	if len(problems) == 0 || e.own == 0 { // else its own rows are undone, or may be
		e.soft.arrive(name)
	}
	return problems, panicked
}
