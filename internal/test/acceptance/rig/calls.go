package rig

import (
	"bytes"
	"context"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

// Payments is the data source of a Peer.
const Payments = "payments"

// Peer is a service behind bedhttp with a database of its own, and a network in front of it.
type Peer struct {
	*Service
	Net *Network
}

// NewPeer serves h on a database like db, whose account 1 is empty.
func NewPeer(t testing.TB, db testdb.DB, h http.HandlerFunc) *Peer {
	t.Helper()
	r := New(t, FreshLike(t, db))
	r.Account(0)
	s := NewService(t, r, h, func(c *bedhttp.Config) { c.Client = func(*http.Request) string { return "caller" } })
	return &Peer{s, NewNetwork(t, s.url)}
}

// Caller returns the peer as a data source under cfg.
func (p *Peer) Caller(cfg bedsql.Config) *call.Service {
	p.T.Helper()
	s, err := call.New(p.Net.Client(), Payments, p.Net.URL, cfg)
	if err != nil {
		p.T.Fatal(err)
	}
	p.T.Cleanup(func() { _ = s.Close() })
	return s
}

// Target returns the peer as a data source of a job.
func (p *Peer) Target() delivery.Target {
	p.T.Helper()
	target, err := call.Target(p.Net.Client(), Payments, p.Net.URL)
	if err != nil {
		p.T.Fatal(err)
	}
	return target
}

// Post is a call.
func Post(t testing.TB, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "text/plain")
	return r
}

// Fate is what a network does to a request.
type Fate int

// The fates of a request.
const (
	Passes       Fate = iota
	DropsRequest      // the connection breaks, and the service never sees the request
	DropsAnswer       // the connection breaks after the service has answered
	ArrivesLate       // the connection breaks, and the request arrives later
	ArrivesTwice      // the request arrives twice at once; one answer goes back
	IsAway            // a proxy answers 503 in place of the service
	TimesOut          // a proxy answers 504 after the service has handled the request
	CutsAnswer        // the answer breaks off in its body
	Fates
)

// Network is an HTTP proxy in front of a service.
type Network struct {
	*httptest.Server
	late sync.WaitGroup

	mu   sync.Mutex
	to   string
	fate func(*http.Request) Fate
}

// NewNetwork makes a network in which every request arrives.
func NewNetwork(t testing.TB, to string) *Network {
	t.Helper()
	n := &Network{to: to}
	n.Server = httptest.NewUnstartedServer(n)
	n.Config.ErrorLog = log.New(io.Discard, "", 0)
	n.Start()
	t.Cleanup(func() {
		n.Close()
		n.Settle()
	})
	return n
}

// Fails decides about requests from now on; nil lets them arrive.
func (n *Network) Fails(fate func(*http.Request) Fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fate = fate
}

// LeadsTo leads to another service from now on.
func (n *Network) LeadsTo(url string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.to = url
}

func (n *Network) target() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.to
}

// Settle waits for the requests that are late.
func (n *Network) Settle() { n.late.Wait() }

func (n *Network) fateOf(r *http.Request) Fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fate == nil {
		return Passes
	}
	return n.fate(r)
}

// ServeHTTP implements http.Handler.
func (n *Network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return // the job asks whether the service is there
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	arrives := func() (*http.Response, []byte, error) { return n.forward(r, body) }
	fate := n.fateOf(r)
	switch fate {
	case DropsAnswer, TimesOut:
		_, _, _ = arrives()
	case ArrivesTwice:
		n.late.Go(func() { _, _, _ = arrives() })
	case ArrivesLate:
		n.late.Go(func() {
			time.Sleep(20 * time.Millisecond) // a later attempt may overtake it
			_, _, _ = arrives()
		})
	}
	switch fate {
	case IsAway:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case TimesOut:
		w.WriteHeader(http.StatusGatewayTimeout)
		return
	case DropsRequest, DropsAnswer, ArrivesLate:
		panic(http.ErrAbortHandler)
	}
	res, answer, err := arrives()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), res.Header)
	w.WriteHeader(res.StatusCode)
	if fate == CutsAnswer && len(answer) > 1 {
		_, _ = w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(answer)
}

// forward sends the request to the service. The client's going away does not end it.
func (n *Network) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	to, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, n.target()+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	to.Header = r.Header.Clone()
	res, err := http.DefaultTransport.RoundTrip(to)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	return res, answer, err
}
