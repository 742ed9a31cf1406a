package bedsql

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
)

// Bounds of the connections that a connector has for deliveries of its own.
const (
	maxStagedConns = 32 // in use or idle
	maxIdleTime    = time.Minute
	// freshFor is how long an idle connection is used again unchecked: to look
	// costs a call of the system, and proves as little.
	freshFor = 10 * time.Millisecond
)

// idleConns are connections of a connector that no pool of database/sql holds:
// for the deliveries of staged soft transactions. Nothing but units runs on
// them, so they hold no session state.
type idleConns struct {
	// turns has room for each delivery under way.
	turns chan struct{}

	mu     sync.Mutex
	conns  []idleConn // the one that was used last at the end
	closed bool
}

type idleConn struct {
	driver.Conn
	since time.Time
}

// take gives the connection that was used last, or nil.
func (p *idleConns) take(ctx context.Context) driver.Conn {
	for {
		p.mu.Lock()
		n := len(p.conns)
		if n == 0 {
			p.mu.Unlock()
			return nil
		}
		c := p.conns[n-1]
		p.conns = p.conns[:n-1]
		p.mu.Unlock()
		switch idle := time.Since(c.since); {
		case idle < freshFor, idle < maxIdleTime && usable(ctx, c.Conn):
			return c.Conn
		}
		_ = c.Close()
	}
}

// usable asks as database/sql does before it uses a pooled connection again.
func usable(ctx context.Context, c driver.Conn) bool {
	if r, ok := attempt.Bare(c).(driver.SessionResetter); ok && r.ResetSession(ctx) != nil {
		return false
	}
	return valid(c)
}

func valid(c driver.Conn) bool {
	v, ok := attempt.Bare(c).(driver.Validator)
	return !ok || v.IsValid()
}

// put keeps a connection for later, or closes it, and with it those that were
// idle for too long.
func (p *idleConns) put(c driver.Conn) {
	p.mu.Lock()
	keep := !p.closed && valid(c)
	var old []idleConn
	for len(p.conns) > 0 && time.Since(p.conns[0].since) >= maxIdleTime {
		old, p.conns = append(old, p.conns[0]), p.conns[1:]
	}
	if keep {
		p.conns = append(p.conns, idleConn{c, time.Now()})
	}
	p.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
	for _, c := range old {
		_ = c.Close()
	}
}

func (p *idleConns) close() {
	p.mu.Lock()
	conns := p.conns
	p.conns, p.closed = nil, true
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// stagedConn is the connection of one delivery.
type stagedConn struct {
	c    *connector
	conn driver.Conn
	// turn: it holds one of idleConns.turns.
	turn bool
	// lost: an idle connection may be as stale as the one before.
	lost bool
}

// attempt runs f on a connection, on the same as before while that lives. It
// waits for its turn.
func (s *stagedConn) attempt(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	if !s.turn {
		select {
		case s.c.idle.turns <- struct{}{}:
			s.turn = true
		case <-ctx.Done():
			return attempt.Outcome{Err: ctx.Err(), Class: delivery.Unreachable}
		}
	}
	if s.conn == nil && !s.lost {
		s.conn = s.c.idle.take(ctx)
	}
	if s.conn == nil {
		conn, err := s.c.dial(ctx)
		if err != nil {
			return attempt.Outcome{Err: err, Class: s.c.dialect.DialClass(err)}
		}
		s.conn = &conn
	}
	out := unlessPanic(func() attempt.Outcome { return f(s.conn) }, s.drop)
	if out.ConnLost {
		s.drop()
	}
	return out
}

func (s *stagedConn) drop() {
	_ = s.conn.Close()
	s.conn, s.lost = nil, true
}

func (s *stagedConn) release() {
	if s.conn != nil {
		s.c.idle.put(s.conn)
		s.conn = nil
	}
	if s.turn {
		s.turn = false
		<-s.c.idle.turns
	}
}
