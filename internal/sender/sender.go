// Package sender presents a message broker or an HTTP service to database/sql. A statement is sent and
// answered. There are no local transactions and no receipts.
package sender

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/bedsql/bed/internal/dialect"
)

// answer is an error with a known meaning. Its text holds no parameter.
type answer struct {
	error
	class dialect.Class
}

func (e *answer) Unwrap() error            { return e.error }
func (e *answer) Certainly() dialect.Class { return e.class }

// Shown returns the text for a log line.
func (e *answer) Shown() string { return e.Error() }

// Refused marks a rejection for good, NotTaken a rejection for now, and NotSent a statement that never
// left. Any other error leaves the statement in doubt.
func Refused(err error) error  { return &answer{err, dialect.Refused} }
func NotTaken(err error) error { return &answer{err, dialect.Retryable} }
func NotSent(err error) error  { return &answer{err, dialect.Unreachable} }

// Classify is the Dialect.Classify of errors without a mark.
func Classify(err error) dialect.Class {
	if errors.Is(err, driver.ErrBadConn) {
		return dialect.Unreachable
	}
	return dialect.Unknown
}

// Unchecked is the Dialect.CheckNamedValue: Read checks the parameters.
func Unchecked(*driver.NamedValue) error { return nil }

// Named returns parameters in a driver's form.
func Named(args []any) []driver.NamedValue {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		arg := a.(sql.NamedArg)
		named[i] = driver.NamedValue{Name: arg.Name, Ordinal: i + 1, Value: arg.Value}
	}
	return named
}

// Link is a connection. It belongs to one goroutine at a time, and is closed after a doubtful error.
type Link interface {
	// Check checks the text of a statement.
	Check(text string) error
	// Read reads a statement. send sends it; when its context ends, the caller stops waiting and
	// closes the connection.
	Read(text string, args []driver.NamedValue) (send func(context.Context) (driver.Result, error), err error)
	// Ping checks whether sending would work.
	Ping(ctx context.Context) error
	// Closed reports whether the connection is known to be lost.
	Closed() bool
	io.Closer
}

// Connector returns the connector of a data source of the dialect d.
func Connector(d *dialect.Dialect, dial func(context.Context) (Link, error)) driver.Connector {
	return &connector{d, dial}
}

type connector struct {
	dialect *dialect.Dialect
	dial    func(context.Context) (Link, error)
}

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	link, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Link: link, dialect: c.dialect}, nil
}

func (c *connector) Driver() driver.Driver { return noDriver{} }

type noDriver struct{}

var errNoDSN = errors.New("bed: this data source is not opened by a DSN")

func (noDriver) Open(string) (driver.Conn, error) { return nil, errNoDSN }

// conn adapts a Link to database/sql.
type conn struct {
	Link
	dialect *dialect.Dialect
	// lost is set after a doubtful error.
	lost bool
}

// LinkOf returns the link of a connection of a Connector, or nil.
func LinkOf(c driver.Conn) Link {
	if c, ok := c.(*conn); ok {
		return c.Link
	}
	return nil
}

var (
	_ driver.ExecerContext     = (*conn)(nil)
	_ driver.NamedValueChecker = (*conn)(nil)
	_ driver.Pinger            = (*conn)(nil)
	_ driver.SessionResetter   = (*conn)(nil)
	_ driver.Validator         = (*conn)(nil)
)

func (c *conn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.ResetSession(ctx); err != nil {
		return nil, err
	}
	send, err := c.Read(text, args)
	if err != nil {
		return nil, err
	}
	type answered struct {
		result driver.Result
		err    error
	}
	done := make(chan answered, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("a %T", p) // a value may be the application's
				if _, ok := p.(runtime.Error); ok {
					text = fmt.Sprint(p)
				}
				done <- answered{err: fmt.Errorf("what sends it panicked: %s", text)}
			}
		}()
		result, err := send(ctx)
		done <- answered{result, err}
	}()
	var a answered
	select {
	case a = <-done:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	c.lost = c.lost || a.err != nil && !c.dialect.Class(a.err).Answered()
	return a.result, a.err
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return !c.lost && !c.Closed() }

// ResetSession implements driver.SessionResetter: a pool calls it before it reuses an idle
// connection, which may have been lost.
func (c *conn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	return nil
}

func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

var errNoTx = Refused(errors.New("bed: this data source is no database, and has no local transactions"))

func (c *conn) Begin() (driver.Tx, error) { return nil, errNoTx }

// Prepare rejects a text that is not the data source's.
func (c *conn) Prepare(text string) (driver.Stmt, error) {
	return stmt{}, c.Check(text)
}

// stmt is never run: nothing is prepared.
type stmt struct{}

var errPrepared = Refused(errors.New("bed: a message or a call cannot be prepared"))

func (stmt) Close() error                               { return nil }
func (stmt) NumInput() int                              { return -1 }
func (stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errPrepared }
func (stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errPrepared }
