package txlog

import (
	"database/sql/driver"
	"time"
)

// transactionType is the value of the column transaction_type, the name that
// Sharding-JDBC 1.x gives to its best-efforts-delivery soft transactions.
const transactionType = "BestEffortsDelivery"

// MaxStatements is how many statements one unit can hold. The ids of a unit's
// rows are consecutive: the last 12 bits of its first row's id are zero and
// count the statements.
const MaxStatements = 4096

// Statement is one DML as it was given to the driver.
type Statement struct {
	// SQL is the text, byte for byte. One that a text column cannot take (a
	// NUL, invalid UTF-8) stands there as "-- base64 …".
	SQL string
	// Params holds the parameters as [EncodeParams] wrote them; empty means none.
	Params string
	// Prepared is whether the application prepared it: some drivers send the
	// same values otherwise then than with the text.
	Prepared bool
}

// Args decodes the parameters to exactly the values the driver would have
// received. An error names the parameter that cannot be read.
func (s Statement) Args() ([]driver.NamedValue, error) { return DecodeParams(s.Params) }

// Lease is the right to deliver, judge and remove a unit for a while.
type Lease struct {
	// Token names the owner. Every write to the unit is fenced by it.
	Token string
	// Deadline is when the lease ends at the earliest, on this process's
	// monotonic clock: it was taken before the request left. After it somebody
	// else may own the unit.
	Deadline time.Time
}

// Unit is what is delivered together: one DML, or the DML of one local
// transaction in their order. Fields up to Lease are the writer's; the store
// fills in the rest when it hands a unit out.
type Unit struct {
	// ID is the id of the unit's first row, a UUIDv7 made by [NewID].
	ID string
	// TransactionID groups the units of one soft transaction. A unit outside
	// any soft transaction carries its own ID here.
	TransactionID string
	// DataSource says where to deliver.
	DataSource string
	// Settings are the parameters of the data source's DSN that may touch values
	// and names (time zone, search path): a canonical text without host, account
	// or password. The unit is delivered in a session with these.
	Settings string
	// Place is where the table bed_receipt is that holds the unit's receipt, as
	// the target itself names it; empty if that was not known.
	Place string
	// TraceParent is the W3C traceparent of the span in which the unit was written,
	// at most 256 printable ASCII characters; empty for none.
	TraceParent string
	// Statements are in the order in which they ran; at least one, at most
	// [MaxStatements].
	Statements []Statement
	// NotReplayable says why the unit must not be run again; empty means that
	// it may. Such a unit is never delivered by the job, it is parked.
	NotReplayable string
	// Receipt is the id of the receipt that each attempt leaves in the target,
	// at most 80 printable ASCII characters; empty means that none does: the
	// unit is delivered at least once, not exactly once.
	Receipt string
	// Fingerprint is that of the request, when the receipt is under a caller's
	// idempotency key; at most 64 bytes of text. Empty otherwise.
	Fingerprint string

	// Lease is the current owner's.
	Lease Lease
	// AddRepeated is set by Add when it had to repeat its write, because an
	// attempt was not answered. That attempt may still arrive, however late:
	// if the unit was removed before, it is in the store again then, and will be
	// delivered again.
	AddRepeated bool

	// SettingsOlder is whether the unit was written by a version that knew fewer
	// parameters: its Settings do not say what a session needs.
	SettingsOlder bool
	// InDoubt is whether an earlier attempt may have been applied: it ended
	// without an answer, or its owner vanished during it.
	InDoubt bool
	// CreatedAt is when the unit was added, on the store's clock.
	CreatedAt time.Time
	// Tries counts the job's tries that failed (async_delivery_try_times).
	Tries int
	// NextTry is when the unit may be claimed next, on the store's clock, if it
	// is old enough then (see Due); for a leased unit that is the end of its lease.
	NextTry time.Time
	// AtOnce units were retried by an operator and not claimed since: they are
	// due whatever their age.
	AtOnce bool
	// ReadAt is the store's clock when the unit was read.
	ReadAt time.Time
	// LastError is the text of the last failure.
	LastError string
	// Parked units are left alone until an operator retries or discards them.
	Parked bool
	// Leased is whether somebody owned the unit when it was read.
	Leased bool
	// Unreadable is not nil when the row could be found but not read whole
	// (a NULL where text belongs, a statement of the unit missing). The rest
	// of the fields hold what could be read.
	Unreadable error
}

// Due is when a claim that asks for minAge may take the unit, on the store's
// clock. One that was created in that clock's future, which was put back since,
// is as old as any.
func (u *Unit) Due(minAge time.Duration) time.Time {
	if old := u.CreatedAt.Add(minAge); !u.AtOnce && old.After(u.NextTry) && !u.CreatedAt.After(u.ReadAt) {
		return old
	}
	return u.NextTry
}

// clone copies a unit with everything it points to.
func (u *Unit) clone() *Unit {
	c := *u
	c.Statements = append([]Statement(nil), u.Statements...)
	return &c
}

// rowIDs gives the ids of the unit's rows in their order.
func (u *Unit) rowIDs() []string { return rowIDs(u.ID, min(len(u.Statements), MaxStatements)) }
