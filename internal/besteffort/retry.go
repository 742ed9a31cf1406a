package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// retry runs the unit again until it is delivered, refused, or its retries are
// used up.
func (e *Deliverer) retry(ctx context.Context, d *Delivery) error {
	rctx, cancel := context.WithTimeout(ctx, e.cfg.RetryTimeout)
	defer cancel()
	pause := e.pause(e.cfg.RetryMax)
	for tries := 0; tries < e.cfg.SyncMaxDeliveryTryTimes; {
		if sleep(rctx, pause.NextBackOff()) != nil || d.lease.Lost() {
			break
		}
		d.Unit.InDoubt = d.inDoubt
		e.attempt(rctx, d, d.Attempts.Again)
		if !d.Outcome.OnReceipt {
			tries++
		}
		switch {
		case d.Outcome.Err == nil:
			if d.Outcome.Assumed {
				e.warn(d, nil, "bed: a duplicate key after an attempt of unknown outcome counts as delivered; another row may hold the key")
			}
			return nil
		case d.Outcome.Class == delivery.Refused, d.Outcome.Class == delivery.Duplicate:
			return e.refused(ctx, d)
		case lacksRights(d.Outcome.Err):
			return e.handOver(ctx, d)
		}
	}
	return e.handOver(ctx, d)
}

// lacksRights reports whether err says that the account may not ask for the
// receipt: only an operator can mend that.
func lacksRights(err error) bool {
	var rights *delivery.ReceiptRightsError
	return errors.As(err, &rights)
}

// decide ends the doubt about a unit by its receipt, where running it again
// could not help: it must not be run again, or the database refuses it. When
// it was not applied it never will be, and the outcome of d is the caller's.
func (e *Deliverer) decide(ctx context.Context, d *Delivery) error {
	switch decided := e.ask(ctx, d); {
	case !decided:
		return e.handOver(ctx, d)
	case d.Outcome.Delivered():
		return nil
	default:
		return e.refused(ctx, d)
	}
}

// ask asks the target by the receipt whether a unit in doubt was applied, and
// sees to it that it never will be if it was not. d.Outcome is then that of the
// delivery that was found, or what was known before: the answer that is the
// caller's. false: it could not be asked.
func (e *Deliverer) ask(ctx context.Context, d *Delivery) (decided bool) {
	answer := d.Outcome
	rctx, cancel := context.WithTimeout(ctx, e.cfg.RetryTimeout)
	defer cancel()
	pause := e.pause(e.cfg.RetryMax)
	for tries := 0; tries < max(e.cfg.SyncMaxDeliveryTryTimes, 1) && !lacksRights(answer.Err); {
		if d.lease.Lost() || sleep(rctx, pause.NextBackOff()) != nil {
			break
		}
		out := d.Attempts.Void(rctx)
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

// handOver leaves to the job what could not be settled here.
func (e *Deliverer) handOver(ctx context.Context, d *Delivery) error {
	if d.lease.Lost() {
		return pending(d, fmt.Errorf("%w; the last attempt said: %w", txlog.ErrLeaseLost, d.Outcome.Err))
	}
	// Handing over at once: the job need not wait for the lease.
	// What cannot be told, the lease's end tells.
	_ = e.release(ctx, d, txlog.Verdict{InDoubt: d.inDoubt, Err: d.Outcome.Err.Error()})
	e.warn(d, e.cfg.Dialect.Describe(d.Outcome.Err), "bed: the write is left to the job")
	return pending(d, d.Outcome.Err)
}

// pause gives the pauses between tries.
func (e *Deliverer) pause(most time.Duration) *backoff.ExponentialBackOff {
	p := &backoff.ExponentialBackOff{InitialInterval: e.cfg.RetryInitial, RandomizationFactor: jitter.Factor(), Multiplier: 2, MaxInterval: most}
	p.Reset()
	return p
}

// sleep waits for d or for the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
