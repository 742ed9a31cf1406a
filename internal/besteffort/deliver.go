package besteffort

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Config configures a Deliverer. Every field is used as it is.
type Config struct {
	// DataSource is the name under which the console counts the writes; empty means no counting.
	DataSource string
	Dialect    *dialect.Dialect

	// These are bedsql.Config's, with its defaults.

	Storage                                                                 txlog.Storage
	SyncMaxDeliveryTryTimes                                                 int
	RetryInitial, RetryMax, RetryTimeout, AttemptTimeout, Lease, LogTimeout time.Duration
	RunUnlogged                                                             bool
	OrderWait                                                               time.Duration

	// Unlogged counts the applied writes whose entry could not be written alongside; may be nil.
	Unlogged *atomic.Uint64
	// Unclassified counts the attempts with an error on no list; may be nil.
	Unclassified *atomic.Uint64
	// Erase erases receipts from the target, after calls return.
	Erase func(ctx context.Context, in removal.Session, receipts []string)
	// EraseInTurn leaves receipts to be taken by Receipts until Close.
	EraseInTurn bool
	// Bus receives each attempt and each parked unit; may be nil.
	Bus    *listener.Bus
	Logger logrus.FieldLogger
}

// own is a context for recording the outcome of a write in the log after the
// caller is gone.
func (c *Config) own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.LogTimeout)
}

// pause returns the pauses between tries.
func (c *Config) pause(most time.Duration) *backoff.ExponentialBackOff {
	return jitter.BackOff(c.RetryInitial, most)
}

// Deliverer delivers the writes for one data source. Safe for concurrent use.
type Deliverer struct {
	cfg     Config
	leases  *lease.Renewer
	reports reports
	// Removals removes the entries of delivered units.
	Removals *removal.Queue
	// tally counts the outcomes of the writes; may be nil.
	tally *journal.Tally
}

// New makes a Deliverer. Close it.
func New(cfg Config) *Deliverer {
	e := &Deliverer{cfg: cfg, leases: lease.NewRenewer(cfg.Storage, cfg.Lease)}
	e.reports.cfg = &e.cfg
	if cfg.DataSource != "" {
		e.tally = journal.Of(cfg.Storage).Tally(cfg.DataSource)
	}
	e.Removals = removal.NewQueue(context.Background(), removal.Config{
		Storage: cfg.Storage, Timeout: cfg.LogTimeout,
		Pause:  func() *backoff.ExponentialBackOff { return cfg.pause(time.Second) },
		Failed: e.reports.notRemoved, Erase: cfg.Erase,
	}, cfg.EraseInTurn)
	return e
}

// Close waits until asynchronous removals are done or ctx ends. The job finds the rest.
func (e *Deliverer) Close(ctx context.Context) {
	e.Removals.Close(ctx)
	e.reports.warnings.close()
}

// Deliver runs the unit, and logs it as d.Logging says, unless Log has logged it. nil means
// delivered, with d.Outcome as the outcome. Any other answer goes to the caller: the database's
// own refusal, or an error about the further course of the write.
func (e *Deliverer) Deliver(ctx context.Context, d *InFlight) error {
	if e.cfg.Bus != nil && !d.logged {
		e.reports.follow(ctx, d)
	}
	err := e.logTryRemove(ctx, d)
	if d.refusal {
		return err
	}
	return e.answer(d, err)
}

// answer counts and publishes the caller's answer.
func (e *Deliverer) answer(d *InFlight, err error) error {
	e.count(d, err)
	if d.listening {
		e.reports.answered(d, err)
	}
	return err
}

// logTryRemove is the protocol: it writes the entry, runs the unit, and removes the
// entry; or retries, decides, or leaves the entry to the job or an operator.
func (e *Deliverer) logTryRemove(ctx context.Context, d *InFlight) error {
	var beside *adding
	switch {
	case d.logged:
		if d.Unit.Behind == "" && d.lease.Lost() { // while others of its group were delivered, or the process stood still
			d.lease.Release()
			return pending(d, txlog.ErrLeaseLost)
		}
	case d.Logging == LogOnFailure:
	case d.Logging == LogAlongside:
		beside = e.addBeside(ctx, d)
	default:
		if errs := e.log(ctx, d); errs != nil {
			return errs[0]
		}
	}
	if d.logged && d.Unit.Behind != "" {
		if err := e.follow(ctx, d); err != nil {
			return err
		}
	}
	delivered := false
	defer func() {
		if delivered || d.held || d.refusal {
			return
		}
		if d.Tries == 0 && !d.logged {
			_ = e.addSent(ctx, d, beside) // a driver panicked
		}
		d.lease.Release() // if a driver panicked, the job takes over when the lease has run out
	}()
	if d.listening {
		e.cfg.Bus.Publish(attempt.Outcome{}.Event(listener.BeforeExecute, listener.Caller, d.Unit))
	}
	e.try(ctx, d)
	if !d.logged {
		if settled, err := e.settle(ctx, d, beside); settled {
			delivered = err == nil
			return err
		}
	}
	var err error
	switch out := d.Outcome; {
	case d.unlogged:
		return LeftOpen(d.Unit.DataSource, out, d.unwritten)
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
	if d.held = d.Held; d.held {
		return nil
	}
	delivered = true // the caller gets its Result whether the removal succeeds or not
	e.remove(ctx, d)
	return nil
}

// Log writes the entries of several units in one durable step. Before that step no unit is
// delivered. After it each unit is delivered or, if the database refuses it, parked. If the step
// fails, errs holds the error of each unit.
func (e *Deliverer) Log(ctx context.Context, ds ...*InFlight) []error {
	if e.cfg.Bus != nil {
		for _, d := range ds {
			e.reports.follow(ctx, d)
		}
	}
	errs := e.log(ctx, ds...)
	for i, err := range errs {
		if ds[i].listening {
			e.reports.answered(ds[i], err)
		}
	}
	return errs
}

// Adopt prepares a unit for Deliver if its entry was written together with another client's rows.
// d owns the entry by its token and has a lease. If untaken is not zero, it has no lease and must
// send the unit before that time. Only a unit with a receipt may go without a lease.
func (e *Deliverer) Adopt(d *InFlight, untaken time.Time) {
	if e.cfg.Bus != nil {
		d.begun, d.listening = time.Now(), e.cfg.Bus.Listening()
	}
	d.logged = true
	if d.Unit.Behind != "" {
		return // it has no lease until its turn comes
	}
	if untaken.IsZero() {
		d.lease = e.leases.Keep(d.Unit)
	} else {
		d.lease = e.leases.KeepUntaken(d.Unit, untaken)
	}
}

// log writes the entries of units before they are run. errs are as for Log.
func (e *Deliverer) log(ctx context.Context, ds ...*InFlight) (errs []error) {
	each := func(why func(*InFlight) error) []error {
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
	}
	begun := time.Now()
	err := e.cfg.Storage.Add(ctx, e.cfg.Lease, units...)
	if err != nil && errors.Is(err, txlog.ErrInDoubt) && e.isThere(ctx, units...) {
		err = nil
	}
	for _, d := range ds {
		d.logTook, d.unwritten = time.Since(begun), err
	}
	switch {
	case err == nil && units[0].Lease.Over():
		// This process stood still for longer than the lease.
		return each(func(d *InFlight) error { return pending(d, txlog.ErrLeaseLost) })
	case err == nil:
		for _, d := range ds {
			if d.Unit.Behind == "" { // else it has none
				d.lease = e.leases.Keep(d.Unit)
			}
			// The entry may come back after its removal, as if an attempt were still on its way.
			// The receipt then decides the outcome of the unit.
			d.inDoubt = d.Unit.AddRepeated && d.Unit.Receipt != ""
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If the entry was written, its lease runs out and the job delivers it.
		return each(func(d *InFlight) error { return inDoubt(d, nil) })
	case e.cfg.RunUnlogged && ctx.Err() == nil && len(ds) == 1 && len(ds[0].Unit.Order) == 0:
		e.reports.logger(ds[0].Unit).WithField("error", dberr.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		ds[0].unlogged = true
		return nil
	case errors.Is(err, txlog.ErrUnstorable):
		return each(func(d *InFlight) error {
			return attempt.Certain(fmt.Errorf("bed: the write was not sent, the transaction log can never take it: %w", err), dialect.Refused)
		})
	default:
		return each(func(d *InFlight) error {
			return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: err}
		})
	}
}

// isThere looks the units up in the log, while the caller waits, after an Add without an answer.
// It renews the leases if all entries are there. An INSERT of theirs may still be on its way.
func (e *Deliverer) isThere(ctx context.Context, units ...*txlog.Unit) bool {
	if ctx.Err() != nil || slices.ContainsFunc(units, func(u *txlog.Unit) bool { return len(u.Order) > 0 }) { // Add alone knows their places
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.LogTimeout)
	defer cancel()
	lost, err := e.cfg.Storage.Renew(ctx, e.cfg.Lease, units...)
	if err != nil || len(lost) > 0 {
		return false
	}
	for _, u := range units {
		u.AddRepeated = true
	}
	return true
}

// try makes an attempt and notes how it ended.
func (e *Deliverer) try(ctx context.Context, d *InFlight) {
	begun := time.Now()
	bounded, cancel := e.bounded(ctx, d)
	defer cancel()
	if d.Tries == 0 {
		d.Outcome = d.Attempts.First(bounded)
	} else {
		d.Outcome = d.Attempts.Again(bounded, Retry)
	}
	d.Tries++
	if out := &d.Outcome; out.Err != nil {
		d.hung = dberr.TimedOut(ctx, bounded) && !out.Class.Answered()
		d.inDoubt = d.inDoubt || out.Maybe()
		if out.Class == dialect.Unclassified {
			e.reports.unclassified(d)
		}
		d.failed = append(d.failed, txlog.Attempt{At: time.Now(), Origin: d.origin().String(), Class: out.Class.String(), Err: out.Err.Error()})
	}
	if d.listening {
		e.reports.tried(d, begun)
	}
}

// bounded is ctx until AttemptTimeout is over, or d's own deadline.
func (e *Deliverer) bounded(ctx context.Context, d *InFlight) (context.Context, context.CancelFunc) {
	deadline := d.Deadline
	if d.Tries > 0 || deadline.IsZero() {
		if e.cfg.AttemptTimeout <= 0 {
			return ctx, func() {}
		}
		deadline = time.Now().Add(e.cfg.AttemptTimeout)
	}
	if callers, ok := ctx.Deadline(); ok && !callers.After(deadline) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// remove ends a delivered unit, and removes its entry if it has one.
func (e *Deliverer) remove(ctx context.Context, d *InFlight) {
	if d.Outcome.Found {
		e.reports.logger(d.Unit).Info("bed: the receipt shows that the write was applied by an earlier attempt")
	}
	d.removal = removal.Unit{Entry: d.Unit, Lease: d.lease, Certain: !d.inDoubt && !d.Outcome.Found}
	switch {
	case d.lease == nil: // it has no entry, and never will
		e.Removals.End(&d.removal)
	case d.RemoveLater:
		e.Removals.Later(ctx, &d.removal)
	default:
		e.Removals.Now(ctx, &d.removal)
	}
}

// count counts the outcome of a write for the console's activity. It includes writes delivered or
// refused without an entry under LogOnFailure. It omits ErrNotLogged, ErrUnknownOutcome and writes
// under RunUnlogged.
func (e *Deliverer) count(d *InFlight, err error) {
	outcome := journal.AtOnce
	switch {
	case e.tally == nil || d.unlogged:
		return
	case err != nil:
		var counts bool
		if outcome, counts = outcomes[listener.Event{Err: err}.Outcome()]; !counts {
			return
		}
	case d.Tries > 1:
		outcome = journal.SyncRetry
	}
	e.tally.Count(outcome, 1)
}

var outcomes = map[string]journal.Outcome{"pending": journal.Pending, "parked": journal.Parked, "refused": journal.Refused}
