package txlog

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

var (
	// ErrInDoubt is wrapped by an error of Add or Remove if the fate of the units in the log
	// stays unknown. Any other error of Add means that they were not written and never will be.
	// Any other of Remove but ErrLeaseLost means that they are still there. ErrInDoubt is about
	// the log alone: Unit.InDoubt and bedsql.ErrUnknownOutcome are about the write in the
	// target.
	ErrInDoubt = errors.New("txlog: it is not known whether the entry is in the log")
	// ErrUnconfirmed is wrapped by an error of Release, Retry and Discard if the outcome in
	// the log stays unknown. bedsql.ErrUnknownOutcome, in contrast, is about the application's
	// write in its target.
	ErrUnconfirmed = errors.New("its outcome is not known")
	// ErrLeaseLost is returned for a unit that the given token no longer owns: the lease ran
	// out and another owner took, delivered or removed the unit.
	ErrLeaseLost = entry.ErrLeaseLost
	// ErrUnusable is matched by the error of Open for an unusable log: a table lacks columns,
	// or the identity is malformed. Waiting does not help.
	ErrUnusable = errors.New("txlog: the log cannot be used as it is")
	// ErrNotFound is returned for an id that is not, or no longer, in the log: an entry is
	// removed on delivery, or when it is discarded. Resend a request under its idempotency key
	// to learn its outcome.
	ErrNotFound = errors.New("txlog: no such entry (delivered and removed, discarded, or never in this log)")
	// ErrLeased is returned by Retry and Discard for a unit that is being delivered at this
	// moment.
	ErrLeased = errors.New("txlog: the entry is being delivered at this moment")
	// ErrUnstorable is matched by an error of Add and of bedsql.WithTx for units that this log
	// can never store: a unit exceeds a limit, which the error names, or is malformed.
	ErrUnstorable = errors.New("txlog: the log can never take the entry")
	// ErrClosed is returned by every method of a storage that was closed or never opened.
	ErrClosed = errors.New("txlog: the storage is closed")
	// ErrCompensated is returned by Complete for a group whose compensation has started or is done.
	ErrCompensated = errors.New("txlog: the group is compensated, or is being compensated")
	// ErrGroup is returned for an attempt to discard, park or amend a single unit of a
	// compensable group: the group would end neither completed nor compensated.
	ErrGroup = errors.New("txlog: the entry belongs to a compensable group: compensate the whole group (bed-job compensate), or retry the entry")
	// ErrNotFirst is wrapped by the error of skipping a unit that is under no order key, or is
	// not the first one under any.
	ErrNotFirst = errors.New("txlog: the entry is not the first one under an order key")
	// ErrLogElsewhere is wrapped by the error of a write or a COMMIT of bedsql.WithTx if the
	// transaction's session does not reach this log: it is on another server, sees another log or
	// none, or has no right to write there. No entry was written.
	ErrLogElsewhere = errors.New("txlog: the transaction does not reach this log")
)

// unstorable is an ErrUnstorable with a text of its own.
type unstorable struct{ error }

func (e unstorable) Unwrap() error { return e.error }

func (unstorable) Is(target error) bool { return target == ErrUnstorable }

// Storage keeps units. All its times come from the store's own clock, never from the
// caller's. It is safe for concurrent use, also by other processes. Its methods by their users:
// owners of units (Add to Release), the job (Claim, DataSources), the ends of compensable groups
// (Complete, Compensate), readers (Get to Stats), operators (Retry, Discard), all (the others).
type Storage interface {
	// Add makes the units durable in one write, all or none. Their Lease.Token owns them for
	// the duration lease (at least a millisecond), and Add sets their Lease.Deadline. The
	// stored units are in doubt until their owner's Release says otherwise: a vanished owner
	// leaves an unknown outcome behind. Add repeats a write with an unknown outcome under the
	// same ids until the outcome is known or ctx ends; then it returns ErrInDoubt. It sets an
	// empty Lease.Token to a unique one, and an empty TransactionID to the unit's own ID. Ids
	// must be fresh.
	Add(ctx context.Context, lease time.Duration, units ...*Unit) error
	// Remove erases the units, each under its Lease.Token. It returns a LeaseLostError if some
	// were not owned; the others are removed. It repeats a removal whose answer was lost until
	// the outcome is known or ctx ends; then it returns ErrInDoubt. A unit that is missing on
	// repetition counts as removed before its Lease.Deadline; without a deadline it never does.
	Remove(ctx context.Context, units ...*Unit) error
	// Renew extends the leases to lease from now and moves their deadlines. It also gives a
	// lease to a unit that only has a token (bedsql.WithTx). The stored units are marked in doubt. It
	// returns the units that were lost.
	Renew(ctx context.Context, lease time.Duration, units ...*Unit) (lost []*Unit, err error)
	// Locate sets the unit's Place and Session, here, in the store and in its group's
	// compensation. It is for a place or session that became known after Add. ErrLeaseLost if
	// the unit was not owned. After any error the store may or may not have the change.
	Locate(ctx context.Context, u *Unit, place, session string) error
	// Release gives the unit up with a verdict. ErrLeaseLost if it was not owned.
	Release(ctx context.Context, u *Unit, v entry.Verdict) error

	// Claim takes up to r.Limit units of r.DataSource that have no owner, are due, not parked,
	// and at least r.MinAge old (see Unit.Due). Units with AtOnce come first, then the order is
	// by NextTry and id. r.Pick may leave some of them. Two claimers never get the same unit. Returned units carry the InDoubt
	// of their past attempts; in the store they are in doubt until the claimer's Release. An
	// unreadable unit is returned with Unreadable set, so that the claimer can park it; it
	// never affects the others.
	Claim(ctx context.Context, r entry.ClaimRequest) ([]*Unit, error)
	// DataSources returns the data sources with units that are not parked, in lexical order.
	// Its cost does not grow with the number of units.
	DataSources(ctx context.Context) ([]string, error)

	// Complete ends a compensable group after its success: it removes the compensation k, which
	// has not started, and the rest of the forward units, even leased ones. Call it after all
	// forward units were delivered. ErrCompensated if the compensation has started or is done.
	// ErrNotFound if k is gone for an unknown reason: the group was completed before, or
	// compensated by a process that could not record it. The receipts tell. ErrUnconfirmed.
	Complete(ctx context.Context, k *Unit) error
	// Compensate starts the compensation of the group id in one transaction, even if its units are
	// leased. It sets the cause, leases the compensation to the caller (a lease of 0 makes it
	// due at once, for any owner) and returns it as stored. It erases the remaining forward
	// units; States reports all of them as discarded. After an earlier start, it keeps the
	// first cause and only leases the compensation to the caller: ErrLeased if another owner is
	// at work on it. ErrNotFound if the group was completed, is compensated, or never had a
	// compensation. ErrUnconfirmed.
	Compensate(ctx context.Context, id string, lease time.Duration, cause string) (*Unit, error)

	// Get returns one unit; id may be the id of any of its rows. ErrNotFound.
	Get(ctx context.Context, id string) (*Unit, error)
	// List returns units in the order of their ids (their age).
	List(ctx context.Context, f Filter) ([]*Unit, error)
	// States returns the state of each unit; an id may be that of any row of the unit.
	States(ctx context.Context, ids ...string) ([]entry.State, error)
	// Missing returns the ids that are not in the log, in the order given. ids may be any
	// number. Each is the id of any row of a unit, an order key (with OrderPrefix), or a
	// receipt under an idempotency key, which counts as present while any unit carries it.
	Missing(ctx context.Context, ids []string) ([]string, error)
	// Stats counts the units of each data source, in lexical order.
	Stats(ctx context.Context) ([]Stats, error)

	// Retry makes a unit due now, whatever its age. It resets the tries and unparks the unit.
	// ErrNotFound, ErrLeased.
	Retry(ctx context.Context, id string) error
	// Discard erases a unit. ErrNotFound, ErrLeased, ErrGroup.
	Discard(ctx context.Context, id string) error

	// Identity returns the log's name, independent of where it is opened from: at most 40
	// printable ASCII characters, constant for the log's life. A copy of the log has the same.
	Identity() string
	// ReceiptSchema returns the schema that holds the receipts of a data source: empty for the
	// schema of unqualified names in its sessions. known is false if it was not set yet.
	ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error)
	// SetReceiptSchema sets it, at most 63 printable ASCII characters. A schema that is already
	// set stays as it is, without an error.
	SetReceiptSchema(ctx context.Context, dataSource, schema string) error
	// Close releases what the storage holds. Calls after it fail.
	Close() error
}

// stateOf returns the state of a unit in the log.
func stateOf(u *Unit) entry.State {
	if u.Parked {
		return entry.StateParked
	}
	return entry.StateWaiting
}

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
	// Limit is the maximum number of units; 0 means 1000.
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
	// Oldest is the time of the oldest unit; zero without units.
	Oldest time.Time
}

// limit returns the maximum number of listed units.
func (f Filter) limit() int { return cmp.Or(max(0, f.Limit), 1000) }

// leaseSlack is added to a lease on the store's clock. That clock counts whole milliseconds,
// rounded at both ends; there the lease must not end earlier than for its owner.
const leaseSlack = 3

// Unit is an entry of the log. It is delivered as a whole: one DML, or the DML of one local
// transaction in their order. Among its fields are:
//
//	ID            string    // the id of its first row
//	TransactionID string    // the soft transaction's id, or ID
//	DataSource    string    // the target of the delivery
//	Statements    []        // with SQL, and Args for the parameters
//	CreatedAt     time.Time // on the store's clock, as NextTry
//	NextTry       time.Time // the time of the job's next try, or the end of the lease
//	Tries         int       // the job's failed tries
//	LastError     string    // the text of the last failure
//	InDoubt       bool      // an earlier attempt may have been applied
//	Leased        bool      // it is being written or delivered at this moment
//	Parked        bool      // it waits for an operator
//	Unreadable    error     // the reason why the row was not completely read
type Unit = entry.Unit

// ParamError names the parameter that the log cannot keep or read back. Its text never holds
// the parameter's value. Its fields:
//
//	Name    string // the parameter's name (sql.Named); empty if it has no name
//	Ordinal int    // its position among the statement's parameters, from 1
//	Type    string // its Go type; empty if unknown
//	Err     error  // the reason
type ParamError = entry.ParamError

// RegisterParamType makes the log keep a type that only one driver accepts as a parameter.
// Parameters of exactly sample's type are kept as {"name":"…text of encode…"}; decode must
// return the same type and the same value. Both may be called concurrently; their errors
// must not hold the value.
//
// Call it from the init function of a database's package. Like sql.Register, it panics on a
// mistake: a nil function or sample, a name that is taken or not plain text, or a type
// registered before.
func RegisterParamType(name string, sample any, encode func(any) (string, error), decode func(string) (any, error)) {
	entry.RegisterParamType(name, sample, encode, decode)
}
