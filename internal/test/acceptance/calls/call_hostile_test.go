package calls

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// hostile answers each request with answer on the bare connection, and counts the bytes of the largest
// answer that it could send.
func hostile(t *testing.T, answer func(w io.Writer, body string)) (url string, sent *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sent = new(atomic.Int64)
	var all sync.WaitGroup
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		body, _ := io.ReadAll(r.Body)
		w := &counted{Conn: conn}
		answer(w, string(body))
		for n := w.n; ; {
			if was := sent.Load(); n <= was || sent.CompareAndSwap(was, n) {
				return
			}
		}
	}
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String(), sent
}

type counted struct {
	net.Conn
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.n += int64(n)
	return n, err
}

const created = "HTTP/1.1 201 Created\r\nIdempotency-Scope: test\r\n"

// endless writes a text until the client has gone.
func endless(w io.Writer, text string) {
	text = strings.Repeat(text, 1+32<<10/len(text))
	for {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

// A service, or what poses as it, cannot exhaust its caller or hide what became of a call.
func TestHostileAnswersLeaveAClearOutcome(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	zeros := make([]byte, 1<<20)
	for range 1 << 10 { // 1 GiB
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answer func(w io.Writer, body string)
		want   bedsql.Outcome
	}{
		"an endless body": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"\r\n")
			endless(w, "more ")
		}, bedsql.OutcomeDelivered},
		"an endless body in chunks": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Transfer-Encoding: chunked\r\n\r\n")
			endless(w, "4\r\nmore\r\n")
		}, bedsql.OutcomeDelivered},
		"a body that breaks off": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Content-Length: 100\r\n\r\nmore")
		}, bedsql.OutcomeDelivered},
		"a body that never ends": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Content-Length: 100\r\n\r\nmore")
			for { // a byte now and then
				if _, err := io.WriteString(w, "."); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}, bedsql.OutcomeDelivered},
		"a compressed body that is no gzip": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nmore")
		}, bedsql.OutcomeDelivered},
		"a compressed body of a gigabyte": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Content-Encoding: gzip\r\nConnection: close\r\n\r\n")
			_, _ = w.Write(bomb.Bytes())
		}, bedsql.OutcomeDelivered},
		"an endless refusal": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, "HTTP/1.1 402 Payment Required\r\nIdempotency-Scope: test\r\nIdempotency-Kept: ?1\r\n\r\n")
			endless(w, "more ")
		}, bedsql.OutcomeRefused},
		"a refusal that never ends": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, "HTTP/1.1 402 Payment Required\r\nIdempotency-Scope: test\r\nIdempotency-Kept: ?1\r\nContent-Length: 100\r\n\r\nmore")
			_, _ = io.Copy(io.Discard, w.(*counted))
		}, bedsql.OutcomeRefused},
		"headers of 10 MiB": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"A: ")
			_, _ = io.WriteString(w, strings.Repeat("a", 10<<20)+"\r\n\r\n")
		}, bedsql.OutcomeAccepted},
		"endless headers": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created)
			endless(w, "A: a\r\n")
		}, bedsql.OutcomeAccepted},
		"endless hints": {func(w io.Writer, _ string) { endless(w, "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n") }, bedsql.OutcomeAccepted},
		"no answer":     {func(w io.Writer, _ string) { _, _ = io.Copy(io.Discard, w.(*counted)) }, bedsql.OutcomeAccepted},
		"HTTP/0.9":      {func(w io.Writer, body string) { _, _ = io.WriteString(w, "<html>"+body+"</html>") }, bedsql.OutcomeAccepted},
		"an echo":       {func(w io.Writer, body string) { _, _ = io.WriteString(w, "HTTP/1.1 "+body+"\r\n\r\n") }, bedsql.OutcomeAccepted},
		"garbage":       {func(w io.Writer, _ string) { _, _ = w.Write(bytes.Repeat([]byte{0, 0xff, '\n'}, 100)) }, bedsql.OutcomeAccepted},
		"two lengths": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, created+"Content-Length: 4\r\nContent-Length: 5\r\n\r\nmore.")
		}, bedsql.OutcomeAccepted},
		"a switch of protocols": {func(w io.Writer, _ string) {
			_, _ = io.WriteString(w, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
			_, _ = io.Copy(io.Discard, w.(*counted))
		}, bedsql.OutcomeAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines bytes.Buffer
			logger := logrus.New()
			logger.SetOutput(&lines)
			r := rig.New(t, testdb.SQLite(t))
			cfg := r.Cfg
			cfg.Guarantee, cfg.NoSyncRetry, cfg.AttemptTimeout, cfg.Logger = bedsql.ExactlyOnce, true, 10*time.Second, logger
			url, sent := hostile(t, c.answer)
			s, err := call.New(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, rig.Payments, url, cfg)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			res, err := s.Send(t.Context(), rig.Post(t, "/charges", "card 4242"))
			rig.WantOutcomeOf(t, "the call", err, c.want)
			if took := time.Since(began); took > rig.Patience/2 {
				t.Errorf("the call took %v", took)
			}
			if err == nil {
				if code, err := res.Status(); code != http.StatusCreated || err != nil {
					t.Errorf("the status is %d, %v", code, err)
				}
				if body, err := res.Body(); !errors.Is(err, bedsql.ErrRowsUnknown) {
					t.Errorf("the body has %d bytes, %v", len(body), err)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if want := c.want == bedsql.OutcomeAccepted; (len(r.Logs()) == 1) != want {
				t.Errorf("the log holds %d entries", len(r.Logs()))
			}
			if n := sent.Load(); n > 16<<20 { // the sockets have buffers
				t.Errorf("the caller has taken %d bytes", n)
			}
			if strings.Contains(lines.String(), "4242") {
				t.Errorf("a log line holds a value: %s", &lines)
			}
		})
	}
}
