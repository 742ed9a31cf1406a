package brokers_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

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
