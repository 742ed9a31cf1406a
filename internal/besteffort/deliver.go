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
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Storage is the part of a txlog.Storage that a delivery needs.
type Storage interface {
	Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error
	Remove(ctx context.Context, units ...*entry.Unit) error
	Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) (lost []*entry.Unit, err error)
	Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error
	Get(ctx context.Context, id string) (*entry.Unit, error)
}

// Config configures a Deliverer. Every field is used as it is.
type Config struct {
	// Tally counts the outcomes of the writes for the console; may be nil.
	Tally   *journal.Tally
	Dialect *dialect.Dialect

	// These are bedsql.Config's, with its defaults.

	Storage                                                                 Storage
	SyncMaxDeliveryTryTimes                                                 int
	RetryInitial, RetryMax, RetryTimeout, AttemptTimeout, Lease, LogTimeout time.Duration
	RunUnlogged                                                             bool

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

// Own is a context for recording the outcome of a write in the log after the
// caller is gone.
func (c *Config) Own(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), c.LogTimeout)
}

// Delivery is a Deliverer, or a decorator of it.
type Delivery interface {
	Deliver(ctx context.Context, w *InFlight) error
}

// Deliverer delivers the writes for one data source. Safe for concurrent use.
type Deliverer struct {
	// Config is New's. It must not be changed.
	Config

	leases   *lease.Renewer
	warnings warnings
	// Removals removes the entries of delivered units.
	Removals *removal.Queue
}

// New makes a Deliverer. Close it.
func New(cfg Config) *Deliverer {
	d := &Deliverer{Config: cfg, leases: lease.NewRenewer(cfg.Storage.Renew, cfg.Lease)}
	d.Removals = removal.NewQueue(context.Background(), removal.Config{
		Remove: cfg.Storage.Remove, Timeout: cfg.LogTimeout,
		Pause:  func() *backoff.ExponentialBackOff { return jitter.BackOff(cfg.RetryInitial, time.Second) },
		Failed: d.notRemoved, Erase: cfg.Erase,
	}, cfg.EraseInTurn)
	return d
}

// Close waits until asynchronous removals are done or ctx ends. The job finds the rest.
func (d *Deliverer) Close(ctx context.Context) {
	d.Removals.Close(ctx)
	d.warnings.close()
}

// Deliver logs the unit, as w.Logging says, and runs it. nil means delivered, with w.Outcome as
// the outcome. Any other answer goes to the caller: the database's own refusal, or an error about
// the further course of the write.
func (d *Deliverer) Deliver(ctx context.Context, w *InFlight) error {
	if d.Bus != nil {
		d.follow(ctx, w)
	}
	if w.Logging != LogBefore {
		return d.Answer(w, d.tryLogRemove(ctx, w))
	}
	return d.Answer(w, d.logTryRemove(ctx, w))
}

// logTryRemove is the protocol: it writes the entry, unless Log has done so, runs the unit, and
// removes the entry; or retries, decides, or leaves the entry to the job or an operator.
func (d *Deliverer) logTryRemove(ctx context.Context, w *InFlight) error {
	if w.state == fresh {
		if errs := d.log(ctx, w); errs != nil {
			return errs[0]
		}
		if w.state == logged {
			w.lease = d.leases.Keep(w.Unit)
		}
	}
	defer func() {
		if w.state != held {
			w.lease.Release() // if a driver panicked, the job takes over when the lease has run out
		}
	}()
	d.try(ctx, w)
	return d.conclude(ctx, w)
}

// conclude decides after the first attempt of a unit.
func (d *Deliverer) conclude(ctx context.Context, w *InFlight) (err error) {
	switch out := w.Outcome; {
	case w.state == unlogged:
		return LeftOpen(w.Unit.DataSource, out, w.unwritten)
	case out.Err == nil:
	case w.final():
		err = d.refused(ctx, w)
	case w.Unit.NotReplayable == "":
		err = d.retry(ctx, w)
	case w.Unit.Receipt != "":
		err = d.decide(ctx, w)
	default:
		err = d.park(ctx, w, fmt.Errorf("the outcome is not known and the unit must not be run again (%s): %w", w.Unit.NotReplayable, out.Err))
	}
	switch {
	case err != nil:
		return err
	case w.Ending == HoldSettled:
		w.take(hold)
	default: // the caller gets its Result whether the removal succeeds or not
		d.Remove(ctx, w)
	}
	return nil
}

// log writes the entries of units before they are run. errs holds the error of each unit, whose
// entry is then not written, or in doubt.
func (d *Deliverer) log(ctx context.Context, ws ...*InFlight) (errs []error) {
	units := ws[0].alone[:]
	if len(ws) > 1 {
		units = make([]*entry.Unit, len(ws))
	}
	for i, w := range ws {
		w.take(write)
		units[i], w.unwritten = w.Unit, errNoAnswer // if the storage panics
	}
	begun := time.Now()
	err := d.Storage.Add(ctx, d.Lease, units...)
	if err != nil && errors.Is(err, txlog.ErrInDoubt) && d.isThere(ctx, ws...) {
		err = nil
	}
	took := time.Since(begun)
	for _, w := range ws {
		if w.unwritten = err; w.heard != nil {
			w.heard.logTook = took
		}
	}
	switch {
	case err != nil && d.RunUnlogged && !errors.Is(err, txlog.ErrInDoubt) && ctx.Err() == nil && len(ws) == 1 && !ws[0].Strict:
		ws[0].take(goWithout)
		d.logger(ws[0].Unit).WithField("error", dberr.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		return nil
	case err != nil, units[0].Lease.Over(): // this process stood still for longer than the lease
		for _, w := range ws {
			errs = append(errs, w.notAccepted(err))
		}
		return errs
	}
	for _, w := range ws {
		w.take(accept)
		// The entry may come back after its removal, as if an attempt were still on its way.
		// The receipt then decides the outcome of the unit.
		if w.Unit.AddRepeated && w.Unit.Receipt != "" {
			w.doubtIf(true)
		}
	}
	return nil
}

// isThere looks the units up in the log, while the caller waits, after an Add without an answer.
// It renews the leases if all entries are there. An INSERT of theirs may still be on its way.
func (d *Deliverer) isThere(ctx context.Context, ws ...*InFlight) bool {
	units := make([]*entry.Unit, len(ws))
	for i, w := range ws {
		if units[i] = w.Unit; w.Strict {
			return false
		}
	}
	if ctx.Err() != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, d.LogTimeout)
	defer cancel()
	lost, err := d.Storage.Renew(ctx, d.Lease, units...)
	if err != nil || len(lost) > 0 {
		return false
	}
	for _, u := range units {
		u.AddRepeated = true
	}
	return true
}

// try makes an attempt and notes how it ended.
func (d *Deliverer) try(ctx context.Context, w *InFlight) {
	if w.Tries == 0 && w.heard != nil {
		d.Bus.Publish(attempt.Outcome{}.Event(listener.BeforeExecute, listener.Caller, w.Unit, d.Dialect))
	}
	begun := time.Now()
	bounded, cancel := d.Bounded(ctx, w)
	defer cancel()
	if w.Tries == 0 {
		w.Outcome = w.Attempts.First(bounded)
	} else {
		w.Outcome = w.Attempts.Again(bounded)
	}
	w.Tries++
	if out := &w.Outcome; out.Err != nil {
		w.hung = dberr.TimedOut(ctx, bounded) && !out.Class.Answered()
		w.doubtIf(out.Maybe())
		if out.Class == dialect.Unclassified {
			d.unclassified(w)
		}
		w.failed = append(w.failed, journal.Attempt{At: time.Now(), Origin: w.origin().String(), Class: out.Class.String(), Err: out.Err.Error()})
	}
	if w.heard != nil {
		d.tried(w, begun)
	}
}

// Bounded is ctx until AttemptTimeout is over, or w's own deadline.
func (d *Deliverer) Bounded(ctx context.Context, w *InFlight) (context.Context, context.CancelFunc) {
	deadline := w.Deadline
	if w.Tries > 0 || deadline.IsZero() {
		if d.AttemptTimeout <= 0 {
			return ctx, func() {}
		}
		deadline = time.Now().Add(d.AttemptTimeout)
	}
	if callers, ok := ctx.Deadline(); ok && !callers.After(deadline) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, deadline)
}

// Remove ends a delivered unit, and removes its entry if it has one.
func (d *Deliverer) Remove(ctx context.Context, w *InFlight) {
	w.take(finish)
	if w.Outcome.Found {
		d.logger(w.Unit).Info("bed: the receipt shows that the write was applied by an earlier attempt")
	}
	w.removal = removal.Unit{Entry: w.Unit, Lease: w.lease, Certain: w.doubt != inDoubt && !w.Outcome.Found}
	w.lease = nil // the removal's, which may go on behind the call
	switch {
	case w.removal.Lease == nil: // it has no entry, and never will
		d.Removals.End(&w.removal)
	case w.RemoveLater:
		d.Removals.Later(ctx, &w.removal)
	default:
		d.Removals.Now(ctx, &w.removal)
	}
}

// Answer publishes the caller's answer, and counts it for the console's activity. That includes
// writes delivered or refused without an entry under LogOnFailure. It omits ErrNotLogged,
// ErrUnknownOutcome and writes under RunUnlogged.
func (d *Deliverer) Answer(w *InFlight, err error) error {
	outcome, counts := journal.AtOnce, d.Tally != nil && w.state != unlogged
	switch {
	case err != nil && counts:
		outcome, counts = outcomes[listener.Event{Err: err}.Outcome()]
	case w.Tries > 1:
		outcome = journal.SyncRetry
	}
	if counts {
		d.Tally.Count(outcome, 1)
	}
	if w.heard != nil {
		d.answered(w, err)
	}
	return err
}

var outcomes = map[string]journal.Outcome{"pending": journal.Pending, "parked": journal.Parked, "refused": journal.Refused}
