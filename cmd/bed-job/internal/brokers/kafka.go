package brokers

import (
	"context"
	"crypto/tls"
	"errors"
	"hash/fnv"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/sender"
)

// readKafka reads kafka://user:password@host:9092,host:9092?sasl=scram-sha-512&tls=true&partitioner=murmur2.
// A user without sasl takes SASL PLAIN.
func readKafka(dsn string, a *access.Access) (dial, error) {
	bad := errors.New("the DSN of a Kafka cluster is kafka://user:password@host:9092,host:9092?sasl=scram-sha-512&tls=true&partitioner=murmur2, " +
		"of which user, password and parameters may be left out; sasl is plain, scram-sha-256 or scram-sha-512")
	rest, ok := strings.CutPrefix(dsn, "kafka://")
	rest, query, _ := strings.Cut(rest, "?")
	q, err := url.ParseQuery(query)
	if !ok || err != nil {
		return nil, bad
	}
	opts := []kgo.Opt{
		kgo.ClientID("bed-job"), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		// This is kgo's greatest limit: the broker decides on the size.
		kgo.ProducerBatchMaxBytes(100 << 20),
	}
	mechanism := take(q, "sasl")
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, err := url.Parse("kafka://" + rest[:at] + "@host")
		if err != nil {
			return nil, bad
		}
		own, _ := login.User.Password()
		auth := func(ctx context.Context) (scram.Auth, error) {
			password, err := a.Password(ctx, own)
			return scram.Auth{User: login.User.Username(), Pass: password}, err
		}
		switch mechanism {
		case "", "plain":
			opts = append(opts, kgo.SASL(plain.Plain(func(ctx context.Context) (plain.Auth, error) {
				as, err := auth(ctx)
				return plain.Auth{User: as.User, Pass: as.Pass}, err
			})))
		case "scram-sha-256":
			opts = append(opts, kgo.SASL(scram.Sha256(auth)))
		case "scram-sha-512":
			opts = append(opts, kgo.SASL(scram.Sha512(auth)))
		default:
			return nil, bad
		}
		rest = rest[at+1:]
	} else if mechanism != "" || a.HasPassword() {
		return nil, bad
	}
	switch take(q, "tls") {
	case "true":
		opts = append(opts, kgo.DialTLS())
	case "", "false":
	default:
		return nil, bad
	}
	switch take(q, "partitioner") {
	case "": // the application's publisher is watermill's, which is sarama
		opts = append(opts, kgo.RecordPartitioner(kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(func(key []byte) uint32 {
			h := fnv.New32a()
			_, _ = h.Write(key)
			return h.Sum32()
		}))))
	case "murmur2": // kgo's own
	default:
		return nil, bad
	}
	if len(q) > 0 || rest == "" {
		return nil, bad
	}
	seeds := strings.Split(strings.TrimSuffix(rest, "/"), ",")
	return func(ctx context.Context) (broker.Conn, error) {
		client := func(seeds ...string) (*kgo.Client, error) {
			// kgo writes into the options for compression: each client has its own.
			own, limit := append(slices.Clip(opts), kgo.SeedBrokers(seeds...), kgo.ProducerBatchCompression(kgo.NoCompression())), remaining(ctx)
			if !a.HasTLS() {
				return kgo.NewClient(append(own, kgo.DialTimeout(limit))...)
			}
			return kgo.NewClient(append(own, kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, _ := net.SplitHostPort(address)
				return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: limit}, Config: a.Config(host)}).DialContext(ctx, network, address)
			}))...)
		}
		seeds, err := answering(ctx, client, seeds)
		if err != nil {
			return nil, err
		}
		c, err := client(seeds...)
		if err != nil {
			return nil, err
		}
		return &kafkaConn{c}, nil
	}, nil
}

// answering puts an address that answers first. A client would wait for a silent first address.
func answering(ctx context.Context, client func(seeds ...string) (*kgo.Client, error), seeds []string) ([]string, error) {
	if len(seeds) == 1 {
		return seeds, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		seed int
		err  error
	}
	answers := make(chan answer, len(seeds))
	for i, seed := range seeds {
		one, err := client(seed)
		if err != nil {
			return nil, err
		}
		defer one.Close()
		go func() { answers <- answer{i, one.Ping(ctx)} }()
	}
	var all []error
	for range seeds {
		select {
		case a := <-answers:
			if a.err == nil {
				return slices.Concat(seeds[a.seed:], seeds[:a.seed]), nil
			}
			all = append(all, a.err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.Join(all...)
}

type kafkaConn struct{ client *kgo.Client }

func (c *kafkaConn) Publish(ctx context.Context, m *broker.Message) error {
	record := &kgo.Record{Topic: m.Topic, Value: m.Payload, Headers: []kgo.RecordHeader{{Key: broker.UUIDHeader, Value: []byte(m.UUID)}}}
	if order := m.Metadata[broker.OrderKey]; order != "" {
		record.Key = []byte(order)
	}
	for key, value := range m.Metadata {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	err := c.client.ProduceSync(ctx, record).FirstErr()
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.InvalidRecord):
		return sender.Refused(err)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.TopicAuthorizationFailed):
		return sender.NotTaken(err)
	}
	return err
}

func (c *kafkaConn) Ping(ctx context.Context) error { return c.client.Ping(ctx) }

func (c *kafkaConn) Close() error {
	c.client.Close()
	return nil
}
