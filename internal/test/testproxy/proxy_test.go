package testproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// echo is a server that repeats and remembers everything it reads.
type echo struct {
	mu   sync.Mutex
	seen string
}

func (e *echo) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen
}

func startEcho(t *testing.T) (*echo, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				buf := make([]byte, 1024)
				for {
					n, err := c.Read(buf)
					e.mu.Lock()
					e.seen += string(buf[:n])
					e.mu.Unlock()
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return e, l.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatalf("say %q: %v", text, err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != want {
		t.Fatalf("heard %q (error %v), want %q", buf, err, want)
	}
}

func expectReset(t *testing.T, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 100))
	if n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %d bytes (error %v), want a reset connection", n, err)
	}
}

func TestBothDirectionsAndTheEndAreForwarded(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	p := New(t, addr)
	c := dial(t, p)
	say(t, c, "hello")
	expect(t, c, "hello")
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the client's end: %d bytes, error %v; want the server's end", n, err)
	}
	if p.Accepted() != 1 {
		t.Errorf("%d connections counted, want 1", p.Accepted())
	}
}

func TestRefuseAndAcceptKeepPortAndConnections(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	p := New(t, addr)
	before := dial(t, p)
	say(t, before, "a")
	expect(t, before, "a")

	p.Refuse()
	p.Refuse()
	if c, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = c.Close()
		}
		t.Fatalf("dial while refused: %v, want connection refused", err)
	}
	say(t, before, "b")
	expect(t, before, "b")

	p.Accept()
	p.Accept()
	after := dial(t, p)
	say(t, after, "c")
	expect(t, after, "c")
}

func TestCutAllResetsEveryConnection(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	p := New(t, addr)
	conns := []net.Conn{dial(t, p), dial(t, p)}
	for _, c := range conns {
		say(t, c, "x")
		expect(t, c, "x")
	}
	p.CutAll()
	for _, c := range conns {
		expectReset(t, c)
	}
	say(t, dial(t, p), "x")
}

func TestCutBeforeKeepsTheMessageFromTheServer(t *testing.T) {
	t.Parallel()
	server, addr := startEcho(t)
	p := New(t, addr)
	struck := p.CutBefore(Text("commit"))
	c := dial(t, p)
	say(t, c, "insert")
	expect(t, c, "insert")
	say(t, c, "COMMIT")
	<-struck
	expectReset(t, c)
	if got := server.received(); got != "insert" {
		t.Errorf("the server was sent %q", got)
	}

	again := dial(t, p)
	say(t, again, "COMMIT")
	expect(t, again, "COMMIT") // it struck once
}

func TestCutAfterLetsTheServerFinish(t *testing.T) {
	t.Parallel()
	server, addr := startEcho(t)
	p := New(t, addr)
	p.CutAfter(Text("COMMIT"))
	c := dial(t, p)
	say(t, c, "COMMIT")
	expectReset(t, c)
	if got := server.received(); got != "COMMIT" {
		t.Errorf("the server was sent %q", got)
	}
}

func TestCutInFlightDoesNotAwaitTheServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := New(t, l.Addr().String())
	p.CutInFlight(Text("COMMIT"))
	c := dial(t, p)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	say(t, c, "COMMIT")
	expectReset(t, c) // although the server has not even read it
	got, err := io.ReadAll(server)
	if err != nil || string(got) != "COMMIT" {
		t.Errorf("the server read %q (error %v)", got, err)
	}
}

func TestHoldKeepsAMessageUntilReleased(t *testing.T) {
	t.Parallel()
	server, addr := startEcho(t)
	p := New(t, addr)
	reached, release := p.Hold(Text("COMMIT"))
	c, other := dial(t, p), dial(t, p)
	say(t, c, "COMMIT")
	<-reached
	say(t, other, "overtakes")
	expect(t, other, "overtakes")
	if got := server.received(); got != "overtakes" {
		t.Errorf("the server was sent %q while the message was held", got)
	}
	release()
	release()
	expect(t, c, "COMMIT")
}

func TestHeldMessageArrivesAfterItsClientLeft(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := New(t, l.Addr().String())
	reached, release := p.Hold(Text("COMMIT"))
	c := dial(t, p)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	say(t, c, "COMMIT")
	<-reached
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	release()
	got, err := io.ReadAll(server)
	if err != nil || string(got) != "COMMIT" {
		t.Errorf("the server read %q (error %v)", got, err)
	}
}

func TestCuttingDuringAHoldLosesTheMessage(t *testing.T) {
	t.Parallel()
	server, addr := startEcho(t)
	p := New(t, addr)
	reached, release := p.Hold(Text("COMMIT"))
	c := dial(t, p)
	say(t, c, "COMMIT")
	<-reached
	p.CutAll()
	expectReset(t, c)
	release()
	if got := server.received(); got != "" {
		t.Errorf("the server was sent %q", got)
	}
}

func TestFaultsForOneMessageStrikeInTurn(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	p := New(t, addr)
	sent := p.Count(Text("x"))
	p.CutBefore(Text("x"))
	p.CutBefore(Text("x"))
	for range 2 {
		c := dial(t, p)
		say(t, c, "x")
		expectReset(t, c)
	}
	c := dial(t, p)
	say(t, c, "x")
	expect(t, c, "x")
	if sent() != 3 {
		t.Errorf("%d messages counted, want 3", sent())
	}
}

func TestDelayHoldsEachDirectionBack(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	p := New(t, addr)
	c := dial(t, p)
	say(t, c, "a")
	expect(t, c, "a")
	for _, d := range [][2]time.Duration{{60 * time.Millisecond, 0}, {0, 60 * time.Millisecond}} {
		p.Delay(d[0], d[1])
		start := time.Now()
		say(t, c, "b")
		expect(t, c, "b")
		if took := time.Since(start); took < 60*time.Millisecond {
			t.Errorf("delays %v: answered after %s", d, took)
		}
	}
}

func TestMissingServerCutsItsClients(t *testing.T) {
	t.Parallel()
	c, err := net.Dial("tcp", New(t, "127.0.0.1:1").Addr())
	if errors.Is(err, syscall.ECONNRESET) {
		return // cut before the dial was through
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	expectReset(t, c)
}

// recorder is a test that may fail without failing the running one.
type recorder struct {
	testing.TB
	failed   bool
	cleanups []func()
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) Failed() bool          { return r.failed }
func (r *recorder) Cleanup(f func())      { r.cleanups = append(r.cleanups, f) }

func TestAFaultThatNeverStrikesFailsItsTest(t *testing.T) {
	t.Parallel()
	_, addr := startEcho(t)
	r := &recorder{TB: t}
	New(r, addr).CutAfter(Text("COMMIT"))
	for _, f := range r.cleanups {
		f()
	}
	if !r.failed {
		t.Error("the test passed although its fault never happened")
	}
}
