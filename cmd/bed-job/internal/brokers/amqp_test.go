package brokers_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bedsql/bed/internal/broker"
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
