package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
)

// Bounds of a connector's own connections.
const (
	maxOwnConns = 32 // in use or idle
	maxIdleTime = time.Minute
)

// connPool holds a connector's own connections: for retries after the caller's connection is gone,
// for staged soft transactions, and for erasing receipts. Only attempts run on them, so they hold
// no session state.
type connPool struct {
	c  *connector
	db func() *sql.DB // opened at first use
}

func newConnPool(c *connector) *connPool {
	p := &connPool{c: c}
	p.db = sync.OnceValue(func() *sql.DB {
		db := sql.OpenDB(p)
		db.SetMaxOpenConns(maxOwnConns)
		db.SetMaxIdleConns(maxOwnConns)
		db.SetConnMaxIdleTime(maxIdleTime)
		return db
	})
	return p
}

// Driver implements driver.Connector.
func (p *connPool) Driver() driver.Driver { return p.c.driver }

// Connect implements driver.Connector.
func (p *connPool) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	session, err := p.c.dial(ctx)
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

// on runs f as one attempt on a connection of the pool. With checked, it first checks a used
// connection if this is worth a round trip. It bypasses sql.Conn, which would run a write again
// after driver.ErrBadConn.
func (p *connPool) on(ctx context.Context, checked bool, f func(driver.Conn) attempt.Outcome) (out attempt.Outcome) {
	readOnly := p.c.dialect.ReadOnly
	for stale := true; stale; {
		conn, err := p.db().Conn(ctx)
		if err != nil {
			return attempt.Outcome{Err: err, Class: p.c.dialClass(err)}
		}
		_ = conn.Raw(func(dc any) error {
			conn := dc.(*pooledConn)
			if stale = checked && conn.used && attempt.Ping(ctx, &conn.Session) != nil; stale {
				return driver.ErrBadConn
			}
			conn.used = true
			out = f(&conn.Session)
			var other *dialect.SessionError
			if out.ConnLost || errors.As(out.Err, &other) || readOnly != nil && out.Err != nil && readOnly(out.Err) {
				return driver.ErrBadConn // the pool drops it
			}
			return nil
		})
		_ = conn.Close()
	}
	return out
}
