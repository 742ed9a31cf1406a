package asyncjob

import (
	"sync/atomic"
	"testing"
	"time"
)

// yearAhead is a schedule whose next time was taken from a clock that was a year
// ahead until it was put right.
type yearAhead struct {
	right *atomic.Bool
	taken *atomic.Int32
}

func (s yearAhead) Next(t time.Time) time.Time {
	s.taken.Add(1)
	if s.right.Load() {
		return t.Add(50 * time.Millisecond)
	}
	return t.AddDate(1, 0, 0)
}

func TestAClockThatIsPutRightDoesNotStopTheRounds(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"back": -365 * 24 * time.Hour, "forward": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem, db := newStore(t), &fakeDB{}
			job := newJob(t, mem, Targets{"orders": db.target()}, brittle())
			var right atomic.Bool
			var taken, looked atomic.Int32
			job.schedule = yearAhead{&right, &taken}
			job.ahead = func() time.Duration {
				looked.Add(1)
				if right.Load() {
					return step
				}
				return 0
			}
			start(t, job)
			add(t, mem, "orders", "one", nil)
			until(t, "the next round is a year away", func() bool { return taken.Load() > 0 && looked.Load() > 0 })
			right.Store(true)
			until(t, "the unit is delivered", func() bool { return left(t, mem) == 0 })
		})
	}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
