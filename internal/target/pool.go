package target

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener/delivery"
)

// maxIdleTime is how long a pool keeps an unused connection. A target is idle most of the time.
const maxIdleTime = time.Minute

// Pool holds connections to a source. Only attempts run on them, so they hold no session state.
type Pool struct {
	t    *delivery.Target
	dial func(context.Context) (attempt.Session, error)
	db   func() *sql.DB // opened at first use
}

// NewPool makes a pool of at most size connections from dial. A dial of more than 30 seconds is an
// error.
func (s *Source) NewPool(size int, dial func(context.Context) (attempt.Session, error)) *Pool {
	p := &Pool{t: &s.Target, dial: dial}
	p.db = sync.OnceValue(func() *sql.DB {
		db := sql.OpenDB(p)
		db.SetMaxOpenConns(size)
		db.SetMaxIdleConns(size)
		db.SetConnMaxIdleTime(maxIdleTime)
		return db
	})
	return p
}

// Greeted makes a pool whose connections are in s's session.
func (s *Source) Greeted(size int) *Pool {
	return s.NewPool(size, func(ctx context.Context) (attempt.Session, error) {
		conn, facts, err := Dial(ctx, &s.Target)
		facts.Session = cmp.Or(s.Session, facts.Session)
		return attempt.Session{Conn: conn, Facts: facts}, err
	})
}

// DB returns the pool, opened.
func (p *Pool) DB() *sql.DB { return p.db() }

// Idle closes unused connections, but for the given number, and keeps no more from now on.
func (p *Pool) Idle(most int) { p.db().SetMaxIdleConns(most) }

// Driver implements driver.Connector.
func (p *Pool) Driver() driver.Driver { return p.t.Connector.Driver() }

// Connect implements driver.Connector.
func (p *Pool) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	session, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &pooledConn{Session: session}, nil
}

// pooledConn is a connection of the pool.
type pooledConn struct {
	attempt.Session
	used bool
}

// ResetSession implements driver.SessionResetter.
func (p *pooledConn) ResetSession(ctx context.Context) error {
	if r, ok := p.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

// IsValid implements driver.Validator.
func (p *pooledConn) IsValid() bool {
	v, ok := p.Conn.(driver.Validator)
	return !ok || v.IsValid()
}

// On runs f as one attempt on a connection of the pool, an *attempt.Session. It drops a connection
// that is lost, cannot write, or is in another session. With checked, it first checks a used
// connection if this is worth a round trip. It bypasses sql.Conn, because that would run a write
// again after driver.ErrBadConn. dialled is false without a connection.
func (p *Pool) On(ctx context.Context, checked bool, f func(driver.Conn) attempt.Outcome) (out attempt.Outcome, dialled bool) {
	for stale := true; stale; {
		conn, err := p.db().Conn(ctx)
		if err != nil {
			return attempt.Outcome{Err: err, Class: p.t.Dialect.DialClass(err)}, false
		}
		_ = conn.Raw(func(dc any) error {
			conn := dc.(*pooledConn)
			if stale = checked && conn.used && attempt.Ping(ctx, &conn.Session) != nil; stale {
				return driver.ErrBadConn
			}
			conn.used = true
			out = f(&conn.Session)
			if out.ConnLost || conn.Adapted || errors.As(out.Err, new(*ElsewhereError)) || p.readOnly(out.Err) {
				return driver.ErrBadConn // the pool drops it
			}
			return nil
		})
		_ = conn.Close()
	}
	return out, true
}

// readOnly reports whether err means that the server or session is read-only.
func (p *Pool) readOnly(err error) bool {
	return err != nil && p.t.Dialect.ReadOnly != nil && p.t.Dialect.ReadOnly(err)
}

// Ask is On for f, a question. It drops the connection after an error, because of its unknown
// state. An error without a connection is Unreachable: it answers no question.
func (p *Pool) Ask(ctx context.Context, f func(driver.Conn) error) error {
	out, dialled := p.On(ctx, false, func(conn driver.Conn) attempt.Outcome {
		err := f(conn)
		return attempt.Outcome{Err: err, ConnLost: err != nil}
	})
	if !dialled {
		return attempt.Certain(out.Err, dialect.Unreachable)
	}
	return out.Err
}

// Close closes its connections.
func (p *Pool) Close() error { return p.db().Close() }
