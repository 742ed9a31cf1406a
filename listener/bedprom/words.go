package bedprom

import (
	"strings"

	"github.com/bedsql/bed/listener"
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
	word, _, _ := strings.Cut(ev.Class.String(), " ")
	return word
}

// outcomeOf says what a caller got.
func outcomeOf(ev listener.Event) string {
	switch {
	case ev.Err == nil && len(ev.Attempts) > 1:
		return "sync_retry"
	case ev.Err == nil:
		return "at_once"
	default:
		return ev.Outcome()
	}
}
