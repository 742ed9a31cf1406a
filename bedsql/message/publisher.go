package message

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/kept"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Option changes a [Publisher], a target or a consumer; each says which.
type Option func(*options)

type options struct {
	confirms bool
	consumerOptions
}

// Confirms says that Publish of the publisher returns nil only once the broker has
// confirmed that it keeps the message. [NewPublisher] and [Target] refuse a publisher of
// which that is not known without it. It is known of watermill's own for NATS with
// JetStream, for AMQP with ConfirmDelivery and not Transactional, which loses errors of
// marshalers, nor NotPersistentDeliveryMode, and for Kafka with RequiredAcks -1, which is not
// its default; one of your own may say so by a method Confirms() bool.
func Confirms() Option { return func(o *options) { o.confirms = true } }

// OrderKey is the name of the metadata in which a message under [bedsql.WithOrderKey] carries
// its key. bed-job takes it as the key of a Kafka record; for a publisher of watermill's for
// Kafka, have its partitioning marshaler take it.
const OrderKey = broker.OrderKey

// Publisher publishes messages as bedsql writes rows: each is an entry of the log before it
// is sent, is sent again by the call if that fails, and then by the job. It is safe for
// concurrent use if the publisher that it wraps is.
type Publisher struct {
	db   *sql.DB
	p    message.Publisher
	form broker.Form
}

// NewPublisher wraps p. dataSource is the name by which the log and the job's configuration
// know the broker. cfg is as for a database, but its Guarantee has no effect: a message is
// published at least once, and consumers know it by its UUID ([Once]). A publisher that is
// not known to confirm is an error without [Confirms].
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

// Target is p as a data source of an asyncjob that runs in the application's own process;
// bed-job has its own publishers. If p has a method Ping(context.Context) error, the job
// asks it whether the broker is up before it claims messages, and counts no tries while it
// is not.
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
	return broker.Target(dataSource, func(context.Context) (broker.Conn, error) {
		return wrapped{p, formOf(p), is(config(v, "JetStream", "TrackMsgId"), true)}, nil
	}), nil
}

// config is a setting of a publisher of watermill's; the zero Value if it has none of that
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

// confirms reports whether a publisher is one of watermill's that confirm.
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

// libraryOf names the one of watermill's libraries that a publisher comes from, and its
// package there; empty for any other.
func libraryOf(v reflect.Value) (library, of string) {
	t := reflect.Indirect(v).Type()
	rest, ok := strings.CutPrefix(t.PkgPath(), "github.com/ThreeDotsLabs/watermill-")
	if !ok || t.Name() != "Publisher" {
		return "", ""
	}
	library, of, _ = strings.Cut(rest, "/")
	return library, of
}

// formOf is the form in which a publisher of watermill's sends metadata by its default
// marshaler.
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

// Publish publishes each message to the topic. What ctx says of writes it says of messages:
// they belong to its soft transaction, and in one that is staged or made by WithTx they are
// published if and only if the group's rows are written: once the last of its databases has
// its part, and not while one is parked. Until then they are ErrPending, and the job
// publishes them. If an operator discards a part they are parked. Under Unlogged they go straight to the
// publisher. RequireRows is an error, and so is an idempotency key (ErrKeyUnusable), but in
// a soft transaction made by WithTx. Several messages outside any soft transaction are staged
// as one: all of them are accepted, or none.
//
// The errors are bedsql's: nil means that the broker has confirmed it, ErrPending that the
// job publishes it, ErrNotLogged that it was not sent. Any error of the publisher leaves
// the message in doubt, and it is published again: at least once. Its UUID is set to the id
// of its entry, by which consumers know the second time; one that it had before is replaced.
// So are the metadata _watermill_message_uuid and Nats-Msg-Id. What its broker never takes,
// and any other order to NATS among the metadata (Nats-Rollup), is an error.
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
			return broker.Refused(errors.New("bed: the message was neither logged nor sent: it is nil"))
		}
		m := &broker.Message{ID: txlog.NewID(), Topic: topic, Metadata: msg.Metadata, Payload: msg.Payload}
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

// Close waits a little for entries that are being removed, and closes the publisher.
func (p *Publisher) Close() error { return errors.Join(p.db.Close(), p.p.Close()) }

// wrapped is a publisher as a connection.
type wrapped struct {
	p    message.Publisher
	form broker.Form
	// tracks: its broker drops a second message of a UUID for some time (JetStream's
	// TrackMsgId), and confirms it.
	tracks bool
}

var errTracked = errors.New("the message may have been published under this UUID before, and this publisher would have JetStream drop it as a duplicate and say that it took it (TrackMsgId): " +
	"have bed-job publish it, or a publisher without TrackMsgId")

func (w wrapped) Publish(ctx context.Context, m *broker.Message) error {
	if w.tracks && m.UUID != m.ID {
		return broker.Refused(errTracked)
	}
	if err := w.form.Check(m, broker.DefaultFrameMax); err != nil {
		return broker.Refused(err)
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
