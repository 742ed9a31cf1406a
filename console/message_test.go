package console

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/broker"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// A message is an entry like others: its topic is shown, the rest of it is masked until it is
// revealed, and it cannot be tried.
func TestMessageIsShownByItsTopicAndRevealedWithItsPayload(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m := &broker.Message{ID: entry.NewID(), Topic: "orders.shipped", Metadata: map[string]string{"tenant": secretValue}, Payload: []byte("order " + secretValue)}
	m.UUID = m.ID
	text, args, err := broker.Statement(m)
	if err != nil {
		t.Fatal(err)
	}
	params, err := entry.EncodeParams(sender.Named(args))
	if err != nil {
		t.Fatal(err)
	}
	u := &entry.Unit{ID: m.ID, TransactionID: m.ID, DataSource: "events", Settings: broker.Settings, Statements: []entry.Statement{{SQL: text, Params: params}}}
	if err := log.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	if err := log.Release(t.Context(), u, entry.Verdict{Park: true, Err: "its handler failed"}); err != nil {
		t.Fatal(err)
	}
	asked := errors.New("the broker was asked")
	events := broker.AnyForm.Target("events", func(context.Context) (broker.Conn, error) { return nil, asked })
	c, err := New(log, map[string]delivery.Target{"events": events}, Config{Listen: listen, Users: people, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantsValuesRevealed(t, c, m.ID, "orders.shipped", asked)
}

// wantsValuesRevealed checks an entry without a database. Its address is shown, its values are revealed,
// and a trial of it never asks its data source, which would answer asked.
func wantsValuesRevealed(t *testing.T, c *Console, id, address string, asked error) {
	t.Helper()
	at := "/entries/" + id
	for _, q := range []struct {
		request
		shown bool
	}{
		{request{path: "/entries", as: "vera"}, false},
		{request{path: at, as: "vera"}, false},
		{request{path: "/api/v1" + at, as: "vera"}, false},
		{request{path: "/api/v1" + at + "?reveal=true", as: "vera"}, true},
		{request{path: at + "/reveal", method: "POST", body: "x=1", as: "vera"}, true},
	} {
		w := ask4(t, c, q.request)
		if page := w.Body.String(); w.Code != 200 || !strings.Contains(page, address) || strings.Contains(page, "order "+secretValue) != q.shown || strings.Contains(page, secretValue) != q.shown {
			t.Errorf("%s: %d, the address %v, a value %v, want %v", q.path, w.Code, strings.Contains(page, address), strings.Contains(page, secretValue), q.shown)
		}
	}
	if w := ask4(t, c, request{path: "/api/v1" + at + "/try", method: "POST", as: "otto"}); !strings.Contains(w.Body.String(), "no database") || strings.Contains(w.Body.String(), asked.Error()) {
		t.Errorf("a trial says %d %s", w.Code, w.Body)
	}
}
