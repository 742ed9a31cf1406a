package brokers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bedsql/bed/internal/broker"
)

// readNATS reads nats://user:password@host:4222,…?credentials=FILE. tls:// takes TLS.
func readNATS(dsn string) (dial, error) {
	servers, query, _ := strings.Cut(dsn, "?")
	q, err := url.ParseQuery(query)
	if err != nil || !strings.HasPrefix(servers, "nats://") && !strings.HasPrefix(servers, "tls://") {
		return nil, errors.New("the DSN of a NATS server is nats://user:password@host:4222, or tls://")
	}
	var opts []nats.Option
	if file := take(q, "credentials"); file != "" {
		opts = append(opts, nats.UserCredentials(file))
	}
	for name := range q {
		return nil, fmt.Errorf("the DSN has an unknown parameter %s; known: credentials", name)
	}
	return func(ctx context.Context) (broker.Conn, error) {
		nc, err := nats.Connect(servers, slices.Concat(opts, []nats.Option{nats.NoReconnect(), nats.Timeout(remaining(ctx)), nats.Name("bed-job")})...)
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(nc)
		if err != nil {
			nc.Close()
			return nil, err
		}
		return &natsConn{nc, js}, nil
	}, nil
}

type natsConn struct {
	nc *nats.Conn
	js jetstream.JetStream
}

func (c *natsConn) Publish(ctx context.Context, m *broker.Message) error {
	msg := nats.NewMsg(m.Topic)
	msg.Data = m.Payload
	for key, value := range m.Metadata {
		msg.Header.Set(key, value)
	}
	msg.Header.Set(broker.UUIDHeader, m.UUID)
	_, err := c.js.PublishMsg(ctx, msg, jetstream.WithMsgID(m.ID))
	var answer *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return broker.Refused(err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return broker.NotTaken(fmt.Errorf("no stream takes the subject: %w", err))
	case errors.As(err, &answer):
		return broker.NotTaken(err)
	}
	return err
}

// Ping asks for JetStream: a server that is just starting answers before it has loaded
// its streams.
func (c *natsConn) Ping(ctx context.Context) error {
	_, err := c.js.AccountInfo(ctx)
	return err
}

func (c *natsConn) Closed() bool { return c.nc.IsClosed() }

func (c *natsConn) Close() error {
	c.nc.Close()
	return nil
}
