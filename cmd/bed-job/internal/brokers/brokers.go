// Package brokers publishes the log's messages in the form of watermill's default marshalers. Only
// bed-job links the brokers' libraries.
package brokers

import (
	"context"
	"net/url"
	"time"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/listener/delivery"
)

// dial connects to a broker by a parsed DSN.
type dial = func(ctx context.Context) (broker.Conn, error)

// Targets are the drivers for brokers: each parses a DSN without connecting. Errors do not quote
// the DSN. a completes the DSN; it may be nil.
var Targets = map[string]func(dsn string, a *access.Access) (delivery.Target, error){
	"nats": target(broker.NATSForm, readNATS), "amqp": target(broker.AMQPForm, readAMQP), "kafka": target(broker.KafkaForm, readKafka),
}

func target(form broker.Form, read func(dsn string, a *access.Access) (dial, error)) func(string, *access.Access) (delivery.Target, error) {
	return func(dsn string, a *access.Access) (delivery.Target, error) {
		d, err := read(dsn, a)
		if err != nil {
			return delivery.Target{}, err
		}
		return form.Target("", d), nil
	}
}

// dialTimeout bounds a connection attempt if its context has no deadline.
const dialTimeout = 30 * time.Second

// remaining is how long a connection may take.
func remaining(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), time.Millisecond)
	}
	return dialTimeout
}

// take removes a parameter of a DSN and gives its value.
func take(q url.Values, name string) string {
	value := q.Get(name)
	q.Del(name)
	return value
}
