package testproxy

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
)

const dialTimeout = 10 * time.Second

// Proxy forwards connections to one server. It is safe for concurrent use, except for
// [Proxy.Refuse] and [Proxy.Accept]: call them on the test's goroutine, because they may fail the
// test.
type Proxy struct {
	t      testing.TB
	target string
	addr   string
	wg     sync.WaitGroup

	mu           sync.Mutex
	listener     net.Listener // nil while connections are refused
	links        map[*link]struct{}
	rules        []*rule
	counters     []func(message []byte)
	accepted     int
	spareErasing bool
	cuts         int // calls of CutAll
	toServer     time.Duration
	toClient     time.Duration
}

// New starts a proxy in front of target, a "host:port" or the path of a Unix socket. It ends with
// the test and cuts the remaining connections. A requested fault that has not struck by then fails
// the test, which has not shown its case.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, links: map[*link]struct{}{}}
	l, kept, err := testdb.Listen(10000)
	if err != nil {
		t.Fatalf("testproxy: %v", err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	p.addr = l.Addr().String()
	p.serve(l)
	t.Cleanup(p.close)
	return p
}

// Addr is the proxy's "127.0.0.1:port", the same through its whole life.
func (p *Proxy) Addr() string { return p.addr }

// Accepted is the number of connections opened by clients so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Open is the current number of connections.
func (p *Proxy) Open() int { return len(p.open()) }

// Refuse makes dials fail with "connection refused" from now on. Open
// connections are left alone; see [Proxy.CutAll].
func (p *Proxy) Refuse() {
	p.t.Helper()
	p.mu.Lock()
	l := p.listener
	p.listener = nil
	p.mu.Unlock()
	if l == nil {
		return
	}
	if err := l.Close(); err != nil {
		p.t.Fatalf("testproxy: stop listening on %s: %v", p.addr, err)
	}
}

// Accept takes connections again, on the same port, after [Proxy.Refuse].
func (p *Proxy) Accept() {
	p.t.Helper()
	p.mu.Lock()
	listening := p.listener != nil
	p.mu.Unlock()
	if listening {
		return
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Fatalf("testproxy: listen on %s again: %v", p.addr, err)
	}
	p.serve(l)
}

// CutAll resets every open connection on both sides. Bytes sent to the server and not read yet may
// be lost.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	p.cuts++
	p.mu.Unlock()
	for _, l := range p.open() {
		l.cut()
	}
}

// Delay holds every message back for the given time, per direction. Zero, the
// default, forwards at once.
func (p *Proxy) Delay(toServer, toClient time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toServer, p.toClient = toServer, toClient
}

func (p *Proxy) delays() (toServer, toClient time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.toServer, p.toClient
}

func (p *Proxy) open() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*link, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	return all
}

func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.mu.Lock()
			p.accepted++
			cuts, refused := p.cuts, p.listener != l
			p.mu.Unlock()
			if refused {
				reset(conn)
				return
			}
			p.wg.Go(func() { p.connect(conn, cuts) })
		}
	})
}

// connect forwards one client's connection until it ends. cuts counts the calls of
// CutAll before it was accepted: a later one cuts it too.
func (p *Proxy) connect(client net.Conn, cuts int) {
	network := "tcp"
	if strings.HasPrefix(p.target, "/") {
		network = "unix"
	}
	server, err := net.DialTimeout(network, p.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	l := &link{proxy: p, client: client, server: server, serverDone: make(chan struct{})}
	l.ctx, l.end = context.WithCancel(context.Background())
	defer l.end()
	p.mu.Lock()
	cut := p.cuts > cuts // while the server was dialled
	p.links[l] = struct{}{}
	p.mu.Unlock()
	if cut {
		l.cut()
	}
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) close() {
	p.Refuse()
	p.mu.Lock()
	idle := len(p.rules)
	p.mu.Unlock()
	p.CutAll()
	p.wg.Wait()
	if idle > 0 && !p.t.Failed() {
		p.t.Errorf("testproxy: %d faults never struck: no message matched them", idle)
	}
}

// reset closes a connection with a reset, as after a crash, and not with an orderly end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
