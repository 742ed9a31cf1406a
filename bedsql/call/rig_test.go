package call_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	_ "github.com/bedsql/bed/bedsql/mysql"    // the log's backends
	_ "github.com/bedsql/bed/bedsql/postgres" // …
	_ "github.com/bedsql/bed/bedsql/sqlite"   // …
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// request is what a peer was asked.
type request struct {
	method, address, key, body string
	header                     http.Header
}

// peer is a service whose answers the test scripts. Without a script it answers 201 as one behind
// bedhttp.
type peer struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []request
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	l, kept, err := testdb.Listen(20000) // nobody else gets the port of a closed one
	must(t, err)
	t.Cleanup(func() { _ = kept.Close() })
	p := &peer{}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead { // the job's question
			return
		}
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		p.asked = append(p.asked, request{r.Method, r.URL.RequestURI(), r.Header.Get("Idempotency-Key"), string(body), r.Header})
		answer := p.answer
		p.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Idempotency-Scope", "s")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "made from %s", body)
	}))
	_ = p.Listener.Close()
	p.Listener = l
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.Start()
	t.Cleanup(p.Close)
	return p
}

// answers sets the script; nil for none.
func (p *peer) answers(h http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = h
}

func (p *peer) requests() []request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]request(nil), p.asked...)
}

// status answers with a status and headers, given in pairs.
func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"title": "no"}`)
	}
}

// lost breaks the connection instead of answering.
func lost(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// firstOf answers in turn; the last goes on.
func firstOf(all ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := all[0]
		if len(all) > 1 {
			all = all[1:]
		}
		mu.Unlock()
		h(w, r)
	}
}

func newService(t testing.TB, p *peer, cfg bedsql.Config) *call.Service {
	t.Helper()
	if cfg.Storage == nil {
		cfg.Storage = txlog.NewMemory()
	}
	if cfg.RetryInitial == 0 {
		cfg.RetryInitial = time.Millisecond
	}
	s, err := call.New(p.Client(), "payments", p.URL+"/v1/", cfg)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// post is a request for Send.
func post(t testing.TB, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "text/plain")
	return r
}

// round is one round of a job for the peer.
func round(t testing.TB, storage txlog.Storage, p *peer, change ...func(*asyncjob.Config)) asyncjob.Report {
	t.Helper()
	target, err := call.Target(p.Client(), "payments", p.URL+"/v1")
	must(t, err)
	cfg := asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, UnknownDataSourceDelay: time.Millisecond}
	for _, f := range change {
		f(&cfg)
	}
	job, err := asyncjob.New(storage, asyncjob.Targets{"payments": target}, cfg)
	must(t, err)
	defer job.Close()
	report, err := job.RunOnce(t.Context())
	must(t, err)
	return report
}

func inLog(t testing.TB, storage txlog.Storage) []*entry.Unit {
	t.Helper()
	units, err := storage.List(context.Background(), txlog.Filter{})
	must(t, err)
	return units
}
