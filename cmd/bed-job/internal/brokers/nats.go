package brokers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/sender"
)

// readNATS reads nats://user:password@host:4222,…?credentials=FILE. tls:// takes TLS.
func readNATS(dsn string, a *access.Access) (dial, error) {
	bad := errors.New("the DSN of a NATS server is nats://user:password@host:4222, or tls://; in user and password %, /, ?, #, @, : and a comma are escaped by %")
	servers, query, _ := strings.Cut(dsn, "?")
	q, err := url.ParseQuery(query)
	if err != nil || !strings.HasPrefix(servers, "nats://") && !strings.HasPrefix(servers, "tls://") {
		return nil, bad
	}
	var addresses []*url.URL
	for server := range strings.SplitSeq(servers, ",") {
		if server = strings.TrimSpace(server); server == "" {
			continue
		}
		if !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" || u.Fragment != "" {
			return nil, bad // its own error would quote it
		}
		addresses = append(addresses, u)
	}
	var opts []nats.Option
	if file := take(q, "credentials"); file != "" {
		opts = append(opts, nats.UserCredentials(file))
	}
	for name := range q {
		if strings.ContainsAny(name, "@:/") { // the password has a question mark
			return nil, bad
		}
		return nil, fmt.Errorf("the DSN has an unknown parameter %s; known: credentials", name)
	}
	return func(ctx context.Context) (broker.Conn, error) {
		limit := remaining(ctx)
		if n := len(addresses); n > 1 { // one that is silent leaves time for the others
			limit = min(max(limit/time.Duration(n), min(limit, 2*time.Second)), 10*time.Second)
		}
		password, err := a.Password(ctx, "")
		if err != nil {
			return nil, err
		}
		var nc *nats.Conn
		for _, i := range rand.Perm(len(addresses)) {
			to, opts := *addresses[i], slices.Concat(opts, []nats.Option{nats.NoReconnect(), nats.Timeout(limit), nats.Name("bed-job")})
			if a.HasTLS() {
				opts = append(opts, nats.Secure(a.Config(to.Hostname())))
			}
			switch user := to.User.Username(); {
			case !a.HasPassword():
			case user == "":
				to.User = url.User(password) // a token
			default:
				to.User = url.UserPassword(user, password)
			}
			if nc, err = nats.Connect(to.String(), opts...); err == nil {
				break
			}
		}
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
	if err := broker.NATSForm.Check(m, 0); err != nil {
		return sender.Refused(err)
	}
	msg := nats.NewMsg(m.Topic)
	msg.Data = m.Payload
	for key, value := range m.Metadata {
		msg.Header.Set(key, value)
	}
	msg.Header.Set(broker.UUIDHeader, m.UUID)
	err := c.request(ctx, m.Topic, func(ctx context.Context) error {
		_, err := c.js.PublishMsg(ctx, msg, jetstream.WithMsgID(m.ID))
		return err
	})
	var answer *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
		return sender.Refused(err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return sender.NotTaken(fmt.Errorf("no stream takes the subject: %w", err))
	case errors.As(err, &answer) && (answer.ErrorCode == streamMessageExceedsMaximum || answer.ErrorCode == streamHeaderExceedsMaximum):
		return sender.Refused(err)
	case errors.As(err, &answer), errors.Is(err, nats.ErrPermissionViolation):
		return sender.NotTaken(err)
	}
	return err
}

// JSStreamMessageExceedsMaximumErr and JSStreamHeaderExceedsMaximumErr in the server.
const (
	streamMessageExceedsMaximum = 10054
	streamHeaderExceedsMaximum  = 10097
)

// request runs send, which sends a request to subject. Without the right to publish there, the
// request gets no answer, and the server reports the error to the connection.
func (c *natsConn) request(ctx context.Context, subject string, send func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c.nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), fmt.Sprintf("Publish to %q", subject)) {
			cancel(err)
		}
	})
	err := send(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, nats.ErrPermissionViolation) {
		return cause
	}
	return err
}

// Ping asks for JetStream: a starting server answers other requests before it has loaded its
// streams. A refusal for lack of rights is an answer, too.
func (c *natsConn) Ping(ctx context.Context) error {
	err := c.request(ctx, "$JS.API.INFO", func(ctx context.Context) error {
		_, err := c.js.AccountInfo(ctx)
		return err
	})
	if errors.Is(err, nats.ErrPermissionViolation) {
		return nil
	}
	return err
}

func (c *natsConn) Closed() bool { return c.nc.IsClosed() }

func (c *natsConn) Close() error {
	c.nc.Close()
	return nil
}
