package rig

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
)

// Service is an application's HTTP server with its home in the rig's target. The tenant is a
// header. It counts the runs of its handler.
type Service struct {
	*Rig
	url     string
	Handler http.Handler
	Runs    atomic.Int64
}

// NewService serves h under a key, on a pool of its own: two services of one rig are two
// processes to each other.
func NewService(t testing.TB, r *Rig, h http.HandlerFunc, change ...func(*bedhttp.Config)) *Service {
	t.Helper()
	s := &Service{Rig: r}
	cfg := bedhttp.Config{Service: "orders", DB: r.Open(r.DB.DSN), Client: func(r *http.Request) string { return r.Header.Get("Tenant") }, Required: true}
	for _, f := range change {
		f(&cfg)
	}
	keyed, err := bedhttp.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Runs.Add(1)
		h(w, r)
	}))
	srv := httptest.NewUnstartedServer(s.Handler)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // panics are expected
	srv.Start()
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

// HttpAnswer is the answer to a client.
type HttpAnswer struct {
	Status int
	Header http.Header
	Body   []byte
	Err    error
}

func (a HttpAnswer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

func (a HttpAnswer) String() string {
	return fmt.Sprintf("%d %.200q %v", a.Status, a.Body, a.Err)
}

// Asks sends a POST of tenant t1.
func (s *Service) Asks(key, body string, change ...func(*http.Request)) (a HttpAnswer) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url+"/orders?n=1", bytes.NewReader([]byte(body)))
	if err != nil {
		s.T.Fatal(err)
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
		return HttpAnswer{Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	a.Status, a.Header = res.StatusCode, res.Header
	a.Body, a.Err = io.ReadAll(res.Body)
	return a
}

// Wants checks an answer's status, and whether it is a replay.
func (s *Service) Wants(a HttpAnswer, status int, replayed bool) {
	s.T.Helper()
	if a.Err != nil || a.Status != status || a.Replayed() != replayed {
		s.T.Errorf("answered %v, replayed %v; want %d, replayed %v", a, a.Replayed(), status, replayed)
	}
}

// WantsRuns checks how often the handler has run, and the balance of account 1.
func (s *Service) WantsRuns(runs int64, balance int) {
	s.T.Helper()
	if n := s.Runs.Load(); n != runs {
		s.T.Errorf("the handler has run %d times, want %d", n, runs)
	}
	if b := s.Balance(1); b != balance {
		s.T.Errorf("the balance is %d, want %d", b, balance)
	}
}

// Pays adds one to account 1 in the request's transaction.
func Pays(w http.ResponseWriter, r *http.Request) bool {
	if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), AddOne); err != nil {
		bedhttp.Error(w, r, err)
		return false
	}
	return true
}
