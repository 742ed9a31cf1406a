package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// settle ends a delivery that did not wait for the log before its first attempt. If the log
// decides the outcome, settle returns true and the caller's answer. Otherwise the entry is
// written, and all goes on as under LogBefore.
func (e *Deliverer) settle(ctx context.Context, d *InFlight, beside *adding) (settled bool, err error) {
	applied := d.Outcome.Delivered()
	switch {
	case beside == nil && applied:
		e.remove(ctx, d)
		return true, nil
	case beside == nil && d.final() && !d.parksRefusal():
		return true, d.answer()
	case beside != nil && applied:
		select {
		case <-beside.done:
		case <-ctx.Done():
			// The caller has its Result; the entry is settled asynchronously.
			late := *d
			if e.Removals.Go(func() { e.settleApplied(ctx, &late, beside) }) {
				return true, nil
			}
		}
		e.settleApplied(ctx, d, beside)
		return true, nil
	}
	switch err := e.addSent(ctx, d, beside); {
	case err == nil:
		return false, nil
	case errors.Is(err, txlog.ErrInDoubt):
		if e.isThere(ctx, d.Unit) {
			d.lease, d.unwritten, d.inDoubt = e.leases.Keep(d.Unit), nil, d.inDoubt || d.Unit.Receipt != ""
			return false, nil
		}
		return true, inDoubt(d, d.Outcome.Err)
	case d.final():
		return true, d.answer()
	case !d.Outcome.Maybe() && d.Unit.Fingerprint == "":
		return true, e.notLogged(d)
	default:
		return true, e.decideUnlogged(ctx, d)
	}
}

// settleApplied ends a unit that was applied during the write of its entry. With or without an
// entry, the write is delivered. The removal waits for the log's answer, because an entry that
// arrives late would come back.
func (e *Deliverer) settleApplied(ctx context.Context, d *InFlight, beside *adding) {
	switch err := e.addSent(ctx, d, beside); {
	case err == nil:
		e.remove(ctx, d)
	case errors.Is(err, txlog.ErrInDoubt):
		e.Removals.Chase(&removal.Unit{Entry: d.Unit, Lease: d.lease}, func() {
			e.reports.warn(d.Unit, nil, "bed: the write is delivered, and it is not known whether its entry was written; if it was, the job will find it and "+jobWill(d.Unit))
		})
	default:
		e.remove(ctx, d)
		e.reports.warn(d.Unit, dberr.DescribeLog(err), "bed: the write is delivered, its entry could not be written alongside")
		if e.cfg.Unlogged != nil {
			e.cfg.Unlogged.Add(1)
		}
	}
}

// notLogged is the answer to a write that is neither applied nor logged.
func (e *Deliverer) notLogged(d *InFlight) error {
	if errors.Is(d.unwritten, txlog.ErrUnstorable) {
		return attempt.Certain(fmt.Errorf("bed: the write is not applied (%v), and the transaction log can never take it: %w", d.Outcome.Err, d.unwritten), dialect.Refused) //nolint:errorlint // it may be an ErrBadConn
	}
	return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: d.unwritten, Attempt: d.Outcome.Err}
}

// decideUnlogged settles a unit without an entry by its receipt, on a context of its own: no one
// can do it later.
func (e *Deliverer) decideUnlogged(ctx context.Context, d *InFlight) error {
	if d.Unit.Receipt != "" {
		ctx, cancel := e.cfg.own(ctx)
		defer cancel()
		switch decided := e.ask(ctx, d); {
		case decided && d.Outcome.Delivered():
			e.remove(ctx, d)
			return nil
		case decided:
			return e.notLogged(d)
		}
	}
	return &listener.UnknownOutcomeError{DataSource: d.Unit.DataSource, Cause: d.Outcome.Err, Log: d.unwritten}
}

// adding is the write of an entry of a unit during or after its run. It shares only the unit with
// the delivery, because the caller may be gone before it ends.
type adding struct {
	done     chan struct{}
	alone    [1]*txlog.Unit
	err      error
	lease    *lease.Kept
	took     time.Duration
	panicked any
}

// addBeside begins to write an entry beside the write. It has a context of its own: the caller's
// context may end, but a sent write must be logged.
func (e *Deliverer) addBeside(ctx context.Context, d *InFlight) *adding {
	a := &adding{done: make(chan struct{}), alone: [1]*txlog.Unit{d.Unit}}
	go func() {
		defer close(a.done)
		defer func() { a.panicked = recover() }()
		ctx, cancel := e.cfg.own(ctx)
		defer cancel()
		begun := time.Now()
		a.err = e.cfg.Storage.Add(ctx, e.cfg.Lease, a.alone[:]...)
		a.took = time.Since(begun)
		switch {
		case a.err == nil:
			a.lease = e.leases.Keep(a.alone[0])
		case errors.Is(a.err, txlog.ErrInDoubt):
			// The entry may exist or come late. The lease counts from the INSERT, and INSERTs
			// shared with other units are repeated for that long.
			a.alone[0].Lease.Deadline = time.Now().Add(e.cfg.Lease)
		}
	}()
	return a
}

// addSent completes the entry of a sent unit: it waits for the write begun alongside, or writes
// the entry now. The error comes from the log.
func (e *Deliverer) addSent(ctx context.Context, d *InFlight, beside *adding) error {
	d.unwritten = errNoAnswer // if the storage panics
	if beside == nil {
		beside = e.addBeside(ctx, d)
	}
	<-beside.done
	if beside.panicked != nil {
		panic(beside.panicked)
	}
	d.logged, d.lease, d.unwritten, d.logTook = true, beside.lease, beside.err, beside.took
	// See log: it may come back.
	d.inDoubt = d.inDoubt || d.unwritten == nil && d.Unit.AddRepeated && d.Unit.Receipt != ""
	return d.unwritten
}

var errNoAnswer = fmt.Errorf("%w: it gave no answer", txlog.ErrInDoubt)
