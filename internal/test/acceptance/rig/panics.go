package rig

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
)

// Panicking is a connector with a driver that panics once, at a statement containing a text.
type Panicking struct {
	driver.Connector
	at    atomic.Pointer[string]
	Dials atomic.Int64
}

func (c *Panicking) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c.Dials.Add(1)
	return &panickingConn{Conn: inner, c: c}, nil
}

// PanicAt has the next statement with a text panic.
func (c *Panicking) PanicAt(text string) { c.at.Store(&text) }

type panickingConn struct {
	driver.Conn
	c *Panicking
}

func (c *panickingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if at := c.c.at.Load(); at != nil && strings.Contains(query, *at) && c.c.at.CompareAndSwap(at, nil) {
		panic("the driver's")
	}
	res, _, err := attempt.Exec(ctx, c.Conn, query, args)
	return res, err
}

func (c *panickingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, _, err := attempt.Query(ctx, c.Conn, query, args)
	return rows, err
}

func (c *panickingConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return attempt.BeginTx(ctx, c.Conn, opts)
}

// OpenPanicking opens the target through c, with a round trip for each statement.
func (r *Rig) OpenPanicking() (c *Panicking, pool *sql.DB) {
	r.T.Helper()
	tgt := TargetOf(r.T, r.DB)
	c = &Panicking{Connector: tgt.Connector}
	tgt.Connector, tgt.Dialect = c, Stepwise(tgt.Dialect)
	return c, r.OpenTarget(tgt)
}

// WantPanic calls f and expects the driver's unchanged panic.
func WantPanic(t testing.TB, f func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != "the driver's" {
			t.Errorf("the panic is %v, want the driver's", p)
		}
	}()
	f()
}

// Stepwise changes a dialect to take a round trip for each statement.
func Stepwise(d *dialect.Dialect) *dialect.Dialect {
	own := *d
	own.Atomic, own.CommitWith = nil, nil
	return &own
}
