package txlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/journal"
)

var (
	// ErrInDoubt is wrapped by an error of Add or Remove when it could not be found
	// out whether the units were written, or removed. Any other error of Add means
	// that they were not written and never will be; any other of Remove but
	// ErrLeaseLost, that they are still there. It says nothing of the write itself:
	// whether the target applied it, Unit.InDoubt and bedsql.ErrUnknownOutcome tell.
	ErrInDoubt = errors.New("txlog: it is not known whether the entry is in the log")
	// ErrUnconfirmed is wrapped by an error of Release, Retry and Discard when it
	// could not be found out whether the log did what was asked. It is not
	// bedsql.ErrUnknownOutcome, which is about the application's write in its target.
	ErrUnconfirmed = errors.New("its outcome is not known")
	// ErrLeaseLost is returned when a unit is not owned under the given token
	// any more: its lease ran out and somebody else took, delivered or removed it.
	ErrLeaseLost = errors.New("txlog: the lease of the entry was lost")
	// ErrUnusable is matched by the error of Open for a log that is there and
	// cannot be used as it is: a table lacks columns, or its identity is not one.
	// Waiting does not help.
	ErrUnusable = errors.New("txlog: the log cannot be used as it is")
	// ErrNotFound is returned for an id that the log does not hold (any more): its
	// entry is removed when its write is delivered, or was discarded. A request sent again
	// under its idempotency key learns which.
	ErrNotFound = errors.New("txlog: no such entry (delivered and removed, discarded, or never in this log)")
	// ErrLeased is returned by Retry and Discard for a unit that is being
	// delivered at this moment.
	ErrLeased = errors.New("txlog: the entry is being delivered at this moment")
	// ErrUnstorable is matched by an error of Add, and of Home's methods, for units that this
	// log can never take: one is larger than a limit, which the error names, or malformed.
	ErrUnstorable = errors.New("txlog: the log can never take the entry")
	// ErrClosed is returned by every method of a storage that was closed or
	// never opened.
	ErrClosed = errors.New("txlog: the storage is closed")
)

// LeaseLostError is the [ErrLeaseLost] of a call about several units.
type LeaseLostError struct {
	// IDs are those of the units that were not owned; of the others the call did
	// what was asked.
	IDs  []string
	what string
}

func (e *LeaseLostError) Error() string {
	text := fmt.Sprintf("%v (%s unit %s", ErrLeaseLost, e.what, e.IDs[0])
	if more := len(e.IDs) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ")"
}

// Unwrap gives ErrLeaseLost.
func (e *LeaseLostError) Unwrap() error { return ErrLeaseLost }

// leaseLost names the units in an ErrLeaseLost.
func leaseLost(what string, lost ...*Unit) error {
	err := &LeaseLostError{what: what, IDs: make([]string, len(lost))}
	for i, u := range lost {
		if u != nil {
			err.IDs[i] = u.ID
		}
	}
	return err
}

// unstorable is an ErrUnstorable with a text of its own.
type unstorable struct{ error }

func (e unstorable) Unwrap() error { return e.error }

func (unstorable) Is(target error) bool { return target == ErrUnstorable }

// Storage keeps units. All its times are taken from the store's own clock,
// never from the caller's. It is safe for concurrent use, also by other
// processes.
type Storage interface {
	// Add makes the units durable in one write, all or none, owned under
	// their Lease.Token for the duration lease (at least a millisecond), and
	// sets their Lease.Deadline. The stored units are marked in doubt until
	// their owner says otherwise by Release: an owner that vanishes leaves an
	// unknown outcome behind. A write whose outcome is unknown is repeated
	// under the same ids until it is known or ctx ends; then ErrInDoubt. Units
	// without a Lease.Token are given one that nobody else has, units without a
	// TransactionID their own ID. Ids must be fresh.
	Add(ctx context.Context, lease time.Duration, units ...*Unit) error
	// Remove erases the units, each under its Lease.Token. A LeaseLostError if
	// any of them was not owned under it (the others are removed). A removal whose
	// answer was lost is repeated until it is known or ctx ends; then ErrInDoubt.
	// That nothing is left when it is repeated, before Lease.Deadline, counts as
	// removed; without a deadline it never does.
	Remove(ctx context.Context, units ...*Unit) error
	// Renew prolongs the leases to lease from now and moves their deadlines; a unit
	// without one that still belongs to its token ([Home]) gets one. The stored units
	// are marked in doubt. It returns the units that were lost.
	Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error)
	// Locate sets the unit's Place and Session, here and in the store, also in its group's
	// way back: where its receipt is, or what its session is, was found out after Add. ErrLeaseLost if it was not owned; after
	// any error the store may have it or not.
	Locate(ctx context.Context, u *Unit, place, session string) error
	// Release gives the unit up with a verdict. ErrLeaseLost if it was not owned.
	Release(ctx context.Context, u *Unit, v Verdict) error

	// Claim takes up to r.Limit units of r.DataSource that nobody owns, that
	// are due, not parked and at least r.MinAge old (see Unit.Due): those that are
	// AtOnce first, then in the order of NextTry and id. Two claimers never get the
	// same unit. Returned units carry the InDoubt of their past attempts; in the
	// store they are marked in doubt until the claimer's Release. A unit that cannot be read is returned with
	// Unreadable set, so that the claimer can park it; it never fails the others.
	Claim(ctx context.Context, r ClaimRequest) ([]*Unit, error)
	// DataSources names the data sources that have units not parked, in
	// lexical order. Its cost does not grow with the number of units.
	DataSources(ctx context.Context) ([]string, error)

	// List returns units in the order of their ids (their age).
	List(ctx context.Context, f Filter) ([]*Unit, error)
	// Complete ends a group that can turn back, of which all went well: it removes its way
	// back k, dormant, and what is left of its forward units, whoever leases them. Call it
	// when all of these are delivered. ErrTurned if the group has turned, also if it is undone by
	// now. ErrNotFound if k is gone, and how is not known here: it was completed before, or
	// undone by somebody who may not note that. The receipts tell. ErrUnconfirmed.
	Complete(ctx context.Context, k *Unit) error
	// Turn turns the group id back, whoever leases its units, in one transaction: its
	// way back, which it returns as it is stored then, is leased to the caller (a lease
	// of 0: it is due at once, for anybody) with the cause, the forward units that are
	// still there are erased, and all of them are discarded for States. A group that has
	// turned before keeps its cause, and is leased to the caller unless somebody is
	// undoing it: ErrLeased. ErrNotFound: it was completed, is undone, or never had a
	// way back. ErrUnconfirmed.
	Turn(ctx context.Context, id string, lease time.Duration, cause string) (*Unit, error)

	// Get returns one unit; id may be that of any of its rows. ErrNotFound.
	Get(ctx context.Context, id string) (*Unit, error)
	// States says of each of these ids what state its unit is in; an id may be that
	// of any row of the unit.
	States(ctx context.Context, ids ...string) ([]State, error)
	// Missing gives those of these ids that the log does not hold, in the order
	// given. ids may be any number; each may be that of any row of a unit, or of a
	// receipt under an idempotency key, which is there while any unit carries it, or an
	// order key, which begins with OrderPrefix.
	Missing(ctx context.Context, ids []string) ([]string, error)
	// Retry makes a unit due now, whatever its age, with its tries reset and not
	// parked any more. ErrNotFound, ErrLeased.
	Retry(ctx context.Context, id string) error
	// Discard erases a unit. ErrNotFound, ErrLeased, ErrGroup.
	Discard(ctx context.Context, id string) error
	// Stats counts the units of each data source, in lexical order.
	Stats(ctx context.Context) ([]Stats, error)

	// Identity names this log, wherever it is opened from: at most 40 printable
	// ASCII characters, the same for its life. A copy of the log has it too.
	Identity() string

	// ReceiptSchema tells which schema the receipts of a data source are kept in:
	// empty for where its sessions' unqualified names lead. known false: that was
	// not set yet.
	ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error)
	// SetReceiptSchema sets it, at most 63 printable ASCII characters, unless it is
	// known: that stays as it is, and is no error.
	SetReceiptSchema(ctx context.Context, dataSource, schema string) error

	// Close releases what the storage holds. Calls after it fail.
	Close() error
}

// State is the state of a unit, as far as the log can tell.
type State string

const (
	// StateWaiting: it is being delivered or waits to be.
	StateWaiting State = "waiting"
	// StateParked: it waits for an operator, or, of a way back, a part of its group does.
	StateParked State = "parked"
	// StateDelivered: the job has delivered it, or its group was delivered. The log
	// remembers that for 7 days.
	StateDelivered State = "delivered"
	// StateUnknown: it is not in the log, and nothing there accounts for it. The log never
	// held it, or its own caller has removed it and knows more, or it ended too long ago.
	StateUnknown State = "unknown"
	// StateDiscarded: an operator gave it up, or its group has turned back. The log
	// remembers that for 7 days.
	StateDiscarded State = "discarded"
)

// stateOf gives the state of a unit that is in the log.
func stateOf(u *Unit) State {
	if u.Parked {
		return StateParked
	}
	return StateWaiting
}

// ClaimRequest says what to claim.
type ClaimRequest struct {
	// DataSource is the one whose units are wanted.
	DataSource string
	// Limit is how many units at the most; at least 1.
	Limit int
	// MinAge leaves units alone that were added more recently than that.
	MinAge time.Duration
	// Lease is how long the claimer owns them; at least a millisecond.
	Lease time.Duration
}

// Verdict is what the owner of a unit says of it when giving it up.
type Verdict struct {
	// After is how long the unit rests before it may be claimed.
	After time.Duration
	// CountTry adds one to Tries.
	CountTry bool
	// Contended: the last attempt met other transactions; see Unit.ContendedFrom.
	Contended bool
	// InDoubt is whether any attempt so far may have been applied.
	InDoubt bool
	// Err is the text to keep as LastError; empty keeps the one that is there.
	Err string
	// Park leaves the unit for an operator.
	Park bool
	// DataSource is where the unit goes, with no tries there yet: what is left of a way
	// back (Unit.Undo) is there. Empty: it stays.
	DataSource string
	// Attempts are this owner's attempts that failed. A storage that can keeps
	// them for the operator; failing to is not an error.
	Attempts []Attempt
}

// Attempt is an attempt to deliver a unit that failed.
type Attempt = journal.Attempt

// Filter selects units for List. The zero value selects all.
type Filter struct {
	// Parked selects only parked units.
	Parked bool
	// DataSource selects the units of one data source; empty means all.
	DataSource string
	// OlderThan selects units at least that old; 0 means all.
	OlderThan time.Duration
	// After selects units after this id, for paging; empty means from the start.
	After string
	// Limit is how many units at the most; 0 means 1000.
	Limit int
}

// Stats counts the units of one data source.
type Stats struct {
	DataSource string
	// Waiting units are neither leased nor parked.
	Waiting int
	// Leased units are being written or delivered at this moment.
	Leased int
	// Parked units wait for an operator.
	Parked int
	// Oldest is when the oldest unit was added; zero when there is none.
	Oldest time.Time
}
