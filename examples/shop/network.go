package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// network carries the calls between the services. Faults cut it, and lose answers.
type network struct {
	mu     sync.Mutex
	at     map[string]string // the addresses of processes by service
	faults map[string]fate   // by service
	wires  map[*wire]bool
}

type fate int

const (
	well        fate = iota
	cut              // nothing arrives
	answersLost      // requests arrive, and the connection breaks under each answer
)

func newNetwork() *network {
	return &network{at: map[string]string{}, faults: map[string]fate{}, wires: map[*wire]bool{}}
}

// transport leads to the services, with the token.
func (n *network) transport(token string) *bearer {
	b := &bearer{next: &http.Transport{DialContext: n.dial, MaxIdleConnsPerHost: 8, MaxResponseHeaderBytes: 1 << 20}}
	b.renew(token)
	return b
}

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	if at, ok := n.at[name]; ok {
		address = at
	}
	n.mu.Unlock()
	c, err := new(net.Dialer).DialContext(ctx, kind, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.faults[name] == cut {
		return nil, errors.Join(&net.OpError{Op: "dial", Net: kind, Err: errors.New("the network is cut")}, c.Close())
	}
	w := &wire{c, n, name}
	n.wires[w] = true
	return w, nil
}

// leads has the name of a service lead to an address.
func (n *network) leads(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[name] = address
}

// becomes breaks or repairs the network to a service. A cut closes its connections.
func (n *network) becomes(name string, f fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[name] = f
	for w := range n.wires {
		if f == cut && w.name == name {
			_ = w.Conn.Close()
		}
	}
}

func (n *network) is(name string) fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults[name]
}

// wire is a connection to a service.
type wire struct {
	net.Conn
	network *network
	name    string
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 && w.network.is(w.name) == answersLost {
		_ = w.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *wire) Close() error {
	w.network.mu.Lock()
	defer w.network.mu.Unlock()
	delete(w.network.wires, w)
	return w.Conn.Close()
}

// bearer adds the token, which is never logged, to each call.
type bearer struct {
	next  http.RoundTripper
	mu    sync.Mutex
	token string
}

func (b *bearer) renew(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.token = token
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	b.mu.Lock()
	r.Header.Set("Authorization", "Bearer "+b.token)
	b.mu.Unlock()
	return b.next.RoundTrip(r)
}
