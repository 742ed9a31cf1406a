package besteffort

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
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
	// Unlogged counts the writes that were applied although their log could not
	// be written alongside; may be nil.
	Unlogged *atomic.Uint64
	// Erase erases receipts from the target, behind the callers.
	Erase func(ctx context.Context, receipts []string)
	// EraseInTurn leaves receipts to be taken by Receipts until Close.
	EraseInTurn bool
	// Bus is told of each attempt and of each unit that is parked; may be nil.
	Bus *listener.Bus
	// Logger is told what an operator should know.
	Logger logrus.FieldLogger
}

// Deliverer delivers the writes for one data source. Safe for concurrent use.
type Deliverer struct {
	cfg      Config
	leases   *lease.Renewer
	reaper   reaper
	warnings warnings
	tally    *journal.Tally
}

// New makes a Deliverer. Close it.
func New(cfg Config) *Deliverer {
	e := &Deliverer{cfg: cfg, leases: lease.NewRenewer(cfg.Storage, cfg.Lease)}
	e.reaper.open(e)
	if cfg.DataSource != "" {
		e.tally = journal.Of(cfg.Storage).Tally(cfg.DataSource)
	}
	return e
}

// Close waits until removals behind the callers are done or ctx
// ends; what is left then, the job finds.
func (e *Deliverer) Close(ctx context.Context) {
	e.reaper.close(ctx)
	e.warnings.close()
}

// Attempts are the ways to run one unit, each of which says how it ended
// unless the driver panics.
type Attempts interface {
	// First is the caller's own execution, on the caller's own connection.
	First(ctx context.Context) attempt.Outcome
	// Again is a retry, on a connection that was checked.
	Again(ctx context.Context) attempt.Outcome
	// Void decides a unit with a receipt that is in doubt: after it the unit is
	// known to be applied, or known never to be (attempt.Void).
	Void(ctx context.Context) attempt.Outcome
	// Answered notes in the receipt that Void left that the entry is removed and
	// the caller answered (attempt.Answered).
	Answered(ctx context.Context) attempt.Outcome
}

// Delivery is one unit on its way. It belongs to one goroutine.
type Delivery struct {
	Unit     *txlog.Unit
	Attempts Attempts
	// AnswerIsFinal: an answer of the database to the first attempt is the
	// caller's, even one that a retry could mend. So it is with COMMIT.
	AnswerIsFinal bool
	// Logging is when the entry is written.
	Logging Logging
	// KeepRefused parks a refused unit instead of removing its entry, as inside
	// a soft transaction. One whose idempotency key was used before for another
	// request is not kept: it could never be applied.
	KeepRefused bool
	// Behind: the entry of a delivered unit is removed behind the caller.
	Behind bool
	// Outcome is the last attempt's.
	Outcome attempt.Outcome
	// Tries counts the attempts so far.
	Tries int

	logged, unlogged bool // what Log made of it
	// logTook is how long the log took, and attempts are those that listeners are told of.
	logTook  time.Duration
	attempts []listener.Attempt
	// failed are the attempts that failed, which go with the unit to who takes it over.
	failed []txlog.Attempt
	// unwritten is why its entry could not be written, or is in doubt, although
	// the write was sent.
	unwritten error
	// inDoubt: an attempt may have been applied without that being known.
	inDoubt bool
	// voided, by this delivery.
	voided bool
	lease  *lease.Kept
	alone  [1]*txlog.Unit // Unit, for a write to the log
}

// Deliver runs the unit, and logs it when d.Logging says, unless Log did. nil
// means that it is delivered, and d.Outcome is how. Any other answer is the
// caller's: the database's own refusal, or an error that says what becomes of
// the write.
func (e *Deliverer) Deliver(ctx context.Context, d *Delivery) error {
	if !e.cfg.Bus.Listening() {
		err := e.deliver(ctx, d)
		e.count(d, err)
		return err
	}
	begun := time.Now().Add(-d.logTook)
	err := e.deliver(ctx, d)
	e.count(d, err)
	e.answered(d, begun, err)
	return err
}

func (e *Deliverer) deliver(ctx context.Context, d *Delivery) error {
	var beside *adding
	switch {
	case d.logged:
	case d.Logging == LogOnFailure:
		d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	case d.Logging == LogAlongside:
		beside = e.logAlongside(ctx, d)
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
			_ = e.logSent(ctx, d, beside) // a driver panicked
		}
		d.lease.Release() // if a driver panicked, the job takes over when the lease has run out
	}()
	if e.cfg.Bus.Listening() {
		e.cfg.Bus.Publish(attempt.Outcome{}.Event(listener.BeforeExecute, listener.Caller, d.Unit))
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
	e.reaper.reap(ctx, d)
	return nil
}

// Log writes the entries of several units in one durable step: after it all of
// them will be delivered, before it none. If that failed, errs holds the error
// of each.
func (e *Deliverer) Log(ctx context.Context, ds ...*Delivery) []error {
	errs := e.log(ctx, ds...)
	if errs != nil && e.cfg.Bus.Listening() {
		for i, d := range ds {
			e.answered(d, time.Now().Add(-d.logTook), errs[i])
		}
	}
	return errs
}

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
		d.Unit.TraceParent = e.cfg.Bus.TraceParent(ctx)
	}
	begun := time.Now()
	err := e.cfg.Storage.Add(ctx, e.cfg.Lease, units...)
	for _, d := range ds {
		d.logTook = time.Since(begun)
	}
	switch {
	case err == nil:
		for _, d := range ds {
			d.lease = e.leases.Keep(d.Unit)
			// The log may come back after its removal, as if an attempt were
			// still on its way: what is said of the unit then, its receipt decides.
			d.inDoubt = d.Unit.AddRepeated && d.Unit.Receipt != ""
		}
		if ds[0].lease.Lost() {
			// This process stood still for longer than the lease.
			return each(func(d *Delivery) error { d.lease.Release(); return pending(d, txlog.ErrLeaseLost) })
		}
		return nil
	case errors.Is(err, txlog.ErrInDoubt):
		// If it was written, its lease runs out and the job delivers it.
		return each(func(d *Delivery) error { return pending(d, err) })
	case e.cfg.RunUnlogged && ctx.Err() == nil && len(ds) == 1:
		e.logger(ds[0]).WithField("error", dberr.DescribeLog(err)).Error("bed: the transaction log cannot be written, the write runs UNLOGGED as configured")
		ds[0].unlogged = true
		return nil
	default:
		return each(func(d *Delivery) error {
			return &listener.NotLoggedError{DataSource: d.Unit.DataSource, Cause: err}
		})
	}
}

// final reports whether the error of the first attempt is the caller's.
func (d *Delivery) final() bool {
	switch out := &d.Outcome; {
	case out.Class == delivery.Refused, out.Class == delivery.Duplicate, d.AnswerIsFinal && out.Class.Answered():
		return true
	default: // it never left, and there is no other way to run it
		return d.Unit.NotReplayable != "" && !out.Maybe()
	}
}

// attempt makes an attempt and notes how it ended.
func (e *Deliverer) attempt(ctx context.Context, d *Delivery, run func(context.Context) attempt.Outcome) {
	begun := time.Now()
	d.Outcome = run(ctx)
	d.Tries++
	d.inDoubt = d.inDoubt || d.Outcome.Maybe()
	if out := &d.Outcome; out.Err != nil {
		d.failed = append(d.failed, txlog.Attempt{At: time.Now(), Origin: d.origin().String(), Class: out.Class.String(), Err: out.Err.Error()})
	}
	if e.cfg.Bus.Listening() {
		e.tellAttempt(d, begun)
	}
}

func (d *Delivery) origin() listener.Origin {
	if d.Tries > 1 {
		return listener.SyncRetry
	}
	return listener.Caller
}

func (e *Deliverer) logger(d *Delivery) *logrus.Entry {
	return e.cfg.Logger.WithFields(logrus.Fields{"log": d.Unit.ID, "data_source": d.Unit.DataSource})
}

// warn says of a write what may be to be said of very many: they are summed up.
func (e *Deliverer) warn(d *Delivery, err any, message string) {
	entry := e.logger(d)
	if err != nil {
		entry = entry.WithField("error", err)
	}
	e.warnings.warn(d.Unit.DataSource, entry, message)
}

func pending(d *Delivery, cause error) *listener.PendingError {
	return &listener.PendingError{LogID: d.Unit.ID, DataSource: d.Unit.DataSource, Cause: cause}
}
