package bedsql

import (
	"errors"

	"github.com/bedsql/bed/listener"
)

var (
	// ErrPending is matched by the error of a write that is logged and not
	// known to be applied. errors.As finds a *PendingError; errors.Unwrap gives
	// the cause.
	ErrPending = listener.ErrPending
	// ErrNotLogged is matched by the error of a write whose log could not be
	// written. It was not sent.
	ErrNotLogged = listener.ErrNotLogged
	// ErrNested is returned by Begin inside a soft transaction.
	ErrNested = errors.New("bed: a soft transaction is already open in this context")
	// ErrEnded is returned by a write under a soft transaction that has ended.
	// It was neither logged nor sent.
	ErrEnded = errors.New("bed: the soft transaction of this context has ended")
	// ErrPinned is returned, with Config.Pinned set to PinnedRefuse, by a write
	// that could only run unlogged. It was not sent.
	ErrPinned = errors.New("bed: the write was not sent, it could only run unlogged")
	// ErrTransactionLost is matched by the errors of a local transaction that
	// the database rolled back by itself (a deadlock) while the session went
	// on: what was written into it now would be committed on its own. Roll
	// back and begin again.
	ErrTransactionLost = errors.New("bed: the database has rolled the transaction back, nothing more is written into it")
	// ErrRowsUnknown is returned by the methods of a Result when the write is
	// delivered but the answer with its row count was lost.
	ErrRowsUnknown = listener.ErrRowsUnknown
)

// PendingError is the error type behind ErrPending.
type PendingError = listener.PendingError

// RefusedError is a refusal inside a soft transaction, as End reports it.
type RefusedError = listener.RefusedError
