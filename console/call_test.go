package console

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sender"
	"github.com/bedsql/bed/internal/service"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

type unasked struct{ error }

func (u unasked) RoundTrip(*http.Request) (*http.Response, error) { return nil, u }

// A call is an entry like others: its method and path are shown, the rest of it is masked until it
// is revealed, and it cannot be tried.
func TestCallIsShownByItsPathAndRevealedWithItsBody(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := &service.Call{
		ID: entry.NewID(), Method: http.MethodPost, Path: "/charges", Query: "card=" + secretValue,
		Header: http.Header{"X-Tenant": {secretValue}}, Body: []byte("order " + secretValue),
	}
	text, args, err := r.Statement()
	if err != nil {
		t.Fatal(err)
	}
	params, err := entry.EncodeParams(sender.Named(args))
	if err != nil {
		t.Fatal(err)
	}
	u := &entry.Unit{ID: r.ID, TransactionID: r.ID, DataSource: "payments", Settings: service.Settings, Statements: []entry.Statement{{SQL: text, Params: params}}}
	if err := log.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	refused := `bed: the service answered 422 Unprocessable Entity (no card "` + secretValue + `")`
	if err := log.Release(t.Context(), u, entry.Verdict{Park: true, Err: refused}); err != nil {
		t.Fatal(err)
	}
	asked := unasked{errors.New("the service was asked")}
	payments, err := call.Target(&http.Client{Transport: asked}, "payments", "http://payments")
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(log, map[string]delivery.Target{"payments": payments}, Config{Listen: listen, Users: people, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wantsValuesRevealed(t, c, r.ID, "CALL POST /charges", asked)
}
