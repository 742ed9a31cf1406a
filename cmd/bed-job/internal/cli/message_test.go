package cli

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Operators can do to messages what they do to other entries, except trying them.
func TestOperatorsSeeAmendAndPublishMessages(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateNATS(t)
	nc, err := nats.Connect(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	log := testdb.SQLite(t)
	storage, err := txlog.Open(t.Context(), log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	target := broker.AnyForm.Target("events", func(context.Context) (broker.Conn, error) { return nil, errors.New("no route") })
	connector, err := bedsql.NewConnector(target, bedsql.Config{Storage: storage, NoSyncRetry: true})
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	m := &broker.Message{ID: entry.NewID(), Topic: "order.new", Metadata: map[string]string{"tenant": "a"}, Payload: []byte("s3cr3t payload")}
	m.UUID = m.ID
	text, args, err := broker.Statement(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), text, args...); !errors.Is(err, bedsql.ErrPending) {
		t.Fatal(err)
	}
	if err := errors.Join(db.Close(), storage.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bed-job.yaml")
	write(t, file, fmt.Sprintf("targetDataSource:\n  events: {driver: nats, dsn: %q}\ntransactionLogDataSource: {driver: sqlite, dsn: %q}\n"+
		"jobConfig: {maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, maxDeliveryTryTimes: 1, probeTimeoutMillis: 60000}\n", server.DSN(), log.DSN))
	run := func(want int, says string, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		a := app{Getenv: env(nil), Open: openLog, In: strings.NewReader(""), Out: &out, Err: &out, Now: time.Now}
		if status := a.run(t.Context(), append(args, "-c", file)); status != want || !strings.Contains(out.String(), says) {
			t.Errorf("%v ends with status %d, want %d and %q:\n%s", args, status, want, says, out.String())
		}
		return out.String()
	}
	if all := run(0, "PUBLISH order.new", "list") + run(0, "@payload", "show", m.ID); strings.Contains(all, "s3cr3t") {
		t.Errorf("the payload is shown unasked:\n%s", all)
	}
	run(0, "s3cr3t payload", "show", m.ID, "--show-parameters")
	run(1, "is no database", "try", m.ID)
	run(0, "0 kinds of refusal", "rehearse")
	run(0, "nothing found", "doctor")
	run(0, "before it is on disk", "doctor")
	run(0, "parked 1", "run", "--once") // no stream takes the subject
	for says, params := range map[string]string{
		"has no parameter": `[{"ordinal":1,"name":"tenant","type":"string","value":"a"}]`,
		"stay as they are": `[{"ordinal":1,"name":"id","type":"string","value":"another"}]`,
		"an order to NATS": `[{"ordinal":1,"name":"id","type":"string","value":"` + m.ID + `"},{"ordinal":2,"name":"metadata","type":"string","value":"{\"Nats-Rollup\":\"sub\"}"}]`,
	} {
		run(1, says, "amend", m.ID, "--parameters", params, "--reason", "a mistake", "--yes")
	}
	run(0, m.ID, "amend", m.ID, "--sql", "PUBLISH orders.new", "--reason", "the topic was renamed", "--yes")
	run(0, "", "retry", m.ID, "--reason", "the topic is right now")
	run(0, "delivered 1", "run", "--once")
	got, err := stream.GetMsg(t.Context(), 1)
	if err != nil || got.Subject != "orders.new" || string(got.Data) != "s3cr3t payload" || got.Header.Get(broker.UUIDHeader) != m.ID {
		t.Errorf("published: %+v, %v", got, err)
	}
	write(t, file, fmt.Sprintf("targetDataSource:\n  events: {driver: nats, dsn: %q}\ntransactionLogDataSource: {driver: nats, dsn: %q}\n", server.DSN(), server.DSN()))
	run(1, "unknown driver, it must be mysql, postgres, sqlite", "list")
}
