package ops

import (
	"context"
	"time"
)

// Action is what is decided for entries or data sources, and what an audit record tells.
type Action string

// The actions.
const (
	// Retry makes entries due now, with their tries reset and not parked any more.
	Retry Action = "retry"
	// Park leaves entries for an operator.
	Park Action = "park"
	// Discard erases entries for good. It needs a reason.
	Discard Action = "discard"

	// These are only in the audit.
	Pause  Action = "pause"
	Resume Action = "resume"
	Limit  Action = "limit"
	Reveal Action = "reveal"
	Try    Action = "try"
)

// Act does it to one entry; id may be that of any of its rows. ErrNotFound, ErrLeased, ErrInvalid.
func (s *Store) Act(ctx context.Context, a Action, id string, by By) error { return errNotBuilt }

// MaxBulk is how many entries are changed at once at the most.
const MaxBulk = 100_000

// ActAll does it to all entries that f selects, in one local transaction, if they are exactly count; else to
// none: ConflictError. More than MaxBulk are ErrInvalid.
func (s *Store) ActAll(ctx context.Context, a Action, f Filter, count int, by By) error {
	return errNotBuilt
}

// Pause has no job deliver to the data source until it is resumed. What is being delivered is
// finished. ErrUnknownDataSource.
func (s *Store) Pause(ctx context.Context, dataSource string, by By) error { return errNotBuilt }

// Resume ends a pause.
func (s *Store) Resume(ctx context.Context, dataSource string, by By) error { return errNotBuilt }

// Limit bounds the deliveries to the data source per second by all jobs together; 0 lifts it.
func (s *Store) Limit(ctx context.Context, dataSource string, perSecond int, by By) error {
	return errNotBuilt
}

// Record is one of the audit.
type Record struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Who  string    `json:"who"`
	// Action is what was done.
	Action Action `json:"action"`
	// What is the entry's id, the data source's name, or the filter as JSON.
	What   string `json:"what"`
	Count  int    `json:"count"`
	Reason string `json:"reason"`
}

// Audit is a page of records, the newest first.
type Audit struct {
	Records []Record `json:"records"`
	Next    string   `json:"next,omitempty"`
}

// Audit gives a page of what was done.
func (s *Store) Audit(ctx context.Context, p Page) (*Audit, error) { return nil, errNotBuilt }

// Trial is what a write would do.
type Trial struct {
	// Rows are those that each statement would change; -1 where the database did not tell. They end
	// before the one that failed.
	Rows []int64 `json:"-"`
	// Error is the database's, masked; empty: the whole entry would be applied.
	Error string `json:"error"`
	// Class is what the error means.
	Class string `json:"class,omitempty"`
	// Notes say what a rollback does not undo, and what else should be known.
	Notes []string      `json:"notes"`
	Took  time.Duration `json:"-"`
}

// Try runs the entry's statements in a local transaction of its target and rolls it back. It waits at most
// 10 s in all and leaves neither locks nor a receipt. What the database said is in the Trial; an error is
// ErrNotFound, ErrLeased, ErrNoTarget, ErrInvalid (it cannot be tried, the text says why) or a
// target that cannot be reached.
func (s *Store) Try(ctx context.Context, id string, by By) (*Trial, error) { return nil, errNotBuilt }
