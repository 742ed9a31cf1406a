package ops

import (
	"context"
	"time"
)

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
