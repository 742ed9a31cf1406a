package brokers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/sirupsen/logrus"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// carrier is a broker under load. Messages go in through publisher and arrive at consume's handle;
// it acknowledges them by returning nil.
type carrier struct {
	driver    string
	dsn       string // the job's
	server    *testdb.Server
	publisher message.Publisher
	// topic is consumed by the group, both also by another group.
	topic, both string
	// consume consumes in a group until ctx ends.
	consume func(ctx context.Context, group string, handle func(*message.Message) error)
}

// Brokers are killed under load, handlers fail, acknowledgements get lost after COMMIT and
// the consumers of a group are doubled: nothing is lost, and nothing is processed twice.
func TestNothingIsLostOrProcessedTwice(t *testing.T) {
	t.Parallel()
	many := 2_000
	if os.Getenv("BED_TEST_LONG") != "" {
		many = 20_000
	}
	t.Run("nats", func(t *testing.T) {
		t.Parallel()
		carry(t, testdb.MySQL(t), onNATS(t), many)
	})
	t.Run("rabbitmq", func(t *testing.T) {
		t.Parallel()
		carry(t, testdb.Postgres(t), onRabbitMQ(t), many)
	})
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		carry(t, testdb.MySQL(t), onKafka(t), 2_000)
	})
}

func carry(t *testing.T, db testdb.DB, on *carrier, n int) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	storage, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	must(t, err)
	defer storage.Close()
	cfg := bedsql.Config{Storage: storage, Logger: quiet, SyncMaxDeliveryTryTimes: 1, AttemptTimeout: 5 * time.Second, LogTimeout: time.Minute}
	name := fmt.Sprintf("bed-carry-%d", time.Now().UnixNano())
	must(t, testdb.By[func(string, bedsql.Config) error]{MySQL: mysql.Register, Postgres: postgres.Register, SQLite: sqlite.Register}.For(db.Driver)(name, cfg))
	pool, err := sql.Open(name, db.DSN)
	must(t, err)
	defer pool.Close()
	pool.SetMaxOpenConns(24)
	pool.SetMaxIdleConns(24)
	bare := db.Open(t)
	_, err = bare.Exec("CREATE TABLE seen (n INT NOT NULL)")
	must(t, err)
	p, err := bedmessage.NewPublisher(on.publisher, "events", cfg)
	must(t, err)
	defer p.Close()

	all, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	target, err := brokers.Targets[on.driver](on.dsn, nil)
	must(t, err)
	job, err := asyncjob.New(storage, asyncjob.Targets{"events": target}, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: 50 * time.Millisecond, MaxDeliveryTryTimes: 1000, ProbeTimeout: time.Second, Logger: quiet,
	})
	must(t, err)
	defer job.Close()
	running.Go(func() {
		for all.Err() == nil {
			_, _ = job.RunOnce(all)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-all.Done():
			}
		}
	})

	var done, calls, failures, unacknowledged atomic.Int64
	var failed, dropped sync.Map
	once, err := bedmessage.Once(pool, "billing", func(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
		if _, again := failed.LoadOrStore(msg.UUID, true); !again && calls.Add(1)%50 == 0 {
			failures.Add(1)
			return errors.New("the first time it fails")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO seen VALUES ("+string(msg.Payload)+")")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	handle := func(msg *message.Message) error {
		if err := once(msg); err != nil {
			return err
		}
		if _, again := dropped.LoadOrStore(msg.UUID, true); !again && done.Add(1)%100 == 0 {
			unacknowledged.Add(1)
			return errors.New("the acknowledgement is lost")
		}
		return nil
	}
	for range 2 {
		running.Go(func() { on.consume(all, "group", handle) })
	}
	running.Go(func() { on.consume(all, "again", handle) }) // what it gets comes to the consumer twice

	began := time.Now()
	const batch = 20
	var next, pending atomic.Int64
	killed := make(chan struct{}) // the second time: the last third is published after it
	for range 16 {
		running.Go(func() {
			for all.Err() == nil {
				from := next.Add(batch) - batch
				if from >= int64(n) {
					return
				}
				if from >= int64(n)*2/3 {
					select {
					case <-killed:
					case <-all.Done():
						return
					}
				}
				topic := on.topic
				if from%(5*batch) == 0 {
					topic = on.both
				}
				var messages []*message.Message
				for i := from; i < from+batch; i++ {
					messages = append(messages, message.NewMessage("", fmt.Appendf(nil, "%d", i)))
				}
				if err := p.Publish(all, topic, messages...); errors.Is(err, bedsql.ErrPending) {
					pending.Add(1)
				} else if err != nil {
					t.Errorf("Publish: %v", err)
				}
			}
		})
	}
	until := func(what string, reached func() bool) {
		t.Helper()
		const patience = 2 * time.Minute
		for last, since := done.Load(), time.Now(); !reached(); time.Sleep(20 * time.Millisecond) {
			if now := done.Load(); now > last {
				last, since = now, time.Now()
			}
			if time.Since(since) > patience {
				t.Fatalf("%s: nothing more within %v; processed %d in %v", what, patience, last, time.Since(began))
			}
		}
	}
	for _, part := range []int64{5, 2} {
		until("a part is processed", func() bool { return done.Load() >= int64(n)/part })
		on.server.Kill()
		if part == 2 {
			close(killed)
			until("a publisher misses the server", func() bool { return pending.Load() > 0 })
		}
		on.server.Start()
	}
	until("all is processed", func() bool { return done.Load() >= int64(n) })
	until("the log is empty", func() bool {
		units, err := storage.List(all, txlog.Filter{Limit: 1})
		must(t, err)
		return len(units) == 0
	})
	stop()
	running.Wait()
	var rows, different int
	must(t, bare.QueryRow("SELECT COUNT(*), COUNT(DISTINCT n) FROM seen").Scan(&rows, &different))
	if rows != n || different != n {
		t.Errorf("%d messages: %d rows, %d different", n, rows, different)
	}
	if pending.Load() == 0 || failures.Load() == 0 || unacknowledged.Load() == 0 {
		t.Errorf("nothing went wrong: %d pending, %d failures, %d without an acknowledgement", pending.Load(), failures.Load(), unacknowledged.Load())
	}
	t.Logf("%d messages in %v, %d groups pending, %d failures, %d acknowledgements lost", n, time.Since(began).Round(time.Millisecond), pending.Load(), failures.Load(), unacknowledged.Load())
}

func onNATS(t *testing.T) *carrier {
	server := testdb.PrivateNATS(t)
	connect := func() *nats.Conn {
		nc, err := nats.Connect(server.DSN(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.RetryOnFailedConnect(true))
		must(t, err)
		return nc
	}
	nc := connect()
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	must(t, err)
	publisher, err := wnats.NewPublisherWithNatsConn(connect(), wnats.PublisherPublishConfig{Marshaler: &wnats.NATSMarshaler{}, SubjectCalculator: wnats.DefaultSubjectCalculator}, watermill.NopLogger{})
	must(t, err)
	for group, subject := range map[string]string{"group": "orders.>", "again": "orders.both"} {
		_, err := js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{Durable: group, FilterSubject: subject, AckWait: 2 * time.Second, MaxAckPending: 512, AckPolicy: jetstream.AckExplicitPolicy})
		must(t, err)
	}
	return &carrier{driver: "nats", dsn: server.DSN(), server: server, publisher: publisher, topic: "orders.new", both: "orders.both", consume: func(ctx context.Context, group string, handle func(*message.Message) error) {
		nc := connect()
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Error(err)
			return
		}
		for ctx.Err() == nil {
			short, cancel := context.WithTimeout(ctx, time.Second)
			consumer, err := js.Consumer(short, "orders", group)
			cancel()
			if err != nil {
				continue
			}
			var workers sync.WaitGroup
			for range 8 {
				workers.Go(func() {
					for ctx.Err() == nil {
						some, err := consumer.Fetch(16, jetstream.FetchMaxWait(500*time.Millisecond))
						if err != nil {
							return
						}
						for m := range some.Messages() {
							if handle(message.NewMessage(m.Headers().Get(broker.UUIDHeader), m.Data())) == nil {
								_ = m.Ack()
							} else {
								_ = m.Nak()
							}
						}
					}
				})
			}
			workers.Wait()
		}
	}}
}

func onRabbitMQ(t *testing.T) *carrier {
	server := testdb.PrivateRabbitMQ(t)
	conn, err := amqp.Dial(server.DSN())
	must(t, err)
	ch, err := conn.Channel()
	must(t, err)
	for _, bound := range [][2]string{{"group", "orders"}, {"group", "both"}, {"again", "both"}} {
		must(t, ch.ExchangeDeclare(bound[1], "fanout", true, false, false, false, nil))
		_, err = ch.QueueDeclare(bound[0], true, false, false, false, nil)
		must(t, err)
		must(t, ch.QueueBind(bound[0], "", bound[1], false, nil))
	}
	must(t, conn.Close())
	// A kill would lose the latest declarations.
	server.Stop()
	server.Start()
	dsn := server.DSN() + "?topic=exchange"
	target, err := brokers.Targets["amqp"](dsn, nil)
	must(t, err)
	publisher := &confirming{sql.OpenDB(target.Connector)}
	return &carrier{driver: "amqp", dsn: dsn, server: server, publisher: publisher, topic: "orders", both: "both", consume: func(ctx context.Context, group string, handle func(*message.Message) error) {
		for ctx.Err() == nil {
			conn, err := amqp.Dial(server.DSN())
			if err != nil {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			consumeAMQP(conn, group, handle)
			stop()
			_ = conn.Close()
		}
	}}
}

func consumeAMQP(conn *amqp.Connection, queue string, handle func(*message.Message) error) {
	ch, err := conn.Channel()
	if err != nil || ch.Qos(64, 0, false) != nil {
		return
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return
	}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for d := range deliveries {
				uuid, _ := d.Headers[broker.UUIDHeader].(string)
				if handle(message.NewMessage(uuid, d.Body)) == nil {
					_ = d.Ack(false)
				} else {
					_ = d.Nack(false, true)
				}
			}
		})
	}
	workers.Wait()
}

// confirming publishes as the job does: watermill's publisher has a data race when its
// connection is lost.
type confirming struct{ db *sql.DB }

func (c *confirming) Confirms() bool { return true }

func (c *confirming) Publish(topic string, messages ...*message.Message) error {
	m := &broker.Message{ID: messages[0].UUID, UUID: messages[0].UUID, Topic: topic, Payload: messages[0].Payload}
	text, args, err := broker.Statement(m)
	if err == nil {
		_, err = c.db.Exec(text, args...)
	}
	return err
}

func (c *confirming) Close() error { return c.db.Close() }

func TestWatermillsPublishersAreKnownToConfirmOrNot(t *testing.T) {
	t.Parallel()
	rabbit, server := testdb.PrivateRabbitMQ(t), testdb.PrivateNATS(t)
	accepted := func(p message.Publisher, err error) bool {
		t.Helper()
		must(t, err)
		defer p.Close()
		_, err = bedmessage.Target(p, "events")
		return err == nil
	}
	cfg := wamqp.NewDurablePubSubConfig(rabbit.DSN(), nil)
	if accepted(wamqp.NewPublisher(cfg, watermill.NopLogger{})) {
		t.Error("AMQP by default does not confirm, and is accepted")
	}
	cfg.Publish.ConfirmDelivery = true
	if !accepted(wamqp.NewPublisher(cfg, watermill.NopLogger{})) {
		t.Error("AMQP with ConfirmDelivery is refused")
	}
	cfg.Publish.ConfirmDelivery, cfg.Publish.Transactional = false, true
	if accepted(wamqp.NewPublisher(cfg, watermill.NopLogger{})) {
		t.Error("AMQP that is Transactional, which loses a marshaler's error, is accepted")
	}
	for disabled, want := range map[bool]bool{false: true, true: false} {
		cfg := wnats.PublisherConfig{URL: server.DSN(), JetStream: wnats.JetStreamConfig{Disabled: disabled}}
		if accepted(wnats.NewPublisher(cfg, watermill.NopLogger{})) != want {
			t.Errorf("NATS with JetStream disabled: %v, is accepted: %v", disabled, !want)
		}
	}
}
