package entry

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

// MaxStatements is the maximum number of statements in one unit. A unit's rows have
// consecutive ids: the last 12 bits of its first row's id are zero and count the statements.
const MaxStatements = 4096

// Statement is one DML as the driver received it.
type Statement struct {
	// SQL is the text, byte for byte. A text that a text column rejects (a NUL, invalid UTF-8)
	// is stored as "-- base64 …".
	SQL string
	// Params holds the parameters in the form of [EncodeParams]; empty means no parameters.
	Params string
	// Prepared is set if the application prepared it: some drivers then send the same values in
	// another form than with the text.
	Prepared bool
	// Required is the required number of changed rows: an attempt that changes another number
	// is rolled back and refused.
	Required Requirement
	// Part is the number of the group's part, from 1, in a unit of a compensable group. In the
	// compensation (Unit.Undo) the statement undoes that part. It is 0 outside such groups. An
	// older job cannot read such a statement, and parks its unit.
	Part int
}

// Args decodes the parameters to exactly the values that the driver would have received. An
// error names the unreadable parameter.
func (s Statement) Args() ([]driver.NamedValue, error) { return DecodeParams(s.Params) }

// Unit is delivered as a whole: one DML, or the DML of one local transaction in their order.
// The writer sets the fields before Lease, and may set Lease.Token. txlog.Storage.Add sets the
// rest of Lease, AddRepeated, and other fields as documented. The fields after AddRepeated
// are set when a store returns a unit.
type Unit struct {
	// ID is the id of the unit's first row, a UUIDv7 made by [NewID].
	ID string
	// TransactionID groups the units of one soft transaction. Outside of soft transactions it
	// is the unit's own ID.
	TransactionID string
	// DataSource is the target of the delivery.
	DataSource string
	// Settings are the DSN parameters of the data source that may affect values and names (time
	// zone, search path): a canonical text without host, account or password. The unit is
	// delivered in a session with these settings.
	Settings string
	// Session is the resolved session of the writer (dialect.Facts.Session), with the settings of
	// bedsql.Config.SessionSettings; empty if unknown.
	Session string
	// Account is the writer's account if Session is empty; empty if unknown, too.
	Account string
	// Place is the place of the table bed_receipt with the unit's receipt, in the target's own
	// words; empty if unknown.
	Place string
	// TraceParent is the W3C traceparent of the writing span, at most 256 printable ASCII
	// characters; empty without a span.
	TraceParent string
	// Statements are in the order of their execution; at least one, at most [MaxStatements].
	Statements []Statement
	// NotReplayable is the reason against running the unit again, at most 8 KiB; empty if it
	// may run again. The job never delivers such a unit, it parks it.
	NotReplayable string
	// Receipt is the id of the receipt that each attempt leaves in the target, at most 80
	// printable ASCII characters. Without it the unit is delivered at least once, not exactly
	// once.
	Receipt string
	// Fingerprint is the request's fingerprint if the receipt is under a caller's idempotency
	// key; at most 64 bytes of text. Empty otherwise.
	Fingerprint string
	// Undo makes the unit the compensation of a group; nil for any other unit.
	Undo *Undo
	// CompensateAfter is the age, in whole milliseconds, after which an undelivered group is
	// compensated; 0 means never. All units of a group have the same.
	CompensateAfter time.Duration
	// ContendedFrom is the unit's age, in whole milliseconds, when other transactions first
	// obstructed it. 0 means no contention since it was written or an operator retried it.
	// Release sets it.
	ContendedFrom time.Duration
	// Order is the unit's place under its order keys, each named once; Add sets the numbers.
	// Empty without order keys.
	Order []Order
	// After lists the ids of units that must be delivered first, as a message waits for the
	// rows of its group. Its claimer checks them by States and releases the unit until they are
	// delivered. An older job cannot read such a unit, and parks it. Empty if it waits for no
	// unit.
	After []string

	// Lease is the current owner's.
	Lease Lease
	// AddRepeated is set by Add after it repeated its write because an attempt got no answer.
	// That attempt may still arrive, however late. If the unit was removed before, it is then
	// in the store again, and will be delivered again.
	AddRepeated bool
	// Behind is the unit that it waits for, the first under a key of its Order. Until that unit
	// is gone or skipped, this one is not due and has no lease. Empty if it waits for no unit.
	// Add, List and Get set it.
	Behind string

	// Delivered makes Remove record the delivery for States, which costs a further write. The
	// job sets it: the caller of such a unit may ask for its state.
	Delivered bool

	// InDoubt is set if an earlier attempt may have been applied: it got no answer, or its
	// owner vanished during it.
	InDoubt bool
	// CreatedAt is the time of Add, on the store's clock.
	CreatedAt time.Time
	// Tries counts the job's failed tries (async_delivery_try_times).
	Tries int
	// NextTry is the time of the next possible claim, on the store's clock, for a unit that is
	// old enough (see Due). For a leased unit it is the end of its lease.
	NextTry time.Time
	// AtOnce units are due whatever their age: an operator retried them, or AddWithin wrote them,
	// and they have not been claimed since.
	AtOnce bool
	// ReadAt is the store's clock when the unit was read.
	ReadAt time.Time
	// Blocks is the number of units that wait behind it; List and Get set it.
	Blocks int
	// LastError is the text of the last failure.
	LastError string
	// Parked units are left alone until an operator retries or discards them.
	Parked bool
	// Leased is set if the unit had an owner when it was read.
	Leased bool
	// Unreadable is the reason why the row was found but not completely read (a NULL instead of
	// a text, a missing statement). The other fields hold the readable part.
	Unreadable error
	// blocked is set if it waits for another unit, unless it is parked.
	Blocked bool
}

// Due returns when a claim with this minAge may take the unit, on the store's clock. A unit
// created in that clock's future (it was set back since) counts as old enough.
func (u *Unit) Due(minAge time.Duration) time.Time {
	if old := u.CreatedAt.Add(minAge); !u.AtOnce && old.After(u.NextTry) && !u.CreatedAt.After(u.ReadAt) {
		return old
	}
	return u.NextTry
}

// ContendedSince returns when other transactions first obstructed the unit, on the store's
// clock; zero without contention.
func (u *Unit) ContendedSince() time.Time {
	if u.ContendedFrom == 0 {
		return time.Time{}
	}
	return u.CreatedAt.Add(u.ContendedFrom)
}

// Contend sets ContendedFrom by v. A failed try without contention resets it.
func (u *Unit) Contend(v Verdict) {
	switch {
	case v.Contended && u.ContendedFrom == 0:
		u.ContendedFrom = max(u.ReadAt.Sub(u.CreatedAt), time.Millisecond).Truncate(time.Millisecond)
	case v.CountTry && !v.Contended:
		u.ContendedFrom = 0
	}
}

// Clone copies a unit deeply.
func (u *Unit) Clone() *Unit {
	c := *u
	c.Statements = append([]Statement(nil), u.Statements...)
	if u.Undo != nil {
		c.Undo = &Undo{Parts: slices.Clone(u.Undo.Parts), Cause: u.Undo.Cause}
	}
	c.Order = append([]Order(nil), u.Order...)
	c.After = append([]string(nil), u.After...)
	return &c
}

// The text of a UUID is 36 characters; its last three are the low 12 bits, which count the
// statements of a unit.
const (
	idLen    = 36
	IDPrefix = idLen - 3
	headTail = "000"
	hexChars = "0123456789abcdef"
)

// NewID returns the id of a unit: a UUIDv7 whose low 12 bits are zero, so that the ids of
// its up to [MaxStatements] rows follow without a gap. Later ids of the same process sort
// after it. It is safe for concurrent use.
func NewID() string {
	id := uuid.Must(uuid.NewV7())
	id[14] &= 0xf0
	id[15] = 0
	return id.String()
}

// RowID returns the id of row n (from 0) of the unit with the first row head.
func RowID(head string, n int) string {
	if n == 0 {
		return head
	}
	var b [idLen]byte
	copy(b[:], head)
	b[IDPrefix] = hexChars[n>>8&15]
	b[IDPrefix+1] = hexChars[n>>4&15]
	b[IDPrefix+2] = hexChars[n&15]
	return string(b[:])
}

// RowIDs returns the ids of a unit's n rows.
func RowIDs(id string, n int) []string {
	ids := make([]string, max(1, n))
	for i := range ids {
		ids[i] = RowID(id, i)
	}
	return ids
}

// AllRowIDs returns the ids of all rows that may belong to the unit: all possible ones if
// its first row does not tell their number.
func (u *Unit) AllRowIDs() []string {
	if len(u.Statements) == 1 && u.Unreadable != nil {
		return RowIDs(u.ID, MaxStatements)
	}
	return RowIDs(u.ID, len(u.Statements))
}

// HeadID returns the id of the first row in the unit of the row id. Any text that is not an
// id comes back unchanged, and belongs to no unit.
func HeadID(id string) string {
	if len(id) != idLen || strings.Trim(id[IDPrefix:], hexChars) != "" {
		return id
	}
	return id[:IDPrefix] + headTail
}

// HasRow reports whether id is one of its unit's n rows: a mistyped id is not taken for
// another.
func HasRow(id string, n int) bool {
	head := HeadID(id)
	if id == head {
		return true
	}
	row, err := strconv.ParseUint(id[IDPrefix:], 16, 12)
	return err == nil && int(row) < n && id == RowID(head, int(row))
}

// IsHeadID reports whether id has the form of NewID's ids: lower case, the low 12 bits zero.
func IsHeadID(id string) bool {
	return len(id) == idLen && id[IDPrefix:] == headTail && strings.ToLower(id) == id && uuid.Validate(id) == nil
}

// IsID reports whether id has the form of an entry's id. Other texts belong to no entry of
// any log.
func IsID(id string) bool { return IsHeadID(HeadID(id)) }

// The maximum lengths: of settings, places, errors and fingerprints in bytes (the
// fingerprint's column counts characters, which are never more), of the rest in characters.
const (
	maxDataSource  = 255
	MaxToken       = 40
	maxSettings    = 16 << 10
	MaxReceipt     = 80
	maxPlace       = 1 << 10
	maxTrace       = 256
	maxFingerprint = 64
	MaxErrorText   = 8 << 10
)

// minLease is the shortest lease; the log's clock counts milliseconds.
const MinLease = time.Millisecond

// Lease is the right to deliver, judge and remove a unit for a while.
type Lease struct {
	// Token names the owner and fences every write to the unit.
	Token string
	// Deadline is the earliest end of the lease, on this process's clocks: it was computed
	// before the request left. After it another owner may have the unit. Zero: the lease never
	// began (AddWithin), and any claimer may take the unit.
	Deadline time.Time
}

// Over reports whether the deadline has passed by either clock: the monotonic one stands
// still while a machine sleeps, and the wall clock may be set back.
func (l Lease) Over() bool {
	now := time.Now()
	return !now.Before(l.Deadline) || !now.Round(0).Before(l.Deadline.Round(0))
}

// Plain reports whether u has no order key and no group.
func (u *Unit) Plain() bool { return !u.Ordered() && !u.Grouped() }

// Ordered reports whether u has an order key.
func (u *Unit) Ordered() bool { return len(u.Order) > 0 }

// Grouped reports whether u is a unit of a compensable group, its compensation, or waits for units
// of its group.
func (u *Unit) Grouped() bool { return u.Undo != nil || len(u.After) > 0 || u.Group() }

// Group reports whether u is a forward unit of a compensable group. The group's compensation
// has the id u.TransactionID.
func (u *Unit) Group() bool {
	return u.Undo == nil && len(u.Statements) > 0 && u.Statements[0].Part > 0
}

// Decides returns the id of the entry that holds the unit's state. While the log has it, the unit's
// receipt stays. In a compensable group it is the compensation, which can undo a delivered part;
// otherwise it is the unit's own.
func (u *Unit) Decides() string {
	if u.Undo != nil || u.Group() {
		return u.TransactionID
	}
	return u.ID
}

// Check rejects a unit that could not be stored or found again. It sets an empty token to
// token, and an empty TransactionID to the unit's ID. Errors name the unit by its id.
func (u *Unit) Check(lease time.Duration, token string) error {
	switch {
	case u == nil:
		return errors.New("txlog: a unit is nil")
	case lease < MinLease:
		return fmt.Errorf("txlog: a lease of %v is too short: it must be at least %v", lease, MinLease)
	case !IsHeadID(u.ID):
		return fmt.Errorf("txlog: %q is not a unit ID: make it by NewID", u.ID)
	case len(u.Statements) == 0 || len(u.Statements) > MaxStatements:
		return fmt.Errorf("txlog: unit %s has %d statements: it must have 1 to %d", u.ID, len(u.Statements), MaxStatements)
	case u.DataSource == "" || strings.TrimSpace(u.DataSource) != u.DataSource: // some collations ignore blanks at the end
		return fmt.Errorf("txlog: the data source %q of unit %s is empty, or begins or ends with a blank", u.DataSource, u.ID)
	case slices.ContainsFunc(u.After, func(id string) bool { return !IsHeadID(id) || id == u.ID }):
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
	}{{"lease token", u.Lease.Token, MaxToken}, {"transaction id", u.TransactionID, MaxToken}, {"traceparent", u.TraceParent, maxTrace}, {"receipt", u.Receipt, MaxReceipt}} {
		if t.text != "" && !StorableToken(t.text, t.most) {
			return fmt.Errorf("txlog: the %s of unit %s must have at most %d printable ASCII characters", t.what, u.ID, t.most)
		}
	}
	for _, t := range [...]struct {
		what, text string
		most       int
	}{{"data source", u.DataSource, maxDataSource}, {"settings", u.Settings, maxSettings}, {"session", u.Session, maxSettings}, {"account", u.Account, maxSettings},
		{"place of the receipt", u.Place, maxPlace}, {"fingerprint", u.Fingerprint, maxFingerprint}, {"reason against running it again", u.NotReplayable, MaxErrorText}} {
		if !StorableText(t.text) || len(t.text) > t.most && (t.most != maxDataSource || utf8.RuneCountInString(t.text) > t.most) {
			return fmt.Errorf("txlog: the %s of unit %s must be valid UTF-8 without NUL, at most %d long", t.what, u.ID, t.most)
		}
	}
	if len(u.Order) > 0 {
		if err := validateOrder(u); err != nil {
			return err
		}
	}
	grouped := u.Undo != nil || u.CompensateAfter != 0
	for i := range u.Statements {
		if !StorableText(u.Statements[i].Params) {
			return fmt.Errorf("txlog: the parameters of statement %d of unit %s are not what EncodeParams wrote", i+1, u.ID)
		}
		if n := u.Statements[i].Required.n; n < 0 {
			return fmt.Errorf("txlog: statement %d of unit %s must change %d rows: the number must not be negative", i+1, u.ID, n)
		}
		grouped = grouped || u.Statements[i].Part != 0
	}
	if !grouped {
		return nil
	}
	return u.validateGroup()
}

// StorableToken reports whether s is 1 to most printable ASCII characters.
func StorableToken(s string, most int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// StorableText reports whether every database stores s unchanged.
func StorableText(s string) bool {
	return strings.IndexByte(s, 0) < 0 && utf8.ValidString(s)
}

// Millis rounds a duration up to the log's unit of time.
func Millis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// CutText makes s storable, of at most that many bytes.
func CutText(s string, most int) string {
	if !StorableText(s) {
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	}
	if len(s) <= most {
		return s
	}
	const more = "…"
	end := most - len(more)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}

// ErrLeaseLost is returned for a unit that the given token no longer owns: the lease ran
// out and another owner took, delivered or removed the unit.
var ErrLeaseLost = errors.New("txlog: the lease of the entry was lost")

// LeaseLostError is the [ErrLeaseLost] of a call about several units.
type LeaseLostError struct {
	// IDs lists the units that were not owned. The call succeeded for the others.
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

// Unwrap returns ErrLeaseLost.
func (e *LeaseLostError) Unwrap() error { return ErrLeaseLost }

// LeaseLost returns an ErrLeaseLost that names the units.
func LeaseLost(what string, lost ...*Unit) error {
	err := &LeaseLostError{what: what, IDs: make([]string, len(lost))}
	for i, u := range lost {
		if u != nil {
			err.IDs[i] = u.ID
		}
	}
	return err
}
