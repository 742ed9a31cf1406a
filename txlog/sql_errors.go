package txlog

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/dberr"
)

// answered is the judgement for a database that registered none of its own: only
// an error with a code of the server's is its answer.
func answered(err error) bool { return dberr.Of(err).Known() }

// definite reports whether err leaves no doubt that nothing was written.
func (b *Backend) definite(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) || errors.Is(err, errNotSent) {
		return true
	}
	// A driver that says ErrBadConn promises that nothing was sent. Not trusting
	// it costs one more INSERT under the same id.
	if errors.Is(err, driver.ErrBadConn) {
		return false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return b.Answered(err)
}

// refused reports whether the database refused what it was given: a part of it
// might pass. That is not so if the database could not be reached, or others were
// in the way.
func (b *Backend) refused(err error) bool {
	return b.Answered(err) && !b.passing(err)
}

// errNotSent marks failures before a statement left, other than those of dialling.
var errNotSent = errors.New("it was not sent")

// passing reports whether a definite error is due to other transactions that were
// in the way (a deadlock, a lock timeout, a serialization failure), or to a
// connection that died, in the pool or before COMMIT was sent, so that the same
// statement is worth repeating at once.
func (b *Backend) passing(err error) bool {
	if errors.Is(err, driver.ErrBadConn) || b.brokeOff(err) {
		return true
	}
	return dberr.Of(err).Contended()
}

// brokeOff reports whether a local transaction lost its connection before COMMIT.
func (b *Backend) brokeOff(err error) bool {
	var dial *dialError
	return errors.Is(err, errNotSent) && !errors.As(err, &dial) && !b.Answered(err) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
