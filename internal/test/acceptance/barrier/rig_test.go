package barrier

import (
	"context"
	"database/sql"
	"errors"
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
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// world is an application that takes from account 1 of its own database and adds to account 1 of
// another service by a call, or does neither.
type world struct {
	*rig.Rig
	payments *payments
	service  *call.Service
	// net is between the two.
	net *network
}

// payments is the other service.
type payments struct {
	*rig.Rig
	url string
	cfg bedhttp.Config
	mu  sync.Mutex
	// answer, if set, answers in place of the handler; it may call it.
	answer func(w http.ResponseWriter, r *http.Request, handle http.HandlerFunc)
	// runs counts the runs of its handlers by path.
	runs map[string]int
}

func (p *payments) answers(f func(w http.ResponseWriter, r *http.Request, handle http.HandlerFunc)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *payments) ran(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs[path]
}

func newPayments(t testing.TB, r *rig.Rig, change ...func(*bedhttp.Config)) *payments {
	t.Helper()
	p := &payments{Rig: r, runs: map[string]int{}}
	p.cfg = bedhttp.Config{
		Service: "payments", DB: r.Open(r.DB.DSN), Required: true, Wait: time.Minute,
		Client: func(*http.Request) string { return "shop" }, Undo: func(*http.Request) bool { return true },
	}
	for _, f := range change {
		f(&p.cfg)
	}
	keyed, err := bedhttp.New(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := bedhttp.Scope(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		n := "balance + 1"
		if r.URL.Path == "/refunds" {
			n = "balance - 1"
		}
		if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), "UPDATE account SET balance = "+n+" WHERE id = 1"); err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) == "decline" {
			w.WriteHeader(http.StatusPaymentRequired)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /idempotency-scope", scope)
	mux.Handle("POST /", keyed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.runs[r.URL.Path]++
		answer := p.answer
		p.mu.Unlock()
		if answer != nil {
			answer(w, r, handle)
			return
		}
		handle(w, r)
	})))
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	t.Cleanup(srv.Close)
	p.url = srv.URL
	return p
}

// network is the caller's transport. Its faults are scripted.
type network struct {
	mu    sync.Mutex
	fault fault
}

// send sends a request, and fault does so or something else.
type (
	send  = func(*http.Request) (*http.Response, error)
	fault = func(*http.Request, send) (*http.Response, error)
)

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	fault := n.fault
	n.mu.Unlock()
	if fault != nil {
		return fault(r, http.DefaultTransport.RoundTrip)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (n *network) faults(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = f
}

var errCut = errors.New("the network is cut")

// loses loses the answers to requests of a path: they are sent.
func loses(path string) fault {
	return func(r *http.Request, send send) (*http.Response, error) {
		res, err := send(r)
		if err == nil && r.URL.Path == path {
			_ = res.Body.Close()
			return nil, errCut
		}
		return res, err
	}
}

// leads leads requests of a path to another service.
func leads(path string, to *payments) fault {
	return func(r *http.Request, send send) (*http.Response, error) {
		if r.URL.Path == path {
			r = r.Clone(r.Context())
			r.URL.Host = strings.TrimPrefix(to.url, "http://")
		}
		return send(r)
	}
}

// turnsAway answers requests of a path 401, as a gateway does.
func turnsAway(path string) fault {
	return func(r *http.Request, send send) (*http.Response, error) {
		if r.URL.Path == path {
			return &http.Response{StatusCode: http.StatusUnauthorized, Body: http.NoBody, Header: http.Header{}}, nil
		}
		return send(r)
	}
}

// elsewhere is the same service on another database.
func (w *world) elsewhere() *payments {
	w.T.Helper()
	other := rig.New(w.T, rig.FreshLike(w.T, w.DB))
	other.Account(0)
	return newPayments(w.T, other)
}

func newWorld(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) *world {
	t.Helper()
	w := &world{Rig: rig.New(t, db, change...), net: &network{}}
	w.Account(100)
	other := rig.New(t, rig.FreshLike(t, db))
	other.Account(0)
	w.calls(newPayments(t, other))
	return w
}

// calls has the application call p.
func (w *world) calls(p *payments) {
	w.T.Helper()
	cfg := w.Cfg
	cfg.Guarantee = bedsql.ExactlyOnce
	s, err := call.New(&http.Client{Transport: w.net}, "payments", p.url, cfg)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = s.Close() })
	w.payments, w.service = p, s
}

func eachWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	testdb.Each(t, func(t *testing.T, db testdb.DB) { f(t, newWorld(t, db)) })
}

// post is a request for Send.
func post(path, body string) *http.Request {
	r, _ := http.NewRequest(http.MethodPost, path, strings.NewReader(body))
	return r
}

const (
	takes = "UPDATE account SET balance = balance - 1 WHERE id = 1"
	gives = "UPDATE account SET balance = balance + 1 WHERE id = 1"
	// never has no row to change.
	never = "UPDATE account SET balance = balance - 1 WHERE id = 99"
)

// begin begins a group that takes one here by text and adds one there by a call.
func (w *world) begin(text, body string, opts ...bedsql.TxOption) *bedsql.SoftTransaction {
	w.T.Helper()
	ctx, soft, err := bedsql.Begin(context.Background(), append([]bedsql.TxOption{bedsql.Staged()}, opts...)...)
	w.must(err)
	undo := soft.Compensation(ctx)
	_, err = w.Wrapped.ExecContext(bedsql.RequireRows(ctx, 1), text)
	w.must(err)
	_, err = w.Wrapped.ExecContext(undo, gives)
	w.must(err)
	w.charges(ctx, undo, body)
	return soft
}

func (w *world) charges(ctx, undo context.Context, body string) *call.Result {
	w.T.Helper()
	res, err := w.service.Send(ctx, post("/charges", body))
	w.must(err)
	_, err = w.service.Send(undo, post("/refunds", ""))
	w.must(err)
	return res
}

func (w *world) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// runs a round of the job, to which all entries are due.
func (w *world) round(change ...func(*asyncjob.Config)) asyncjob.Report {
	w.T.Helper()
	own := rig.TargetOf(w.T, w.DB)
	payments, err := call.Target(&http.Client{Transport: w.net}, "payments", w.payments.url)
	w.must(err)
	change = append(change, func(c *asyncjob.Config) { c.UnknownDataSourceDelay = time.Millisecond })
	job := w.JobFor(asyncjob.Targets{own.DataSource: own, "payments": payments}, change...)
	report, err := job.RunOnce(context.Background())
	w.must(err)
	w.must(job.Close())
	return report
}

// settles runs rounds until the log holds at most left entries. An operator makes all of them due.
func (w *world) settles(left int) {
	w.T.Helper()
	for deadline := time.Now().Add(time.Minute); w.Left() > left; w.round() {
		for _, u := range w.Logs() {
			if _ = w.Storage.Retry(context.Background(), u.ID); time.Now().After(deadline) {
				w.T.Fatalf("the log holds %s for %s: parked %v, %d tries, %s", u.ID, u.DataSource, u.Parked, u.Tries, u.LastError)
			}
		}
	}
}

// wants checks the balances here and there, and how often a refund has run.
func (w *world) wants(here, there, refunds int) {
	w.T.Helper()
	if h, p, n := w.Balance(1), w.payments.Balance(1), w.payments.ran("/refunds"); h != here || p != there || n != refunds {
		w.T.Errorf("here %d, there %d, %d refunds; want %d, %d, %d", h, p, n, here, there, refunds)
	}
}

func rowsOf(t testing.TB, on *sql.DB, statement string) {
	t.Helper()
	if _, err := on.Exec(statement); err != nil {
		t.Fatal(err)
	}
}
