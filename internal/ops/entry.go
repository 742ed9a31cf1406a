package ops

import (
	"context"
	"time"
)

// Detail is one entry whole.
type Detail struct {
	Entry
	Settings     string `json:"settings"`
	ReceiptPlace string `json:"receiptPlace,omitempty"`
	Verdict      string `json:"verdict"`
	// VerdictText is the verdict for people, VerdictDetail more of it.
	VerdictText   string `json:"verdictText"`
	VerdictDetail string `json:"verdictDetail"`
	// Next says in words what happens next, and when.
	Next string `json:"next"`
	// Attempts are those that failed, the newest first, at most 100; MoreAttempts: there are more.
	Attempts     []Attempt `json:"attempts"`
	MoreAttempts bool      `json:"moreAttempts,omitempty"`
	// Siblings are the other entries of its soft transaction that are still in the log, at most 100.
	Siblings []Entry `json:"siblings"`
}

// Attempt is an attempt that failed.
type Attempt struct {
	// Time is when it ended, by the log's clock.
	Time time.Time `json:"time"`
	// Origin is "caller", "sync retry" or "async job".
	Origin string `json:"origin"`
	// Class is what the error means: unknown, unreachable, retryable, refused, duplicate key.
	Class string `json:"class"`
	// Error is masked.
	Error string `json:"error"`
}

// Entry gives one entry; id may be that of any of its rows. ErrNotFound.
func (s *Store) Entry(ctx context.Context, id string) (*Detail, error) { return nil, errNotBuilt }

// Revealed is what is masked elsewhere.
type Revealed struct {
	// Parameters are those of each statement.
	Parameters [][]Parameter `json:"parameters"`
	LastError  string        `json:"lastError"`
	// Attempts are those of Detail, with their values.
	Attempts []Attempt `json:"attempts"`
}

// Parameter is an argument of a statement.
type Parameter struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name,omitempty"`
	// Type is its Go type; "null" for none.
	Type string `json:"type"`
	// Size is its length in bytes; only texts and bytes have one.
	Size *int `json:"size,omitempty"`
	// Value is there only when it was asked for: true and false as such, everything else as text.
	Value    any    `json:"value,omitempty"`
	Encoding string `json:"encoding,omitempty"`
}

// Reveal gives the values of an entry. It is audited before anything is given: an
// audit that cannot be written is an error.
func (s *Store) Reveal(ctx context.Context, id string, by By) (*Revealed, error) {
	return nil, errNotBuilt
}
