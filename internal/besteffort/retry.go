package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// retry runs the unit again until it is delivered, refused, or its retries are
// used up.
func (e *Deliverer) retry(ctx context.Context, d *InFlight) error {
	if d.hung {
		return e.handOver(ctx, d)
	}
	rctx, cancel := context.WithTimeout(ctx, e.cfg.RetryTimeout)
	defer cancel()
	pause := e.cfg.pause(e.cfg.RetryMax)
	for tries := 0; tries < e.cfg.SyncMaxDeliveryTryTimes; {
		if !jitter.Sleep(rctx, pause.NextBackOff()) || d.lease.Lost() {
			break
		}
		d.Unit.InDoubt = d.inDoubt
		e.try(rctx, d)
		if !d.Outcome.OnReceipt {
			tries++
		}
		switch {
		case d.Outcome.Err == nil:
			if d.Outcome.Assumed {
				e.reports.warn(d.Unit, nil, "bed: a duplicate key after an attempt of unknown outcome counts as delivered; another row may hold the key")
			}
			return nil
		case d.Outcome.Class == dialect.Refused, d.Outcome.Class == dialect.Duplicate:
			return e.refused(ctx, d)
		case d.hung, lacksRights(d.Outcome.Err):
			return e.handOver(ctx, d)
		}
	}
	return e.handOver(ctx, d)
}

// lacksRights reports whether the account lacks the right to read the receipt. Only an operator
// can fix that.
func lacksRights(err error) bool {
	var rights *dialect.ReceiptRightsError
	return errors.As(err, &rights)
}

// decide settles a unit in doubt by its receipt when another run could not help, because the unit
// must not run again or the database refuses it. If the unit was not applied, it never will be,
// and the caller gets the outcome of d.
func (e *Deliverer) decide(ctx context.Context, d *InFlight) error {
	switch decided := !d.hung && e.ask(ctx, d); {
	case !decided:
		return e.handOver(ctx, d)
	case d.Outcome.Delivered():
		return nil
	default:
		return e.refused(ctx, d)
	}
}

// ask reads the receipt to find out whether a unit in doubt was applied. If it was not, ask makes
// sure that it never will be. d.Outcome is then the delivery it found, or else the earlier answer
// to the caller. It returns false if it could not read the receipt.
func (e *Deliverer) ask(ctx context.Context, d *InFlight) (decided bool) {
	answer := d.Outcome
	rctx, cancel := context.WithTimeout(ctx, e.cfg.RetryTimeout)
	defer cancel()
	pause := e.cfg.pause(e.cfg.RetryMax)
	for tries := 0; tries < max(e.cfg.SyncMaxDeliveryTryTimes, 1) && !lacksRights(answer.Err); {
		if d.lease.Lost() || !jitter.Sleep(rctx, pause.NextBackOff()) {
			break
		}
		out := d.Attempts.Again(rctx, Void)
		switch {
		case out.Delivered():
			d.Outcome = out
			return true
		case out.Voided:
			d.inDoubt, d.voided = false, d.Unit.Fingerprint == ""
			if d.Outcome = answer; answer.OnReceipt {
				d.Outcome = out
			}
			return true
		case lacksRights(out.Err):
			answer.Err = fmt.Errorf("%w; whether it was applied cannot be found out: %w", answer.Err, out.Err)
		case !out.OnReceipt:
			tries++
		}
	}
	d.Outcome = answer
	return false
}

// handOver leaves an unsettled unit to the job.
func (e *Deliverer) handOver(ctx context.Context, d *InFlight) error {
	if d.lease.Lost() {
		return pending(d, fmt.Errorf("%w; the last attempt said: %w", txlog.ErrLeaseLost, d.Outcome.Err))
	}
	// The job need not wait for the end of the lease. If the report fails, the lease runs out.
	_ = e.release(ctx, d, txlog.Verdict{InDoubt: d.inDoubt, Contended: d.Outcome.Class == dialect.Contention, Err: d.Outcome.Err.Error()})
	e.reports.warn(d.Unit, e.cfg.Dialect.Describe(d.Outcome.Err), "bed: the write is left to the job")
	return pending(d, d.Outcome.Err)
}

// refused answers a refusal, or the certainty that nothing was sent and nothing will be. It must
// remove the entry before the caller gets its answer.
func (e *Deliverer) refused(ctx context.Context, d *InFlight) error {
	if d.inDoubt && d.Unit.Receipt != "" {
		if d.parksRefusal() {
			return e.handOver(ctx, d) // the job asks for the receipt before it parks
		}
		return e.decide(ctx, d)
	}
	if d.inDoubt {
		// An earlier attempt may have been applied, so "no" would be a guess.
		return e.park(ctx, d, fmt.Errorf("refused after an attempt of unknown outcome: %w", d.Outcome.Err))
	}
	if d.Unit.AddRepeated && d.Unit.Receipt == "" && !d.parksRefusal() {
		// The first INSERT of the entry may arrive after its removal, and the job would run the
		// unit although the caller got a refusal. If the row stays, the INSERT fails.
		d.inDoubt = true
		return e.park(ctx, d, fmt.Errorf("refused, but its entry had to be written twice and may come back: %w", d.Outcome.Err))
	}
	if d.HoldRefused && d.parksRefusal() {
		d.refusal = true
		return d.answer()
	}
	if d.parksRefusal() {
		if err := e.release(ctx, d, txlog.Verdict{Park: true, Err: d.Outcome.Err.Error()}); err != nil {
			p := pending(d, d.Outcome.Err)
			p.Parking = true
			return p
		}
		e.reports.parked(d)
		return &listener.RefusedError{EntryID: d.Unit.ID, DataSource: d.Unit.DataSource, Cause: d.Outcome.Err}
	}
	if d.held = d.Held; d.held {
		return d.answer()
	}
	if err := e.Removals.Once(ctx, &removal.Unit{Entry: d.Unit, Lease: d.lease}); err != nil {
		if d.Outcome.Class.Later() && errors.Is(err, txlog.ErrLeaseLost) {
			// The job was faster and delivers the unit; the database's error was about that
			// attempt.
			return pending(d, fmt.Errorf("%w; the last attempt said: %w", err, d.Outcome.Err))
		}
		e.reports.warn(d.Unit, dberr.DescribeLog(err), "bed: the write was refused, but its entry could not be removed")
		return e.stillThere(ctx, d, err)
	}
	if d.voided {
		ctx, cancel := e.cfg.own(ctx)
		defer cancel()
		if out := d.Attempts.Again(ctx, MarkReported); out.Err != nil {
			e.reports.logger(d.Unit).WithField("error", e.cfg.Dialect.Describe(out.Err)).Info("bed: could not record the answer in the receipt; should the entry come back, it is parked")
		}
	}
	return d.answer()
}

// stillThere is the answer for a refused unit whose entry could not be removed. It promises a try
// by the job only if the entry surely exists.
func (e *Deliverer) stillThere(ctx context.Context, d *InFlight, unremoved error) error {
	if errors.Is(unremoved, txlog.ErrLeaseLost) {
		ctx, cancel := e.cfg.own(ctx)
		defer cancel()
		if _, err := e.cfg.Storage.Get(ctx, d.Unit.ID); err != nil {
			unremoved = fmt.Errorf("%w: %w", txlog.ErrInDoubt, unremoved)
		}
	}
	if d.unwritten = unremoved; errors.Is(unremoved, txlog.ErrInDoubt) {
		unknown := inDoubt(d, d.Outcome.Err)
		unknown.Refused = true
		return unknown
	}
	p := pending(d, d.Outcome.Err)
	p.Refused = true
	return p
}

// park leaves the unit for an operator.
func (e *Deliverer) park(ctx context.Context, d *InFlight, cause error) error {
	err := e.release(ctx, d, txlog.Verdict{Park: true, InDoubt: d.inDoubt, Err: cause.Error()})
	pending := pending(d, cause)
	pending.Parked, pending.Parking = err == nil, err != nil
	if err == nil {
		e.reports.parked(d)
	}
	return pending
}

// release gives the unit up with a verdict, on a context of its own, because the caller's context
// may be the reason. If it fails, the lease runs out, and the job treats the unit as in doubt.
func (e *Deliverer) release(ctx context.Context, d *InFlight, v txlog.Verdict) error {
	ctx, cancel := e.cfg.own(ctx)
	defer cancel()
	d.lease.Refresh()
	v.Attempts = d.failed
	err := e.cfg.Storage.Release(ctx, d.Unit, v)
	if err != nil {
		e.reports.warn(d.Unit, dberr.DescribeLog(err), "bed: the log did not confirm that the entry was handed over; if it was not, the job takes it when its lease has run out")
	}
	return err
}

// orderLooks is the longest pause between two looks at whether a unit's turn has come.
const orderLooks = 100 * time.Millisecond

// follow waits until a unit's predecessor under its order key is done, for OrderWait at most, and
// then takes the unit's lease. After an error the unit is left to the job, which delivers it in
// its turn.
func (e *Deliverer) follow(ctx context.Context, d *InFlight) error {
	behind := func() error {
		b := &listener.BehindError{Entry: d.Unit.Behind}
		if len(d.Unit.Order) > 0 {
			b.Key = d.Unit.Order[0].Key
		}
		return b
	}
	if d.Unit.NotReplayable != "" {
		// It cannot be run later, and was not sent.
		cause := fmt.Errorf("it cannot wait, for it must not be run again (%s): %w", d.Unit.NotReplayable, behind())
		if err := e.Removals.Once(ctx, &removal.Unit{Entry: d.Unit}); err != nil {
			if d.unwritten = err; errors.Is(err, txlog.ErrInDoubt) {
				return inDoubt(d, cause)
			}
			return pending(d, fmt.Errorf("%w; and its entry could not be removed: %w", cause, err))
		}
		return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: cause}
	}
	wait := e.cfg.OrderWait
	if d.TurnHasCome {
		wait = max(wait, e.cfg.LogTimeout)
	}
	if wait <= 0 || d.AnswerIsFinal { // a local transaction has seen what was before its turn, and holds locks
		return pending(d, behind())
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for pause := jitter.BackOff(2*time.Millisecond, orderLooks); jitter.Sleep(waiting, pause.NextBackOff()); {
		u, err := e.cfg.Storage.Get(waiting, d.Unit.ID)
		switch {
		case errors.Is(err, txlog.ErrNotFound):
			return pending(d, fmt.Errorf("the job has taken it in its turn: %w", err))
		case err != nil:
			continue
		case u.Behind != "":
			d.Unit.Behind = u.Behind
			continue
		}
		own, cancel := e.cfg.own(ctx)
		lost, err := e.cfg.Storage.Renew(own, e.cfg.Lease, d.Unit)
		cancel()
		switch {
		case err != nil:
			return pending(d, err)
		case len(lost) > 0:
			return pending(d, fmt.Errorf("the job has taken it in its turn: %w", txlog.ErrLeaseLost))
		}
		d.Unit.Behind, d.Unit.AtOnce = "", false
		d.lease = e.leases.Keep(d.Unit)
		return nil
	}
	return pending(d, behind())
}
