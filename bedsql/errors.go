package bedsql

import (
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/keyed"
	"github.com/bedsql/bed/listener"
)

var (
	// ErrPending is matched by the error of a write that is logged and not known to be applied:
	// the job will deliver it, or it is parked. errors.As finds a *PendingError; errors.Unwrap
	// returns the cause.
	ErrPending = listener.ErrPending
	// ErrNotLogged is matched by the error of a write that is neither applied nor logged. Under
	// LogBefore it was not sent. errors.As finds a *NotLoggedError.
	ErrNotLogged = listener.ErrNotLogged
	// ErrUnknownOutcome is matched by the error of a write that may or may not be applied.
	// errors.As finds an *UnknownOutcomeError, with both causes inside.
	//
	// With txlog.ErrInDoubt inside, the entry may or may not be in the log, although bed looked
	// for it within the caller's context. If it is there, the job delivers it. Otherwise no one
	// tries a single write again, just as after a broken connection of the bare driver. For a soft
	// transaction the job delivers the entries in the log: call End.
	//
	// Under LogAlongside or LogOnFailure, the attempt got no answer, its entry could not be
	// written, and no receipt could decide it. It is also the error of an unlogged write, or of an
	// End before its writes, after the end of their context. End returns it for a write under
	// RunUnlogged after a panic of the driver. With ErrTransactionLost, a procedure has committed
	// or rolled back a transaction under an idempotency key. It differs from txlog.ErrUnconfirmed,
	// which is about a change of an entry.
	ErrUnknownOutcome = listener.ErrUnknownOutcome
	// ErrNested is returned by Begin inside a soft transaction.
	ErrNested = errors.New("bed: a soft transaction is already open in this context")
	// ErrEnded is returned by a write under an ended soft transaction. The write was neither
	// logged nor sent.
	ErrEnded = errors.New("bed: the soft transaction of this context has ended")
	// ErrStaged is matched by the errors of operations impossible in a staged soft transaction:
	// results before End, writes that return rows or need their session, writes for data sources
	// with another log. Under WithTx it also refuses statements that could end the transaction
	// unseen. Nothing was sent.
	ErrStaged = errors.New("bed: not possible in a staged soft transaction")
	// ErrKeyReused is matched by the error of a request under an idempotency key of an earlier,
	// different request. It is not applied. The text names the difference, never a value.
	ErrKeyReused = dialect.ErrKeyReused
	// ErrKeyUnusable is matched by the error of a write that cannot carry the
	// receipt of its idempotency key. It was not sent.
	ErrKeyUnusable = keyed.ErrUnusable
	// ErrNotIdempotent is matched by the error of a write that is not idempotent, with
	// Config.Guard set to GuardRefuse. It was neither logged nor sent.
	ErrNotIdempotent = errors.New("bed: the write was not sent, it is not idempotent")
	// ErrPinned is returned by a write that could only run unlogged, with Config.Pinned set to
	// PinnedRefuse. It was not sent.
	ErrPinned = errors.New("bed: the write was not sent, it could only run unlogged")
	// ErrTransactionLost is matched by the errors of a local transaction that the database rolled
	// back on its own (a deadlock) while the session went on: a write sent now would be committed
	// on its own. Roll back and begin again.
	ErrTransactionLost = errors.New("bed: the database has rolled the transaction back, nothing more is written into it")
	// ErrRolledBack is matched by the error of End when the transaction of WithTx was rolled back:
	// nothing is delivered, and its writes are not applied.
	ErrRolledBack = errors.New("bed: the transaction of WithTx was rolled back, nothing of it is delivered")
	// ErrNotCommitted is matched by the error of End when the transaction of WithTx is still open:
	// nothing was delivered. If it commits later, the job delivers its writes.
	ErrNotCommitted = errors.New("bed: the transaction of WithTx is not committed, nothing is delivered: call End after Commit; what it still commits, the job delivers")
	// ErrOutsideRequest is the error of a write, a BeginTx or an End under the context of a request
	// that can be undone (bedhttp.Config.Undo), unless its transaction makes or records the write.
	// Undoing the request could not wait for a write elsewhere. Nothing was sent.
	ErrOutsideRequest = errors.New("bed: the write was not sent, it would not be undone with its request (bedhttp.Config.Undo): " +
		"send it through bedhttp.Tx(ctx), or record it by bedsql.Begin(ctx, bedsql.WithTx(bedhttp.Tx(ctx))) on a database with the same transaction log")
	// ErrRowsUnknown is returned by the methods of a Result, and by a write sent
	// through Query, when the write is delivered but the answer with its row
	// count or its rows was lost.
	ErrRowsUnknown = listener.ErrRowsUnknown
)

// PendingError is the error type behind ErrPending. errors.Is(err, ErrPending) holds, and it
// unwraps to the cause. Its fields:
//
//	EntryID      string // the id of the write's entry (not of the log): bed-job show EntryID; for a part of a group with a compensation, the group's
//	DataSource string // the target of the write
//	Parked     bool   // it waits for an operator rather than for the job
//	Parking    bool   // it was to be parked, but the log did not confirm
//	Refused    bool   // it was refused, and only its entry could not be removed
//	Compensating     bool   // EntryID belongs to a group whose compensation is not finished; with Parked, half finished
//	Cause      error  // the last attempt's error
type PendingError = listener.PendingError

// NotLoggedError is the error type behind ErrNotLogged. errors.Is(err, ErrNotLogged) holds, and it
// unwraps to its causes. Its fields:
//
//	DataSource string // the target of the write
//	Cause      error  // the error of writing the entry
//	Attempt    error  // the attempt's error; nil if the write was not sent
type NotLoggedError = listener.NotLoggedError

// UnknownOutcomeError is the error type behind ErrUnknownOutcome. It unwraps to both causes. Its
// fields:
//
//	EntryID      string // the id of the entry, if any, in the log
//	DataSource string // the target of the write
//	Refused    bool   // it was refused, and its entry may still be in the log
//	Cause      error  // the last attempt's error; nil without an attempt
//	Log        error  // the error of writing the entry; nil for an unlogged write
type UnknownOutcomeError = listener.UnknownOutcomeError

// RefusedError is a refusal inside a soft transaction, as End reports it: the write is parked. It
// unwraps to the driver's own error. Its fields:
//
//	EntryID      string // the id of the write's entry (not of the log): bed-job show EntryID; empty if Removed
//	DataSource string // the database that refused it
//	Removed    bool   // all of its staged group was refused and not applied, and its entries are removed
//	Cause      error  // the driver's error
type RefusedError = listener.RefusedError

// CompensatedError is End's report of a compensated group (see SoftTransaction.Compensation). All
// its applied parts are compensated, except those without a compensation (EndError.Delivered). It
// unwraps to the cause. Its fields:
//
//	TransactionID string // the group's id, SoftTransaction.ID
//	Cause         error  // the refusal, after the name of its data source, or another reason for the compensation
type CompensatedError = listener.CompensatedError

// RowsError is the refusal of a write that changed another number of rows than RequireRows or
// AtLeastRows requires. Its fields:
//
//	Want    int64 // how many rows it must change
//	AtLeast bool  // or more
//	Got     int64 // how many it changed; -1 if the driver does not say
type RowsError = dialect.RowsError

// LogElsewhereError is the error of a write under WithTx whose transaction does not reach the
// write's log. The log is on another server, or the session sees another log or no log, or may not
// write to it. The write was neither logged nor sent, and the transaction goes on. From Commit it
// means that the transaction was rolled back.
type LogElsewhereError struct {
	// DataSource is the target of the write.
	DataSource string
	// Log is the location of its log, without user and password; empty if the log has no location.
	Log string
	// Cause is the error of the transaction's database; nil if others cannot write to this kind of
	// log.
	Cause error
}

func (e *LogElsewhereError) Error() string {
	at := "its transaction log"
	if e.Log != "" {
		at += " at " + e.Log
	}
	text := fmt.Sprintf("bed: the write to %s was neither logged nor sent: the transaction of WithTx does not reach %s: "+
		"it must be on the same server, with the rights to select and insert there", e.DataSource, at)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *LogElsewhereError) Unwrap() error { return e.Cause }

// EndError is the report of a soft transaction's End when not every write was delivered.
type EndError struct {
	// Errors has one error for each undelivered write, or in a staged soft transaction for each
	// data source. It is a *RefusedError, a *PendingError, or another error for a write that was
	// not applied. OutcomeOf returns the meaning of all of them together.
	Errors []error
	// Delivered has the data sources with a delivered write, in the order of the first delivery. A
	// data source may be both here and in Errors, if only some of its writes were delivered. It
	// includes the data source of the transaction of WithTx, which committed its own rows. It does
	// not include parts of a pending group with a compensation.
	Delivered []string
}

// Error returns the texts of all errors, one to a line.
func (e *EndError) Error() string { return errors.Join(e.Errors...).Error() }

// Unwrap returns Errors, so that errors.Is looks at all of them. errors.As finds the first match;
// Refused and Pending return all errors of their kind.
func (e *EndError) Unwrap() []error { return e.Errors }

// Refused returns the refused writes. Each is parked in the log, or removed with all of a staged
// group that was refused whole.
func (e *EndError) Refused() []*RefusedError { return each[*RefusedError](e.Errors) }

// Pending returns the pending writes: the job delivers them, or they are parked because their
// outcome is unknown.
func (e *EndError) Pending() []*PendingError { return each[*PendingError](e.Errors) }

// each returns the errors that are a T themselves. An error wrapped by a pending one is only its
// cause.
func each[T error](all []error) (found []T) {
	for _, err := range all {
		if one, ok := err.(T); ok { //nolint:errorlint // see above
			found = append(found, one)
		}
	}
	return found
}
