package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/testdb"
)

// service is an application's HTTP server with its home in the rig's target. The tenant is a
// header. It counts the runs of its handler.
type service struct {
	*rig
	url     string
	handler http.Handler
	runs    atomic.Int64
}

// newService serves h under a key, on a pool of its own: two services of one rig are two
// processes to each other.
func newService(t testing.TB, r *rig, h http.HandlerFunc, change ...func(*bedhttp.Config)) *service {
	t.Helper()
	s := &service{rig: r}
	cfg := bedhttp.Config{Service: "orders", DB: r.open(r.db.DSN), Client: func(r *http.Request) string { return r.Header.Get("Tenant") }, Required: true}
	for _, f := range change {
		f(&cfg)
	}
	keyed, err := bedhttp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.handler = keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		h(w, r)
	}))
	srv := httptest.NewUnstartedServer(s.handler)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // panics are expected
	srv.Start()
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// httpAnswer is the answer to a client.
type httpAnswer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (a httpAnswer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

func (a httpAnswer) String() string {
	return fmt.Sprintf("%d %.200q %v", a.status, a.body, a.err)
}

// asks sends a POST of tenant t1.
func (s *service) asks(key, body string, change ...func(*http.Request)) (a httpAnswer) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/orders?n=1", bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Tenant", "t1")
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, f := range change {
		f(req)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return httpAnswer{err: err}
	}
	defer func() { _ = res.Body.Close() }()
	a.status, a.header = res.StatusCode, res.Header
	a.body, a.err = io.ReadAll(res.Body)
	return a
}

// wants checks an answer's status, and whether it is a replay.
func (s *service) wants(a httpAnswer, status int, replayed bool) {
	s.t.Helper()
	if a.err != nil || a.status != status || a.replayed() != replayed {
		s.t.Errorf("answered %v, replayed %v; want %d, replayed %v", a, a.replayed(), status, replayed)
	}
}

func (s *service) wantsRunsOnce() {
	s.t.Helper()
	if n := s.runs.Load(); n != 1 {
		s.t.Errorf("the handler has run %d times, want once", n)
	}
}

// wantsRuns checks how often the handler has run, and the balance of account 1.
func (s *service) wantsRuns(runs int64, balance int) {
	s.t.Helper()
	if n := s.runs.Load(); n != runs {
		s.t.Errorf("the handler has run %d times, want %d", n, runs)
	}
	if b := s.balance(1); b != balance {
		s.t.Errorf("the balance is %d, want %d", b, balance)
	}
}

// pays adds one to account 1 in the request's transaction.
func pays(w http.ResponseWriter, r *http.Request) bool {
	if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), addOne); err != nil {
		bedhttp.Error(w, r, err)
		return false
	}
	return true
}

// paysAnd answers after that.
func paysAnd(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if pays(w, r) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
}

// makesReceipts makes the table of receipts; a service would time out waiting for that.
func (r *rig) makesReceipts() {
	r.t.Helper()
	s := newService(r.t, r, func(http.ResponseWriter, *http.Request) {})
	s.wants(s.asks("receipts", "{}"), 200, false)
}

// eachHome runs f on a rig of each kind, with one account.
func eachHome(t *testing.T, f func(t *testing.T, r *rig)) {
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		f(t, r)
	})
}
