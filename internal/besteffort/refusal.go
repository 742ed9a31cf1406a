package besteffort

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// RefuseAll ends a group with no applied units. In one step it removes the entries of its units,
// all Refused, and of its unsent messages. It returns the callers' errors in the order of the
// units. nil means that nothing was removed, and the caller must park the units.
func (e *Deliverer) RefuseAll(ctx context.Context, refused, unsent []*InFlight) (errs []error) {
	ds := slices.Concat(refused, unsent)
	units := make([]*txlog.Unit, len(ds))
	for i, d := range ds {
		if d.lease.Lost() || d.Unit.Behind != "" || d.Unit.AddRepeated { // the entries may come back, or be another's
			return nil
		}
		d.lease.Refresh()
		units[i] = d.Unit
	}
	own, cancel := e.cfg.own(ctx)
	defer cancel()
	var lost *txlog.LeaseLostError
	err := e.cfg.Storage.Remove(own, units...)
	if err != nil && !errors.As(err, &lost) && !errors.Is(err, txlog.ErrInDoubt) {
		return nil
	}
	for i, d := range ds {
		var answer error
		switch gone := err == nil || lost != nil && !slices.Contains(lost.IDs, d.Unit.ID); {
		case i < len(refused) && gone:
			answer = &listener.RefusedError{DataSource: d.Unit.DataSource, Removed: true, Cause: d.Outcome.Err}
		case i < len(refused):
			answer = e.stillThere(own, d, err)
		case gone:
			answer = attempt.Certain(fmt.Errorf("bed: the message to %s was not sent: its group was refused, and its entry is removed", d.Unit.DataSource), dialect.Unreachable)
		default:
			answer = pending(d, logged(err))
		}
		d.lease.Release()
		errs = append(errs, e.answer(d, answer))
	}
	return errs
}

// Park parks a unit that is Refused.
func (e *Deliverer) Park(ctx context.Context, d *InFlight) error {
	d.HoldRefused, d.refusal = false, false
	defer d.lease.Release()
	return e.answer(d, e.refused(ctx, d))
}
