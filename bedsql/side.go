package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// side finds the connection for a retry: the caller's own while it answers,
// else one on the side, dialled for this write and closed after it.
type side struct {
	c     *Conn
	own   bool
	spare driver.Conn
}

var errNoSide = errors.New("bed: the connection is gone, and another one would reach another database (:memory:)")

// conn gives a connection that was checked, or how the attempt failed without one.
func (s *side) conn(ctx context.Context) (driver.Conn, attempt.Outcome) {
	c := s.c
	if !c.dead {
		if err := c.ensure(ctx); err != nil {
			return nil, attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
		}
		if attempt.Ping(ctx, c.inner) == nil {
			s.own = true
			return &c.session, attempt.Outcome{}
		}
		if err := ctx.Err(); err != nil {
			return nil, attempt.Outcome{Err: err, Class: delivery.Unreachable}
		}
		c.kill()
	}
	s.own = false
	if c.c.target.NoSideConnection {
		return nil, attempt.Outcome{Err: errNoSide, Class: delivery.Unreachable}
	}
	if s.spare != nil {
		if attempt.Ping(ctx, s.spare) == nil {
			return s.spare, attempt.Outcome{}
		}
		s.close()
	}
	conn, err := c.c.dial(ctx)
	if err != nil {
		return nil, attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
	}
	s.spare = conn.Conn
	return s.spare, attempt.Outcome{}
}

// used says how the attempt on the connection ended.
func (s *side) used(out attempt.Outcome) {
	switch {
	case !out.ConnLost:
	case s.own:
		s.c.kill()
	default:
		s.close()
	}
}

func (s *side) close() {
	if s.spare != nil {
		_ = s.spare.Close()
		s.spare = nil
	}
}

// attempt runs f on a connection that was checked.
func (s *side) attempt(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	conn, failed := s.conn(ctx)
	if conn == nil {
		return failed
	}
	out := unlessPanic(func() attempt.Outcome { return f(conn) }, func() { s.used(attempt.Outcome{ConnLost: true}) })
	s.used(out)
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
func (s *side) void(ctx context.Context, u *txlog.Unit) attempt.Outcome {
	return s.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
		return s.c.c.void(ctx, conn, u)
	})
}

// answered notes in the receipt by which a unit was decided that its caller is
// answered.
func (s *side) answered(ctx context.Context, u *txlog.Unit) attempt.Outcome {
	return s.attempt(ctx, func(conn driver.Conn) attempt.Outcome {
		return attempt.Answered(ctx, s.c.c.dialect, conn, u, s.c.c.receipts)
	})
}
