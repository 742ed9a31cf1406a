package asyncjob

import (
	"sync/atomic"
	"testing"
	"time"
)

// scheduled is a schedule given by a function of time.
type scheduled func(time.Time) time.Time

func (s scheduled) Next(t time.Time) time.Time { return s(t) }

func TestRoundsGoOnWhenTheClockIsCorrected(t *testing.T) {
	t.Parallel()
	inAnHour := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		wrong, right time.Duration // what the clock is ahead by, until it is put right and then
		next         scheduled
	}{
		"back": {wrong: 2 * time.Hour, next: func(t time.Time) time.Time {
			if t.Before(inAnHour) {
				return t.Add(50 * time.Millisecond)
			}
			return t.AddDate(1, 0, 0)
		}},
		"forward": {right: 2 * time.Hour, next: func(t time.Time) time.Time {
			if t.Before(inAnHour) {
				return inAnHour
			}
			return t.AddDate(1, 0, 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem, db := newStore(t), &fakeDB{}
			job := newJob(t, mem, Targets{"orders": db.target()}, brittle())
			job.schedule = c.next
			var right atomic.Bool
			var looked atomic.Int32
			job.clock = func() time.Time {
				looked.Add(1)
				if right.Load() {
					return time.Now().Add(c.right)
				}
				return time.Now().Add(c.wrong)
			}
			add(t, mem, "orders", "one", nil)
			start(t, job)
			until(t, "the next round is far away", func() bool { return looked.Load() > 1 })
			if left(t, mem) != 1 {
				t.Error("the unit was delivered before the clock was put right")
			}
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
