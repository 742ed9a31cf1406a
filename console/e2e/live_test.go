package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// counter is a proxy that counts: the streams opened and still open, the changes announced, and the
// pages requested after those.
type counter struct {
	url                            string
	streams, opened, told, updates atomic.Int64
}

// listened counts the events of a stream.
type listened struct {
	http.ResponseWriter
	told *atomic.Int64
}

func (l listened) Write(b []byte) (int, error) {
	n, err := l.ResponseWriter.Write(b)
	l.told.Add(int64(strings.Count(string(b), "event: changed")))
	return n, err
}

func (l listened) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func newCounter(t *testing.T, s *stage) *counter {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/events":
			c.opened.Add(1)
			c.streams.Add(1)
			defer c.streams.Add(-1)
			w = listened{w, &c.told}
		case r.Header.Get("HX-Request") != "":
			c.updates.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// hold waits until n streams are open.
func (c *counter) hold(t *testing.T, when string, n int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d streams are open %s", n, when), func() error {
		if open := c.streams.Load(); open != n {
			return fmt.Errorf("%d are", open)
		}
		return nil
	})
}

func TestHiddenTabHoldsNoStream(t *testing.T) {
	s := newStage(t)
	s.run(t)
	c := newCounter(t, s)
	b := newBrowser(t)
	b.open(c.url + "/")
	c.hold(t, "while the page is shown", 1)
	s.command(t, "pause", "ledger")
	b.becomes("Resume…")

	// Another tab comes before it.
	other, err := target.CreateTarget("about:blank").Do(b.browserContext())
	if err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.ActionFunc(target.ActivateTarget(other).Do))
	b.until("the page is hidden", `document.hidden`)
	c.hold(t, "while it is hidden", 0)
	asked, opened := c.updates.Load(), c.opened.Load()
	s.command(t, "resume", "ledger")
	s.command(t, "pause", "orders_3")
	if n := c.updates.Load(); n != asked || c.opened.Load() != opened {
		t.Errorf("it asked %d times while it was hidden, and opened %d streams", n-asked, c.opened.Load()-opened)
	}

	// It is shown again.
	b.do(chromedp.ActionFunc(target.ActivateTarget(chromedp.FromContext(b.ctx).Target.TargetID).Do))
	c.hold(t, "when it is shown again", 1)
	b.until("it shows what happened meanwhile", `document.querySelector("a[href$='/orders_3/resume']") !== null && document.querySelector("a[href$='/ledger/pause']") !== null`)
	s.command(t, "pause", "ledger")
	b.until("it goes on", `document.querySelector("a[href$='/ledger/resume']") !== null`)
	b.quiet()
}

// Without care, an update between aiming and pressing, or between pressing and releasing, would
// move another element, or none, under the pointer.
func TestAnUpdateTakesNothingFromUnderThePointer(t *testing.T) {
	s := newStage(t)
	s.fill(t, crowd{n: 5, dataSource: "orders_3", sql: "UPDATE orders SET paid = $N", err: "Error 1213 (40001): Deadlock found", parked: true})
	s.run(t)
	c := newCounter(t, s)
	b := newBrowser(t)
	b.open(c.url + "/entries")
	c.hold(t, "while the page is shown", 1)
	ids := b.rows(5)

	// Unchanged parts stay the same elements, and keep the focus.
	kept := fmt.Sprintf(`document.getElementById("e-%s")`, ids[2])
	b.do(chromedp.Evaluate(kept+`.focus(); `+kept+`.mark = true`, nil))
	s.command(t, "discard", ids[0], "--yes", "--reason", "a test")
	b.rows(4)
	var same bool
	if b.do(chromedp.Evaluate(kept+`.mark === true && document.activeElement === `+kept, &same)); !same {
		t.Error("an update has replaced a link that is as before, or has taken its focus")
	}

	// While a button of the pointer is down, nothing moves, whatever the server tells.
	x, y := b.aim("#e-" + ids[3])
	b.do(chromedp.MouseEvent(input.MousePressed, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	told, asked := c.told.Load(), c.updates.Load()
	s.command(t, "discard", ids[1], ids[2], "--yes", "--reason", "a test")
	eventually(t, "the page hears of it", func() error {
		if c.told.Load() == told {
			return errors.New("not yet")
		}
		return nil
	})
	time.Sleep(time.Second) // nothing may follow, and nothing tells that it does not
	b.rows(4)
	if c.updates.Load() != asked {
		t.Error("the page was asked for while the button was down")
	}
	b.leave(chromedp.MouseEvent(input.MouseReleased, x, y, chromedp.ButtonLeft, chromedp.ClickCount(1)))
	b.until("it is the entry's page", fmt.Sprintf(`location.pathname === "/entries/%s"`, ids[3]))

	// The delayed update follows.
	b.open(c.url + "/entries")
	ids = b.rows(2)
	b.aim("#e-" + ids[1])
	s.command(t, "discard", ids[0], "--yes", "--reason", "a test")
	b.rows(1)
	b.quiet()
}

// rows waits until the list has n rows, and returns their ids.
func (b *browser) rows(n int) (ids []string) {
	b.t.Helper()
	b.until(fmt.Sprintf("the list has %d rows", n), fmt.Sprintf(`document.querySelectorAll("tbody a.id").length === %d`, n))
	b.do(chromedp.Evaluate(`Array.from(document.querySelectorAll("tbody a.id"), (a) => a.innerText)`, &ids))
	return ids
}
