package brokers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bedsql/bed/internal/broker"
)

// readAMQP reads amqp://user:password@host:5672/vhost?topic=queue. What a topic is: queue,
// the queue of that name, by the default exchange; exchange, the exchange of that name,
// without a routing key; key, the routing key to the exchange that the parameter exchange
// names.
func readAMQP(dsn string) (dial, error) {
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
	u.RawQuery = q.Encode()
	if _, err := amqp.ParseURI(u.String()); err != nil {
		return nil, errors.New("the DSN of the AMQP broker cannot be read")
	}
	return func(ctx context.Context) (broker.Conn, error) {
		limit := remaining(ctx)
		conn, err := amqp.DialConfig(u.String(), amqp.Config{
			Properties: amqp.Table{"connection_name": "bed-job"},
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
		return &amqpConn{conn: conn, to: to}, nil
	}, nil
}

type amqpConn struct {
	conn     *amqp.Connection
	to       func(topic string) (exchange, key string)
	channel  *amqp.Channel
	returned chan amqp.Return
	closed   chan *amqp.Error
}

// open opens a channel, which an error of the broker closes.
func (c *amqpConn) open() (err error) {
	if c.channel != nil && !c.channel.IsClosed() {
		return nil
	}
	if c.channel, err = c.conn.Channel(); err != nil {
		return err
	}
	c.returned = c.channel.NotifyReturn(make(chan amqp.Return, 1))
	c.closed = c.channel.NotifyClose(make(chan *amqp.Error, 1))
	return c.channel.Confirm(false)
}

func (c *amqpConn) Publish(ctx context.Context, m *broker.Message) error {
	if err := c.open(); err != nil {
		return broker.NotSent(err)
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
	select {
	case r := <-c.returned: // it comes before the confirmation
		return broker.NotTaken(fmt.Errorf("the broker returned the message: %d %s", r.ReplyCode, r.ReplyText))
	case err := <-c.closed:
		if err != nil && (err.Code == amqp.NotFound || err.Code == amqp.AccessRefused) {
			return broker.NotTaken(err)
		} else if err != nil {
			return err
		}
		return amqp.ErrClosed
	default:
	}
	if !taken {
		return errors.New("the broker did not confirm the message")
	}
	return nil
}

func (c *amqpConn) Ping(context.Context) error {
	if c.conn.IsClosed() {
		return amqp.ErrClosed
	}
	return nil
}

func (c *amqpConn) Closed() bool { return c.conn.IsClosed() }

func (c *amqpConn) Close() error { return c.conn.CloseDeadline(time.Now().Add(time.Second)) }
