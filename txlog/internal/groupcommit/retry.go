package groupcommit

import (
	"context"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

const (
	// RepeatFor bounds the repetitions of a write for callers without a deadline.
	RepeatFor = 10 * time.Second
	// attemptFor bounds the first repetition, so that a hanging connection does not use up the
	// time for the others. Each repetition has twice the time of the previous one: with a slow
	// log, or a write of many round trips, no repetition would succeed otherwise.
	attemptFor = 2 * time.Second
	// maxPassing bounds the number of repetitions after a deadlock or similar, and passingFor
	// their time: a write that hit the database's own lock timeout has waited long enough.
	maxPassing = 5
	passingFor = 2 * time.Second
	// backoffCap bounds the pause between two repetitions.
	backoffCap = 250 * time.Millisecond
)

// Retry configures the repetition of writes. It is immutable and safe for concurrent use.
type Retry struct {
	// Grace is how long after the end of the caller's context a write with an unknown outcome
	// is repeated; without a positive Grace it is not.
	Grace time.Duration
	// Definite reports whether err proves the absence of a write.
	Definite func(err error) bool
	// Passing reports whether a definite error comes from contention with other transactions,
	// so that the same write is worth repeating at once.
	Passing func(err error) bool
	// Refused reports whether the database rejected the content of the write: a part of it
	// might pass.
	Refused func(err error) bool
}

// Do runs f until its outcome is known. After an error that is not an answer it repeats f,
// while ctx lasts and for the grace after it, but never beyond end. again tells f that an
// earlier attempt may have been applied. f must be harmless when repeated.
//
// A nil error means f succeeded. inDoubt means that the outcome is still unknown; err is
// then the first error.
func (r *Retry) Do(ctx context.Context, end time.Time, f func(ctx context.Context, again bool) error) (inDoubt bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	// The first attempt gets half of the grace, the search for its outcome the rest.
	first, release := outlive(ctx, end, r.Grace/2)
	err = r.Attempt(first, func(ctx context.Context) error { return f(ctx, false) })
	release()
	if err == nil || r.Definite(err) {
		return false, err
	}
	grace := r.Grace
	if ctx.Err() != nil {
		grace /= 2
	}
	return r.untilKnown(ctx, end, grace, err, f)
}

// untilKnown repeats f like Do, after a first attempt that failed without an answer, by
// cause.
func (r *Retry) untilKnown(ctx context.Context, end time.Time, grace time.Duration, cause error, f func(ctx context.Context, again bool) error) (inDoubt bool, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		if latest := time.Now().Add(RepeatFor); latest.Before(end) {
			end = latest
		}
	}
	rest, release := outlive(ctx, end, grace)
	defer release()
	for try := 0; Pause(rest, try); try++ {
		attempt, cancel := context.WithTimeout(rest, attemptFor<<min(try, 6))
		last := f(attempt, true)
		cancel()
		if last == nil {
			return false, nil
		}
	}
	return true, cause
}

// Attempt runs f, and repeats it, after a pause, only on contention with other transactions.
func (r *Retry) Attempt(ctx context.Context, f func(ctx context.Context) error) error {
	start := time.Now()
	for try := 0; ; try++ {
		err := f(ctx)
		if err == nil || try == maxPassing || time.Since(start) >= passingFor || !r.Definite(err) || !r.Passing(err) || !Pause(ctx, try) {
			return err
		}
	}
}

// outlive returns a context that ends at a fixed time, or a grace after the caller's. A
// write that was sent is not broken off with its caller's context: the answer is usually on
// its way, and without it the server might carry the write out much later.
func outlive(ctx context.Context, end time.Time, grace time.Duration) (outliving context.Context, release func()) {
	outliving, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	unhook := context.AfterFunc(ctx, func() {
		if grace <= 0 {
			cancel()
			return
		}
		// Stopping the timer is not worth the bookkeeping: a late call of cancel is harmless.
		time.AfterFunc(grace, cancel)
	})
	return outliving, func() {
		unhook()
		cancel()
	}
}

// Pause waits before the next repetition. Pauses grow, and are random to separate two
// contenders. It reports whether ctx lasts.
func Pause(ctx context.Context, try int) bool {
	return jitter.Sleep(ctx, jitter.Pause(min(5*time.Millisecond<<min(try, 10), backoffCap)))
}
