package listener

import (
	"context"
	"errors"
	"fmt"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ExecuteFailure retries and settles.
func (b *BestEfforts) ExecuteFailure(ctx context.Context, x *Execution, again func(context.Context)) error {
	if x.unlogged {
		return x.Outcome.Err
	}
	switch {
	case x.Outcome.Class == delivery.Refused, x.Outcome.Class == delivery.Duplicate:
		return b.refused(ctx, x)
	case x.AnswerIsFinal && x.Outcome.Class.Answered():
		return b.refused(ctx, x)
	case x.Unit.NotReplayable != "" && x.Outcome.Maybe() && x.Void != nil:
		return b.decide(ctx, x)
	case x.Unit.NotReplayable != "" && x.Outcome.Maybe():
		return b.park(ctx, x, fmt.Errorf("the outcome is not known and the unit must not be run again (%s): %w", x.Unit.NotReplayable, x.Outcome.Err))
	case x.Unit.NotReplayable != "":
		// It never left, and there is no other way to run it.
		return b.refused(ctx, x)
	}
	return b.retry(ctx, x, again)
}

// pause gives the pauses between retries inside the call.
func (b *BestEfforts) pause() *backoff.ExponentialBackOff {
	p := &backoff.ExponentialBackOff{InitialInterval: b.cfg.RetryInitial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: b.cfg.RetryMax}
	p.Reset()
	return p
}

func (b *BestEfforts) retry(ctx context.Context, x *Execution, again func(context.Context)) error {
	rctx, cancel := context.WithTimeout(ctx, b.cfg.RetryTimeout)
	defer cancel()
	pause := b.pause()
	for tries := 0; tries < b.cfg.SyncMaxDeliveryTryTimes; {
		if sleep(rctx, pause.NextBackOff()) != nil {
			break
		}
		if b.keeper.Lost(x.Unit) {
			break
		}
		x.Unit.InDoubt = x.inDoubt
		again(rctx)
		if !x.Outcome.OnReceipt {
			tries++
		}
		switch {
		case x.Outcome.Err == nil:
			if x.Outcome.Assumed {
				b.warn(x, nil, "bed: a duplicate key after an attempt of unknown outcome counts as delivered; another row may hold the key")
			}
			b.delivered(ctx, x)
			return nil
		case x.Outcome.Class == delivery.Refused, x.Outcome.Class == delivery.Duplicate:
			return b.refused(ctx, x)
		}
	}
	return b.handOver(ctx, x)
}

// decide ends the doubt about a unit by its receipt, where running it again
// could not help: it must not be run again, or the database refuses it. When
// it was not applied it never will be, and the answer of x is the caller's.
func (b *BestEfforts) decide(ctx context.Context, x *Execution) error {
	answer := x.Outcome
	rctx, cancel := context.WithTimeout(ctx, b.cfg.RetryTimeout)
	defer cancel()
	pause := b.pause()
	for tries := 0; tries < max(b.cfg.SyncMaxDeliveryTryTimes, 1); {
		if b.keeper.Lost(x.Unit) || sleep(rctx, pause.NextBackOff()) != nil {
			break
		}
		out := x.Void(rctx)
		switch {
		case out.Delivered():
			x.Outcome = out
			b.delivered(ctx, x)
			return nil
		case out.Voided:
			x.inDoubt, x.voided = false, x.Unit.Fingerprint == ""
			if x.Outcome = answer; answer.OnReceipt {
				x.Outcome = out
			}
			return b.refused(ctx, x)
		case !out.OnReceipt:
			tries++
		}
	}
	x.Outcome = answer
	return b.handOver(ctx, x)
}

// handOver leaves to the job what could not be settled here.
func (b *BestEfforts) handOver(ctx context.Context, x *Execution) error {
	if b.keeper.Lost(x.Unit) {
		x.release()
		return b.pending(x, fmt.Errorf("%w; the last attempt said: %w", txlog.ErrLeaseLost, x.Outcome.Err))
	}
	// Handing over at once: the job need not wait for the lease.
	// What cannot be told, the lease's end tells.
	_ = b.settle(ctx, x, txlog.Verdict{InDoubt: x.inDoubt, Err: x.Outcome.Err.Error()})
	b.warn(x, x.Dialect.Describe(x.Outcome.Err), "bed: the write is left to the job")
	return b.pending(x, x.Outcome.Err)
}

// refused answers a no of the database, or the certainty that nothing was
// sent and nothing will be: the log must be gone before the caller is told.
func (b *BestEfforts) refused(ctx context.Context, x *Execution) error {
	if x.inDoubt && x.Void != nil && !x.KeepRefused {
		return b.decide(ctx, x)
	}
	if x.inDoubt {
		// An earlier attempt may have been applied, so "no" would be a guess.
		return b.park(ctx, x, fmt.Errorf("refused after an attempt of unknown outcome: %w", x.Outcome.Err))
	}
	if x.KeepRefused && !errors.Is(x.Outcome.Err, delivery.ErrKeyReused) {
		refusal := &RefusedError{LogID: x.Unit.ID, DataSource: x.Unit.DataSource, Cause: x.Outcome.Err}
		if err := b.settle(ctx, x, txlog.Verdict{Park: true, Err: x.Outcome.Err.Error()}); err != nil {
			return b.pending(x, refusal)
		}
		b.parked(x)
		return refusal
	}
	err := b.remove(ctx, x.Unit)
	x.release()
	if err != nil {
		b.warn(x, err, "bed: the write was refused, but its log could not be removed")
		return b.pending(x, x.Outcome.Err)
	}
	if x.voided && x.Answered != nil {
		ctx, cancel := b.own(ctx)
		defer cancel()
		if out := x.Answered(ctx); out.Err != nil {
			b.logger(x).WithField("error", x.Dialect.Describe(out.Err)).Info("bed: the receipt could not be told of the answer; should the log come back, it is parked")
		}
	}
	return x.Outcome.Err
}

// park leaves the unit for an operator.
func (b *BestEfforts) park(ctx context.Context, x *Execution, cause error) error {
	err := b.settle(ctx, x, txlog.Verdict{Park: true, InDoubt: x.inDoubt, Err: cause.Error()})
	pending := b.pending(x, cause)
	if err == nil {
		pending.Parked = true
		b.parked(x)
	}
	return pending
}

// settle gives the log up with a verdict, on a context of its own: the
// caller's may be the reason for it. When it fails the lease runs out, and the
// job takes the unit as one in doubt.
func (b *BestEfforts) settle(ctx context.Context, x *Execution, v txlog.Verdict) error {
	defer x.release()
	ctx, cancel := b.own(ctx)
	defer cancel()
	b.keeper.Refresh(x.Unit)
	err := b.cfg.Storage.Release(ctx, x.Unit, v)
	if err != nil {
		b.warn(x, delivery.DescribeLog(err), "bed: the log could not be handed over, the job takes it when its lease has run out")
	}
	return err
}

func (b *BestEfforts) parked(x *Execution) {
	b.logger(x).WithField("error", x.Dialect.Describe(x.Outcome.Err)).Warn("bed: the write is parked")
	if b.cfg.Bus.Listening() {
		b.cfg.Bus.Publish(NewEvent(Parked, x.origin(), x.Unit, x.Outcome))
	}
}

func (b *BestEfforts) pending(x *Execution, cause error) *PendingError {
	return &PendingError{LogID: x.Unit.ID, DataSource: x.Unit.DataSource, Cause: cause}
}
