package asyncjob

import (
	"context"
	"time"
)

// clockEvery is how often the wall clock is looked at, and clockStep what it is put
// forward or back by at the least.
const (
	clockEvery = time.Second
	clockStep  = time.Second
)

// wallClock gives how far the wall clock has run ahead of the time that passed
// since start, or negative after it.
func wallClock(start time.Time) func() time.Duration {
	return func() time.Duration {
		now := time.Now()
		return now.Round(0).Sub(start.Round(0)) - now.Sub(start) // without and with the monotonic clock
	}
}

// followClock calls stepped whenever the wall clock was put forward or back, until
// ctx is done.
func (j *Job) followClock(ctx context.Context, stepped func()) {
	look := time.NewTicker(clockEvery)
	defer look.Stop()
	before := j.ahead()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		now := j.ahead()
		if step := now - before; step.Abs() >= clockStep {
			j.log.Warnf("the clock was put by %v: the next round is scheduled anew", step.Round(time.Millisecond))
			stepped()
		}
		before = now
	}
}
