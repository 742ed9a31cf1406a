package listener

import (
	"database/sql/driver"
	"errors"
	"fmt"
)

var (
	// Package bedsql documents these errors under the same names, and the fields of their
	// types.

	ErrPending        = errors.New("bed: the write is logged and will be delivered later")
	ErrNotLogged      = errors.New("bed: the write was not accepted, its entry could not be written to the transaction log")
	ErrUnknownOutcome = errors.New("bed: it is not known whether the write was applied, nor that it is logged")
	ErrRowsUnknown    = errors.New("bed: the write is delivered, but the answer with its row count was lost")
)

// PendingError is a write that is logged and not known to be applied.
// errors.Is(err, ErrPending) holds; it unwraps to the cause.
type PendingError struct {
	EntryID    string
	DataSource string
	Parked     bool
	// Parking is set if parking it was not confirmed by the log. The job takes it up after its
	// lease, unless it is parked by then.
	Parking bool
	// Refused is set if the database refused it and only the removal of its entry failed: the
	// job tries it again.
	Refused bool
	// Compensating is set if it is a group whose compensation has started: EntryID is the group's,
	// and its applied writes are being compensated.
	Compensating bool
	Cause        error
}

func (e *PendingError) Error() string {
	what := "is pending, the job will deliver it once the entry is as old as the job's MaxDeliveryTryDelay (60 s by default)"
	var behind *BehindError
	switch {
	case e.Compensating && e.Parked:
		what = "belongs to a half-compensated group, because the database refused a compensation; an operator has to decide (bed-job show " + e.EntryID + ")"
	case e.Compensating:
		what = "belongs to a group that is being compensated; the job continues"
	case errors.As(e.Cause, &behind):
		what = "waits for its turn under an order key, the job will deliver it then"
	case e.Refused:
		what = "was refused, but its entry could not be removed: the job will try it again"
	case e.Parking:
		what = "is to wait for an operator; the job takes it up if it could not be parked"
	case e.Parked:
		what = "is parked, an operator has to decide (bed-job show " + e.EntryID + ")"
	}
	return fmt.Sprintf("bed: write to %s %s (entry %s): %v", e.DataSource, what, e.EntryID, e.Cause)
}

// Is makes errors.Is(err, ErrPending) true.
func (e *PendingError) Is(target error) bool { return target == ErrPending }

// Unwrap returns the cause. It hides driver.ErrBadConn, which would make database/sql run
// the statement again.
func (e *PendingError) Unwrap() error { return hideBadConn(e.Cause) }

// BehindError is the reason for a pending write under an order key: another write is ahead
// of it.
type BehindError struct {
	Entry string
	Key   string
}

func (e *BehindError) Error() string {
	return fmt.Sprintf("entry %s is before it under the order key %s (bed-job show %[1]s)", e.Entry, e.Key)
}

// NotLoggedError is a write that was not accepted: it is not applied, and will not be
// retried. errors.Is(err, ErrNotLogged) holds; it unwraps to the cause.
type NotLoggedError struct {
	DataSource string
	Cause      error
	Attempt    error
}

func (e *NotLoggedError) Error() string {
	if e.Attempt != nil {
		return fmt.Sprintf("bed: write to %s is not applied (%v) and cannot be tried later, its entry could not be written to the transaction log: %v", e.DataSource, e.Attempt, e.Cause)
	}
	return fmt.Sprintf("bed: write to %s was not accepted and not sent, its entry could not be written to the transaction log: %v", e.DataSource, e.Cause)
}

// Is makes errors.Is(err, ErrNotLogged) true.
func (e *NotLoggedError) Is(target error) bool { return target == ErrNotLogged }

// Unwrap returns the cause, and the attempt's error if any. It hides driver.ErrBadConn.
func (e *NotLoggedError) Unwrap() error {
	if e.Attempt != nil {
		return hideBadConn(errors.Join(e.Cause, e.Attempt))
	}
	return hideBadConn(e.Cause)
}

// UnknownOutcomeError is a write with an unknown outcome. Either it was sent without an
// entry, as when a connection of the bare driver breaks, or the log may or may not hold its
// entry. errors.Is(err, ErrUnknownOutcome) holds; it wraps both causes.
type UnknownOutcomeError struct {
	// EntryID is the id of the entry that may be in the log; empty without one.
	EntryID    string
	DataSource string
	// Refused is set if the database refused it. If the entry is still there, the job may try
	// it again.
	Refused bool
	// Cause is the last attempt's error; nil if it was not sent.
	Cause error
	Log   error
}

func (e *UnknownOutcomeError) Error() string {
	switch ifThere := fmt.Sprintf("if entry %s is in the log, the job will deliver it (bed-job show %[1]s): %v", e.EntryID, e.Log); {
	case e.Log == nil:
		return fmt.Sprintf("bed: it is not known whether the write to %s was applied, which ran unlogged: %v", e.DataSource, e.Cause)
	case e.EntryID == "":
	case e.Cause == nil:
		return fmt.Sprintf("bed: write to %s was not sent, and it is not known whether it was logged; %s", e.DataSource, ifThere)
	case e.Refused:
		return fmt.Sprintf("bed: write to %s was refused (%v), and it is not known whether its entry is removed; %s", e.DataSource, e.Cause, ifThere)
	default:
		return fmt.Sprintf("bed: it is not known whether the write to %s was applied (%v), nor whether it was logged; %s", e.DataSource, e.Cause, ifThere)
	}
	return fmt.Sprintf("bed: it is not known whether the write to %s was applied (%v), and its entry could not be written to the transaction log: %v", e.DataSource, e.Cause, e.Log)
}

// Is makes errors.Is(err, ErrUnknownOutcome) true.
func (e *UnknownOutcomeError) Is(target error) bool { return target == ErrUnknownOutcome }

// Unwrap returns both causes. It hides driver.ErrBadConn.
func (e *UnknownOutcomeError) Unwrap() []error {
	var both []error
	for _, err := range []error{e.Cause, e.Log} {
		if err != nil {
			both = append(both, hideBadConn(err))
		}
	}
	return both
}

// CompensatedError is a compensated group: all applied writes of it are undone. It unwraps
// to the cause.
type CompensatedError struct {
	TransactionID string
	Cause         error
}

func (e *CompensatedError) Error() string {
	return fmt.Sprintf("bed: soft transaction %s is compensated: %v", e.TransactionID, e.Cause)
}

// Unwrap returns the cause.
func (e *CompensatedError) Unwrap() error { return e.Cause }

// RefusedError is a write inside a soft transaction that the database refused. It is parked
// in the log, or, if Removed, gone with its whole group, which had no effect. It unwraps to
// the driver's own error.
type RefusedError struct {
	EntryID    string
	DataSource string
	Removed    bool
	Cause      error
}

func (e *RefusedError) Error() string {
	if e.Removed {
		return fmt.Sprintf("bed: %s refused a write, nothing of its group is applied, and its entries are removed: %v", e.DataSource, e.Cause)
	}
	return fmt.Sprintf("bed: %s refused a write, it is parked (bed-job show %s): %v", e.DataSource, e.EntryID, e.Cause)
}

// Unwrap returns the driver's error.
func (e *RefusedError) Unwrap() error { return e.Cause }

// badConnHiddenError hides the driver.ErrBadConn in its chain, which would make database/sql
// run a statement again. All other errors in the chain stay visible.
type badConnHiddenError struct{ err error }

func (e *badConnHiddenError) Error() string { return e.err.Error() }

func (e *badConnHiddenError) Is(target error) bool {
	return target != driver.ErrBadConn && errors.Is(e.err, target)
}

func (e *badConnHiddenError) As(target any) bool { return errors.As(e.err, target) }

func hideBadConn(err error) error {
	if err != nil && errors.Is(err, driver.ErrBadConn) {
		return &badConnHiddenError{err}
	}
	return err
}
