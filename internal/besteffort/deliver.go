package besteffort

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Config configures a Deliverer. Every field is used as it is: the defaults are
// bedsql.Config's.
type Config struct {
	// Storage keeps the log.
	Storage txlog.Storage
	// DataSource is the name under which what becomes of the writes is counted;
	// empty: it is not.
	DataSource string
	// Dialect is the data source's.
	Dialect *delivery.Dialect
	// SyncMaxDeliveryTryTimes is how many retries follow a failed first attempt.
	SyncMaxDeliveryTryTimes int
	// RetryInitial and RetryMax bound the pause before a retry, which doubles
	// from one to the other, jittered by half.
	RetryInitial, RetryMax time.Duration
	// RetryTimeout bounds all retries of one write together.
	RetryTimeout time.Duration
	// Lease is how long an entry is owned without being renewed.
	Lease time.Duration
	// LogTimeout bounds what is said to the log once the write has run.
	LogTimeout time.Duration
	// RunUnlogged runs a write whose entry could not be written before it, loudly,
	// instead of refusing it.
	RunUnlogged bool
	// Unlogged counts the writes that were applied although their entry could not
	// be written alongside; may be nil.
	Unlogged *atomic.Uint64
	// Erase erases receipts from the target, behind the callers.
	Erase func(ctx context.Context, in removal.Settings, receipts []string)
	// EraseInTurn leaves receipts to be taken by Receipts until Close.
	EraseInTurn bool
	// Bus is told of each attempt and of each unit that is parked; may be nil.
	Bus *listener.Bus
	// Logger is told what an operator should know.
	Logger logrus.FieldLogger
}

// own is a context for telling the log what has become of a write after the
// caller is gone.
func (c *Config) own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.LogTimeout)
}

// pause gives the pauses between tries.
func (c *Config) pause(most time.Duration) *backoff.ExponentialBackOff {
	return jitter.BackOff(c.RetryInitial, most)
}

// Deliverer delivers the writes for one data source. Safe for concurrent use.
type Deliverer struct {
	cfg      Config
	leases   *lease.Renewer
	removals *removal.Queue
	reports  reports
	// tally counts what becomes of the writes; nil: nobody does.
	tally *journal.Tally
}

// New makes a Deliverer. Close it.
func New(cfg Config) *Deliverer {
	e := &Deliverer{cfg: cfg, leases: lease.NewRenewer(cfg.Storage, cfg.Lease)}
	e.reports.cfg = &e.cfg
	if cfg.DataSource != "" {
		e.tally = journal.Of(cfg.Storage).Tally(cfg.DataSource)
	}
	e.removals = removal.New(context.Background(), removal.Config{
		Storage: cfg.Storage, Timeout: cfg.LogTimeout,
		Pause:  func() *backoff.ExponentialBackOff { return cfg.pause(time.Second) },
		Failed: e.reports.notRemoved, Erase: cfg.Erase, EraseInTurn: cfg.EraseInTurn,
	})
	return e
}

// Close waits until removals behind the callers are done or ctx
// ends; what is left then, the job finds.
func (e *Deliverer) Close(ctx context.Context) {
	e.removals.Close(ctx)
	e.reports.warnings.close()
}

// Deliver runs the unit, and logs it when d.Logging says, unless Log did. nil
// means that it is delivered, and d.Outcome is how. Any other answer is the
// caller's: the database's own refusal, or an error that says what becomes of
// the write.
func (e *Deliverer) Deliver(ctx context.Context, d *Delivery) error {
	listening, begun := e.cfg.Bus.Listening(), time.Time{}
	if listening {
		begun = time.Now().Add(-d.logTook)
	}
	err := e.deliver(ctx, d)
	e.count(d, err)
	if listening {
		e.reports.answered(d, begun, err)
	}
	return err
}

func (e *Deliverer) deliver(ctx context.Context, d *Delivery) error {
	var beside *adding
	switch {
	case d.logged:
		if d.lease.Lost() { // while others of its group were delivered
			d.lease.Release()
			return pending(d, txlog.ErrLeaseLost)
		}
	case d.Logging == LogOnFailure:
		d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	case d.Logging == LogAlongside:
		beside = e.addBeside(ctx, d)
	default:
		if errs := e.log(ctx, d); errs != nil {
			return errs[0]
		}
	}
	delivered := false
	defer func() {
		if delivered {
			return
		}
		if d.Tries == 0 && !d.logged {
			_ = e.addSent(ctx, d, beside) // a driver panicked
		}
		d.lease.Release() // if a driver panicked, the job takes over when the lease has run out
	}()
	if e.cfg.Bus.Listening() {
		e.reports.before(d)
	}
	e.attempt(ctx, d, d.Attempts.First)
	if !d.logged {
		if settled, err := e.settle(ctx, d, beside); settled {
			delivered = err == nil
			return err
		}
	}
	var err error
	switch out := d.Outcome; {
	case d.unlogged:
		return out.Err
	case out.Err == nil:
	case d.final():
		err = e.refused(ctx, d)
	case d.Unit.NotReplayable == "":
		err = e.retry(ctx, d)
	case d.Unit.Receipt != "":
		err = e.decide(ctx, d)
	default:
		err = e.park(ctx, d, fmt.Errorf("the outcome is not known and the unit must not be run again (%s): %w", d.Unit.NotReplayable, out.Err))
	}
	if err != nil {
		return err
	}
	delivered = true // the caller gets its Result whatever becomes of the removal
	e.remove(ctx, d)
	return nil
}

// Log writes the entries of several units in one durable step: before it none of
// them is delivered or ever will be, after it each is delivered or, if the
// database refuses it, parked. If that failed, errs holds the error of each.
func (e *Deliverer) Log(ctx context.Context, ds ...*Delivery) []error {
	errs := e.log(ctx, ds...)
	if errs != nil && e.cfg.Bus.Listening() {
		for i, d := range ds {
			e.reports.answered(d, time.Now().Add(-d.logTook), errs[i])
		}
	}
	return errs
}

// log writes the entries of units before they are run. errs are as for Log.
func (e *Deliverer) log(ctx context.Context, ds ...*Delivery) (errs []error) {
	each := func(why func(*Delivery) error) []error {
		for _, d := range ds {
			errs = append(errs, why(d))
		}
		return errs
	}
	units := ds[0].alone[:]
	if len(ds) > 1 {
		units = make([]*txlog.Unit, len(ds))
	}
	for i, d := range ds {
		units[i], d.logged = d.Unit, true
		d.unwritten = errNoAnswer // if the storage panics
		d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	}
	begun := time.Now()
	err := e.cfg.Storage.Add(ctx, e.cfg.Lease, units...)
	for _, d := range ds {
		d.logTook, d.unwritten = time.Since(begun), err
	}
	switch {
	case err == nil && units[0].Lease.Over():
		// This process stood still for longer than the lease.
		return each(func(d *Delivery) error { return pending(d, txlog.ErrLeaseLost) })
	case err == nil:
		for _, d := range ds {
			d.lease = e.leases.Keep(d.Unit)
			// The entry may come back after its removal, as if an attempt were
			// still on its way: what is said of the unit then, its receipt decides.
			d.inDoubt = d.Unit.AddRepeated && d.Unit.Receipt != ""
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If it was written, its lease runs out and the job delivers it.
		return each(func(d *Delivery) error { return pending(d, err) })
	case e.cfg.RunUnlogged && ctx.Err() == nil && len(ds) == 1:
		e.reports.logger(ds[0].Unit).WithField("error", dberr.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		ds[0].unlogged = true
		return nil
	default:
		return each(func(d *Delivery) error {
			return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: err}
		})
	}
}

// attempt makes an attempt and notes how it ended.
func (e *Deliverer) attempt(ctx context.Context, d *Delivery, run func(context.Context) attempt.Outcome) {
	begun := time.Now()
	d.Outcome = run(ctx)
	d.Tries++
	if out := &d.Outcome; out.Err != nil {
		d.inDoubt = d.inDoubt || out.Maybe()
		d.failed = append(d.failed, txlog.Attempt{At: time.Now(), Origin: d.origin().String(), Class: out.Class.String(), Err: out.Err.Error()})
	}
	if e.cfg.Bus.Listening() {
		e.reports.attempt(d, begun)
	}
}

// remove ends a delivered unit, and removes its entry if it has one.
func (e *Deliverer) remove(ctx context.Context, d *Delivery) {
	if d.Outcome.Found {
		e.reports.found(d)
	}
	d.removal = removal.Unit{Entry: d.Unit, Lease: d.lease, Certain: !d.inDoubt && !d.Outcome.Found}
	switch {
	case d.lease == nil: // it has no entry, and never will
		e.removals.End(&d.removal)
	case d.Behind:
		e.removals.Behind(ctx, &d.removal)
	default:
		e.removals.Now(ctx, &d.removal)
	}
}

// count counts what became of a write for the console's activity, also of one that
// was delivered or refused without an entry, as LogOnFailure has it. Left out are
// ErrNotLogged, ErrUnknownOutcome and what ran under RunUnlogged.
func (e *Deliverer) count(d *Delivery, err error) {
	if e.tally == nil || d.unlogged {
		return
	}
	if err == nil && d.Tries == 1 { // as nearly always
		e.tally.Count(journal.AtOnce, 1)
		return
	}
	if errors.Is(err, listener.ErrNotLogged) || errors.Is(err, listener.ErrUnknownOutcome) {
		return
	}
	e.tally.Count(outcomeOf(err), 1)
}

func outcomeOf(err error) journal.Outcome {
	if err == nil {
		return journal.SyncRetry
	}
	var pending *listener.PendingError
	var kept *listener.RefusedError
	switch {
	case errors.As(err, &pending) && pending.Parked, errors.As(err, &kept):
		return journal.Parked
	case pending != nil:
		return journal.Pending
	default:
		return journal.Refused
	}
}

// Receipts takes the receipts that are to be erased, if they are at least so
// many: for a database where that is done between the callers' own writes.
func (e *Deliverer) Receipts(least int) []string { return e.removals.Receipts(least) }
