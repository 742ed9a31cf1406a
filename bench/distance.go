package bench

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// distance makes a server seem farther away. Its output arrives a round trip late, and its input
// arrives at once. A client that sends and waits cannot tell this from half the time each way.
// Concurrent messages share the time, as on a line; nothing is lost, and no fault strikes.
//
// The delay lies in one direction because an idle Go process can keep a wait of a millisecond, but
// rounds shorter ones up to that.
//
// It is safe for concurrent use.
type distance struct {
	target    string
	roundTrip time.Duration
	listener  net.Listener
	wg        sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// newDistance listens in front of target, a "host:port" or the path of a Unix
// socket. Close it.
func newDistance(target string, roundTrip time.Duration) (*distance, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &distance{target: target, roundTrip: roundTrip, listener: l, conns: map[net.Conn]struct{}{}}
	d.wg.Go(d.accept)
	return d, nil
}

// addr is the address of the seemingly far server: "127.0.0.1:port".
func (d *distance) addr() string { return d.listener.Addr().String() }

// close cuts the connections and returns after the last goroutine.
func (d *distance) close() error {
	err := d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	return err
}

func (d *distance) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return // closed
		}
		d.wg.Go(func() { d.connect(client) })
	}
}

func (d *distance) connect(client net.Conn) {
	network := "tcp"
	if strings.HasPrefix(d.target, "/") {
		network = "unix"
	}
	server, err := net.Dial(network, d.target)
	if err != nil {
		_ = client.Close()
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

// keep remembers the connections for close. It returns false after close.
func (d *distance) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		if d.closed {
			_ = c.Close()
			continue
		}
		d.conns[c] = struct{}{}
	}
	return !d.closed
}

func (d *distance) drop(conns ...net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(d.conns, c)
	}
}

// arrival is output of the server, with the time of its arrival.
type arrival struct {
	bytes []byte
	at    time.Time
}

// listen stamps the server's output until its end.
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

// tell hands the output to the client in time. If the client no longer listens, tell closes the
// connection, so that no one waits for the server.
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

// closeWrite announces the end of the output to the peer.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
