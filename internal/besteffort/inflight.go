package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Attempts are the ways to run one unit, and the questions to its receipt. Each returns the
// outcome, unless the driver panics.
type Attempts interface {
	// First is the caller's own execution, on the caller's own connection.
	First(ctx context.Context) attempt.Outcome
	// Again runs the unit once more, on a checked connection.
	Again(ctx context.Context) attempt.Outcome

	// Void decides a unit in doubt: afterwards the unit is either applied or never will be
	// (attempt.Void). It and MarkReported ask its receipt, on a checked connection.
	Void(ctx context.Context) attempt.Outcome
	// MarkReported notes in the void receipt that the entry is removed and the refusal reported
	// (attempt.MarkReported).
	MarkReported(ctx context.Context) attempt.Outcome
}

// Logging is the time at which a unit's entry is written.
type Logging uint8

const (
	// LogBefore writes it before the first attempt leaves.
	LogBefore Logging = iota
	// LogAlongside writes it while the first attempt is under way.
	LogAlongside
	// LogOnFailure writes it when the first attempt has failed, or its outcome
	// is not known.
	LogOnFailure
)

// Ending is what becomes of a settled unit's entry.
type Ending uint8

const (
	// RemoveEntry removes it, and a refused unit's before the caller gets the refusal.
	RemoveEntry Ending = iota
	// ParkRefused parks a refused unit, as inside a soft transaction. A unit whose idempotency key
	// belongs to another request is not parked, unless it is Awaited: it could never be applied.
	ParkRefused
	// HoldRefused keeps the entry and the lease of a unit that ParkRefused would park.
	HoldRefused
	// HoldSettled keeps the entry and the lease of a delivered or refused unit.
	HoldSettled
)

// Policy is the way to deliver a write. The zero value is the plain one.
type Policy struct {
	// Logging is when the entry is written.
	Logging Logging
	// Ending is what becomes of the entry.
	Ending Ending
	// RemoveLater removes the entry of a delivered unit after the call returns.
	RemoveLater bool
	// AnswerIsFinal means that the caller gets any answer of the database to the first attempt,
	// even a retryable one. COMMIT needs this.
	AnswerIsFinal bool
	// Strict means that the unit needs the log's own answer to its entry. Without that the log is
	// not asked for the entry, and the unit never runs unlogged.
	Strict bool
	// Awaited means that other entries wait for the unit. If it is refused, it is parked.
	Awaited bool
}

// InFlight is one unit on its way. It belongs to one goroutine.
type InFlight struct {
	Unit     *entry.Unit
	Attempts Attempts
	Policy
	// Deadline is the deadline of the first attempt, if an earlier step used up a part of
	// AttemptTimeout.
	Deadline time.Time
	// Outcome is the last attempt's.
	Outcome attempt.Outcome
	// Tries counts the attempts so far.
	Tries int

	course
	// hung means that AttemptTimeout cut off the last attempt. The call tries no more.
	hung bool
	// failed are the failed attempts. They go with the unit to its next owner.
	failed []journal.Attempt
	// unwritten is why its entry could not be written, or is in doubt.
	unwritten error
	lease     *lease.Kept
	alone     [1]*entry.Unit // Unit, for a write to the log
	removal   removal.Unit   // the same for its removal
	heard     *heard         // nil: no listener hears of the unit
}

// heard is for the listeners.
type heard struct {
	begun    time.Time
	logTook  time.Duration
	attempts []listener.Attempt
}

// final reports whether the error of the first attempt is the caller's.
func (w *InFlight) final() bool {
	switch out := &w.Outcome; {
	case out.Class == dialect.Refused, out.Class == dialect.Duplicate, w.AnswerIsFinal && out.Class.Answered():
		return true
	default: // it never left, and there is no other way to run it
		return w.Unit.NotReplayable != "" && !out.Maybe()
	}
}

// answer returns the error of the last attempt to a caller whose write is not applied and never
// will be. A refusal says so itself.
func (w *InFlight) answer() error {
	if out := &w.Outcome; !out.Class.Answered() {
		return attempt.Certain(out.Err, dialect.Unreachable)
	}
	return w.Outcome.Err
}

// LeftOpen returns the error of a write that ran once without an entry; log is the log's error or
// nil. It is the driver's own error, unless the end of a context leaves the outcome open. A bare
// context error would mean that nothing was applied.
func LeftOpen(dataSource string, out attempt.Outcome, log error) error {
	if out.Maybe() && (errors.Is(out.Err, context.Canceled) || errors.Is(out.Err, context.DeadlineExceeded)) {
		return &listener.UnknownOutcomeError{DataSource: dataSource, Cause: out.Err, Log: log}
	}
	return out.Err
}

// parks reports whether a refusal of w stays in the log.
func (w *InFlight) parks() bool {
	return (w.Ending == ParkRefused || w.Ending == HoldRefused) && (w.Awaited || !errors.Is(w.Outcome.Err, dialect.ErrKeyReused))
}

// Held reports whether w was delivered, or refused, and its entry and its lease are kept for the
// caller to end.
func (w *InFlight) Held() bool { return w.state == held }

// Lease is the lease of w while it is kept; nil without one.
func (w *InFlight) Lease() *lease.Kept { return w.lease }

func (w *InFlight) origin() listener.Origin {
	if w.Tries > 1 {
		return listener.SyncRetry
	}
	return listener.Caller
}

// Panicked is the error for a unit whose driver panicked with p.
func (w *InFlight) Panicked(p any) error {
	cause := fmt.Errorf("the driver panicked: %v", p)
	if w.unwritten != nil && !errors.Is(w.unwritten, txlog.ErrInDoubt) {
		return &listener.UnknownOutcomeError{DataSource: w.Unit.DataSource, Cause: cause, Log: w.unwritten}
	}
	return w.Undecided(cause, w.unwritten)
}

// Pending is the answer for a unit in the log.
func (w *InFlight) Pending(cause error) *listener.PendingError {
	return &listener.PendingError{EntryID: w.Unit.Decides(), DataSource: w.Unit.DataSource, Cause: cause}
}

// Undecided is Pending if log, the log's error, leaves no doubt that there is an entry. cause is
// the last attempt's error, nil before the first.
func (w *InFlight) Undecided(cause, log error) error {
	if errors.Is(log, txlog.ErrInDoubt) {
		return w.mayBeThere(cause, log)
	}
	return w.Pending(cause)
}

// mayBeThere is the answer for a unit that may or may not have an entry.
func (w *InFlight) mayBeThere(cause, log error) *listener.UnknownOutcomeError {
	return &listener.UnknownOutcomeError{EntryID: w.Unit.Decides(), DataSource: w.Unit.DataSource, Cause: cause, Log: log}
}

// notAccepted ends a unit before its first attempt, because of the log's error err. nil means that
// the lease is over.
func (w *InFlight) notAccepted(err error) error {
	switch {
	case err == nil:
		w.take(leave)
		return w.Pending(txlog.ErrLeaseLost)
	case errors.Is(err, txlog.ErrInDoubt): // if the entry was written, its lease runs out and the job delivers it
		w.take(leave)
		return w.mayBeThere(nil, err)
	}
	w.take(finish)
	if errors.Is(err, txlog.ErrUnstorable) {
		return attempt.Certain(fmt.Errorf("bed: the write was not sent, the transaction log can never take it: %w", err), dialect.Refused)
	}
	return &listener.NotLoggedError{DataSource: w.Unit.DataSource, Cause: err}
}
