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

// What NATS never takes is parked by the first try, and known not to be applied, so that an
// operator can amend it.
func TestMessageThatNATSCannotTakeAsItIsIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateNATS(t), txlog.NewMemory()
	nc, err := nats.Connect(server.DSN())
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, MaxMsgSize: 1000})
	must(t, err)
	for key, value := range map[string]string{"tenant": "Zoë Ågren", "tenant id": "a", "tenant:id": "a", "clé": "a", "": "a", "lines": "two\nlines", "padded": " a"} {
		unsent(t, log, &broker.Message{Topic: "orders", Metadata: map[string]string{key: value}})
	}
	unsent(t, log, &broker.Message{Topic: "orders", Payload: make([]byte, 2000)})
	if r := round(t, log, "nats", server.DSN()); r.Delivered != 1 || r.Parked != 7 {
		t.Errorf("the round: %v", r)
	}
	wantNoDoubt(t, log)
}

// An account needs no more rights than to publish and to get the answers.
func TestAccountThatMayOnlyPublishToNATSIsEnough(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateNATS(t, `authorization { users: [
		{user: admin, password: a}
		{user: job, password: b, permissions: {publish: "orders.>", subscribe: "_INBOX.>"}}
	] }`), txlog.NewMemory()
	nc, err := nats.Connect(server.DSN(), nats.UserInfo("admin", "a"))
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>", "bills"}})
	must(t, err)
	unsent(t, log, &broker.Message{Topic: "orders.new"}, &broker.Message{Topic: "bills"})
	if r := round(t, log, "nats", "nats://job:b@"+server.Addr()); r.Delivered != 1 || r.Failed != 1 {
		t.Errorf("one of two subjects is allowed: %v", r)
	}
	wantNoDoubt(t, log)
}
