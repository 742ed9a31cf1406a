package txlog

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
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
	// NUL, invalid UTF-8) is stored as "-- base64 …".
	SQL string
	// Params holds the parameters as [EncodeParams] wrote them; empty means none.
	Params string
	// Prepared is whether the application prepared it: some drivers send the
	// same values otherwise then than with the text.
	Prepared bool
	// Required is how many rows it must change: an attempt that changes another
	// number is rolled back and refused.
	Required Requirement
	// Part is, in a unit of a group that can turn back, which of the group's parts (from
	// 1) the statement does, or, in the way back (Unit.Undo), undoes. 0: there is no such
	// group. An older job cannot read the statement then, and parks its unit.
	Part int
}

// Args decodes the parameters to exactly the values the driver would have
// received. An error names the parameter that cannot be read.
func (s Statement) Args() ([]driver.NamedValue, error) { return DecodeParams(s.Params) }

// Lease is the right to deliver, judge and remove a unit for a while.
type Lease struct {
	// Token names the owner. Every write to the unit is fenced by it.
	Token string
	// Deadline is when the lease ends at the earliest, on this process's
	// clocks: it was taken before the request left. After it somebody
	// else may own the unit. Zero: it never began ([Home]), and anybody may.
	Deadline time.Time
}

// Over reports whether the deadline has passed by either clock: the monotonic one
// stands still while a machine sleeps, the wall clock may be set back.
func (l Lease) Over() bool {
	now := time.Now()
	return !now.Before(l.Deadline) || !now.Round(0).Before(l.Deadline.Round(0))
}

// Unit is what is delivered together: one DML, or the DML of one local transaction in
// their order. Of the fields the writer sets those before Lease, and may set
// Lease.Token; [Storage].Add sets the rest of Lease, AddRepeated and what it says it
// fills in. What follows AddRepeated is set when a store hands a unit out.
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
	// Session is what the session of its writer resolved to (delivery.Facts.Session);
	// empty if that was not known.
	Session string
	// Account is who wrote it, if Session is empty; empty if that is not known either.
	Account string
	// Place is where the table bed_receipt is that holds the unit's receipt, as
	// the target itself names it; empty if that was not known.
	Place string
	// TraceParent is the W3C traceparent of the span in which the unit was written,
	// at most 256 printable ASCII characters; empty for none.
	TraceParent string
	// Statements are in the order in which they ran; at least one, at most
	// [MaxStatements].
	Statements []Statement
	// NotReplayable says why the unit must not be run again, in at most 8 KiB; empty
	// means that it may. Such a unit is never delivered by the job, it is parked.
	NotReplayable string
	// Receipt is the id of the receipt that each attempt leaves in the target,
	// at most 80 printable ASCII characters; empty means that none does: the
	// unit is delivered at least once, not exactly once.
	Receipt string
	// Fingerprint is that of the request, when the receipt is under a caller's
	// idempotency key; at most 64 bytes of text. Empty otherwise.
	Fingerprint string
	// Undo makes the unit the way back of a group; nil for any other unit.
	Undo *Undo
	// TurnAfter is the age, in whole milliseconds, from which the unit's group turns back
	// if it is not delivered; 0 means never. All units of a group have the same.
	TurnAfter time.Duration
	// ContendedFrom is the unit's age, in whole milliseconds, when other transactions were
	// first in its way; 0: none was since it was written or an operator retried it. Release
	// sets it.
	ContendedFrom time.Duration
	// Order is the unit's place in the order of keys, each of which is named once: Add sets
	// the numbers. Empty: it has none.
	Order []Order
	// After are the ids of units that must be delivered before it, as a message waits for the
	// rows of its group: its claimer asks States and gives it back until they are. An older
	// job cannot read such a unit, and parks it. Empty: it waits for none.
	After []string

	// Lease is the current owner's.
	Lease Lease
	// AddRepeated is set by Add when it had to repeat its write, because an
	// attempt was not answered. That attempt may still arrive, however late:
	// if the unit was removed before, it is in the store again then, and will be
	// delivered again.
	AddRepeated bool
	// Behind is the unit that it waits for, the first under a key of its Order: it is not
	// due, and has no lease, until that is gone or skipped. Empty: it waits for none. Add
	// sets it, and so do List and Get.
	Behind string

	// Delivered has Remove note for States that the unit was delivered, which costs a
	// further write. The job sets it: the caller of such a unit may ask what became of it.
	Delivered bool

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
	// AtOnce units were retried by an operator, or written by [Home], and not claimed
	// since: they are due whatever their age.
	AtOnce bool
	// ReadAt is the store's clock when the unit was read.
	ReadAt time.Time
	// Blocks is how many units wait behind it; List and Get set it.
	Blocks int
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
	// blocked: it waits for another one, unless it is parked.
	blocked bool
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

// ContendedSince is when other transactions were first in the unit's way, on the store's
// clock; zero: none was.
func (u *Unit) ContendedSince() time.Time {
	if u.ContendedFrom == 0 {
		return time.Time{}
	}
	return u.CreatedAt.Add(u.ContendedFrom)
}

// contend sets ContendedFrom as v says. Another failed try ends the contention.
func (u *Unit) contend(v Verdict) {
	switch {
	case v.Contended && u.ContendedFrom == 0:
		u.ContendedFrom = max(u.ReadAt.Sub(u.CreatedAt), time.Millisecond).Truncate(time.Millisecond)
	case v.CountTry && !v.Contended:
		u.ContendedFrom = 0
	}
}

// clone copies a unit with everything it points to.
func (u *Unit) clone() *Unit {
	c := *u
	c.Statements = append([]Statement(nil), u.Statements...)
	c.Undo = u.Undo.clone()
	c.Order = append([]Order(nil), u.Order...)
	c.After = append([]string(nil), u.After...)
	return &c
}

// The text of a UUID is 36 characters; its last three are the low 12 bits,
// which count the statements of a unit.
const (
	idLen    = 36
	idPrefix = idLen - 3
	headTail = "000"
	hexChars = "0123456789abcdef"
)

// NewID makes the id of a unit: a UUIDv7 whose low 12 bits are zero, so that
// the ids of its up to [MaxStatements] rows follow it without a gap. Ids made
// later by the same process sort after it. It is safe for concurrent use.
func NewID() string {
	id := uuid.Must(uuid.NewV7())
	id[14] &= 0xf0
	id[15] = 0
	return id.String()
}

// rowID is the id of the n-th row (from 0) of the unit whose first row is head.
func rowID(head string, n int) string {
	if n == 0 {
		return head
	}
	var b [idLen]byte
	copy(b[:], head)
	b[idPrefix] = hexChars[n>>8&15]
	b[idPrefix+1] = hexChars[n>>4&15]
	b[idPrefix+2] = hexChars[n&15]
	return string(b[:])
}

// rowIDs gives the ids of a unit's n rows.
func rowIDs(id string, n int) []string {
	ids := make([]string, max(1, n))
	for i := range ids {
		ids[i] = rowID(id, i)
	}
	return ids
}

// allRowIDs gives the ids of all rows that may belong to the unit: if its first
// row does not say how many they are, all that are possible.
func (u *Unit) allRowIDs() []string {
	if len(u.Statements) == 1 && u.Unreadable != nil {
		return rowIDs(u.ID, MaxStatements)
	}
	return rowIDs(u.ID, len(u.Statements))
}

// headID is the id of the first row of the unit to which the row id belongs.
// Anything else than an id comes back unchanged, and belongs to no unit.
func headID(id string) string {
	if len(id) != idLen || strings.Trim(id[idPrefix:], hexChars) != "" {
		return id
	}
	return id[:idPrefix] + headTail
}

// hasRow reports whether id is that of one of the n rows of its unit: a
// mistyped id is not taken for another.
func hasRow(id string, n int) bool {
	head := headID(id)
	if id == head {
		return true
	}
	row, err := strconv.ParseUint(id[idPrefix:], 16, 12)
	return err == nil && int(row) < n && id == rowID(head, int(row))
}

// isHeadID reports whether id has the form of [NewID]'s: lower case, the low
// 12 bits zero.
func isHeadID(id string) bool {
	return len(id) == idLen && id[idPrefix:] == headTail && strings.ToLower(id) == id && uuid.Validate(id) == nil
}

// IsID reports whether id has the form of an entry's id. A text that has not belongs to no
// entry of any log.
func IsID(id string) bool { return isHeadID(headID(id)) }

// The greatest lengths: of settings, places, fingerprints (whose column counts
// characters, which are never more) and errors in bytes, of the rest in characters.
const (
	maxDataSource  = 255
	maxToken       = 40
	maxSettings    = 16 << 10
	maxReceipt     = 80
	maxPlace       = 1 << 10
	maxTrace       = 256
	maxFingerprint = 64
	maxErrorText   = 8 << 10
	// maxReceiptSchema is the longest name of a schema that every database takes.
	maxReceiptSchema = 63
)

// minLease is the shortest lease; the log's clock counts milliseconds.
const minLease = time.Millisecond

// leaseSlack is added to a lease on the store's clock. That clock shows whole
// milliseconds, rounded at the beginning and at the end; the lease must not end
// there before it ends for its owner.
const leaseSlack = 3

// validate refuses a unit that could not be stored, or not be found again. Where
// they are empty it fills in the storage's token and the transaction's id. Errors
// name the unit by its id.
func (u *Unit) validate(lease time.Duration, token string) error {
	if err := u.check(lease, token); err != nil {
		return unstorable{err}
	}
	return nil
}

func (u *Unit) check(lease time.Duration, token string) error {
	switch {
	case u == nil:
		return errors.New("txlog: a unit is nil")
	case lease < minLease:
		return fmt.Errorf("txlog: a lease of %v is too short: it must be at least %v", lease, minLease)
	case !isHeadID(u.ID):
		return fmt.Errorf("txlog: %q is not a unit ID: make it by NewID", u.ID)
	case len(u.Statements) == 0 || len(u.Statements) > MaxStatements:
		return fmt.Errorf("txlog: unit %s has %d statements: it must have 1 to %d", u.ID, len(u.Statements), MaxStatements)
	case u.DataSource == "" || strings.TrimSpace(u.DataSource) != u.DataSource: // some collations ignore blanks at the end
		return fmt.Errorf("txlog: the data source %q of unit %s is empty, or begins or ends with a blank", u.DataSource, u.ID)
	case slices.ContainsFunc(u.After, func(id string) bool { return !isHeadID(id) || id == u.ID }):
		return fmt.Errorf("txlog: unit %s waits for what is no other unit", u.ID)
	case u.Fingerprint != "" && u.Receipt == "":
		return fmt.Errorf("txlog: unit %s has a fingerprint but no receipt to keep it in", u.ID)
	}
	if u.Lease.Token == "" {
		u.Lease.Token = token
	}
	if u.TransactionID == "" {
		u.TransactionID = u.ID
	}
	for _, t := range [...]struct {
		what, text string
		most       int
	}{{"lease token", u.Lease.Token, maxToken}, {"transaction id", u.TransactionID, maxToken}, {"traceparent", u.TraceParent, maxTrace}, {"receipt", u.Receipt, maxReceipt}} {
		if t.text != "" && !storableToken(t.text, t.most) {
			return fmt.Errorf("txlog: the %s of unit %s must have at most %d printable ASCII characters", t.what, u.ID, t.most)
		}
	}
	for _, t := range [...]struct {
		what, text string
		most       int
	}{{"data source", u.DataSource, maxDataSource}, {"settings", u.Settings, maxSettings}, {"session", u.Session, maxSettings}, {"account", u.Account, maxSettings},
		{"place of the receipt", u.Place, maxPlace}, {"fingerprint", u.Fingerprint, maxFingerprint}, {"reason against running it again", u.NotReplayable, maxErrorText}} {
		if !storableText(t.text) || len(t.text) > t.most && (t.most != maxDataSource || utf8.RuneCountInString(t.text) > t.most) {
			return fmt.Errorf("txlog: the %s of unit %s must be valid UTF-8 without NUL, at most %d long", t.what, u.ID, t.most)
		}
	}
	if err := validateOrder(u); err != nil {
		return err
	}
	for i := range u.Statements {
		if !storableText(u.Statements[i].Params) {
			return fmt.Errorf("txlog: the parameters of statement %d of unit %s are not what EncodeParams wrote", i+1, u.ID)
		}
		if n := u.Statements[i].Required.n; n < 0 {
			return fmt.Errorf("txlog: statement %d of unit %s must change %d rows: the number must not be negative", i+1, u.ID, n)
		}
	}
	return u.validateGroup()
}

func (r *ClaimRequest) validate() error {
	if r.Limit < 1 || r.DataSource == "" || r.Lease < minLease {
		return fmt.Errorf("txlog: a claim of at most %d units of the data source %q for %v: it must be at least 1, of a data source with a name, for at least %v",
			r.Limit, r.DataSource, r.Lease, minLease)
	}
	return nil
}

func validateReceiptSchema(dataSource, schema string) error {
	if schema != "" && !storableToken(schema, maxReceiptSchema) {
		return fmt.Errorf("txlog: the schema of the receipts of %s must have at most %d printable ASCII characters", dataSource, maxReceiptSchema)
	}
	return nil
}

// storableToken reports whether s is 1 to most printable ASCII characters.
func storableToken(s string, most int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// storableText reports whether every database keeps s as it is.
func storableText(s string) bool {
	return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// limit is how many units are listed.
func (f Filter) limit() int {
	if f.Limit <= 0 {
		return 1000
	}
	return f.Limit
}

// millis rounds a duration up to the log's unit of time.
func millis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}
