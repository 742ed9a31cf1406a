// Package broker makes a message broker a data source: a message is a statement, PUBLISH and
// the topic, with the rest of the message as its parameters.
package broker

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/sender"
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
	switch {
	case m.Topic == "":
		return "", nil, unsent(errors.New("its topic is empty"))
	case !utf8.ValidString(m.Topic):
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
		text, _ := json.Marshal(m.Metadata)
		args = append(args, sql.Named(argMetadata, string(text)))
	}
	return sqltext.Publish + m.Topic, append(args, sql.Named(argPayload, sender.Text(m.Payload))), nil
}

// unsent is the error of a message that its publisher has to change.
func unsent(why error) error {
	return sender.Refused(fmt.Errorf("bed: the message was neither logged nor sent: %w", why))
}

// read is the reverse of Statement.
func read(text string, args []driver.NamedValue) (*Message, error) {
	topic, ok := strings.CutPrefix(text, sqltext.Publish)
	if !ok || topic == "" {
		return nil, sender.Refused(errors.New("bed: the data source is a message broker, and the text is not PUBLISH and a topic"))
	}
	m, key := &Message{Topic: topic}, ""
	malformed := errors.New("bed: the metadata of the message are not a JSON object of texts")
	if err := sender.Read(args, "message", malformed, map[string]any{
		argID: &m.ID, argUUID: &m.UUID, argMetadata: &m.Metadata, argPayload: &m.Payload, sqltext.PublishKey: &key,
	}); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, sender.Refused(errors.New("bed: the message has no parameter id"))
	}
	if err := m.own(); err != nil {
		return nil, sender.Refused(fmt.Errorf("bed: %w", err))
	}
	m.UUID = cmp.Or(m.UUID, m.ID)
	if key != "" {
		m.Metadata[OrderKey] = key
	}
	return m, nil
}

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

// Target returns a broker of the form, behind dial, as a data source.
func (f Form) Target(dataSource string, dial func(context.Context) (Conn, error)) delivery.Target {
	connect := func(ctx context.Context) (sender.Link, error) {
		c, err := dial(ctx)
		return link{c}, err
	}
	return sender.Target(dialect.Dialect{Name: "message", System: f.System(), Flavor: sqltext.Messages, Amend: amend}, dataSource, Settings, connect)
}

func amend(old, to dialect.Call) ([]driver.NamedValue, error) {
	m, err := read(to.SQL, to.Args)
	if err != nil {
		return nil, err
	}
	if was, err := read(old.SQL, old.Args); err == nil && (was.ID != m.ID || was.UUID != m.UUID) {
		return nil, errors.New("the parameters id and uuid of a message stay as they are: consumers know it by them")
	}
	return to.Args, nil
}

// link is a Conn as a link.
type link struct{ Conn }

func (l link) Read(text string, args []driver.NamedValue) (func(context.Context) (driver.Result, error), error) {
	m, err := read(text, args)
	return func(ctx context.Context) (driver.Result, error) { return driver.RowsAffected(1), l.Publish(ctx, m) }, err
}

// Closed implements sender.Link, for a Conn that detects a lost connection and does not open another.
func (l link) Closed() bool {
	c, fragile := l.Conn.(interface{ Closed() bool })
	return fragile && c.Closed()
}
