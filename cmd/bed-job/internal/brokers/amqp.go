package brokers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/sender"
)

// readAMQP reads amqp://user:password@host:5672/vhost?topic=queue. The value of topic is the
// meaning of a message's topic: queue means a queue, reached by the default exchange; exchange
// means an exchange, without a routing key; key means a routing key for the exchange in the
// parameter exchange.
func readAMQP(dsn string, a *access.Access) (dial, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" {
		return nil, errors.New("the DSN of an AMQP broker is amqp://user:password@host:5672/vhost, or amqps://")
	}
	q := u.Query()
	means, exchange := take(q, "topic"), take(q, "exchange")
	var to func(topic string) (exchange, key string)
	switch {
	case (means == "" || means == "queue") && exchange == "":
		to = func(topic string) (string, string) { return "", topic }
	case means == "exchange" && exchange == "":
		to = func(topic string) (string, string) { return topic, "" }
	case means == "key" && exchange != "":
		to = func(topic string) (string, string) { return exchange, topic }
	default:
		return nil, errors.New("the DSN of an AMQP broker says topic=queue, topic=exchange, or topic=key and exchange=NAME")
	}
	for name := range q {
		switch {
		case slices.Contains(amqpParameters, name):
		case strings.ContainsAny(name, "@:/"): // the password has a question mark
			return nil, errors.New("the DSN of the AMQP broker cannot be read: in user and password a question mark is %3F")
		default:
			return nil, fmt.Errorf("the DSN has an unknown parameter %s; known: topic, exchange, %s", name, strings.Join(amqpParameters, ", "))
		}
	}
	u.RawQuery = q.Encode()
	if _, err := amqp.ParseURI(u.String()); err != nil {
		return nil, errors.New("the DSN of the AMQP broker cannot be read")
	}
	return func(ctx context.Context) (broker.Conn, error) {
		limit, at := remaining(ctx), *u
		if a.HasPassword() {
			password, err := a.Password(ctx, "")
			if err != nil {
				return nil, err
			}
			at.User = url.UserPassword(u.User.Username(), password)
		}
		var secured *tls.Config
		if a.HasTLS() {
			secured = a.Config(u.Hostname())
		}
		conn, err := amqp.DialConfig(at.String(), amqp.Config{
			TLSClientConfig: secured,
			Properties:      amqp.Table{"connection_name": "bed-job"},
			Dial: func(network, address string) (net.Conn, error) {
				c, err := (&net.Dialer{Timeout: limit}).DialContext(ctx, network, address)
				if err == nil {
					err = c.SetDeadline(time.Now().Add(limit)) // for the handshake
				}
				return c, err
			},
		})
		if err != nil {
			return nil, err
		}
		return &amqpConn{conn: conn, to: to, alarms: conn.NotifyBlocked(make(chan amqp.Blocking, 2))}, nil
	}, nil
}

// amqpParameters are the parameters known to amqp.ParseURI; it ignores others.
var amqpParameters = []string{"certfile", "keyfile", "cacertfile", "server_name_indication", "auth_mechanism", "heartbeat", "connection_timeout", "channel_max"}

type amqpConn struct {
	conn     *amqp.Connection
	to       func(topic string) (exchange, key string)
	channel  *amqp.Channel
	returned chan amqp.Return
	closed   chan *amqp.Error
	// alarms holds at most two notices: an alarm is on, which follows a message, and it is off.
	alarms chan amqp.Blocking
	alarm  amqp.Blocking
}

// alarmed returns an error while RabbitMQ reads no messages because of a memory or disk alarm.
// RabbitMQ reports an alarm only to connections that have sent a message.
func (c *amqpConn) alarmed() error {
	for len(c.alarms) > 0 {
		c.alarm = <-c.alarms
	}
	if c.alarm.Active {
		return fmt.Errorf("the broker takes no messages: %s", c.alarm.Reason)
	}
	return nil
}

// ready opens a channel, because an error of the broker closes the last one, and looks for an alarm.
func (c *amqpConn) ready() (err error) {
	if c.channel == nil || c.channel.IsClosed() {
		if c.channel, err = c.conn.Channel(); err != nil {
			return err
		}
		c.returned = c.channel.NotifyReturn(make(chan amqp.Return, 1))
		c.closed = c.channel.NotifyClose(make(chan *amqp.Error, 1))
		if err := c.channel.Confirm(false); err != nil {
			return err
		}
	}
	return c.alarmed()
}

func (c *amqpConn) Publish(ctx context.Context, m *broker.Message) error {
	if err := c.ready(); err != nil {
		return sender.NotSent(err)
	}
	if err := broker.AMQPForm.Check(m, c.conn.Config.FrameSize); err != nil {
		return sender.Refused(err)
	}
	headers := amqp.Table{}
	for key, value := range m.Metadata {
		headers[key] = value
	}
	headers[broker.UUIDHeader] = m.UUID
	exchange, key := c.to(m.Topic)
	confirmed, err := c.channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false,
		amqp.Publishing{Headers: headers, Body: m.Payload, MessageId: m.ID, DeliveryMode: amqp.Persistent})
	if err != nil {
		return err
	}
	taken, err := confirmed.WaitContext(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(c.returned) > 0: // it comes before the confirmation
		r := <-c.returned
		return sender.NotTaken(fmt.Errorf("the broker returned the message: %d %s", r.ReplyCode, r.ReplyText))
	case taken:
		return nil
	case !c.channel.IsClosed():
		return errors.New("the broker did not confirm the message")
	}
	switch err := <-c.closed; {
	case err == nil:
		return amqp.ErrClosed
	case err.Code == amqp.NotFound, err.Code == amqp.AccessRefused:
		return sender.NotTaken(err)
	case err.Code == amqp.PreconditionFailed: // RabbitMQ checks the message before it routes it
		return sender.Refused(err)
	default:
		return err
	}
}

// Ping publishes a message to no queue: names beginning with amq. are reserved. Under an alarm
// RabbitMQ does not read the body, and so does not confirm the message. A refusal for lack of
// rights is an answer, too.
func (c *amqpConn) Ping(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = c.conn.CloseDeadline(time.Now()) })()
	if err := c.ready(); err != nil {
		return err
	}
	confirmed, err := c.channel.PublishWithDeferredConfirmWithContext(ctx, "", "amq.bed-job", false, false, amqp.Publishing{Body: []byte{0}})
	if err != nil {
		return err
	}
	select {
	case <-confirmed.Done():
	case c.alarm = <-c.alarms:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.alarmed(); err != nil {
		return err
	}
	if c.conn.IsClosed() {
		return amqp.ErrClosed
	}
	return nil
}

func (c *amqpConn) Closed() bool { return c.conn.IsClosed() }

func (c *amqpConn) Close() error { return c.conn.CloseDeadline(time.Now().Add(time.Second)) }
