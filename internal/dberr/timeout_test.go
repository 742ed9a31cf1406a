package dberr

import (
	"context"
	"testing"
	"time"
)

// until is a context whose deadline has a timer that never fires.
type until struct {
	context.Context
	end time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.end, true }

func TestATimeoutIsKnownBeforeItsTimerFires(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before, later := time.Now().Add(-time.Millisecond), time.Now().Add(time.Hour)
	for _, c := range []struct {
		what         string
		ctx, bounded context.Context
		timedOut     bool
	}{
		{"no deadline", t.Context(), t.Context(), false},
		{"deadline to come", t.Context(), until{t.Context(), later}, false},
		{"deadline passed, timer late", t.Context(), until{t.Context(), before}, true},
		{"deadline passed, the caller's is to come", until{t.Context(), later}, until{t.Context(), before}, true},
		{"the caller's own deadline", until{t.Context(), before}, until{t.Context(), before}, false},
		{"canceled", ended, until{ended, before}, false},
	} {
		if got := TimedOut(c.ctx, c.bounded); got != c.timedOut {
			t.Errorf("%s: %v, want %v", c.what, got, c.timedOut)
		}
	}
}
