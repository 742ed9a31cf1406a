package brokers_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unsent writes messages to a log whose broker cannot be reached.
func unsent(t *testing.T, log txlog.Storage, messages ...*broker.Message) {
	t.Helper()
	target := broker.Target("events", func(context.Context) (broker.Conn, error) { return nil, errors.New("no route") })
	connector, err := bedsql.NewConnector(target, bedsql.Config{Storage: log, NoSyncRetry: true})
	must(t, err)
	db := sql.OpenDB(connector)
	defer db.Close()
	for _, m := range messages {
		m.ID = txlog.NewID()
		m.UUID = m.ID
		text, args, err := broker.Statement(m)
		must(t, err)
		if _, err := db.ExecContext(t.Context(), text, args...); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("a message that cannot be sent: %v", err)
		}
	}
}

func round(t *testing.T, log txlog.Storage, driver, dsn string) asyncjob.Report {
	t.Helper()
	target, err := brokers.Targets[driver](dsn)
	must(t, err)
	job, err := asyncjob.New(log, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, MaxDeliveryTryTimes: 2})
	must(t, err)
	defer job.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := job.RunOnce(ctx)
	must(t, err)
	return report
}

func TestJobPublishesToJetStream(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateNATS(t)
	nc, err := nats.Connect(server.DSN(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	must(t, err)
	log := txlog.NewMemory()
	good := &broker.Message{Topic: "orders.new", Metadata: map[string]string{"tenant": "a"}, Payload: []byte("one")}
	astray := &broker.Message{Topic: "nowhere", Payload: []byte("two")}
	unsent(t, log, good, astray)
	server.Kill()
	if r := round(t, log, "nats", server.DSN()); r.Claimed != 0 {
		t.Errorf("while the server is down: %v", r)
	}
	server.Start()
	if r := round(t, log, "nats", server.DSN()); r.Delivered != 1 || r.Failed != 1 {
		t.Errorf("when it is up again: %v", r)
	}
	if r := round(t, log, "nats", server.DSN()); r.Parked != 1 {
		t.Errorf("a subject that no stream takes, at the last try: %v", r)
	}
	got, err := stream.GetMsg(t.Context(), 1)
	must(t, err)
	if got.Subject != "orders.new" || string(got.Data) != "one" || got.Header.Get(broker.UUIDHeader) != good.ID || got.Header.Get("Nats-Msg-Id") != good.ID || got.Header.Get("tenant") != "a" {
		t.Errorf("published: %+v", got)
	}
}

func TestJobPublishesToRabbitMQ(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateRabbitMQ(t)
	conn, err := amqp.Dial(server.DSN())
	must(t, err)
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDeclare("orders", true, false, false, false, nil)
	must(t, err)
	log := txlog.NewMemory()
	good := &broker.Message{Topic: "orders", Metadata: map[string]string{"tenant": "a"}, Payload: []byte("one")}
	astray := &broker.Message{Topic: "nowhere", Payload: []byte("two")}
	unsent(t, log, good, astray)
	server.Stop() // killed, it forgets a queue that was just declared
	if r := round(t, log, "amqp", server.DSN()); r.Claimed != 0 {
		t.Errorf("while the server is down: %v", r)
	}
	server.Start()
	if r := round(t, log, "amqp", server.DSN()); r.Delivered != 1 || r.Failed != 1 {
		t.Errorf("when it is up again: %v", r)
	}
	if r := round(t, log, "amqp", server.DSN()+"?topic=exchange"); r.Parked != 1 {
		t.Errorf("an exchange that is not there, at the last try: %v", r)
	}
	if left, err := log.List(t.Context(), txlog.Filter{}); err != nil || len(left) != 1 || left[0].InDoubt {
		t.Errorf("what the broker returned is not in doubt: %+v, %v", left, err)
	}
	conn, err = amqp.Dial(server.DSN())
	must(t, err)
	defer conn.Close()
	ch, err = conn.Channel()
	must(t, err)
	got, ok, err := ch.Get("orders", true)
	must(t, err)
	if !ok || string(got.Body) != "one" || got.Headers[broker.UUIDHeader] != good.ID || got.MessageId != good.ID || got.Headers["tenant"] != "a" || got.DeliveryMode != amqp.Persistent {
		t.Errorf("published: %v, %+v", ok, got)
	}
}

// The clients of brokers take no context everywhere: who publishes waits for its own no longer.
func TestBrokerThatStandsStillIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for driver, server := range map[string]*testdb.Server{"nats": testdb.PrivateNATS(t), "amqp": testdb.PrivateRabbitMQ(t)} {
		target, err := brokers.Targets[driver](server.DSN())
		must(t, err)
		db := sql.OpenDB(target.Connector)
		must(t, db.PingContext(t.Context()))
		server.Pause()
		text, args, err := broker.Statement(&broker.Message{ID: txlog.NewID(), Topic: "orders", Payload: []byte("one")})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		if _, err := db.ExecContext(ctx, text, args...); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %v", driver, err, time.Since(began))
		}
		cancel()
		server.Resume()
		must(t, db.Close())
	}
}
