package brokers_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

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

// RabbitMQ reports a full queue by a negative confirmation only.
func TestMessageThatRabbitMQRejectsIsNotDelivered(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateRabbitMQ(t, "-rabbit", "max_message_size", "1000"), txlog.NewMemory()
	conn, err := amqp.Dial(server.DSN())
	must(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(t, err)
	_, err = ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	must(t, err)
	long := strings.Repeat("x", 256)
	unsent(t, log, &broker.Message{Topic: long}, &broker.Message{Topic: "orders", Metadata: map[string]string{long: "a"}})
	for range 8 { // each closes a channel
		unsent(t, log, &broker.Message{Topic: "orders", Payload: make([]byte, 2000)})
	}
	if r := round(t, log, "amqp", server.DSN()); r.Parked != 10 {
		t.Errorf("too large, or too long: %v", r)
	}
	wantNoDoubt(t, log)
	unsent(t, log, &broker.Message{Topic: "orders"}, &broker.Message{Topic: "orders"})
	if r := round(t, log, "amqp", server.DSN()); r.Delivered != 1 || r.Failed != 1 {
		t.Errorf("two for a queue of one: %v", r)
	}
	_, err = ch.QueuePurge("orders", false)
	must(t, err)
	if r := round(t, log, "amqp", server.DSN()); r.Delivered != 1 {
		t.Errorf("once there is room: %v", r)
	}
}

// RabbitMQ with too little memory accepts connections, and reads no message from them.
func TestRabbitMQUnderAlarmIsDown(t *testing.T) {
	t.Parallel()
	on, log := onRabbitMQ(t), txlog.NewMemory()
	job := newJob(t, log, on.driver, on.dsn, 1)
	defer job.Close()
	unsent(t, log, &broker.Message{Topic: on.topic})
	if r := runOnce(t, job); r.Delivered != 1 {
		t.Errorf("before the alarm: %v", r)
	}
	unsent(t, log, &broker.Message{Topic: on.topic})
	on.server.RestartWith("-rabbit", "vm_memory_high_watermark", "0")
	for range 3 {
		if r := runOnce(t, job); r.Claimed != 0 || !strings.Contains(fmt.Sprint(r.DataSources["events"].Unreachable), "low on memory") {
			t.Errorf("under alarm: %v, %v", r, r.DataSources["events"].Unreachable)
		}
	}
	// It reads the first message of a connection.
	target, err := brokers.Targets[on.driver](on.dsn, nil)
	must(t, err)
	db := sql.OpenDB(target.Connector)
	defer db.Close()
	db.SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		var text string
		var args []any
		text, args, err = broker.Statement(&broker.Message{ID: entry.NewID(), Topic: on.topic})
		must(t, err)
		_, err = db.ExecContext(ctx, text, args...)
	}
	if target.Dialect.Class(err) != dialect.Unreachable {
		t.Errorf("a message under alarm: %v", err)
	}
	on.server.Stop()
	on.server.Start()
	if r := runOnce(t, job); r.Delivered != 1 {
		t.Errorf("after the alarm: %v", r)
	}
}

// A header frame cannot be split. RabbitMQ closes the connection instead of refusing such a
// message, and the outcome stays unknown.
func TestMetadataThatABrokerNeverTakesAreParkedAtOnce(t *testing.T) {
	t.Parallel()
	for driver, on := range map[string]func(*testing.T) *carrier{"amqp": onRabbitMQ, "nats": onNATS} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			at, log := on(t), txlog.NewMemory()
			large := map[string]string{"blob": strings.Repeat("y", 200<<10)}
			unsent(t, log, &broker.Message{Topic: at.topic, Metadata: large}, &broker.Message{Topic: at.topic, Payload: []byte("one")})
			if r := round(t, log, driver, at.dsn); r.Delivered != 1 || r.Parked != 1 {
				t.Errorf("the round: %v", r)
			}
			wantNoDoubt(t, log)
			if driver == "amqp" {
				cfg := wamqp.NewDurableQueueConfig(at.server.DSN())
				cfg.Publish.ConfirmDelivery = true
				var err error
				at.publisher, err = wamqp.NewPublisher(cfg, watermill.NopLogger{})
				must(t, err)
			}
			p, err := bedmessage.NewPublisher(at.publisher, "events", bedsql.Config{Storage: log})
			must(t, err)
			defer p.Close()
			m := message.NewMessage("", nil)
			m.Metadata = large
			if err := p.Publish(t.Context(), at.topic, m); bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
				t.Errorf("Publish: %v", err)
			}
		})
	}
}
