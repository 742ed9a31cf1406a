package ops

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/txlog"
)

// State is what an entry waits for.
type State string

// The states.
const (
	// Waiting entries are delivered by the job when they are due.
	Waiting State = "waiting"
	// Leased entries are being written or delivered at this moment.
	Leased State = "leased"
	// Parked entries wait for an operator.
	Parked State = "parked"
)

// StateOf gives the state of a unit.
func StateOf(u *txlog.Unit) State {
	switch {
	case u.Parked:
		return Parked
	case u.Leased:
		return Leased
	default:
		return Waiting
	}
}

// Filter selects entries; all conditions have to hold. The zero value selects all.
type Filter struct {
	// DataSource is the name of one; empty means any.
	DataSource string
	// State is one of the states; empty means any.
	State State
	// Text is searched for as it is, with case, in the SQL of any statement and
	// in the error as it is shown (with its values masked, see Reveal); never in
	// parameters.
	Text string
	// Transaction is the id of a soft transaction.
	Transaction string
	// OlderThan selects entries at least that old; 0 means any.
	OlderThan time.Duration
	// Kind is the key of a group of like errors, see [Kind]; empty means any.
	Kind string
	// Reveal: Text is searched for in errors with their values. It is only for
	// those who may see these: otherwise a search would disclose what is masked.
	Reveal bool
}

// MaxPage is how many entries a page has at the most.
const MaxPage = 1000

// Page is a part of a list.
type Page struct {
	// After is Next of the page before; empty means from the start.
	After string
	// Limit is the greatest number of entries: from 1 to MaxPage; 0 means 100.
	Limit int
}

// Entries is a page of the list: oldest first.
type Entries struct {
	Entries []Entry `json:"entries"`
	// Next is the After of the next page; empty when this is the last. A page may
	// hold fewer entries than were asked for, or none, and still have a next one:
	// half a second's search found no more.
	Next string `json:"next,omitempty"`
}

// Entry is what is shown of a unit. It holds no parameter's value.
type Entry struct {
	ID string `json:"id"`
	// Log is the log that holds it, if a console shows several logs together.
	Log           string    `json:"log,omitempty"`
	TransactionID string    `json:"transactionId"`
	DataSource    string    `json:"dataSource"`
	State         State     `json:"state"`
	CreatedAt     time.Time `json:"createdAt"`
	// Tries counts the job's tries that failed.
	Tries int `json:"tries"`
	// NextTry is when the job may deliver it, by the log's clock; of a leased one the end of the
	// lease; nil for a parked one.
	NextTry *time.Time `json:"nextTry"`
	// LastError is masked: values in it are ?.
	LastError string `json:"lastError"`
	// InDoubt: an earlier attempt may have been applied.
	InDoubt bool `json:"inDoubt"`
	// NotReplayable says why it must not be run again; empty: it may.
	NotReplayable string `json:"notReplayable"`
	// Unreadable says why its row cannot be read whole; empty: it can.
	Unreadable string      `json:"unreadable"`
	Statements []Statement `json:"statements"`
	// Unit is the entry itself, with its parameters and the error as it is. It is
	// not for those who may not see values.
	Unit *txlog.Unit `json:"-"`
}

// Statement is one DML of an entry.
type Statement struct {
	SQL      string `json:"sql"`
	Prepared bool   `json:"prepared,omitempty"`
}

// Entries gives a page of those that f selects. It answers within about half a second
// however large the log is.
func (s *finder) Entries(ctx context.Context, f Filter, p Page) (*Entries, error) {
	limit, err := p.limit()
	if err != nil {
		return nil, err
	}
	found, err := s.find(ctx, f, p.After, limit, searchFor)
	if err != nil {
		return nil, err
	}
	units, err := s.log.Units(ctx, found.ids)
	if err != nil {
		return nil, err
	}
	out := &Entries{Entries: make([]Entry, len(units)), Next: found.next}
	for i, u := range units {
		out.Entries[i] = s.entry(u)
	}
	return out, nil
}

func (p Page) limit() (int, error) {
	switch {
	case p.Limit < 0 || p.Limit > MaxPage:
		return 0, fmt.Errorf("%w: the limit is %d, but must be from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	case len(p.After) > 64 || !utf8.ValidString(p.After) || strings.ContainsRune(p.After, 0):
		return 0, fmt.Errorf("%w: after is not the next of a page", ErrInvalid)
	case p.Limit == 0:
		return defaultPage, nil
	}
	return p.Limit, nil
}

const defaultPage = 100

// entry is what is shown of a unit.
func (s *asker) entry(u *txlog.Unit) Entry {
	e := Entry{
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, State: StateOf(u),
		CreatedAt: u.CreatedAt.UTC(), Tries: u.Tries, LastError: maskedError(u), InDoubt: u.InDoubt,
		NotReplayable: u.NotReplayable, Statements: make([]Statement, len(u.Statements)), Unit: u,
	}
	if u.Unreadable != nil {
		e.Unreadable = u.Unreadable.Error()
	}
	for i, statement := range u.Statements {
		e.Statements[i] = Statement{SQL: statement.SQL, Prepared: statement.Prepared}
	}
	if next := s.nextTry(u); !u.Parked {
		next = next.UTC()
		e.NextTry = &next
	}
	return e
}

// nextTry is when the job may deliver a unit, or the end of its lease.
func (s *asker) nextTry(u *txlog.Unit) time.Time {
	if u.Leased {
		return u.NextTry
	}
	return u.Due(s.cfg.MinAge)
}

// Count is a number of entries.
type Count struct {
	N int `json:"count"`
	// More: there are more than N; they were not counted.
	More bool `json:"more"`
}

// CountCap is up to where entries are counted for show.
const CountCap = 10_000

// Count counts what f selects, up to most; 0 means CountCap, below 0 means all.
// Unless all are counted it takes about a second at most.
func (s *finder) Count(ctx context.Context, f Filter, most int) (Count, error) {
	budget := 2 * searchFor
	switch {
	case most < 0:
		most, budget = math.MaxInt, noLimit
	case most == 0:
		most = CountCap
	}
	end := time.Now().Add(budget)
	n := 0
	for after := ""; ; {
		left := noLimit
		if budget > 0 {
			left = max(1, time.Until(end))
		}
		found, err := s.find(ctx, f, after, min(countedAtOnce, max(1, most-n)), left)
		if err != nil {
			return Count{}, err
		}
		n += len(found.ids)
		if after = found.next; after == "" {
			return Count{N: n}, nil
		}
		if n >= most || budget > 0 && over(end) {
			return Count{N: n, More: true}, nil
		}
	}
}

const countedAtOnce = 5000

// Kind is a group of entries whose last errors are alike: same data source, same code, same text
// when values and numbers that differ are left out.
type Kind struct {
	// Key is for Filter.Kind.
	Key        string `json:"key"`
	DataSource string `json:"dataSource"`
	// Code is the database's: "1205", "40001"; empty if it gave none.
	Code string `json:"code"`
	// Text is the error, masked.
	Text  string `json:"text"`
	Count int    `json:"count"`
	More  bool   `json:"more"`
	// Oldest is the entry that was written first of those counted.
	Oldest    string    `json:"oldest"`
	CreatedAt time.Time `json:"createdAt"`
}

// Kinds is errors by kind, the most frequent first.
type Kinds struct {
	Kinds []Kind `json:"kinds"`
	// More: not all entries were looked at.
	More bool `json:"more"`
}
