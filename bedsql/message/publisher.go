package message

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/listener/delivery"
)

// Option changes a [Publisher], a target or a consumer, according to its comment.
type Option func(*options)

type options struct {
	confirms      bool
	redelivery    time.Duration
	failures      int
	failing       time.Duration
	source, topic string
}

// Confirms declares that Publish of the publisher returns nil only after the broker has confirmed
// the message. [NewPublisher] and [Target] know this of some publishers, and refuse the others
// without Confirms. They know watermill's own publishers for NATS with JetStream; for AMQP with
// ConfirmDelivery, without Transactional, which loses errors of marshalers, and without
// NotPersistentDeliveryMode; and for Kafka with RequiredAcks -1, which is not its default. Your
// own publisher may declare it by a method Confirms() bool.
func Confirms() Option { return func(o *options) { o.confirms = true } }

// OrderKey is the name of the metadata for the key of a message under [bedsql.WithOrderKey].
// bed-job uses it as the key of a Kafka record. With watermill's publisher for Kafka, let its
// partitioning marshaler use it.
const OrderKey = broker.OrderKey

// Publisher publishes messages as bedsql writes rows. Each message is an entry of the log before
// it is sent. After a failure the call sends it again, and then the job. It is safe for concurrent
// use if the wrapped publisher is.
type Publisher struct {
	db   *sql.DB
	p    message.Publisher
	form broker.Form
}

// NewPublisher wraps p. dataSource is the broker's name in the log and in the job's configuration.
// cfg is as for a database, but its Guarantee has no effect: messages are published under
// AtLeastOnce, and consumers recognize them by their UUIDs ([Once]). Without [Confirms], a
// publisher of unknown kind is an error.
func NewPublisher(p message.Publisher, dataSource string, cfg bedsql.Config, opts ...Option) (*Publisher, error) {
	target, err := Target(p, dataSource, opts...)
	if err != nil {
		return nil, err
	}
	cfg.Guarantee = bedsql.AtLeastOnce
	connector, err := bedsql.NewConnector(target, cfg)
	if err != nil {
		return nil, err
	}
	return &Publisher{sql.OpenDB(connector), p, formOf(p)}, nil
}

// Target is p as a data source of an asyncjob in the application's own process; bed-job has its
// own publishers. If p has a method Ping(context.Context) error, the job calls it before it claims
// messages. While the broker is down, the job counts no tries.
func Target(p message.Publisher, dataSource string, opts ...Option) (delivery.Target, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	v := reflect.ValueOf(p)
	switch {
	case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
		return delivery.Target{}, errors.New("bed: the publisher is nil")
	case !o.confirms && !confirms(v):
		return delivery.Target{}, fmt.Errorf("bed: the publisher %T is not known to confirm that the broker keeps a message, without which messages are lost: "+
			"have it confirm (JetStream; ConfirmDelivery and persistent messages for AMQP; RequiredAcks -1 for Kafka), or say that it does by message.Confirms()", p)
	}
	form := formOf(p)
	return form.Target(dataSource, func(context.Context) (broker.Conn, error) {
		return wrapped{p, form, is(config(v, "JetStream", "TrackMsgId"), true)}, nil
	}), nil
}

// config returns a setting of a watermill publisher; the zero Value if there is no setting of that
// name.
func config(v reflect.Value, names ...string) reflect.Value {
	for _, name := range append([]string{"config"}, names...) {
		if v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}

func is(v reflect.Value, want bool) bool { return v.Kind() == reflect.Bool && v.Bool() == want }

// confirms reports whether a publisher is a confirming one of watermill's.
func confirms(v reflect.Value) bool {
	if p, ok := v.Interface().(interface{ Confirms() bool }); ok {
		return p.Confirms()
	}
	library, of := libraryOf(v)
	return confirmsBy(library, of, v)
}

// confirmsBy is confirms for a publisher of one of watermill's libraries.
func confirmsBy(library, of string, v reflect.Value) bool {
	switch {
	case library == "nats" && strings.HasSuffix(of, "pkg/jetstream"):
		return true
	case library == "nats":
		return is(config(v, "JetStream", "Disabled"), false)
	case library == "amqp":
		return is(config(v, "Publish", "ConfirmDelivery"), true) && is(config(v, "Publish", "Transactional"), false) &&
			!is(config(v, "Marshaler", "NotPersistentDeliveryMode"), true)
	case library == "kafka": // 1, the default, does not wait for replicas
		acks := config(v, "OverwriteSaramaConfig", "Producer", "RequiredAcks")
		return acks.CanInt() && acks.Int() == -1
	}
	return false
}

// libraryOf returns watermill's library for a publisher, and its package there; empty for any
// other publisher.
func libraryOf(v reflect.Value) (library, of string) {
	t := reflect.Indirect(v).Type()
	rest, ok := strings.CutPrefix(t.PkgPath(), "github.com/ThreeDotsLabs/watermill-")
	if !ok || t.Name() != "Publisher" {
		return "", ""
	}
	library, of, _ = strings.Cut(rest, "/")
	return library, of
}

// formOf is the form of metadata of a watermill publisher with its default marshaler.
func formOf(p message.Publisher) broker.Form {
	v := reflect.ValueOf(p)
	library, of := libraryOf(v)
	marshaler := ""
	if m := config(v, "Marshaler"); m.IsValid() && m.Kind() == reflect.Interface && !m.IsNil() {
		marshaler = reflect.Indirect(m.Elem()).Type().Name()
	}
	switch {
	case library == "nats" && (marshaler == "NATSMarshaler" || strings.HasSuffix(of, "pkg/jetstream")):
		return broker.NATSForm
	case library == "amqp" && marshaler == "DefaultMarshaler":
		return broker.AMQPForm
	case library == "kafka":
		return broker.KafkaForm
	}
	return broker.AnyForm
}

// Publish publishes each message to the topic. ctx applies to messages as to writes: they belong
// to its soft transaction. In a staged transaction, or one made by WithTx, messages are published
// if and only if the group's rows are written. They wait until the last of its databases has its
// part, and while a part is parked. Until then they are ErrPending, and the job publishes them. If
// an operator discards a part, they are parked. Under Unlogged they go straight to the publisher.
// RequireRows is an error. So is an idempotency key (ErrKeyUnusable), except in a soft transaction
// made by WithTx. Several messages outside any soft transaction are staged as one group: either
// all are accepted, or none is.
//
// The errors are bedsql's. nil means that the broker has confirmed the message, ErrPending means
// that the job publishes it, and ErrNotLogged means that it was not sent. Any error of the
// publisher leaves the message in doubt, and bed publishes it again, so it may arrive more than
// once. Publish sets the UUID to the entry id, by which consumers recognize a duplicate, and
// replaces any earlier UUID. It also replaces the metadata _watermill_message_uuid and
// Nats-Msg-Id. A message that its broker never accepts is an error, and so is any other command to
// NATS among the metadata (Nats-Rollup).
func (p *Publisher) Publish(ctx context.Context, topic string, messages ...*message.Message) (err error) {
	if len(messages) < 2 || kept.Grouped(ctx) {
		return p.publish(ctx, topic, messages)
	}
	group, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	if err := p.publish(group, topic, messages); err != nil {
		soft.Discard()
		return err
	}
	return soft.End(ctx)
}

func (p *Publisher) publish(ctx context.Context, topic string, messages []*message.Message) error {
	for _, msg := range messages {
		if msg == nil {
			return sender.Refused(errors.New("bed: the message was neither logged nor sent: it is nil"))
		}
		m := &broker.Message{ID: entry.NewID(), Topic: topic, Metadata: msg.Metadata, Payload: msg.Payload}
		m.UUID, msg.UUID = m.ID, m.ID
		text, args, err := p.form.Statement(m)
		if err != nil {
			return err
		}
		if _, err := p.db.ExecContext(ctx, text, args...); err != nil {
			return err
		}
	}
	return nil
}

// Close waits a little for the removal of entries, and closes the publisher.
func (p *Publisher) Close() error { return errors.Join(p.db.Close(), p.p.Close()) }

// wrapped is a publisher as a connection.
type wrapped struct {
	p    message.Publisher
	form broker.Form
	// tracks means that its broker drops a second message of a UUID for some time (JetStream's
	// TrackMsgId), and confirms it.
	tracks bool
}

var errTracked = errors.New("the message may have been published under this UUID before, and this publisher would have JetStream drop it as a duplicate and say that it took it (TrackMsgId): " +
	"have bed-job publish it, or a publisher without TrackMsgId")

func (w wrapped) Publish(ctx context.Context, m *broker.Message) error {
	if w.tracks && m.UUID != m.ID {
		return sender.Refused(errTracked)
	}
	if err := w.form.Check(m, broker.DefaultFrameMax); err != nil {
		return sender.Refused(err)
	}
	msg := message.NewMessageWithContext(ctx, m.UUID, m.Payload)
	for key, value := range m.Metadata {
		msg.Metadata.Set(key, value)
	}
	return w.p.Publish(m.Topic, msg)
}

func (w wrapped) Ping(ctx context.Context) error {
	if p, ok := w.p.(interface{ Ping(context.Context) error }); ok {
		return p.Ping(ctx)
	}
	return nil
}

func (w wrapped) Close() error { return nil }
