package listener

import (
	"context"
	"errors"
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

	behind   behind
	warnings warnings

	// What runs behind the callers: removals, and those that are repeated.
	mu      sync.Mutex
	closed  bool
	closing chan struct{} // closed when closed is set
	late    sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
}

var _ Interceptor = (*BestEfforts)(nil)

// NewBestEfforts makes the listener. Close it.
func NewBestEfforts(cfg BestEffortsConfig) *BestEfforts {
	b := &BestEfforts{cfg: cfg, keeper: txlog.NewKeeper(cfg.Storage, cfg.Lease), closing: make(chan struct{})}
	b.behind.b, b.behind.full = b, make(chan struct{}, 1)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Close waits until removals behind the callers are done or ctx
// ends; what is left then, the job finds.
func (b *BestEfforts) Close(ctx context.Context) {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.closing)
	}
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
	b.warnings.close()
}

// BeforeExecute writes the log.
func (b *BestEfforts) BeforeExecute(ctx context.Context, x *Execution) error {
	if errs := b.Arm(ctx, x); errs != nil {
		return errs[0]
	}
	return nil
}

// Arm writes the logs of several executions in one durable step: after it all
// of them will be delivered, before it none. If that failed, errs holds the
// error of each.
func (b *BestEfforts) Arm(ctx context.Context, xs ...*Execution) (errs []error) {
	each := func(why func(*Execution) error) []error {
		for _, x := range xs {
			errs = append(errs, why(x))
		}
		return errs
	}
	units := xs[0].alone[:]
	if len(xs) > 1 {
		units = make([]*txlog.Unit, len(xs))
	}
	for i, x := range xs {
		units[i] = x.Unit
	}
	err := b.cfg.Storage.Add(ctx, b.cfg.Lease, units...)
	switch {
	case err == nil:
		for _, x := range xs {
			x.release = b.keeper.Hold(x.Unit)
			// The log may come back after its removal, as if an attempt were
			// still on its way: what is said of the unit then, its receipt decides.
			x.inDoubt = x.Unit.AddRepeated && x.Void != nil
		}
		if b.keeper.Lost(xs[0].Unit) {
			// This process stood still for longer than the lease.
			for _, x := range xs {
				x.release()
			}
			return each(func(x *Execution) error { return b.pending(x, txlog.ErrLeaseLost) })
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If it was written, its lease runs out and the job delivers it.
		return each(func(x *Execution) error { return b.pending(x, err) })
	case b.cfg.RunUnlogged && ctx.Err() == nil && len(xs) == 1:
		b.logger(xs[0]).WithField("error", delivery.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		xs[0].unlogged = true
		return nil
	default:
		return each(func(x *Execution) error { return &NotLoggedError{DataSource: x.Unit.DataSource, Cause: err} })
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
	if x.Outcome.Found {
		b.logger(x).Info("bed: the receipt shows that the write was applied by an earlier attempt")
	}
	if x.Behind && b.behind.add(x) {
		return
	}
	err := b.remove(ctx, x.Unit)
	if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
		b.removed(x, err)
		return
	}
	b.removeAgain(x, err)
}

// removeAgain repeats, behind the caller, a removal that failed.
func (b *BestEfforts) removeAgain(x *Execution, err error) {
	b.warn(x, err, "bed: the write is delivered, its log could not be removed yet; the removal is repeated")
	if !b.later(func() { b.removeLate(x) }) {
		x.release()
	}
}

// later runs f behind the caller, and Close waits for it. false: it is closed.
func (b *BestEfforts) later(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.late.Go(f)
	return true
}

// removed lets go of a unit whose log is gone, and of its receipt if every
// attempt ended with a definite answer to us, who owned the log all the time.
// Any other receipt stays for its retention: an attempt may still come, or the
// log come back.
func (b *BestEfforts) removed(x *Execution, err error) {
	x.release()
	if u := x.Unit; err == nil && u.Receipt != "" && u.Fingerprint == "" && !u.AddRepeated && !x.inDoubt && !x.Outcome.Found && x.Erase != nil {
		x.Erase(u.Receipt)
	}
}

// removeLate repeats a removal for as long as the log is surely still ours.
func (b *BestEfforts) removeLate(x *Execution) {
	pause := &backoff.ExponentialBackOff{InitialInterval: b.cfg.RetryInitial, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: time.Second}
	pause.Reset()
	for sleep(b.ctx, pause.NextBackOff()) == nil && !b.keeper.Lost(x.Unit) {
		err := b.remove(b.ctx, x.Unit)
		if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
			b.removed(x, err)
			return
		}
	}
	x.release()
	next := "may deliver it again"
	if x.Unit.Receipt != "" {
		next = "see by its receipt that nothing is left to do"
	}
	b.warn(x, nil, "bed: the write is delivered, its log could not be removed; the job will find it and "+next)
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

func (b *BestEfforts) logger(x *Execution) *logrus.Entry {
	return b.cfg.Logger.WithFields(logrus.Fields{"log": x.Unit.ID, "data_source": x.Unit.DataSource})
}

// warn says of a write what may be to be said of very many: they are summed up.
func (b *BestEfforts) warn(x *Execution, err any, message string) {
	entry := b.logger(x)
	if err != nil {
		entry = entry.WithField("error", err)
	}
	b.warnings.warn(x.Unit.DataSource, entry, message)
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
