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
	return sender.Refused(fmt.Errorf("bed: the message was neither logged nor sent: %w", why))
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
			return nil, sender.Refused(fmt.Errorf("bed: the parameter %q of the message is a %T", a.Name, a.Value))
		case a.Name == argID:
			m.ID = s
		case a.Name == argUUID:
			m.UUID = s
		case a.Name == sqltext.PublishKey:
			key = s
		case a.Name == argPayload:
			m.Payload = []byte(s)
		case a.Name != argMetadata:
			return nil, sender.Refused(fmt.Errorf("bed: a message has no parameter %q", a.Name))
		default:
			if err := json.Unmarshal([]byte(s), &m.Metadata); err != nil {
				return nil, sender.Refused(errors.New("bed: the metadata of the message are not a JSON object of texts"))
			}
		}
	}
	if m.ID == "" {
		return nil, sender.Refused(errors.New("bed: the message has no parameter id"))
	}
	if err := m.own(); err != nil {
		return nil, sender.Refused(fmt.Errorf("bed: %w", err))
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
		return "", sender.Refused(errors.New("bed: the data source is a message broker, and the text is not PUBLISH and a topic"))
	}
	return topic, nil
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

// Target returns the broker behind dial as a data source.
func Target(dataSource string, dial func(context.Context) (Conn, error)) delivery.Target {
	connect := func(ctx context.Context) (sender.Link, error) {
		c, err := dial(ctx)
		return link{c}, err
	}
	return delivery.Target{Connector: sender.Connector(messageDialect, connect), Dialect: messageDialect, DataSource: dataSource, Settings: Settings}
}

// As returns a Target as one of a known kind, by the kind's name in OpenTelemetry.
func As(system string, t delivery.Target) delivery.Target {
	d := *t.Dialect
	d.System, t.Dialect = system, &d
	return t
}

var messageDialect = &dialect.Dialect{
	Name: "message", Flavor: sqltext.Messages,
	Classify: sender.Classify, CheckNamedValue: sender.Unchecked,
	Amend: func(old, to dialect.Call) ([]driver.NamedValue, error) {
		m, err := read(to.SQL, to.Args)
		if err != nil {
			return nil, err
		}
		if was, err := read(old.SQL, old.Args); err == nil && (was.ID != m.ID || was.UUID != m.UUID) {
			return nil, errors.New("the parameters id and uuid of a message stay as they are: consumers know it by them")
		}
		return to.Args, nil
	},
}

// link is a Conn as a link.
type link struct{ Conn }

// Check implements sender.Link.
func (l link) Check(text string) error {
	_, err := topicOf(text)
	return err
}

// Read implements sender.Link.
func (l link) Read(text string, args []driver.NamedValue) (func(context.Context) (driver.Result, error), error) {
	m, err := read(text, args)
	return func(ctx context.Context) (driver.Result, error) { return driver.RowsAffected(1), l.Publish(ctx, m) }, err
}

// Closed implements sender.Link, for a Conn that detects a lost connection and does not open another.
func (l link) Closed() bool {
	c, fragile := l.Conn.(interface{ Closed() bool })
	return fragile && c.Closed()
}
