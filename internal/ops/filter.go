package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/errmask"
)

// State is the delivery state of an entry.
type State string

const (
	// Waiting entries are delivered by the job when they are due.
	Waiting State = "waiting"
	// Leased entries are being written or delivered at this moment.
	Leased State = "leased"
	// Parked entries wait for an operator.
	Parked State = "parked"
)

// StateOf returns the state of a unit.
func StateOf(u *entry.Unit) State {
	switch {
	case u.Parked:
		return Parked
	case u.Leased:
		return Leased
	default:
		return Waiting
	}
}

// GroupState is the role of an entry in a compensable group, a soft transaction; empty outside of
// groups.
type GroupState string

const (
	// GroupPart is a write of the group.
	GroupPart GroupState = "part"
	// GroupRecorded is the compensation of a group that is not being compensated.
	GroupRecorded GroupState = "recorded"
	// GroupCompensating is the running compensation of a group.
	GroupCompensating GroupState = "compensating"
	// GroupHalfCompensated is a compensation waiting for an operator.
	GroupHalfCompensated GroupState = "halfCompensated"
)

// GroupTexts say it in words.
var GroupTexts = map[GroupState]string{
	GroupPart:            "part of a compensable group",
	GroupRecorded:        "compensation of its group, not started",
	GroupCompensating:    "its group is being compensated",
	GroupHalfCompensated: "half compensated",
}

// GroupOf returns the role of a unit in its group.
func GroupOf(u *entry.Unit) GroupState {
	switch {
	case u.Group():
		return GroupPart
	case u.HalfCompensated():
		return GroupHalfCompensated
	case u.Compensating():
		return GroupCompensating
	case u.Undo != nil:
		return GroupRecorded
	}
	return ""
}

// Filter selects entries; all conditions have to hold. The zero value selects all.
type Filter struct {
	// DataSource is the name of one; empty means any.
	DataSource string `json:"dataSource,omitempty"`
	// State is one of the states; empty means any.
	State State `json:"state,omitempty"`
	// Text is searched for verbatim, with case, in the SQL of any statement and in the displayed
	// error (with masked values, see Reveal); never in parameters.
	Text string `json:"text,omitempty"`
	// Transaction is the id of a soft transaction.
	Transaction string `json:"transaction,omitempty"`
	// OlderThan is the least age of an entry; 0 means any.
	OlderThan time.Duration `json:"-"`
	// Kind is the key of a group of like errors, see [Kind], or of one text, see [TextKind];
	// empty means any.
	Kind string `json:"kind,omitempty"`
	// Reveal searches for Text in unmasked errors. Allow it only to users who may see values: a
	// search would disclose masked ones.
	Reveal bool `json:"-"`
	// settled leaves out entries being delivered at this moment.
	settled bool
}

// ParseSpan parses 90s, 5m, 36h or 7d; a number alone means seconds.
func ParseSpan(text string) (time.Duration, error) {
	if n, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		unit := uint64(time.Second)
		if strings.HasSuffix(text, "d") {
			unit *= 24 * 60 * 60
		}
		return time.Duration(min(n, math.MaxInt64/unit) * unit), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("not a time such as 90s, 5m, 36h or 7d")
	}
	return d, nil
}

// MaxPage is the largest number of entries in a page.
const MaxPage = 1000

// Page is a part of a list.
type Page struct {
	// After is Next of the page before; empty means from the start.
	After string
	// Limit is the greatest number of entries: from 1 to MaxPage; 0 means 100.
	Limit int
	// Newest puts the newest entries first. The audit always does.
	Newest bool
}

// Entries is a page of the list: oldest first, unless Page.Newest.
type Entries struct {
	Entries []Entry `json:"entries"`
	// Next is the After of the next page; empty on the last page. A page ends after half a second
	// of searching: it may be short, even empty, and still have a next page.
	Next string `json:"next,omitempty"`
}

// Entry is the view of a unit. It holds no parameter values.
type Entry struct {
	ID            string    `json:"id"`
	TransactionID string    `json:"transactionId"`
	DataSource    string    `json:"dataSource"`
	State         State     `json:"state"`
	CreatedAt     time.Time `json:"createdAt"`
	// Tries counts the job's failed tries.
	Tries int `json:"tries"`
	// NextTry is when the job may deliver it, by the log's clock. For a leased entry it is the end
	// of the lease; it is nil for a parked entry and for one waiting for another.
	NextTry *time.Time `json:"nextTry"`
	// LastError is masked: values in it are ?.
	LastError string `json:"lastError"`
	// InDoubt reports that an earlier attempt may have been applied.
	InDoubt bool `json:"inDoubt"`
	// WaitsFor is the entry before it under its order key; empty if it waits for no other.
	WaitsFor string `json:"waitsFor,omitempty"`
	// ContendedSince is when other transactions first got in its way; nil if they have not since it
	// was written or last retried by an operator. For a day, tries that fail so are not counted.
	ContendedSince *time.Time `json:"contendedSince,omitempty"`
	// Blocks is the number of entries waiting behind it under its order keys.
	Blocks int `json:"blocks,omitempty"`
	// NotReplayable says why it must not be run again; empty: it may.
	NotReplayable string `json:"notReplayable"`
	// Unreadable says why its row cannot be read whole; empty: it can.
	Unreadable string `json:"unreadable"`
	// Group is its role in its group. Cause says why the group is compensated, masked.
	Group      GroupState  `json:"group,omitempty"`
	Cause      string      `json:"cause,omitempty"`
	Statements []Statement `json:"statements"`
	// Unit is the entry itself, with parameters and unmasked errors. Do not show it to users who
	// may not see values.
	Unit *entry.Unit `json:"-"`
}

// Statement is one DML of an entry.
type Statement struct {
	SQL      string `json:"sql"`
	Prepared bool   `json:"prepared,omitempty"`
	// RequiredRows is the required number of changed rows, "=1" or ">=1"; empty for any number.
	RequiredRows string `json:"requiredRows,omitempty"`
	// Compensates is the data source of the part that it compensates, in the compensation of a group.
	Compensates string `json:"compensates,omitempty"`
	// Parameters are set only in a revealed entry, with their values.
	Parameters []Parameter `json:"parameters,omitzero"`
	// TypedParameters are the same in the log's own form, which amendments accept.
	TypedParameters string `json:"typedParameters,omitempty"`
	// ParametersError says why show cannot read them.
	ParametersError string `json:"parametersError,omitempty"`
}

// Entries returns a page of the entries matching f. It answers within about half a second
// regardless of the size of the log.
func (s *Store) Entries(ctx context.Context, f Filter, p Page) (*Entries, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	ids, next, err := s.find(ctx, &f, p, time.Now().Add(searchFor))
	if err != nil {
		return nil, err
	}
	units, err := s.sql.Units(ctx, ids)
	if err != nil {
		return nil, err
	}
	if p.Newest {
		slices.Reverse(units)
	}
	out := &Entries{Entries: make([]Entry, len(units)), Next: next}
	for i, u := range units {
		out.Entries[i] = s.entry(u)
	}
	return out, nil
}

// Check refuses an impossible page with ErrInvalid. It sets the default limit.
func (p *Page) Check() error {
	switch {
	case p.Limit < 0 || p.Limit > MaxPage:
		return fmt.Errorf("%w: limit is a number from 1 to %d", ErrInvalid, MaxPage)
	case !IsID(p.After):
		return fmt.Errorf("%w: after is not the next of a page", ErrInvalid)
	case p.Limit == 0:
		p.Limit = defaultPage
	}
	return nil
}

const defaultPage = 100

// IsID reports whether a text can be an id, or is empty. The log's database would refuse to compare
// others with an id.
func IsID(text string) bool {
	return len(text) <= 64 && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// entry returns the masked view of a unit.
func (s *Store) entry(u *entry.Unit) Entry {
	e := EntryOf(u, s.cfg.MinAge)
	e.LastError, e.Cause = maskedError(u), errmask.Mask(e.Cause, valuesOf(u)...)
	return e
}

// EntryOf returns a view of a unit with unmasked errors, for users who may see values. minAge is
// Config.MinAge.
func EntryOf(u *entry.Unit, minAge time.Duration) Entry {
	e := Entry{
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, State: StateOf(u),
		CreatedAt: u.CreatedAt.UTC(), Tries: u.Tries, LastError: u.LastError, InDoubt: u.InDoubt, WaitsFor: u.Behind, Blocks: u.Blocks,
		NotReplayable: u.NotReplayable, Group: GroupOf(u), Statements: make([]Statement, len(u.Statements)), Unit: u,
	}
	if u.Unreadable != nil {
		e.Unreadable = u.Unreadable.Error()
	}
	for i, statement := range u.Statements {
		e.Statements[i] = Statement{SQL: statement.SQL, Prepared: statement.Prepared, RequiredRows: statement.Required.Sign()}
		if u.Undo != nil && statement.Part > 0 && statement.Part <= len(u.Undo.Parts) {
			e.Statements[i].Compensates = u.Undo.Parts[statement.Part-1].DataSource
		}
	}
	if u.Undo != nil {
		e.Cause = u.Undo.Cause
	}
	if since := u.ContendedSince().UTC(); u.ContendedFrom > 0 {
		e.ContendedSince = &since
	}
	if next := NextTry(u, minAge).UTC(); !u.Parked && u.Behind == "" {
		e.NextTry = &next
	}
	return e
}

// NextTry is when the job may deliver a unit, or the end of its lease.
func NextTry(u *entry.Unit, minAge time.Duration) time.Time {
	if u.Leased {
		return u.NextTry
	}
	return u.Due(minAge)
}

// Count is a number of entries.
type Count struct {
	N int `json:"count"`
	// More reports that there are more than N entries.
	More bool `json:"more"`
}

// CountCap is the default limit of a count.
const CountCap = 10_000

// Count counts the entries matching f, up to most; 0 means CountCap, below 0 means all. It takes
// about a second at most, unless it counts all.
func (s *Store) Count(ctx context.Context, f Filter, most int) (c Count, err error) {
	end := time.Now().Add(2 * searchFor)
	switch {
	case most < 0:
		most, end = math.MaxInt, time.Time{}
	case most == 0:
		most = CountCap
	}
	for after := ""; ; {
		ids, next, err := s.find(ctx, &f, Page{After: after, Limit: countedAtOnce}, end)
		if err != nil {
			return c, err
		}
		c.N += len(ids)
		switch after = next; {
		case c.N > most:
			return Count{most, true}, nil
		case after == "" || c.N == most || over(end):
			c.More = after != ""
			return c, nil
		}
	}
}

const countedAtOnce = 5000

// Progress counts entries by their current state.
type Progress struct {
	// Gone counts delivered or discarded entries, Parked those waiting for an operator, Waiting
	// those waiting for the job.
	Gone, Parked, Waiting int
}

// Progress looks for entries by their ids.
func (s *Store) Progress(ctx context.Context, ids []string) (p Progress, err error) {
	for portion := range slices.Chunk(ids, 1000) {
		condition, args := in(portion)
		var there, parked int
		if err := s.row(ctx, []any{&there, &parked}, `SELECT COUNT(*), COALESCE(SUM(parked), 0) FROM transaction_log WHERE `+condition, args...); err != nil {
			return p, err
		}
		p.Gone, p.Parked, p.Waiting = p.Gone+len(portion)-there, p.Parked+parked, p.Waiting+there-parked
	}
	return p, nil
}

// Kind is a group of entries with similar last errors: same data source, same code, and same text
// after removing variable values and numbers.
type Kind struct {
	// Key is for Filter.Kind.
	Key        string `json:"key"`
	DataSource string `json:"dataSource"`
	// Code is the database's: "1205", "40001"; empty if unknown.
	Code string `json:"code"`
	// Text is the error, masked.
	Text  string `json:"text"`
	Count int    `json:"count"`
	More  bool   `json:"more"`
	// Oldest is the first entry written among those counted, Newest the last.
	Oldest          string    `json:"oldest"`
	CreatedAt       time.Time `json:"createdAt"`
	Newest          string    `json:"newest"`
	NewestCreatedAt time.Time `json:"newestCreatedAt"`
}

// Kinds is errors by kind, the most frequent first.
type Kinds struct {
	Kinds []Kind `json:"kinds"`
	// More reports that some entries were not examined.
	More bool `json:"more"`
}
