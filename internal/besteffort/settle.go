package besteffort

import (
	"context"
	"errors"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// settle ends a delivery whose first attempt was made without waiting for the
// log, as far as the log is what decides: err is the caller's answer then. Not
// settled means that the entry is written, and all goes on as if it had been
// before.
func (e *Deliverer) settle(ctx context.Context, d *Delivery, beside *adding) (settled bool, err error) {
	applied := d.Outcome.Delivered()
	switch {
	case beside == nil && applied:
		e.entries.deliveredUnlogged(d)
		return true, nil
	case beside == nil && d.final() && !d.parksRefusal():
		return true, d.Outcome.Err
	case beside != nil && applied:
		select {
		case <-beside.done:
		case <-ctx.Done():
			// The caller has its Result; what becomes of the entry is seen to
			// behind it.
			late := *d
			if e.entries.removals.Go(func() { e.settleApplied(ctx, &late, beside) }) {
				return true, nil
			}
		}
		e.settleApplied(ctx, d, beside)
		return true, nil
	}
	switch err := e.entries.addSent(ctx, d, beside); {
	case err == nil:
		return false, nil
	case errors.Is(err, txlog.ErrInDoubt):
		return true, pendingInDoubt(d, d.Outcome.Err)
	case d.final():
		return true, d.Outcome.Err
	case !d.Outcome.Maybe():
		return true, e.notLogged(d)
	default:
		return true, e.decideUnlogged(ctx, d)
	}
}

// settleApplied ends a unit that was applied while its entry was being written:
// whatever became of the entry, the write is delivered. What has to be removed is
// removed once the log has answered, never before: an entry that arrives late
// would come back.
func (e *Deliverer) settleApplied(ctx context.Context, d *Delivery, beside *adding) {
	switch err := e.entries.addSent(ctx, d, beside); {
	case err == nil:
		e.entries.delivered(ctx, d)
	case errors.Is(err, txlog.ErrInDoubt):
		e.entries.deliveredInDoubt(d)
	default:
		e.entries.deliveredUnlogged(d)
		e.reports.warn(d.Unit, dberr.DescribeLog(err), "bed: the write is delivered, its entry could not be written alongside")
		if e.cfg.Unlogged != nil {
			e.cfg.Unlogged.Add(1)
		}
	}
}

// notLogged is the answer to a write that is not applied and has no entry.
func (e *Deliverer) notLogged(d *Delivery) error {
	return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: d.unwritten, Attempt: d.Outcome.Err}
}

// decideUnlogged ends the doubt about a unit without an entry by its receipt, on
// a context of its own: nobody can do it later.
func (e *Deliverer) decideUnlogged(ctx context.Context, d *Delivery) error {
	if d.Unit.Receipt != "" {
		ctx, cancel := e.cfg.own(ctx)
		defer cancel()
		switch decided := e.ask(ctx, d); {
		case decided && d.Outcome.Delivered():
			e.entries.deliveredUnlogged(d)
			return nil
		case decided:
			return e.notLogged(d)
		}
	}
	return &listener.UnknownOutcomeError{DataSource: d.Unit.DataSource, Cause: d.Outcome.Err, Log: d.unwritten}
}
