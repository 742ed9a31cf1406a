// Package broker makes a message broker a data source: a message is a statement, PUBLISH and
// the topic, with the rest of the message as its parameters.
package broker

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// Message is a message to publish.
type Message struct {
	// ID is its entry's. UUID is its identity for consumers: both are equal, unless a consumer
	// has parked it and it is published again.
	ID, UUID string
	Topic    string
	// Metadata has the order key, if any, as OrderKey: it names the partition.
	Metadata map[string]string
	Payload  []byte
}

// UUIDHeader is the name of the UUID in watermill's marshalers.
const UUIDHeader = "_watermill_message_uuid"

// OrderKey is the name of the order key's metadata.
const OrderKey = "bed_order_key"

// Settings are the settings of messages' entries. No database has them, so no job takes such
// an entry for SQL.
const Settings = "bedMessage=1"

// The names of the parameters.
const (
	argID       = "id"
	argUUID     = "uuid"
	argMetadata = "metadata"
	argPayload  = "payload"
)

// Statement returns the text and the parameters of a message; the first is its ID. It omits
// metadata that would replace the id. An error is Refused.
func (f Form) Statement(m *Message) (text string, args []any, err error) {
	if text, args, err = Statement(m); err == nil {
		if err = f.Check(m, DefaultFrameMax); err != nil {
			err = unsent(err)
		}
	}
	return text, args, err
}

// Statement is for a message to any broker.
func Statement(m *Message) (text string, args []any, err error) {
	if m.Topic == "" {
		return "", nil, unsent(errors.New("its topic is empty"))
	}
	if !utf8.ValidString(m.Topic) {
		return "", nil, unsent(errors.New("its topic is not UTF-8"))
	}
	if err := m.own(); err != nil {
		return "", nil, unsent(err)
	}
	args = []any{sql.Named(argID, m.ID)}
	if m.UUID != m.ID {
		args = append(args, sql.Named(argUUID, m.UUID))
	}
	for key, value := range m.Metadata { // JSON would change them
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return "", nil, unsent(fmt.Errorf("its metadata %q are not UTF-8", key))
		}
	}
	if len(m.Metadata) > 0 {
		text, err := json.Marshal(m.Metadata)
		if err != nil {
			return "", nil, err
		}
		args = append(args, sql.Named(argMetadata, string(text)))
	}
	if utf8.Valid(m.Payload) { // it can be read where it is shown
		args = append(args, sql.Named(argPayload, string(m.Payload)))
	} else {
		args = append(args, sql.Named(argPayload, m.Payload))
	}
	return sqltext.Publish + m.Topic, args, nil
}

// unsent is the error of a message that its publisher has to change.
func unsent(why error) error {
	return Refused(fmt.Errorf("bed: the message was neither logged nor sent: %w", why))
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

// read is the reverse of Statement.
func read(text string, args []driver.NamedValue) (*Message, error) {
	topic, err := topicOf(text)
	if err != nil {
		return nil, err
	}
	m, key := &Message{Topic: topic}, ""
	for _, a := range args {
		s, ok := a.Value.(string)
		if b, bytes := a.Value.([]byte); bytes {
			s, ok = string(b), a.Name == argPayload
		}
		switch {
		case !ok:
			return nil, Refused(fmt.Errorf("bed: the parameter %q of the message is a %T", a.Name, a.Value))
		case a.Name == argID:
			m.ID = s
		case a.Name == argUUID:
			m.UUID = s
		case a.Name == sqltext.PublishKey:
			key = s
		case a.Name == argPayload:
			m.Payload = []byte(s)
		case a.Name != argMetadata:
			return nil, Refused(fmt.Errorf("bed: a message has no parameter %q", a.Name))
		default:
			if err := json.Unmarshal([]byte(s), &m.Metadata); err != nil {
				return nil, Refused(errors.New("bed: the metadata of the message are not a JSON object of texts"))
			}
		}
	}
	if m.ID == "" {
		return nil, Refused(errors.New("bed: the message has no parameter id"))
	}
	if err := m.own(); err != nil {
		return nil, Refused(fmt.Errorf("bed: %w", err))
	}
	if m.UUID == "" {
		m.UUID = m.ID
	}
	if key != "" {
		if m.Metadata == nil {
			m.Metadata = map[string]string{}
		}
		m.Metadata[OrderKey] = key
	}
	return m, nil
}

func topicOf(text string) (string, error) {
	topic, ok := strings.CutPrefix(text, sqltext.Publish)
	if !ok || topic == "" {
		return "", Refused(errors.New("bed: the data source is a message broker, and the text is not PUBLISH and a topic"))
	}
	return topic, nil
}

// answer is an error with a known meaning for a message. Its text contains only the topic of
// the message.
type answer struct {
	error
	class dialect.Class
}

func (e *answer) Unwrap() error            { return e.error }
func (e *answer) Certainly() dialect.Class { return e.class }

// Shown returns the text for a log line.
func (e *answer) Shown() string { return e.Error() }

// Refused marks the error of a message that its broker rejected for good, NotTaken of one
// that it rejected for now, and NotSent of one that never left. Any other error leaves the
// message in doubt.
func Refused(err error) error  { return &answer{err, dialect.Refused} }
func NotTaken(err error) error { return &answer{err, dialect.Retryable} }
func NotSent(err error) error  { return &answer{err, dialect.Unreachable} }

// Conn is a connection to a broker. It belongs to one goroutine at a time, and is closed
// after an error that leaves a message in doubt.
type Conn interface {
	// Publish returns nil once the broker has confirmed that it keeps the message. When ctx
	// ends, the caller stops waiting and closes the connection.
	Publish(ctx context.Context, m *Message) error
	// Ping checks whether Publish would work.
	Ping(ctx context.Context) error
	io.Closer
}

// fragile is a Conn that detects a lost connection, and does not open another.
type fragile interface{ Closed() bool }

// Target returns the broker behind dial as a data source.
func Target(dataSource string, dial func(context.Context) (Conn, error)) delivery.Target {
	return delivery.Target{Connector: connector(dial), Dialect: messageDialect, DataSource: dataSource, Settings: Settings}
}

// As returns a Target as one of a known kind, by the kind's name in OpenTelemetry.
func As(system string, t delivery.Target) delivery.Target {
	d := *t.Dialect
	d.System, t.Dialect = system, &d
	return t
}

var messageDialect = &dialect.Dialect{
	Name: "message", Flavor: sqltext.Messages,
	Classify: func(err error) dialect.Class {
		if errors.Is(err, driver.ErrBadConn) {
			return dialect.Unreachable
		}
		return dialect.Unknown
	},
	CheckNamedValue: func(*driver.NamedValue) error { return nil },
	Readable: func(text string, args []driver.NamedValue) error {
		_, err := read(text, args)
		return err
	},
}

type connector func(context.Context) (Conn, error)

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: inner}, nil
}

func (c connector) Driver() driver.Driver { return noDriver{} }

type noDriver struct{}

var errNoDSN = errors.New("bed: a message broker is not opened by a DSN")

func (noDriver) Open(string) (driver.Conn, error) { return nil, errNoDSN }

// conn adapts a Conn to database/sql.
type conn struct {
	Conn
	// lost is set after an error that left a message in doubt.
	lost bool
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
	m, err := read(text, args)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("a %T", p) // a value may be the message's
				if _, ok := p.(runtime.Error); ok {
					text = fmt.Sprint(p)
				}
				done <- fmt.Errorf("the publisher panicked: %s", text)
			}
		}()
		done <- c.Publish(ctx, m)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.lost = c.lost || err != nil && !messageDialect.Class(err).Answered()
	return driver.RowsAffected(1), err
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool {
	f, ok := c.Conn.(fragile)
	return !c.lost && !(ok && f.Closed())
}

// ResetSession implements driver.SessionResetter: a pool calls it before it reuses an idle
// connection, which may have been lost.
func (c *conn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	return nil
}

func (c *conn) CheckNamedValue(*driver.NamedValue) error { return nil }

var errNoTx = Refused(errors.New("bed: a message broker has no local transactions"))

func (c *conn) Begin() (driver.Tx, error) { return nil, errNoTx }

// Prepare rejects a text that is not a message.
func (c *conn) Prepare(text string) (driver.Stmt, error) {
	_, err := topicOf(text)
	return stmt{}, err
}

// stmt is never run: messages are not prepared.
type stmt struct{}

var errPrepared = Refused(errors.New("bed: a message cannot be prepared"))

func (stmt) Close() error                               { return nil }
func (stmt) NumInput() int                              { return -1 }
func (stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errPrepared }
func (stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errPrepared }
