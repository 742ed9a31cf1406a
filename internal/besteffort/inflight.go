package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

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

// Attempts are the ways to run one unit. Each returns the outcome, unless the driver panics.
type Attempts interface {
	// First is the caller's own execution, on the caller's own connection.
	First(ctx context.Context) attempt.Outcome
	// Again makes a further step, on a checked connection.
	Again(ctx context.Context, step Step) attempt.Outcome
}

// Step is a step after a unit's first attempt.
type Step uint8

const (
	// Retry runs it once more.
	Retry Step = iota
	// Void decides a unit in doubt by its receipt: afterwards the unit is either applied or never
	// will be (attempt.Void).
	Void
	// MarkReported notes in the void receipt that the entry is removed and the refusal reported
	// (attempt.MarkReported).
	MarkReported
)

// InFlight is one unit on its way. It belongs to one goroutine.
type InFlight struct {
	Unit     *txlog.Unit
	Attempts Attempts
	// Outcome is the last attempt's.
	Outcome attempt.Outcome
	// Tries counts the attempts so far.
	Tries int
	// AnswerIsFinal means that the caller gets any answer of the database to the first attempt,
	// even a retryable one. COMMIT needs this.
	AnswerIsFinal bool
	// TurnHasCome means that the predecessor under the order key was delivered. The unit then
	// waits for its turn here, whatever OrderWait is.
	TurnHasCome bool
	// Logging is when the entry is written.
	Logging Logging
	// Deadline is the deadline of the first attempt, if an earlier step used up a part of
	// AttemptTimeout.
	Deadline time.Time
	// KeepRefused parks a refused unit instead of removing its entry, as inside a soft
	// transaction. A unit whose idempotency key belongs to another request is not kept: it could
	// never be applied.
	KeepRefused bool
	// HoldRefused means that a refused unit keeps its entry and its lease until RefuseAll or Park.
	HoldRefused bool
	// Awaited means that messages of its group wait for the unit. A refused unit stays in the log,
	// parked.
	Awaited bool
	// Held marks a unit of a compensable group. After delivery or refusal it keeps its entry and
	// its lease until the End of its Group.
	Held bool
	// RemoveLater removes the entry of a delivered unit after the call returns.
	RemoveLater bool
	// hung means that AttemptTimeout cut off the last attempt. The call tries no more.
	hung bool
	// logged and unlogged are the state of its entry. inDoubt means that an attempt may have been
	// applied. voided means that this call decided the doubt.
	logged, unlogged, inDoubt, voided bool
	// held means that a Held unit was delivered or refused. refusal means that a HoldRefused unit
	// was refused.
	held, refusal bool
	// logTook is how long the log took.
	logTook time.Duration
	// listening means that a listener hears of the unit, of its beginning and of its attempts.
	listening bool
	begun     time.Time
	attempts  []listener.Attempt
	// failed are the failed attempts. They go with the unit to its next owner.
	failed []txlog.Attempt
	// unwritten is why its entry could not be written, or is in doubt.
	unwritten error
	lease     *lease.Kept
	alone     [1]*txlog.Unit // Unit, for a write to the log
	removal   removal.Unit   // the same for its removal
}

// final reports whether the error of the first attempt is the caller's.
func (d *InFlight) final() bool {
	switch out := &d.Outcome; {
	case out.Class == dialect.Refused, out.Class == dialect.Duplicate, d.AnswerIsFinal && out.Class.Answered():
		return true
	default: // it never left, and there is no other way to run it
		return d.Unit.NotReplayable != "" && !out.Maybe()
	}
}

// answer returns the error of the last attempt to a caller whose write is not applied and never
// will be. A refusal says so itself.
func (d *InFlight) answer() error {
	if out := &d.Outcome; !out.Class.Answered() {
		return attempt.Certain(out.Err, dialect.Unreachable)
	}
	return d.Outcome.Err
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

// parksRefusal reports whether a refusal of d is to be parked in the log.
func (d *InFlight) parksRefusal() bool {
	return d.KeepRefused && !d.Held && (d.Awaited || !errors.Is(d.Outcome.Err, dialect.ErrKeyReused))
}

// Refused reports whether d was refused and is left to RefuseAll or Park.
func (d *InFlight) Refused() bool { return d.refusal }

func (d *InFlight) origin() listener.Origin {
	if d.Tries > 1 {
		return listener.SyncRetry
	}
	return listener.Caller
}

// Panicked is the error for a unit whose driver panicked with p.
func (d *InFlight) Panicked(p any) error {
	cause := fmt.Errorf("the driver panicked: %v", p)
	switch {
	case d.unwritten == nil:
		return pending(d, cause)
	case errors.Is(d.unwritten, txlog.ErrInDoubt):
		return inDoubt(d, cause)
	}
	return &listener.UnknownOutcomeError{DataSource: d.Unit.DataSource, Cause: cause, Log: d.unwritten}
}

func pending(d *InFlight, cause error) *listener.PendingError {
	return &listener.PendingError{EntryID: d.Unit.Decides(), DataSource: d.Unit.DataSource, Cause: cause}
}

// inDoubt is the answer for a unit that may or may not have an entry; cause is the last attempt's
// error, nil before the first.
func inDoubt(d *InFlight, cause error) *listener.UnknownOutcomeError {
	return &listener.UnknownOutcomeError{EntryID: d.Unit.Decides(), DataSource: d.Unit.DataSource, Cause: cause, Log: d.unwritten}
}
