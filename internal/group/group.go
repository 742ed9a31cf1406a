// Package group ends groups of units that are delivered together: a refused group leaves the log,
// a compensable one is completed or compensated.
package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Storage is the part of a txlog.Storage that ends compensable groups.
type Storage interface {
	Complete(ctx context.Context, k *entry.Unit) error
	Compensate(ctx context.Context, id string, lease time.Duration, cause string) (*entry.Unit, error)
}

// Group is a compensable group at its end: Deliver has answered for each of the units for End.
type Group struct {
	Deliverer *besteffort.Deliverer
	Storage   Storage
	// Compensation is the InFlight of the compensation.
	Compensation *besteffort.InFlight
	// Parts are the units that went to DeliverLogged, with HoldSettled.
	Parts []*besteffort.InFlight
	// Open means that other units are not known to be delivered.
	Open bool
	// Compensating means that others have found the group being compensated.
	Compensating bool
	// Undo compensates a part (entry.Unit.Part), on a connection to its data source. Look reads
	// its receipt there. It returns Found or Voided, neither if there is no receipt, or both if
	// the part was applied before it was voided.
	Undo, Look func(ctx context.Context, part *entry.Unit) attempt.Outcome

	// Kept are the data sources, possibly repeated, with applied parts that the compensation does
	// not cover.
	Kept []string
}

// End completes the group if every part is delivered, and compensates it if a part was refused.
// whole is then true, and err is the caller's answer for the whole group; nil means delivered.
// Otherwise the answers of the parts count, and the job goes on. After a crash at any point the
// job can go on from the compensation, the receipts, and the remaining entries.
func (g *Group) End(ctx context.Context) (whole bool, err error) {
	d := g.Deliverer
	defer func() {
		for _, w := range append(g.Parts, g.Compensation) {
			w.Lease().Release()
		}
	}()
	var refused []error
	known := Known{Open: g.Open, Compensating: g.Compensating}
	for _, w := range g.Parts {
		part := Delivered
		switch {
		case !w.Held():
			part = Waiting
		case w.Outcome.Voided: // the group is being compensated
			part = Voided
		case w.Outcome.Err != nil:
			part = Refused
			refused = append(refused, fmt.Errorf("%s: %w", w.Unit.DataSource, w.Outcome.Err))
		}
		known.Parts = append(known.Parts, part)
	}
	switch known.Decide() {
	case Compensate:
		return true, g.compensate(ctx, errors.Join(refused...))
	case LeaveOpen, AskAgain:
		reached := "" // a job reviews the compensation there: others may be out of reach
		for _, w := range g.Parts {
			if w.Held() {
				reached = w.Unit.DataSource
				d.Remove(ctx, w)
			}
		}
		switch v := (entry.Verdict{DataSource: reached}); {
		case g.Compensation.Lease() != nil:
			_ = d.Release(ctx, g.Compensation, v)
		case reached != "": // nobody has leased it, unless a job is looking at it
			own, cancel := d.Own(ctx)
			defer cancel()
			_ = d.Storage.Release(own, g.Compensation.Unit, v)
		}
		return false, nil
	}
	switch err := g.complete(ctx); {
	case errors.Is(err, txlog.ErrCompensated):
		return true, g.compensate(ctx, nil)
	case err != nil:
		return true, g.Compensation.Pending(fmt.Errorf("all of it is delivered, which the log did not confirm: %w", logged(err)))
	}
	return true, nil
}

// complete removes the entries of a delivered group, the compensation last.
func (g *Group) complete(ctx context.Context) error {
	d := g.Deliverer
	ctx, cancel := d.Own(ctx)
	defer cancel()
	units := make([]*entry.Unit, len(g.Parts))
	for i, w := range g.Parts {
		w.Lease().Refresh()
		units[i] = w.Unit
	}
	if len(units) > 0 {
		if err := d.Storage.Remove(ctx, units...); err != nil && !errors.Is(err, txlog.ErrLeaseLost) {
			return err
		}
	}
	g.Compensation.Lease().Refresh()
	return g.completed(ctx)
}

// completed completes the group in the log. If the compensation is gone and the log does not know
// how it ended, the receipts do. Each receipt of a compensated group is void, and a part without a
// receipt was rolled back to a savepoint.
func (g *Group) completed(ctx context.Context) error {
	k := g.Compensation.Unit
	err := g.Storage.Complete(ctx, k)
	if !errors.Is(err, txlog.ErrNotFound) {
		return err
	}
	known := Known{Gone: true}
	for i, p := range k.Undo.Parts {
		out := g.Look(ctx, k.Part(i))
		if known.Parts = append(known.Parts, receipt(out)); known.Decide() == Compensate {
			return fmt.Errorf("%w (%s)", txlog.ErrCompensated, k.ID)
		}
		if !out.Found {
			err = fmt.Errorf("%w; nor does its receipt in %s tell: %w", err, p.DataSource, cmp.Or(out.Err, errNoReceipt))
		}
	}
	if known.Decide() == Complete {
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
	d := g.Deliverer
	text := "a part of it can no longer be delivered"
	if cause != nil {
		text = cause.Error()
	}
	own, cancel := d.Own(ctx)
	defer cancel()
	id := g.Compensation.Unit.ID
	k, err := g.Storage.Compensate(own, id, d.Lease, text)
	if errors.Is(err, txlog.ErrNotFound) {
		if err = g.completed(own); err == nil {
			return nil // the job was faster, and it was not refused then
		} else if errors.Is(err, txlog.ErrCompensated) { // the job was faster, and has compensated it
			return g.compensated(ctx, g.Compensation.Unit, cmp.Or(cause, err))
		}
	}
	if err != nil {
		p := g.Compensation.Pending(fmt.Errorf("%w; the group is to be compensated: %w", cmp.Or(cause, txlog.ErrCompensated), logged(err)))
		p.Compensating = errors.Is(err, txlog.ErrLeased)
		return p
	}
	if cause == nil {
		cause = errors.New(k.Undo.Cause)
	}
	for i, p := range k.Undo.Parts {
		k.Undo.Parts[i].Applied = p.Applied || slices.ContainsFunc(g.Parts, appliedIn(p))
	}
	w := d.Resume(k)
	defer w.Lease().Release()
	for _, i := range k.Undo.Order() {
		part := k.Part(i)
		w.Outcome = g.undo(ctx, w, part)
		switch out := &w.Outcome; {
		case out.Err == nil && !out.Voided && !out.Found && len(part.Statements) == 0:
			g.Kept = append(g.Kept, part.DataSource)
			fallthrough
		case out.Err == nil:
			continue
		}
		p := w.Pending(fmt.Errorf("%w; it is to be compensated at %s: %w", cause, part.DataSource, w.Outcome.Err))
		p.DataSource, p.Compensating = part.DataSource, true
		v := entry.Verdict{DataSource: part.DataSource, InDoubt: w.Outcome.Maybe(), Err: w.Outcome.Err.Error(), Park: w.Outcome.Class == dialect.Refused || w.Outcome.Class == dialect.Duplicate}
		if err := d.Release(ctx, w, v); err == nil && v.Park {
			p.Parked = true
			d.Parked(w)
		}
		return p
	}
	d.Removals.Now(ctx, &removal.Unit{Entry: k, Lease: w.Lease()})
	return g.compensated(ctx, k, cause)
}

// undo tries to undo a part until it is undone, refused, or its retries are used up.
func (g *Group) undo(ctx context.Context, w *besteffort.InFlight, part *entry.Unit) (out attempt.Outcome) {
	d := g.Deliverer
	retries, cancel := context.WithTimeout(ctx, d.RetryTimeout)
	defer cancel()
	pause := jitter.BackOff(d.RetryInitial, d.RetryMax)
	for tries := 0; tries <= d.SyncMaxDeliveryTryTimes; {
		bounded, cancel := d.Bounded(ctx, w)
		out = g.Undo(bounded, part)
		cancel()
		w.Tries++
		if !out.OnReceipt {
			tries++
		}
		if out.Err == nil || out.Class == dialect.Refused || out.Class == dialect.Duplicate || besteffort.LacksRights(out.Err) || dialect.AdviceOf(out.Err).Operator ||
			!jitter.Sleep(retries, pause.NextBackOff()) || w.Lease().Lost() {
			break
		}
		ctx = retries
	}
	return out
}

// found reports whether the receipt of a part is there.
func (g *Group) found(ctx context.Context, part *entry.Unit) bool {
	ctx, cancel := g.Deliverer.Own(ctx)
	defer cancel()
	return g.Look(ctx, part).Found
}

// appliedIn reports whether a unit is that of a part, and applied.
func appliedIn(p entry.Part) func(*besteffort.InFlight) bool {
	return func(w *besteffort.InFlight) bool {
		return w.Unit.ID == p.Unit && w.Held() && w.Outcome.Err == nil
	}
}

// compensated is the answer for a group that was compensated, here or by others.
func (g *Group) compensated(ctx context.Context, k *entry.Unit, cause error) error {
	for i, p := range k.Undo.Parts {
		part := k.Part(i)
		if len(part.Statements) == 0 && (slices.ContainsFunc(g.Parts, appliedIn(p)) || g.found(ctx, part)) {
			g.Kept = append(g.Kept, p.DataSource)
		}
	}
	return &listener.CompensatedError{TransactionID: k.ID, Cause: cause}
}

// Refuse ends a group with no applied units. In one step it removes the entries of its units,
// all HoldRefused, and of its unsent messages. It returns the callers' errors in the order of the
// units. nil means that nothing was removed, and the caller must park the units.
func Refuse(ctx context.Context, d *besteffort.Deliverer, refused, unsent []*besteffort.InFlight) (errs []error) {
	all := slices.Concat(refused, unsent)
	units := make([]*entry.Unit, len(all))
	for i, w := range all {
		if w.Lease().Lost() || w.Unit.Behind != "" || w.Unit.AddRepeated { // the entries may come back, or be another's
			return nil
		}
		w.Lease().Refresh()
		units[i] = w.Unit
	}
	own, cancel := d.Own(ctx)
	defer cancel()
	var lost *entry.LeaseLostError
	err := d.Storage.Remove(own, units...)
	if err != nil && !errors.As(err, &lost) && !errors.Is(err, txlog.ErrInDoubt) {
		return nil
	}
	for i, w := range all {
		var answer error
		switch gone := err == nil || lost != nil && !slices.Contains(lost.IDs, w.Unit.ID); {
		case i < len(refused) && gone:
			answer = &listener.RefusedError{DataSource: w.Unit.DataSource, Removed: true, Cause: w.Outcome.Err}
		case i < len(refused):
			answer = d.StillThere(own, w, err)
		case gone:
			answer = attempt.Certain(fmt.Errorf("bed: the message to %s was not sent: its group was refused, and its entry is removed", w.Unit.DataSource), dialect.Unreachable)
		default:
			answer = w.Leave(logged(err))
		}
		w.Lease().Release()
		errs = append(errs, d.Answer(w, answer))
	}
	return errs
}
