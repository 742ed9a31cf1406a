package besteffort

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Group is a compensable group at its end: Deliver has answered for each of the units for End.
type Group struct {
	Deliverer *Deliverer
	// Compensation is the InFlight of the compensation.
	Compensation *InFlight
	// Parts are the units that went to Deliver, Held.
	Parts []*InFlight
	// Open means that other units are not known to be delivered.
	Open bool
	// Compensating means that others have found the group being compensated.
	Compensating bool
	// Undo compensates a part (txlog.Unit.Part), on a connection to its data source. Look reads
	// its receipt there. It returns Found or Voided, neither if there is no receipt, or both if
	// the part was applied before it was voided.
	Undo, Look func(ctx context.Context, part *txlog.Unit) attempt.Outcome

	// Kept are the data sources, possibly repeated, with applied parts that the compensation does
	// not cover.
	Kept []string
}

// End completes the group if every part is delivered, and compensates it if a part was refused.
// whole is then true, and err is the caller's answer for the whole group; nil means delivered.
// Otherwise the answers of the parts count, and the job goes on. After a crash at any point the
// job can go on from the compensation, the receipts, and the remaining entries.
func (g *Group) End(ctx context.Context) (whole bool, err error) {
	e := g.Deliverer
	defer func() {
		for _, d := range append(g.Parts, g.Compensation) {
			d.lease.Release()
		}
	}()
	var refused []error
	open, compensating := g.Open, g.Compensating
	for _, d := range g.Parts {
		switch {
		case !d.held:
			open = true
		case d.Outcome.Voided: // the group is being compensated
			compensating = true
		case d.Outcome.Err != nil:
			refused = append(refused, fmt.Errorf("%s: %w", d.Unit.DataSource, d.Outcome.Err))
		}
	}
	switch {
	case len(refused) > 0 || compensating:
		return true, g.compensate(ctx, errors.Join(refused...))
	case open:
		reached := "" // a job reviews the compensation there: others may be out of reach
		for _, d := range g.Parts {
			if d.held {
				reached = d.Unit.DataSource
				e.remove(ctx, d)
				d.lease = nil // the removal's, which may go on behind the call
			}
		}
		switch v := (txlog.Verdict{DataSource: reached}); {
		case g.Compensation.lease != nil:
			_ = e.release(ctx, g.Compensation, v)
		case reached != "": // nobody has leased it, unless a job is looking at it
			own, cancel := e.cfg.own(ctx)
			defer cancel()
			_ = e.cfg.Storage.Release(own, g.Compensation.Unit, v)
		}
		return false, nil
	}
	switch err := g.complete(ctx); {
	case errors.Is(err, txlog.ErrCompensated):
		return true, g.compensate(ctx, nil)
	case err != nil:
		return true, pending(g.Compensation, fmt.Errorf("all of it is delivered, which the log did not confirm: %w", logged(err)))
	}
	return true, nil
}

// complete removes the entries of a delivered group, the compensation last.
func (g *Group) complete(ctx context.Context) error {
	e := g.Deliverer
	ctx, cancel := e.cfg.own(ctx)
	defer cancel()
	units := make([]*txlog.Unit, len(g.Parts))
	for i, d := range g.Parts {
		d.lease.Refresh()
		units[i] = d.Unit
	}
	if len(units) > 0 {
		if err := e.cfg.Storage.Remove(ctx, units...); err != nil && !errors.Is(err, txlog.ErrLeaseLost) {
			return err
		}
	}
	g.Compensation.lease.Refresh()
	return g.completed(ctx)
}

// completed completes the group in the log. If the compensation is gone and the log does not know
// how it ended, the receipts do. Each receipt of a compensated group is void, and a part without a
// receipt was rolled back to a savepoint.
func (g *Group) completed(ctx context.Context) error {
	k := g.Compensation.Unit
	err := g.Deliverer.cfg.Storage.Complete(ctx, k)
	if !errors.Is(err, txlog.ErrNotFound) {
		return err
	}
	found := false
	for i, p := range k.Undo.Parts {
		out := g.Look(ctx, k.Part(i))
		if out.Voided {
			return fmt.Errorf("%w (%s)", txlog.ErrCompensated, k.ID)
		}
		if found = found || out.Found; !out.Found {
			err = fmt.Errorf("%w; nor does its receipt in %s tell: %w", err, p.DataSource, cmp.Or(out.Err, errNoReceipt))
		}
	}
	if found {
		return nil
	}
	return err
}

var errNoReceipt = errors.New("it is not there")

// logged returns the error of a change to existing entries as the caller gets it. It hides
// ErrInDoubt, because listener.PendingError would take that to be about writing the entries.
func logged(err error) error {
	if errors.Is(err, txlog.ErrInDoubt) {
		return errors.New(err.Error())
	}
	return err
}

// compensate starts the compensation of the group because of cause, and compensates the applied parts. A
// nil cause means that others have started it.
func (g *Group) compensate(ctx context.Context, cause error) error {
	e := g.Deliverer
	text := "a part of it can no longer be delivered"
	if cause != nil {
		text = cause.Error()
	}
	own, cancel := e.cfg.own(ctx)
	defer cancel()
	id := g.Compensation.Unit.ID
	k, err := e.cfg.Storage.Compensate(own, id, e.cfg.Lease, text)
	if errors.Is(err, txlog.ErrNotFound) {
		if err = g.completed(own); err == nil {
			return nil // the job was faster, and it was not refused then
		} else if errors.Is(err, txlog.ErrCompensated) { // the job was faster, and has compensated it
			return g.compensated(ctx, g.Compensation.Unit, cmp.Or(cause, err))
		}
	}
	if err != nil {
		p := pending(g.Compensation, fmt.Errorf("%w; the group is to be compensated: %w", cmp.Or(cause, txlog.ErrCompensated), logged(err)))
		p.Compensating = errors.Is(err, txlog.ErrLeased)
		return p
	}
	if cause == nil {
		cause = errors.New(k.Undo.Cause)
	}
	d := &InFlight{Unit: k, lease: e.leases.Keep(k), logged: true}
	defer d.lease.Release()
	for _, i := range k.Undo.Order() {
		part := k.Part(i)
		d.Outcome = g.undo(ctx, d, part)
		switch out := &d.Outcome; {
		case out.Err == nil && !out.Voided && !out.Found && len(part.Statements) == 0:
			g.Kept = append(g.Kept, part.DataSource)
			fallthrough
		case out.Err == nil:
			continue
		}
		p := pending(d, fmt.Errorf("%w; it is to be compensated at %s: %w", cause, part.DataSource, d.Outcome.Err))
		p.DataSource, p.Compensating = part.DataSource, true
		v := txlog.Verdict{DataSource: part.DataSource, InDoubt: d.Outcome.Maybe(), Err: d.Outcome.Err.Error(), Park: d.Outcome.Class == dialect.Refused || d.Outcome.Class == dialect.Duplicate}
		if err := e.release(ctx, d, v); err == nil && v.Park {
			p.Parked = true
			e.reports.parked(d)
		}
		return p
	}
	e.Removals.Now(ctx, &removal.Unit{Entry: k, Lease: d.lease})
	return g.compensated(ctx, k, cause)
}

// undo tries to undo a part until it is undone, refused, or its retries are used up.
func (g *Group) undo(ctx context.Context, d *InFlight, part *txlog.Unit) (out attempt.Outcome) {
	e := g.Deliverer
	retries, cancel := context.WithTimeout(ctx, e.cfg.RetryTimeout)
	defer cancel()
	pause := e.cfg.pause(e.cfg.RetryMax)
	for tries := 0; tries <= e.cfg.SyncMaxDeliveryTryTimes; {
		bounded, cancel := e.bounded(ctx, d)
		out = g.Undo(bounded, part)
		cancel()
		d.Tries++
		if !out.OnReceipt {
			tries++
		}
		if out.Err == nil || out.Class == dialect.Refused || out.Class == dialect.Duplicate || lacksRights(out.Err) ||
			!jitter.Sleep(retries, pause.NextBackOff()) || d.lease.Lost() {
			break
		}
		ctx = retries
	}
	return out
}

// found reports whether the receipt of a part is there.
func (g *Group) found(ctx context.Context, part *txlog.Unit) bool {
	ctx, cancel := g.Deliverer.cfg.own(ctx)
	defer cancel()
	return g.Look(ctx, part).Found
}

// compensated is the answer for a group that was compensated, here or by others.
func (g *Group) compensated(ctx context.Context, k *txlog.Unit, cause error) error {
	for i, p := range k.Undo.Parts {
		applied := func(d *InFlight) bool { return d.Unit.ID == p.Unit && d.held && d.Outcome.Err == nil }
		part := k.Part(i)
		if len(part.Statements) == 0 && (slices.ContainsFunc(g.Parts, applied) || g.found(ctx, part)) {
			g.Kept = append(g.Kept, p.DataSource)
		}
	}
	return &listener.CompensatedError{TransactionID: k.ID, Cause: cause}
}
