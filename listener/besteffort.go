package listener

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// BestEffortsConfig configures BestEfforts. Every field is used as it is: the
// defaults are bedsql.Config's.
type BestEffortsConfig struct {
	// Storage keeps the log.
	Storage txlog.Storage
	// SyncMaxDeliveryTryTimes is how many retries follow a failed first attempt.
	SyncMaxDeliveryTryTimes int
	// RetryInitial and RetryMax bound the pause before a retry, which doubles
	// from one to the other, jittered by half.
	RetryInitial, RetryMax time.Duration
	// RetryTimeout bounds all retries of one write together.
	RetryTimeout time.Duration
	// Lease is how long a log is owned without being renewed.
	Lease time.Duration
	// LogTimeout bounds what is said to the log once the write has run.
	LogTimeout time.Duration
	// RunUnlogged runs a write whose log could not be written, loudly, instead
	// of refusing it.
	RunUnlogged bool
	// Dialect is the data source's.
	Dialect *delivery.Dialect
	// Bus is told when a unit is parked; may be nil.
	Bus *Bus
	// Logger is told what an operator should know.
	Logger logrus.FieldLogger
}

// BestEfforts is the listener that delivers: it writes the log before the
// execution, removes it after a success, and after a failure retries at once
// and leaves to the job what still fails. It follows Sharding-JDBC's
// BestEffortsDeliveryListener and answers by the rule of truth. Safe for
// concurrent use.
type BestEfforts struct {
	cfg    BestEffortsConfig
	keeper *txlog.Keeper

	// Removals that failed are repeated behind the caller.
	mu     sync.Mutex
	closed bool
	late   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

var _ Interceptor = (*BestEfforts)(nil)

// NewBestEfforts makes the listener. Close it.
func NewBestEfforts(cfg BestEffortsConfig) *BestEfforts {
	b := &BestEfforts{cfg: cfg, keeper: txlog.NewKeeper(cfg.Storage, cfg.Lease)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close waits until removals that were still being repeated are done or ctx
// ends; what is left then, the job finds.
func (b *BestEfforts) Close(ctx context.Context) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	done := make(chan struct{})
	go func() {
		b.late.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	b.cancel()
	<-done
}

// BeforeExecute writes the log.
func (b *BestEfforts) BeforeExecute(ctx context.Context, x *Execution) error {
	err := b.cfg.Storage.Add(ctx, b.cfg.Lease, x.Unit)
	switch {
	case err == nil:
		x.release = b.keeper.Hold(x.Unit)
		if b.keeper.Lost(x.Unit) {
			// This process stood still for longer than the lease.
			x.release()
			return b.pending(x, txlog.ErrLeaseLost)
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If it was written, its lease runs out and the job delivers it.
		return &PendingError{LogID: x.Unit.ID, DataSource: x.Unit.DataSource, Cause: err}
	case b.cfg.RunUnlogged && ctx.Err() == nil:
		b.logger(x).WithError(err).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		x.unlogged = true
		return nil
	default:
		return &NotLoggedError{DataSource: x.Unit.DataSource, Cause: err}
	}
}

// ExecuteSuccess removes the log.
func (b *BestEfforts) ExecuteSuccess(ctx context.Context, x *Execution) error {
	if x.unlogged {
		return nil
	}
	b.delivered(ctx, x)
	return nil
}

// delivered removes the log of what is known to be applied. The caller gets
// its Result whatever becomes of the removal.
func (b *BestEfforts) delivered(ctx context.Context, x *Execution) {
	err := b.remove(ctx, x.Unit)
	if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
		x.release()
		return
	}
	b.logger(x).WithError(err).Warn("bed: the write is delivered, its log could not be removed yet; the removal is repeated")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		x.release()
		return
	}
	b.late.Go(func() {
		defer x.release()
		b.removeLate(x)
	})
}

// removeLate repeats a removal for as long as the log is surely still ours.
func (b *BestEfforts) removeLate(x *Execution) {
	pause := &backoff.ExponentialBackOff{InitialInterval: b.cfg.RetryInitial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: time.Second}
	pause.Reset()
	for sleep(b.ctx, pause.NextBackOff()) == nil && !b.keeper.Lost(x.Unit) {
		err := b.remove(b.ctx, x.Unit)
		if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
			return
		}
	}
	b.logger(x).Warn("bed: the write is delivered, its log could not be removed; the job will find it and may deliver it again")
}

// remove erases the log on the caller's context, and on one of its own when
// that one has ended. A log that does not answer must not hold the caller up
// whose write is done.
func (b *BestEfforts) remove(ctx context.Context, u *txlog.Unit) error {
	b.keeper.Refresh(u)
	if ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
		err := b.cfg.Storage.Remove(bounded, u)
		cancel()
		if err == nil || ctx.Err() == nil {
			return err
		}
	}
	ctx, cancel := b.own(ctx)
	defer cancel()
	return b.cfg.Storage.Remove(ctx, u)
}

// own is a context for telling the log what has become of a write after the
// caller is gone.
func (b *BestEfforts) own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.cfg.LogTimeout)
}

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
	case x.Unit.NotReplayable != "" && x.Outcome.Maybe():
		return b.park(ctx, x, fmt.Errorf("the outcome is not known and the unit must not be run again (%s): %w", x.Unit.NotReplayable, x.Outcome.Err))
	case x.Unit.NotReplayable != "":
		// It never left, and there is no other way to run it.
		return b.refused(ctx, x)
	}
	return b.retry(ctx, x, again)
}

func (b *BestEfforts) retry(ctx context.Context, x *Execution, again func(context.Context)) error {
	rctx, cancel := context.WithTimeout(ctx, b.cfg.RetryTimeout)
	defer cancel()
	pause := &backoff.ExponentialBackOff{InitialInterval: b.cfg.RetryInitial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: b.cfg.RetryMax}
	pause.Reset()
	for range b.cfg.SyncMaxDeliveryTryTimes {
		if sleep(rctx, pause.NextBackOff()) != nil {
			break
		}
		if b.keeper.Lost(x.Unit) {
			break
		}
		x.Unit.InDoubt = x.inDoubt
		again(rctx)
		switch {
		case x.Outcome.Err == nil:
			if x.Outcome.Assumed {
				b.logger(x).Warn("bed: a duplicate key after an attempt of unknown outcome counts as delivered; another row may hold the key")
			}
			b.delivered(ctx, x)
			return nil
		case x.Outcome.Class == delivery.Refused, x.Outcome.Class == delivery.Duplicate:
			return b.refused(ctx, x)
		}
	}
	if b.keeper.Lost(x.Unit) {
		x.release()
		return b.pending(x, fmt.Errorf("%w; the last attempt said: %w", txlog.ErrLeaseLost, x.Outcome.Err))
	}
	// Handing over at once: the job need not wait for the lease.
	b.settle(ctx, x, txlog.Verdict{InDoubt: x.inDoubt, Err: x.Outcome.Err.Error()})
	b.logger(x).WithField("error", b.cfg.Dialect.Describe(x.Outcome.Err)).Warn("bed: the write is left to the job")
	return b.pending(x, x.Outcome.Err)
}

// refused answers a no of the database, or the certainty that nothing was
// sent and nothing will be: the log must be gone before the caller is told.
func (b *BestEfforts) refused(ctx context.Context, x *Execution) error {
	if x.inDoubt {
		// An earlier attempt may have been applied, so "no" would be a guess.
		return b.park(ctx, x, fmt.Errorf("refused after an attempt of unknown outcome: %w", x.Outcome.Err))
	}
	if x.KeepRefused {
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
		b.logger(x).WithError(err).Warn("bed: the write was refused, but its log could not be removed")
		return b.pending(x, x.Outcome.Err)
	}
	return x.Outcome.Err
}

// park leaves the unit for a person.
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
		b.logger(x).WithError(err).Warn("bed: the log could not be handed over, the job takes it when its lease has run out")
	}
	return err
}

func (b *BestEfforts) parked(x *Execution) {
	b.logger(x).WithField("error", b.cfg.Dialect.Describe(x.Outcome.Err)).Warn("bed: the write is parked")
	if b.cfg.Bus.Listening() {
		b.cfg.Bus.Publish(NewEvent(Parked, x.origin(), x.Unit, x.Outcome))
	}
}

func (b *BestEfforts) pending(x *Execution, cause error) *PendingError {
	return &PendingError{LogID: x.Unit.ID, DataSource: x.Unit.DataSource, Cause: cause}
}

func (b *BestEfforts) logger(x *Execution) logrus.FieldLogger {
	return b.cfg.Logger.WithFields(logrus.Fields{"log": x.Unit.ID, "data_source": x.Unit.DataSource})
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
