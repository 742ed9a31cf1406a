package besteffort

import (
	"context"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// retry runs the unit again until it is delivered, refused, or its retries are
// used up.
func (d *Deliverer) retry(ctx context.Context, w *InFlight) error {
	if advice := dialect.AdviceOf(w.Outcome.Err); w.hung || advice.Operator || advice.After > d.RetryTimeout {
		return d.handOver(ctx, w)
	}
	rctx, cancel := context.WithTimeout(ctx, d.RetryTimeout)
	defer cancel()
	pause := jitter.BackOff(d.RetryInitial, d.RetryMax)
	for tries := 0; tries < d.SyncMaxDeliveryTryTimes; {
		if !jitter.Sleep(rctx, max(pause.NextBackOff(), dialect.AdviceOf(w.Outcome.Err).After)) || w.lease.Lost() {
			break
		}
		w.Unit.InDoubt = w.doubt == inDoubt
		d.try(rctx, w)
		if !w.Outcome.OnReceipt {
			tries++
		}
		switch {
		case w.Outcome.Err == nil:
			if w.Outcome.Assumed {
				d.warn(w.Unit, nil, "bed: a duplicate key after an attempt of unknown outcome counts as delivered; another row may hold the key")
			}
			return nil
		case w.Outcome.Class == dialect.Refused, w.Outcome.Class == dialect.Duplicate:
			return d.refused(ctx, w)
		case w.hung, LacksRights(w.Outcome.Err), dialect.AdviceOf(w.Outcome.Err).Operator:
			return d.handOver(ctx, w)
		}
	}
	return d.handOver(ctx, w)
}

// LacksRights reports whether the account lacks the right to read the receipt. Only an operator
// can fix that.
func LacksRights(err error) bool {
	return errors.As(err, new(*dialect.ReceiptRightsError))
}

// decide settles a unit in doubt by its receipt when another run could not help, because the unit
// must not run again or the database refuses it. If the unit was not applied, it never will be,
// and the caller gets the outcome of w.
func (d *Deliverer) decide(ctx context.Context, w *InFlight) error {
	switch decided := !w.hung && d.ask(ctx, w); {
	case !decided:
		return d.handOver(ctx, w)
	case w.Outcome.Delivered():
		return nil
	default:
		return d.refused(ctx, w)
	}
}

// ask reads the receipt to find out whether a unit in doubt was applied. If it was not, ask makes
// sure that it never will be. w.Outcome is then the delivery it found, or else the earlier answer
// to the caller. It returns false if it could not read the receipt.
func (d *Deliverer) ask(ctx context.Context, w *InFlight) (decided bool) {
	answer := w.Outcome
	rctx, cancel := context.WithTimeout(ctx, d.RetryTimeout)
	defer cancel()
	pause := jitter.BackOff(d.RetryInitial, d.RetryMax)
	for tries := 0; tries < max(d.SyncMaxDeliveryTryTimes, 1) && !LacksRights(answer.Err); {
		if w.lease.Lost() || !jitter.Sleep(rctx, pause.NextBackOff()) {
			break
		}
		out := w.Attempts.Void(rctx)
		switch {
		case out.Delivered():
			w.Outcome = out
			return true
		case out.Voided:
			w.decided(w.Unit.Fingerprint == "")
			if w.Outcome = answer; answer.OnReceipt {
				w.Outcome = out
			}
			return true
		case LacksRights(out.Err):
			answer.Err = fmt.Errorf("%w; whether it was applied cannot be found out: %w", answer.Err, out.Err)
		case !out.OnReceipt:
			tries++
		}
	}
	w.Outcome = answer
	return false
}

// handOver leaves an unsettled unit to the job.
func (d *Deliverer) handOver(ctx context.Context, w *InFlight) error {
	w.take(leave)
	if w.lease.Lost() {
		return w.Pending(fmt.Errorf("%w; the last attempt said: %w", txlog.ErrLeaseLost, w.Outcome.Err))
	}
	// The job need not wait for the end of the lease. If the report fails, the lease runs out.
	contended := w.Outcome.Class == dialect.Contention || dialect.AdviceOf(w.Outcome.Err).Busy
	_ = d.Release(ctx, w, entry.Verdict{InDoubt: w.doubt == inDoubt, Contended: contended, Err: w.Outcome.Err.Error()})
	d.warn(w.Unit, d.Dialect.Describe(w.Outcome.Err), "bed: the write is left to the job")
	return w.Pending(w.Outcome.Err)
}

// refused answers a refusal, or the certainty that nothing was sent and nothing will be. It must
// remove the entry before the caller gets its answer.
func (d *Deliverer) refused(ctx context.Context, w *InFlight) error {
	if dialect.AdviceOf(w.Outcome.Err).Final {
		w.decided(false)
	}
	switch {
	case w.doubt == inDoubt && w.Ending == HoldSettled && d.Dialect.Peer != nil: // undoing its group finds it out
		w.take(hold)
		return w.answer()
	case w.doubt == inDoubt && w.Unit.Receipt != "":
		if w.parks() {
			return d.handOver(ctx, w) // the job asks for the receipt before it parks
		}
		return d.decide(ctx, w)
	case w.doubt == inDoubt:
		// An earlier attempt may have been applied, so "no" would be a guess.
		return d.park(ctx, w, fmt.Errorf("refused after an attempt of unknown outcome: %w", w.Outcome.Err))
	case w.Unit.AddRepeated && w.Unit.Receipt == "" && !w.parks():
		// The first INSERT of the entry may arrive after its removal, and the job would run the
		// unit although the caller got a refusal. If the row stays, the INSERT fails.
		w.doubtIf(true)
		return d.park(ctx, w, fmt.Errorf("refused, but its entry had to be written twice and may come back: %w", w.Outcome.Err))
	case w.Ending == HoldSettled, w.Ending == HoldRefused && w.parks():
		w.take(hold)
		return w.answer()
	case w.parks():
		w.take(leave)
		if err := d.Release(ctx, w, entry.Verdict{Park: true, Err: w.Outcome.Err.Error()}); err != nil {
			p := w.Pending(w.Outcome.Err)
			p.Parking = true
			return p
		}
		d.Parked(w)
		return &listener.RefusedError{EntryID: w.Unit.ID, DataSource: w.Unit.DataSource, Cause: w.Outcome.Err}
	}
	if err := d.Removals.Once(ctx, &removal.Unit{Entry: w.Unit, Lease: w.lease}); err != nil {
		if w.Outcome.Class.Later() && errors.Is(err, txlog.ErrLeaseLost) {
			// The job was faster and delivers the unit; the database's error was about that
			// attempt.
			w.take(leave)
			return w.Pending(fmt.Errorf("%w; the last attempt said: %w", err, w.Outcome.Err))
		}
		d.warn(w.Unit, dberr.DescribeLog(err), "bed: the write was refused, but its entry could not be removed")
		return d.StillThere(ctx, w, err)
	}
	w.take(finish)
	if w.doubt == voided {
		ctx, cancel := d.Own(ctx)
		defer cancel()
		if out := w.Attempts.MarkReported(ctx); out.Err != nil {
			d.logger(w.Unit).WithField("error", d.Dialect.Describe(out.Err)).Info("bed: could not record the answer in the receipt; should the entry come back, it is parked")
		}
	}
	return w.answer()
}

// StillThere is the answer for a refused unit whose entry could not be removed. It promises a try
// by the job only if the entry surely exists.
func (d *Deliverer) StillThere(ctx context.Context, w *InFlight, unremoved error) error {
	w.take(leave)
	if errors.Is(unremoved, txlog.ErrLeaseLost) {
		ctx, cancel := d.Own(ctx)
		defer cancel()
		if _, err := d.Storage.Get(ctx, w.Unit.ID); err != nil {
			unremoved = fmt.Errorf("%w: %w", txlog.ErrInDoubt, unremoved)
		}
	}
	if errors.Is(unremoved, txlog.ErrInDoubt) {
		unknown := w.mayBeThere(w.Outcome.Err, unremoved)
		unknown.Refused = true
		return unknown
	}
	p := w.Pending(w.Outcome.Err)
	p.Refused = true
	return p
}

// park leaves the unit for an operator.
func (d *Deliverer) park(ctx context.Context, w *InFlight, cause error) error {
	w.take(leave)
	err := d.Release(ctx, w, entry.Verdict{Park: true, InDoubt: w.doubt == inDoubt, Err: cause.Error()})
	pending := w.Pending(cause)
	pending.Parked, pending.Parking = err == nil, err != nil
	if err == nil {
		d.Parked(w)
	}
	return pending
}

// Refuse answers a refusal that was held: it parks the unit.
func (d *Deliverer) Refuse(ctx context.Context, w *InFlight) error {
	defer w.lease.Release()
	w.take(resume)
	w.Ending = ParkRefused
	return d.Answer(w, d.refused(ctx, w))
}

// Release gives the unit up with a verdict, on a context of its own, because the caller's context
// may be the reason. If it fails, the lease runs out, and the job treats the unit as in doubt.
func (d *Deliverer) Release(ctx context.Context, w *InFlight, v entry.Verdict) error {
	ctx, cancel := d.Own(ctx)
	defer cancel()
	w.lease.Refresh()
	v.Attempts = w.failed
	err := d.Storage.Release(ctx, w.Unit, v)
	if err != nil {
		d.warn(w.Unit, dberr.DescribeLog(err), "bed: the log did not confirm that the entry was handed over; if it was not, the job takes it when its lease has run out")
	}
	return err
}
