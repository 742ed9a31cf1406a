package group

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

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
