package besteffort

import (
	"context"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// refused answers a no of the database, or the certainty that nothing was
// sent and nothing will be: the log must be gone before the caller is told.
func (e *Deliverer) refused(ctx context.Context, d *Delivery) error {
	if d.inDoubt && d.Unit.Receipt != "" && !d.KeepRefused {
		return e.decide(ctx, d)
	}
	if d.inDoubt {
		// An earlier attempt may have been applied, so "no" would be a guess.
		return e.park(ctx, d, fmt.Errorf("refused after an attempt of unknown outcome: %w", d.Outcome.Err))
	}
	if d.Unit.AddRepeated && d.Unit.Receipt == "" && !d.parksRefusal() {
		// The first INSERT of the entry may arrive after its removal, and the job
		// would run the unit although the caller was told no. A row that stays
		// keeps it from coming back.
		d.inDoubt = true
		return e.park(ctx, d, fmt.Errorf("refused, but its entry had to be written twice and may come back: %w", d.Outcome.Err))
	}
	if d.parksRefusal() {
		refusal := &listener.RefusedError{LogID: d.Unit.ID, DataSource: d.Unit.DataSource, Cause: d.Outcome.Err}
		if err := e.release(ctx, d, txlog.Verdict{Park: true, Err: d.Outcome.Err.Error()}); err != nil {
			return pending(d, refusal)
		}
		e.parked(d)
		return refusal
	}
	if err := e.remove(ctx, d); err != nil {
		e.warn(d, err, "bed: the write was refused, but its entry could not be removed")
		return pending(d, d.Outcome.Err)
	}
	if d.voided {
		ctx, cancel := e.own(ctx)
		defer cancel()
		if out := d.Attempts.Answered(ctx); out.Err != nil {
			e.logger(d).WithField("error", e.cfg.Dialect.Describe(out.Err)).Info("bed: the receipt could not be told of the answer; should the log come back, it is parked")
		}
	}
	return d.Outcome.Err
}

// park leaves the unit for an operator.
func (e *Deliverer) park(ctx context.Context, d *Delivery, cause error) error {
	err := e.release(ctx, d, txlog.Verdict{Park: true, InDoubt: d.inDoubt, Err: cause.Error()})
	pending := pending(d, cause)
	if err == nil {
		pending.Parked = true
		e.parked(d)
	}
	return pending
}

func (e *Deliverer) parked(d *Delivery) {
	e.logger(d).WithField("error", e.cfg.Dialect.Describe(d.Outcome.Err)).Warn("bed: the write is parked")
	if e.cfg.Bus.Listening() {
		e.cfg.Bus.Publish(d.Outcome.Event(listener.Parked, d.origin(), d.Unit))
	}
}

// release gives the log up with a verdict, on a context of its own: the
// caller's may be the reason for it. When it fails the lease runs out, and the
// job takes the unit as one in doubt.
func (e *Deliverer) release(ctx context.Context, d *Delivery, v txlog.Verdict) error {
	ctx, cancel := e.own(ctx)
	defer cancel()
	d.lease.Refresh()
	v.Attempts = d.failed
	err := e.cfg.Storage.Release(ctx, d.Unit, v)
	if err != nil {
		e.warn(d, dberr.DescribeLog(err), "bed: the entry could not be handed over, the job takes it when its lease has run out")
	}
	return err
}

// own is a context for telling the log what has become of a write after the
// caller is gone.
func (e *Deliverer) own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), e.cfg.LogTimeout)
}
