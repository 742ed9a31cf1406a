package bedprom

import (
	"errors"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/delivery"
)

func originOf(o listener.Origin) string {
	switch o {
	case listener.SyncRetry:
		return "sync_retry"
	case listener.AsyncJob:
		return "job"
	default:
		return "caller"
	}
}

// classOf says what an attempt ended with.
func classOf(ev listener.Event) string {
	if ev.Type == listener.ExecuteSuccess {
		return "ok"
	}
	switch ev.Class {
	case delivery.Unreachable:
		return "unreachable"
	case delivery.Retryable:
		return "retryable"
	case delivery.Refused:
		return "refused"
	case delivery.Duplicate:
		return "duplicate"
	default:
		return "unknown"
	}
}

// outcomeOf says what a caller was told.
func outcomeOf(ev listener.Event) string {
	var pending *listener.PendingError
	var refused *listener.RefusedError
	switch {
	case ev.Err == nil && len(ev.Attempts) > 1:
		return "sync_retry"
	case ev.Err == nil:
		return "at_once"
	case errors.As(ev.Err, &refused), errors.As(ev.Err, &pending) && pending.Parked:
		return "parked"
	case errors.Is(ev.Err, listener.ErrPending):
		return "pending"
	case errors.Is(ev.Err, listener.ErrNotLogged):
		return "not_logged"
	case errors.Is(ev.Err, listener.ErrUnknownOutcome):
		return "unknown"
	default:
		return "refused"
	}
}
