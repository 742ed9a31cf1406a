package bench

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// echo answers each byte with itself.
func echo(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l
}

func far(t *testing.T, l net.Listener, roundTrip time.Duration) (*distance, net.Conn) {
	t.Helper()
	d, err := newDistance(l.Addr().String(), roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.close() })
	c, err := net.Dial("tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return d, c
}

func TestDistanceAddsARoundTripToEachAnswer(t *testing.T) {
	t.Parallel()
	const roundTrip, questions = 5 * time.Millisecond, 4
	_, c := far(t, echo(t), roundTrip)
	start := time.Now()
	for i := range questions {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 1)
		if _, err := io.ReadFull(c, answer); err != nil || answer[0] != byte(i) {
			t.Fatalf("answer %d, %v; want %d", answer[0], err, i)
		}
	}
	if took := time.Since(start); took < questions*roundTrip {
		t.Errorf("%d questions one after the other were answered in %v, want at least %v", questions, took, questions*roundTrip)
	}
}

func TestMessagesInFlightShareTheDistance(t *testing.T) {
	t.Parallel()
	const roundTrip, questions = time.Second, 20
	_, c := far(t, echo(t), roundTrip)
	start := time.Now()
	for i := range questions {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	answers := make([]byte, questions)
	if _, err := io.ReadFull(c, answers); err != nil {
		t.Fatal(err)
	}
	for i, b := range answers {
		if b != byte(i) {
			t.Fatalf("answer %d came in place %d", b, i)
		}
	}
	took := time.Since(start)
	if took < roundTrip || took > questions/2*roundTrip {
		t.Errorf("%d questions at the same moment were answered in %v, want about %v", questions, took, roundTrip)
	}
}

func TestTheEndOfEitherSideCrossesADistance(t *testing.T) {
	t.Parallel()
	_, c := far(t, echo(t), time.Millisecond)
	if _, err := c.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	heard, err := io.ReadAll(c)
	if err != nil || string(heard) != "last words" {
		t.Errorf("heard %q, %v before the end", heard, err)
	}
}

func TestClosingADistanceEndsWhatIsConnected(t *testing.T) {
	t.Parallel()
	d, c := far(t, echo(t), time.Millisecond)
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("reading from a connection that was cut: %v", err)
	}
	if c, err := net.Dial("tcp", d.addr()); err == nil {
		_ = c.Close()
		t.Error("a closed distance still takes connections")
	}
}
