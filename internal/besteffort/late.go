package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// tryLogRemove is logTryRemove for LogAlongside and LogOnFailure: the first attempt does not wait
// for the log.
func (d *Deliverer) tryLogRemove(ctx context.Context, w *InFlight) error {
	var beside *adding
	if w.Logging == LogAlongside {
		beside = d.addBeside(ctx, w)
	}
	defer func() {
		if w.Tries == 0 {
			_ = d.addSent(ctx, w, beside) // a driver panicked
		}
		w.lease.Release()
	}()
	d.try(ctx, w)
	if settled, err := d.settle(ctx, w, beside); settled {
		return err
	}
	return d.conclude(ctx, w)
}

// settle ends a delivery that did not wait for the log before its first attempt. If the log
// decides the outcome, settle returns true and the caller's answer. Otherwise the entry is
// written, and all goes on as under LogBefore.
func (d *Deliverer) settle(ctx context.Context, w *InFlight, beside *adding) (settled bool, err error) {
	applied := w.Outcome.Delivered()
	switch {
	case beside == nil && applied:
		d.Remove(ctx, w)
		return true, nil
	case beside == nil && w.final() && !w.parks():
		w.take(finish)
		return true, w.answer()
	case beside != nil && applied:
		select {
		case <-beside.done:
		case <-ctx.Done():
			// The caller has its Result; the entry is settled asynchronously.
			late := *w
			late.heard = nil
			if d.Removals.Go(func() { d.settleApplied(ctx, &late, beside) }) {
				return true, nil
			}
		}
		d.settleApplied(ctx, w, beside)
		return true, nil
	}
	switch err := d.addSent(ctx, w, beside); {
	case err == nil:
		return false, nil
	case errors.Is(err, txlog.ErrInDoubt):
		if d.isThere(ctx, w) {
			w.take(accept)
			w.doubtIf(w.Unit.Receipt != "")
			w.lease, w.unwritten = d.leases.Keep(w.Unit), nil
			return false, nil
		}
		w.take(leave)
		return true, w.mayBeThere(w.Outcome.Err, err)
	}
	switch {
	case w.final():
		w.take(finish)
		return true, w.answer()
	case !w.Outcome.Maybe() && w.Unit.Fingerprint == "":
		return true, d.notLogged(w)
	default:
		return true, d.decideUnlogged(ctx, w)
	}
}

// settleApplied ends a unit that was applied during the write of its entry. With or without an
// entry, the write is delivered. The removal waits for the log's answer, because an entry that
// arrives late would come back.
func (d *Deliverer) settleApplied(ctx context.Context, w *InFlight, beside *adding) {
	switch err := d.addSent(ctx, w, beside); {
	case err == nil:
		d.Remove(ctx, w)
	case errors.Is(err, txlog.ErrInDoubt):
		w.take(finish)
		d.Removals.Chase(&removal.Unit{Entry: w.Unit, Lease: w.lease}, func() {
			d.warn(w.Unit, nil, "bed: the write is delivered, and it is not known whether its entry was written; if it was, the job will find it and "+jobWill(w.Unit))
		})
	default:
		d.Remove(ctx, w)
		d.warn(w.Unit, dberr.DescribeLog(err), "bed: the write is delivered, its entry could not be written alongside")
		if d.Unlogged != nil {
			d.Unlogged.Add(1)
		}
	}
}

// notLogged is the answer to a write that is neither applied nor logged.
func (d *Deliverer) notLogged(w *InFlight) error {
	w.take(finish)
	if errors.Is(w.unwritten, txlog.ErrUnstorable) {
		return attempt.Certain(fmt.Errorf("bed: the write is not applied (%v), and the transaction log can never take it: %w", w.Outcome.Err, w.unwritten), dialect.Refused) //nolint:errorlint // it may be an ErrBadConn
	}
	return &listener.NotLoggedError{DataSource: w.Unit.DataSource, Cause: w.unwritten, Attempt: w.Outcome.Err}
}

// decideUnlogged settles a unit without an entry by its receipt, on a context of its own: no one
// can do it later.
func (d *Deliverer) decideUnlogged(ctx context.Context, w *InFlight) error {
	if w.Unit.Receipt != "" {
		ctx, cancel := d.Own(ctx)
		defer cancel()
		switch decided := d.ask(ctx, w); {
		case decided && w.Outcome.Delivered():
			d.Remove(ctx, w)
			return nil
		case decided:
			return d.notLogged(w)
		}
	}
	w.take(finish)
	return &listener.UnknownOutcomeError{DataSource: w.Unit.DataSource, Cause: w.Outcome.Err, Log: w.unwritten}
}

// adding is the write of an entry of a unit during or after its run. It shares only the unit with
// the delivery, because the caller may be gone before it ends.
type adding struct {
	done     chan struct{}
	alone    [1]*entry.Unit
	err      error
	lease    *lease.Kept
	took     time.Duration
	panicked any
}

// addBeside begins to write an entry beside the write. It has a context of its own: the caller's
// context may end, but a sent write must be logged.
func (d *Deliverer) addBeside(ctx context.Context, w *InFlight) *adding {
	w.take(write)
	a := &adding{done: make(chan struct{}), alone: [1]*entry.Unit{w.Unit}}
	go func() {
		defer close(a.done)
		defer func() { a.panicked = recover() }()
		ctx, cancel := d.Own(ctx)
		defer cancel()
		begun := time.Now()
		a.err = d.Storage.Add(ctx, d.Lease, a.alone[:]...)
		a.took = time.Since(begun)
		switch {
		case a.err == nil:
			a.lease = d.leases.Keep(a.alone[0])
		case errors.Is(a.err, txlog.ErrInDoubt):
			// The entry may exist or come late. The lease counts from the INSERT, and INSERTs
			// shared with other units are repeated for that long.
			a.alone[0].Lease.Deadline = time.Now().Add(d.Lease)
		}
	}()
	return a
}

// addSent completes the entry of a sent unit: it waits for the write begun alongside, or writes
// the entry now. The error comes from the log.
func (d *Deliverer) addSent(ctx context.Context, w *InFlight, beside *adding) error {
	w.unwritten = errNoAnswer // if the storage panics
	if beside == nil {
		beside = d.addBeside(ctx, w)
	}
	<-beside.done
	if beside.panicked != nil {
		panic(beside.panicked)
	}
	if w.lease, w.unwritten = beside.lease, beside.err; w.heard != nil {
		w.heard.logTook = beside.took
	}
	if beside.err == nil {
		w.take(accept)
		w.doubtIf(w.Unit.AddRepeated && w.Unit.Receipt != "") // see log: it may come back
	}
	return beside.err
}

var errNoAnswer = fmt.Errorf("%w: it gave no answer", txlog.ErrInDoubt)
