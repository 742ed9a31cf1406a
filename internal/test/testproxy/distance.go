package testproxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Distance makes a server seem farther away: what it says arrives a round trip
// later than it was said, what it is told arrives at once. A client that sends
// and waits cannot tell this from half the time each way. What is under way at
// the same moment shares the time, as on a line; nothing is lost, and no fault
// strikes.
//
// The delay lies in one direction because a wait of a millisecond is what an
// idle Go process can keep: its shorter ones are rounded up to that.
//
// It needs no test, so that measurements can use it. It is safe for concurrent use.
type Distance struct {
	target    string
	roundTrip time.Duration
	listener  net.Listener
	wg        sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// NewDistance listens in front of target, a "host:port" or the path of a Unix
// socket. Close it.
func NewDistance(target string, roundTrip time.Duration) (*Distance, error) {
	l, err := listenOutsideEphemeral()
	if err != nil {
		return nil, fmt.Errorf("testproxy: %w", err)
	}
	d := &Distance{target: target, roundTrip: roundTrip, listener: l, conns: map[net.Conn]struct{}{}}
	d.wg.Go(d.accept)
	return d, nil
}

// Addr is where to reach the server as if it were far: "127.0.0.1:port".
func (d *Distance) Addr() string { return d.listener.Addr().String() }

// Close resets what is connected and returns when nothing runs any more.
func (d *Distance) Close() error {
	err := d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		reset(c)
	}
	d.mu.Unlock()
	d.wg.Wait()
	return err
}

func (d *Distance) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return // closed
		}
		d.wg.Go(func() { d.connect(client) })
	}
}

func (d *Distance) connect(client net.Conn) {
	server, err := net.DialTimeout(networkOf(d.target), d.target, dialTimeout)
	if err != nil {
		reset(client)
		return
	}
	if !d.keep(client, server) {
		return
	}
	said := make(chan arrival, 64)
	var all sync.WaitGroup
	all.Go(func() {
		_, _ = io.Copy(server, client)
		closeWrite(server)
	})
	all.Go(func() { listen(server, said, d.roundTrip) })
	all.Go(func() { tell(client, said) })
	all.Wait()
	d.drop(client, server)
}

// keep remembers the connections for Close; false if that was called.
func (d *Distance) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.closed {
			reset(c)
			continue
		}
		d.conns[c] = struct{}{}
	}
	return !d.closed
}

func (d *Distance) drop(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(d.conns, c)
	}
}

// arrival is what the server said, and when it may be heard.
type arrival struct {
	bytes []byte
	at    time.Time
}

// listen stamps what the server says until it has said its last.
func listen(server net.Conn, said chan<- arrival, after time.Duration) {
	defer close(said)
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 {
			said <- arrival{bytes.Clone(buf[:n]), time.Now().Add(after)}
		}
		if err != nil {
			return
		}
	}
}

// tell hands it to the client in time. One that does not listen any more ends
// the connection, so that the server is not waited for.
func tell(client net.Conn, said <-chan arrival) {
	for a := range said {
		time.Sleep(time.Until(a.at))
		if _, err := client.Write(a.bytes); err != nil {
			_ = client.Close()
			for range said {
			}
			return
		}
	}
	closeWrite(client)
}

// networkOf tells the path of a Unix socket from an address.
func networkOf(target string) string {
	if strings.HasPrefix(target, "/") {
		return "unix"
	}
	return "tcp"
}
