package besteffort

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Logging says when the entry of a unit is written.
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

// Attempts are the ways to run one unit, each of which says how it ended
// unless the driver panics.
type Attempts interface {
	// First is the caller's own execution, on the caller's own connection.
	First(ctx context.Context) attempt.Outcome
	// Again makes a further step, on a connection that was checked.
	Again(ctx context.Context, step Step) attempt.Outcome
}

// Step is what is done with a unit after its first attempt.
type Step uint8

const (
	// Retry runs it once more.
	Retry Step = iota
	// Void decides a unit with a receipt that is in doubt: after it the unit is
	// known to be applied, or known never to be (attempt.Void).
	Void
	// MarkReported notes in the receipt that Void left that the entry is removed and
	// the refusal reported (attempt.MarkReported).
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
	// AnswerIsFinal: an answer of the database to the first attempt is the
	// caller's, even one that a retry could fix. So it is with COMMIT.
	AnswerIsFinal bool
	// TurnHasCome: what it waits for under its order key was delivered, so it is not left to
	// the job whatever OrderWait is.
	TurnHasCome bool
	// Logging is when the entry is written.
	Logging Logging
	// Deadline is that of the first attempt, if something before it used up a part of
	// AttemptTimeout.
	Deadline time.Time
	// KeepRefused parks a refused unit instead of removing its entry, as inside
	// a soft transaction. One whose idempotency key was used before for another
	// request is not kept: it could never be applied.
	KeepRefused bool
	// HoldRefused: a refused unit keeps its entry and its lease until RefuseAll or Park.
	HoldRefused bool
	// Awaited: messages of its group wait for it. What is refused stays in the log, parked.
	Awaited bool
	// Held is set for a unit of a group that can turn back: one that is delivered or
	// refused keeps its entry and its lease until the End of its Group.
	Held bool
	// RemoveLater: the entry of a delivered unit is removed after the call returns.
	RemoveLater bool
	// hung: the last attempt was cut off by AttemptTimeout. Nothing more is tried in the
	// call.
	hung bool
	// logged, unlogged: what was made of its entry. inDoubt: an attempt may have
	// been applied without that being known. voided: it was decided here.
	logged, unlogged, inDoubt, voided bool
	// held: it is Held, and was delivered or refused. refusal: it was refused, and is
	// HoldRefused.
	held, refusal bool
	// logTook is how long the log took.
	logTook time.Duration
	// listening: somebody hears of it, of when it was begun and of its attempts.
	listening bool
	begun     time.Time
	attempts  []listener.Attempt
	// failed are the attempts that failed, which go with the unit to who takes it over.
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
	case out.Class == delivery.Refused, out.Class == delivery.Duplicate, d.AnswerIsFinal && out.Class.Answered():
		return true
	default: // it never left, and there is no other way to run it
		return d.Unit.NotReplayable != "" && !out.Maybe()
	}
}

// answer is the error of the last attempt as the caller gets it, when the write is
// not applied and never will be. A refusal says so itself.
func (d *InFlight) answer() error {
	if out := &d.Outcome; !out.Class.Answered() {
		return attempt.Certain(out.Err, delivery.Unreachable)
	}
	return d.Outcome.Err
}

// LeftOpen is the error of a write that ran once, without an entry, because of log if
// that is not nil: the driver's own, unless the end of a context leaves its outcome
// open. A bare context error means that nothing was applied.
func LeftOpen(dataSource string, out attempt.Outcome, log error) error {
	if out.Maybe() && (errors.Is(out.Err, context.Canceled) || errors.Is(out.Err, context.DeadlineExceeded)) {
		return &listener.UnknownOutcomeError{DataSource: dataSource, Cause: out.Err, Log: log}
	}
	return out.Err
}

// parksRefusal reports whether a refusal of d is to be parked in the log.
func (d *InFlight) parksRefusal() bool {
	return d.KeepRefused && !d.Held && (d.Awaited || !errors.Is(d.Outcome.Err, delivery.ErrKeyReused))
}

// Refused reports whether d was refused and is left to RefuseAll or Park.
func (d *InFlight) Refused() bool { return d.refusal }

func (d *InFlight) origin() listener.Origin {
	if d.Tries > 1 {
		return listener.SyncRetry
	}
	return listener.Caller
}

// Panicked is what is reported of a unit at which the driver panicked with p.
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

// inDoubt is the answer for a unit of which it is not known whether the log holds its
// entry; cause is the last attempt's error, nil if there was none.
func inDoubt(d *InFlight, cause error) *listener.UnknownOutcomeError {
	return &listener.UnknownOutcomeError{EntryID: d.Unit.Decides(), DataSource: d.Unit.DataSource, Cause: cause, Log: d.unwritten}
}
