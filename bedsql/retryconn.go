package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// retryConn finds the connection for a retry: the caller's own while it answers,
// else one on the side, dialled for this write and closed after it.
type retryConn struct {
	c     *Conn
	own   bool
	spare driver.Conn
}

var errNoOther = errors.New("bed: the connection is gone, and another one would reach another database (:memory:)")

// conn gives a connection that was checked, or how the attempt failed without one.
func (r *retryConn) conn(ctx context.Context) (driver.Conn, attempt.Outcome) {
	c := r.c
	if !c.dead {
		if err := c.ensure(ctx); err != nil {
			return nil, attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
		}
		if attempt.Ping(ctx, c.inner) == nil {
			r.own = true
			return &c.session, attempt.Outcome{}
		}
		if err := ctx.Err(); err != nil {
			return nil, attempt.Outcome{Err: err, Class: delivery.Unreachable}
		}
		c.kill()
	}
	r.own = false
	if c.c.target.NoSideConnection {
		return nil, attempt.Outcome{Err: errNoOther, Class: delivery.Unreachable}
	}
	if r.spare != nil {
		if attempt.Ping(ctx, r.spare) == nil {
			return r.spare, attempt.Outcome{}
		}
		r.close()
	}
	conn, err := c.c.dial(ctx)
	if err != nil {
		return nil, attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
	}
	r.spare = conn.Conn
	return r.spare, attempt.Outcome{}
}

// used says how the attempt on the connection ended.
func (r *retryConn) used(out attempt.Outcome) {
	switch {
	case !out.ConnLost:
	case r.own:
		r.c.kill()
	default:
		r.close()
	}
}

func (r *retryConn) close() {
	if r.spare != nil {
		_ = r.spare.Close()
		r.spare = nil
	}
}

// attempt runs f on a connection that was checked.
func (r *retryConn) attempt(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	conn, failed := r.conn(ctx)
	if conn == nil {
		return failed
	}
	out := unlessPanic(func() attempt.Outcome { return f(conn) }, func() { r.used(attempt.Outcome{ConnLost: true}) })
	r.used(out)
	return out
}

// unlessPanic runs an attempt. If the driver panics, lost takes the connection
// out of use: a transaction may be open on it, which the next attempt would
// commit.
func unlessPanic(attempt func() attempt.Outcome, lost func()) attempt.Outcome {
	returned := false
	defer func() {
		if !returned {
			lost()
		}
	}()
	out := attempt()
	returned = true
	return out
}

// void decides a unit in doubt by its receipt.
func (r *retryConn) void(ctx context.Context, u *txlog.Unit) attempt.Outcome {
	return r.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
		return r.c.c.void(ctx, conn, u)
	})
}

// answered notes in the receipt by which a unit was decided that its caller is
// answered.
func (r *retryConn) answered(ctx context.Context, u *txlog.Unit) attempt.Outcome {
	return r.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
		return attempt.Answered(ctx, r.c.c.dialect, conn, u, r.c.c.receipts)
	})
}
