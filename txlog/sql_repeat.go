package txlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// repeatFor bounds the repetitions of a write for callers whose context
	// has no deadline.
	repeatFor = 10 * time.Second
	// attemptFor bounds one repetition, so that a connection that hangs does
	// not use up the time of the others.
	attemptFor = 2 * time.Second
	// maxPassing is how often a write that met a deadlock or the like is
	// repeated, and passingFor for how long: one that waited for a lock until
	// the database's own timeout has waited enough.
	maxPassing = 5
	passingFor = 2 * time.Second
)

// write runs f until its outcome is known: on an error that is no answer it is
// repeated on another connection, while ctx lasts and for the grace after it,
// but never beyond end. again tells f that an earlier attempt may have been
// applied. f must be harmless when repeated.
//
// A nil error means f succeeded. inDoubt means that the last word is still
// missing; err is then the first error.
func (s *SQLStorage) write(ctx context.Context, end time.Time, f func(ctx context.Context, again bool) error) (inDoubt bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	first, stop := outlive(ctx, end, s.options.grace/2)
	err = s.attempt(first, f)
	stop()
	if err == nil || s.definite(err) {
		return false, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		if latest := time.Now().Add(repeatFor); latest.Before(end) {
			end = latest
		}
	}
	rest, stop := outlive(ctx, end, s.options.grace)
	defer stop()
	for try := 0; s.pause(rest, try); try++ {
		attempt, cancel := context.WithTimeout(rest, attemptFor)
		last := f(attempt, true)
		cancel()
		if last == nil {
			return false, nil
		}
	}
	return true, err
}

// attempt runs f once, and again only when other transactions were in its way.
func (s *SQLStorage) attempt(ctx context.Context, f func(ctx context.Context, again bool) error) error {
	start := time.Now()
	for try := 0; ; try++ {
		err := f(ctx, false)
		if err == nil || !s.again(ctx, err, try, start) {
			return err
		}
	}
}

// again reports, after a pause, whether what failed with err is worth repeating
// although the error was definite.
func (s *SQLStorage) again(ctx context.Context, err error, try int, start time.Time) bool {
	return try < maxPassing && time.Since(start) < passingFor && s.definite(err) && s.passing(err) && s.pause(ctx, try)
}

// outlive gives a context that ends with end, or a while after ctx. A write that
// was sent is not broken off with its caller's context: the answer mostly is on
// its way, and without it the server might carry the write out much later.
func outlive(ctx context.Context, end time.Time, grace time.Duration) (context.Context, func()) {
	rest, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	unhook := context.AfterFunc(ctx, func() {
		if grace <= 0 {
			cancel()
			return
		}
		// Stopping the timer is not worth the bookkeeping: cancel may be
		// called late.
		time.AfterFunc(grace, cancel)
	})
	return rest, func() { unhook(); cancel() }
}

// unknown makes the error of a write whose outcome stayed unknown.
func (s *SQLStorage) unknown(what string, sentinel, cause error) error {
	if sentinel == nil {
		return s.failed(what, fmt.Errorf("its outcome is not known: %w", cause))
	}
	return s.failed(what, fmt.Errorf("%w: %w", sentinel, cause))
}

// backoffCap bounds the pause between two repetitions.
const backoffCap = 250 * time.Millisecond

// pause waits before the next repetition, longer each time and never the same
// time for two who were in each other's way. It reports whether ctx lasts.
func (s *SQLStorage) pause(ctx context.Context, try int) bool {
	d := min(5*time.Millisecond<<min(try, 10), backoffCap)
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
