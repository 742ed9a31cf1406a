package e2e

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// grey is true if the page admits to be out of date, with the time, and its figures are grey.
const grey = `(() => {
	const said = document.querySelector("#outdated");
	const quiet = getComputedStyle(document.querySelector("header .quiet")).color;
	return !said.hidden && /out of date/.test(said.innerText) && / second(s)? ago/.test(said.innerText) &&
		getComputedStyle(document.querySelector("#live .funnel dd")).color === quiet;
})()`

const upToDate = `document.querySelector("#outdated").hidden && !document.body.classList.contains("outdated")`

// admits fails the test unless the page admits to be out of date within 15 s of now. A busy
// machine's browser may show that late, so the page is asked for its own time.
func (b *browser) admits(what string, fault func()) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`window.greyAt = 0; if (window.greyWatch) clearInterval(window.greyWatch);
		window.greyWatch = setInterval(() => { if (!window.greyAt && `+grey+`) window.greyAt = Date.now(); }, 50)`, nil))
	began := time.Now()
	fault()
	b.until(what+": the page says that it is out of date", `window.greyAt > 0`)
	var at float64
	b.do(chromedp.Evaluate(`window.greyAt`, &at))
	if took := time.UnixMilli(int64(at)).Sub(began); took > 15*time.Second {
		b.t.Errorf("%s: the page says so after %s", what, took)
	}
}

// A muzzle stands before the console and may let through nothing more, without a word.
type muzzle struct {
	url   string
	tight atomic.Bool
	free  chan struct{}
}

func newMuzzle(t *testing.T, s *stage) *muzzle {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	m := &muzzle{free: make(chan struct{})}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(muzzled{w, m, r}, r)
	}))
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

type muzzled struct {
	http.ResponseWriter
	m *muzzle
	r *http.Request
}

func (w muzzled) Write(b []byte) (int, error) {
	if w.m.tight.Load() {
		select {
		case <-w.m.free:
		case <-w.r.Context().Done():
			return 0, errors.New("gone")
		}
	}
	return w.ResponseWriter.Write(b)
}

func (w muzzled) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestPageSaysThatTheLogIsDown(t *testing.T) {
	s := newStage(t)
	s.run(t)
	b := newBrowser(t)
	b.open(s.url + "/")
	b.becomes("orders_3")
	b.until("it is up to date", upToDate)
	b.admits("the log refuses connections", func() { s.way.Refuse(); s.way.CutAll() })
	b.shot("outdated-light")

	// A visitor who comes now reads the same, and stays until the log is back.
	late := newBrowser(t)
	late.open(s.url + "/entries?state=parked")
	late.wants("cannot be reached")
	s.way.Accept()
	b.until("it is up to date again", upToDate)
	late.until("the list is there, with its filter", `document.querySelector("form.filter") !== null && location.search === "?state=parked"`)

	b.admits("the log does not answer", func() { s.way.Delay(time.Minute, 0) })
	s.way.Delay(0, 0)
	s.way.CutAll()
	b.until("it is up to date once more", upToDate)
}

func TestPageSaysThatTheConsoleIsGone(t *testing.T) {
	s := newStage(t)
	s.run(t)
	m := newMuzzle(t, s)
	b := newBrowser(t)
	b.open(m.url + "/")
	b.until("it is up to date", upToDate)
	b.admits("the console is silent", func() { m.tight.Store(true) })
	m.tight.Store(false)
	close(m.free)
	b.until("it is up to date again", upToDate)

	b.open(s.url + "/")
	b.until("it is up to date", upToDate)
	b.admits("the console has crashed", func() { s.kill() })
	s.run(t)
	b.until("it is up to date with the next one", upToDate)
}
