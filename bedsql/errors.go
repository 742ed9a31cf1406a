package bedsql

import (
	"errors"
	"fmt"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
)

var (
	// ErrPending is matched by the error of a write that is logged and not
	// known to be applied: the job will deliver it, or it is parked. errors.As
	// finds a *PendingError; errors.Unwrap gives the cause.
	ErrPending = listener.ErrPending
	// ErrNotLogged is matched by the error of a write that is not applied and
	// whose entry could not be written. Under LogBefore it was not sent.
	// errors.As finds a *NotLoggedError.
	ErrNotLogged = listener.ErrNotLogged
	// ErrUnknownOutcome is matched by the error of a write about which nothing is
	// known: it may or may not be applied. With txlog.ErrInDoubt inside, it is not known
	// whether the log holds its entry, which the log was asked for within the caller's
	// context: the job delivers it if so. Else nobody tries a single write again, as when
	// a connection of the bare driver breaks; of a soft transaction, the job delivers
	// what the log holds: ask End. Under LogAlongside or LogOnFailure its
	// attempt was not answered, its entry could not be written, and there was no
	// receipt to decide it by, or the target could not be asked for it; errors.As
	// finds an *UnknownOutcomeError, which wraps both causes. It is also the error of
	// a write that ran unlogged while its context ended, of an End whose context
	// ended before its writes, and, from End, of a write under RunUnlogged at which
	// the driver panicked. With ErrTransactionLost, a procedure has committed or rolled back
	// a transaction under an idempotency key. It is not txlog.ErrUnconfirmed, which is about a change
	// of an entry.
	ErrUnknownOutcome = listener.ErrUnknownOutcome
	// ErrNested is returned by Begin inside a soft transaction.
	ErrNested = errors.New("bed: a soft transaction is already open in this context")
	// ErrEnded is returned by a write under a soft transaction that has ended.
	// It was neither logged nor sent.
	ErrEnded = errors.New("bed: the soft transaction of this context has ended")
	// ErrStaged is matched by the errors of what a staged soft transaction
	// cannot give: results before End, writes that return rows or need their
	// session, writes for data sources with another log. Nothing was sent.
	ErrStaged = errors.New("bed: not possible in a staged soft transaction")
	// ErrKeyReused is matched by the error of a request under an idempotency
	// key under which another request was sent before. It is not applied. The
	// text says what differs, never a value.
	ErrKeyReused = delivery.ErrKeyReused
	// ErrKeyUnusable is matched by the error of a write that cannot carry the
	// receipt of its idempotency key. It was not sent.
	ErrKeyUnusable = errors.New("bed: the idempotency key cannot be used for this write")
	// ErrNotIdempotent is matched, with Config.Guard set to GuardRefuse, by the
	// error of a write that is not idempotent.
	// It was neither logged nor sent.
	ErrNotIdempotent = errors.New("bed: the write was not sent, it is not idempotent")
	// ErrPinned is returned, with Config.Pinned set to PinnedRefuse, by a write
	// that could only run unlogged. It was not sent.
	ErrPinned = errors.New("bed: the write was not sent, it could only run unlogged")
	// ErrTransactionLost is matched by the errors of a local transaction that
	// the database rolled back on its own (a deadlock) while the session went
	// on: a write sent now would be committed on its own. Roll back and begin
	// again.
	ErrTransactionLost = errors.New("bed: the database has rolled the transaction back, nothing more is written into it")
	// ErrRolledBack is matched by the error of End when the transaction of WithTx was
	// rolled back: nothing of it is delivered, and its writes are not applied.
	ErrRolledBack = errors.New("bed: the transaction of WithTx was rolled back, nothing of it is delivered")
	// ErrNotCommitted is matched by the error of End when the transaction of WithTx is
	// still open: nothing was delivered. If it commits later, the job delivers its writes.
	ErrNotCommitted = errors.New("bed: the transaction of WithTx is not committed, nothing is delivered: call End after Commit; what it still commits, the job delivers")
	// ErrRowsUnknown is returned by the methods of a Result, and by a write sent
	// through Query, when the write is delivered but the answer with its row
	// count or its rows was lost.
	ErrRowsUnknown = listener.ErrRowsUnknown
)

// PendingError is the error type behind ErrPending. errors.Is(err, ErrPending)
// holds, and it unwraps to the cause. Its fields:
//
//	EntryID      string // the id of the write's entry (not of the log): bed-job show EntryID; for a part of a group with a way back, the group's
//	DataSource string // where it is to be delivered
//	Parked     bool   // it waits for an operator rather than for the job
//	Parking    bool   // it was to be parked, which the log did not confirm
//	Refused    bool   // it was refused, and only its entry could not be removed
//	Turned     bool   // EntryID is that of a group that has turned back and is not undone yet; if Parked, half undone
//	Cause      error  // the last attempt's error
type PendingError = listener.PendingError

// NotLoggedError is the error type behind ErrNotLogged. errors.Is(err,
// ErrNotLogged) holds, and it unwraps to its causes. Its fields:
//
//	DataSource string // where the write was to go
//	Cause      error  // why the entry could not be written
//	Attempt    error  // the attempt's error; nil if the write was not sent
type NotLoggedError = listener.NotLoggedError

// UnknownOutcomeError is the error type behind ErrUnknownOutcome. It unwraps to
// both causes. Its fields:
//
//	EntryID      string // the id of the entry that may be in the log; empty if none can be
//	DataSource string // where the write was to go
//	Refused    bool   // it was refused, and its entry may still be in the log
//	Cause      error  // the last attempt's error; nil if it was not sent
//	Log        error  // why the entry could not be written; nil if the write was to run unlogged
type UnknownOutcomeError = listener.UnknownOutcomeError

// RefusedError is a refusal inside a soft transaction, as End reports it: the
// write is parked. It unwraps to the driver's own error. Its fields:
//
//	EntryID      string // the id of the write's entry (not of the log): bed-job show EntryID; empty if Removed
//	DataSource string // which refused it
//	Removed    bool   // all of its staged group was refused, nothing of it is applied, and its entries are removed
//	Cause      error  // the driver's error
type RefusedError = listener.RefusedError

// CompensatedError is what End reports of a group that has turned back (see
// SoftTransaction.Compensation): all that was applied of it is undone, but for what nothing
// was recorded to undo (EndError.Delivered). It unwraps to the cause. Its fields:
//
//	TransactionID string // the group's id, SoftTransaction.ID
//	Cause         error  // why it turned: the refusal, with the name of its data source before it, or a text that says who turned it
type CompensatedError = listener.CompensatedError

// RowsError is the refusal of a write that did not change as many rows as RequireRows
// or AtLeastRows requires. Its fields:
//
//	Want    int64 // how many rows it must change
//	AtLeast bool  // or more
//	Got     int64 // how many it changed; -1 if the driver does not say
type RowsError = delivery.RowsError

// LogElsewhereError is the error of a write under WithTx whose transaction does not reach the
// write's log: it is on another server, its session sees another log, or none, or may not
// write to it. The write was neither logged nor sent, and the transaction goes on.
type LogElsewhereError struct {
	// DataSource is where the write was to go.
	DataSource string
	// Log says where its log is, without user and password; empty if that has no place.
	Log string
	// Cause is what the transaction's database said; nil if this kind of log cannot be
	// written by others.
	Cause error
}

func (e *LogElsewhereError) Error() string {
	at := "its transaction log"
	if e.Log != "" {
		at += " at " + e.Log
	}
	text := fmt.Sprintf("bed: the write to %s was neither logged nor sent: the transaction of WithTx does not reach %s: "+
		"it must be on the same server, with the rights to insert, select and update there", e.DataSource, at)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *LogElsewhereError) Unwrap() error { return e.Cause }

// EndError is what the End of a soft transaction reports when not every write
// was delivered.
type EndError struct {
	// Errors has one error for each write that was not delivered, in a staged soft
	// transaction one for each data source: a *RefusedError, a *PendingError, or
	// another error that says that nothing was applied. OutcomeOf says what it all
	// means.
	Errors []error
	// Delivered has the data sources to which a write was delivered, in the order
	// of the first delivery. One may be here and in Errors too, if only some of its
	// writes were delivered. The rows that a transaction of WithTx committed itself count,
	// by its data source or, for a bare driver's, by where the log is. A part of a pending
	// group with a way back does not.
	Delivered []string
}

// Error gives the texts of all errors, one to a line.
func (e *EndError) Error() string { return errors.Join(e.Errors...).Error() }

// Unwrap gives Errors, so that errors.Is looks at all of them. errors.As finds
// the first that fits; Refused and Pending give every one of their kind.
func (e *EndError) Unwrap() []error { return e.Errors }

// Refused gives each write that was refused: it is parked in the log, or removed with all of
// a staged group that was refused whole.
func (e *EndError) Refused() []*RefusedError { return each[*RefusedError](e.Errors) }

// Pending gives each write that is pending: the job delivers it, or it is parked
// because its outcome is not known.
func (e *EndError) Pending() []*PendingError { return each[*PendingError](e.Errors) }

// each gives those of the errors that are a T at their head: what a pending one
// wraps is its cause.
func each[T error](all []error) (found []T) {
	for _, err := range all {
		if one, ok := err.(T); ok { //nolint:errorlint // see above
			found = append(found, one)
		}
	}
	return found
}
