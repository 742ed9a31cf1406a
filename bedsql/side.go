package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/listener/delivery"
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
func (s *side) conn(ctx context.Context) (driver.Conn, delivery.Outcome) {
	c := s.c
	if !c.dead {
		if err := c.ensure(ctx); err != nil {
			return nil, delivery.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
		}
		if delivery.Ping(ctx, c.inner) == nil {
			s.own = true
			return c.inner, delivery.Outcome{}
		}
		if err := ctx.Err(); err != nil {
			return nil, delivery.Outcome{Err: err, Class: delivery.Unreachable}
		}
		c.kill()
	}
	s.own = false
	if c.c.target.NoSideConnection {
		return nil, delivery.Outcome{Err: errNoSide, Class: delivery.Unreachable}
	}
	if s.spare != nil {
		if delivery.Ping(ctx, s.spare) == nil {
			return s.spare, delivery.Outcome{}
		}
		s.close()
	}
	conn, err := c.c.dial(ctx)
	if err != nil {
		return nil, delivery.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
	}
	s.spare = conn
	return conn, delivery.Outcome{}
}

// used says how the attempt on the connection ended.
func (s *side) used(out delivery.Outcome) {
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
