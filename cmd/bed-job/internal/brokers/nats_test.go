package brokers_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// newStream makes a stream over a connection of the test.
func newStream(t *testing.T, server *testdb.Server, cfg jetstream.StreamConfig, opts ...nats.Option) jetstream.Stream {
	t.Helper()
	nc, err := nats.Connect(server.DSN(), opts...)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	stream, err := js.CreateStream(t.Context(), cfg)
	must(t, err)
	return stream
}

func TestJobPublishesToJetStream(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateNATS(t)
	stream := newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
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

// A message that NATS can never take is parked by the first try, known to be unapplied, so that an
// operator can amend it.
func TestMessageThatNATSCannotTakeAsItIsIsParkedAtOnce(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateNATS(t), txlog.NewMemory()
	newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, MaxMsgSize: 1000})
	for key, value := range map[string]string{"tenant": "Zoë Ågren", "tenant id": "a", "tenant:id": "a", "clé": "a", "": "a", "lines": "two\nlines", "padded": " a"} {
		unsent(t, log, &broker.Message{Topic: "orders", Metadata: map[string]string{key: value}})
	}
	unsent(t, log, &broker.Message{Topic: "orders", Payload: make([]byte, 2000)})
	if r := round(t, log, "nats", server.DSN()); r.Delivered != 1 || r.Parked != 7 {
		t.Errorf("the round: %v", r)
	}
	wantNoDoubt(t, log)
}

// JetStream drops a repeated Nats-Msg-Id and reports success. So a publisher that sends the UUID as
// that id must not publish a parked message again.
func TestParkedMessageIsNotDroppedAsADuplicate(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateNATS(t), txlog.NewMemory()
	stream := newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	tracking, err := wnats.NewPublisher(wnats.PublisherConfig{URL: server.DSN(), JetStream: wnats.JetStreamConfig{TrackMsgId: true}}, watermill.NopLogger{})
	must(t, err)
	p, err := bedmessage.NewPublisher(tracking, "events", bedsql.Config{Storage: log})
	must(t, err)
	defer p.Close()
	msg := message.NewMessage("", []byte("one"))
	must(t, p.Publish(t.Context(), "orders", msg))

	m := &broker.Message{ID: entry.NewID(), UUID: msg.UUID, Topic: "orders", Payload: msg.Payload} // as a consumer parks it
	text, args, err := broker.Statement(m)
	must(t, err)
	params, err := entry.EncodeParams(sender.Named(args))
	must(t, err)
	u := &entry.Unit{ID: m.ID, DataSource: "events", Settings: broker.Settings, Statements: []entry.Statement{{SQL: text, Params: params}}}
	must(t, log.Add(t.Context(), time.Minute, u))
	must(t, log.Release(t.Context(), u, entry.Verdict{Park: true, Err: "its handler failed"}))
	must(t, log.Retry(t.Context(), m.ID))

	target, err := bedmessage.Target(tracking, "events")
	must(t, err)
	job, err := asyncjob.New(log, asyncjob.Targets{"events": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, ProbeTimeout: 30 * time.Second})
	must(t, err)
	defer job.Close()
	if r := runOnce(t, job); r.Delivered != 0 || r.Parked != 1 {
		t.Errorf("by the publisher that tracks: %v", r)
	}
	must(t, log.Retry(t.Context(), m.ID))
	if r := round(t, log, "nats", server.DSN()); r.Delivered != 1 {
		t.Errorf("by bed-job: %v", r)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("the stream has %+v (%v)", info.State, err)
	}
}

// An account needs no more rights than to publish and to get the answers.
func TestAccountThatMayOnlyPublishToNATSIsEnough(t *testing.T) {
	t.Parallel()
	server, log := testdb.PrivateNATS(t, `authorization { users: [
		{user: admin, password: a}
		{user: job, password: b, permissions: {publish: "orders.>", subscribe: "_INBOX.>"}}
	] }`), txlog.NewMemory()
	newStream(t, server, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>", "bills"}}, nats.UserInfo("admin", "a"))
	unsent(t, log, &broker.Message{Topic: "orders.new"}, &broker.Message{Topic: "bills"})
	if r := round(t, log, "nats", "nats://job:b@"+server.Addr()); r.Delivered != 1 || r.Failed != 1 {
		t.Errorf("one of two subjects is allowed: %v", r)
	}
	wantNoDoubt(t, log)
}
