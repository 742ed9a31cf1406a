package besteffort

import (
	"errors"

	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/listener"
)

// count counts what became of a write that was logged.
func (e *Deliverer) count(d *Delivery, err error) {
	if e.tally == nil || d.unlogged {
		return
	}
	if err == nil && d.Tries == 1 { // as nearly always
		e.tally.Count(journal.AtOnce, 1)
		return
	}
	if errors.Is(err, listener.ErrNotLogged) || errors.Is(err, listener.ErrUnknownOutcome) {
		return
	}
	e.tally.Count(outcomeOf(err), 1)
}

func outcomeOf(err error) journal.Outcome {
	if err == nil {
		return journal.SyncRetry
	}
	var pending *listener.PendingError
	var kept *listener.RefusedError
	switch {
	case errors.As(err, &pending) && pending.Parked, errors.As(err, &kept):
		return journal.Parked
	case pending != nil:
		return journal.Pending
	default:
		return journal.Refused
	}
}
