// Package sender presents a message broker or an HTTP service to database/sql. A statement is sent and
// answered. There are no local transactions and no receipts.
package sender

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/listener/delivery"
)

// answer is an error with a known meaning. Its text holds no parameter.
type answer struct {
	error
	class  dialect.Class
	advice dialect.Advice
}

func (e *answer) Unwrap() error            { return e.error }
func (e *answer) Certainly() dialect.Class { return e.class }
func (e *answer) Advice() dialect.Advice   { return e.advice }

// Shown returns the text for a log line.
func (e *answer) Shown() string { return e.Error() }

// Refused marks a rejection for good, NotTaken a rejection for now, and NotSent a statement that never
// left. Any other error leaves the statement in doubt.
func Refused(err error) error  { return &answer{error: err, class: dialect.Refused} }
func NotTaken(err error) error { return &answer{error: err, class: dialect.Retryable} }
func NotSent(err error) error  { return &answer{error: err, class: dialect.Unreachable} }

// Misled marks an error of the address, the certificates or the credentials: nothing was sent, and an
// operator has to act.
func Misled(err error) error {
	return &answer{err, dialect.Retryable, dialect.Advice{Operator: true}}
}

// classify is for errors without a mark.
func classify(err error) dialect.Class {
	if errors.Is(err, driver.ErrBadConn) {
		return dialect.Unreachable
	}
	return dialect.Unknown
}

// Named returns parameters in a driver's form.
func Named(args []any) []driver.NamedValue {
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		arg := a.(sql.NamedArg)
		named[i] = driver.NamedValue{Name: arg.Name, Ordinal: i + 1, Value: arg.Value}
	}
	return named
}

// Text returns bytes as the value of a parameter. Valid text stays readable.
func Text(b []byte) any {
	if utf8.Valid(b) {
		return string(b)
	}
	return b
}

// Read reads the parameters of a message or a call by their names. what is "message" or "call". A
// target is a *string, a *[]byte, a *bool, or anything else for JSON. malformed is the error of bad JSON.
func Read(args []driver.NamedValue, what string, malformed error, into map[string]any) error {
	for _, a := range args {
		s, ok := a.Value.(string)
		switch to := into[a.Name].(type) {
		case nil:
			return Refused(fmt.Errorf("bed: %w", fmt.Errorf("a %s has no parameter %q", what, a.Name)))
		case *string:
			*to = s
		case *bool:
			*to, ok = a.Value.(bool)
		case *[]byte:
			if b, bytes := a.Value.([]byte); bytes {
				s, ok = string(b), true
			}
			*to = []byte(s)
		default:
			if err := json.Unmarshal([]byte(s), to); ok && err != nil {
				return Refused(malformed)
			}
		}
		if !ok {
			return Refused(fmt.Errorf("bed: the parameter %q of the %s is a %T", a.Name, what, a.Value))
		}
	}
	return nil
}

// Link is a connection. It belongs to one goroutine at a time, and is closed after a doubtful error.
type Link interface {
	// Read reads a statement. send sends it; when its context ends, the caller stops waiting and
	// closes the connection.
	Read(text string, args []driver.NamedValue) (send func(context.Context) (driver.Result, error), err error)
	// Ping checks whether sending would work.
	Ping(ctx context.Context) error
	// Closed reports whether the connection is known to be lost.
	Closed() bool
	io.Closer
}

// Target returns a data source of the dialect d, which it completes.
func Target(d dialect.Dialect, dataSource, settings string, dial func(context.Context) (Link, error)) delivery.Target {
	d.Classify, d.CheckNamedValue = classify, new(conn).CheckNamedValue
	return delivery.Target{Connector: &connector{&d, dial}, Dialect: &d, DataSource: dataSource, Settings: settings}
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

func (c *conn) IsValid() bool { return !c.lost && !c.Closed() }

// ResetSession implements driver.SessionResetter: a pool calls it before it reuses an idle
// connection, which may have been lost.
func (c *conn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	return nil
}

// CheckNamedValue leaves the parameters to Link.Read.
func (*conn) CheckNamedValue(*driver.NamedValue) error { return nil }

var errNoTx = Refused(errors.New("bed: this data source is no database, and has no local transactions"))

func (c *conn) Begin() (driver.Tx, error) { return nil, errNoTx }

// Prepare checks nothing: Dialect.Amend reads the text of an amendment, and no other text is prepared.
func (c *conn) Prepare(string) (driver.Stmt, error) { return stmt{}, nil }

// stmt is never run: nothing is prepared.
type stmt struct{}

var errPrepared = Refused(errors.New("bed: a message or a call cannot be prepared"))

func (stmt) Close() error                               { return nil }
func (stmt) NumInput() int                              { return -1 }
func (stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errPrepared }
func (stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errPrepared }
