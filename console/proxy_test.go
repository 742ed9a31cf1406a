package console

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/internal/test/webproxy"
)

// public is the console's host name for browsers behind a proxy.
const public = "bed.example.com"

// A fronted is a console behind a proxy.
type fronted struct {
	cfg Config
	// proxy starts the proxy in front of the console at up, and returns the proxy's address.
	proxy func(t testing.TB, up string) string
	// hidesHost: the console sees the Host of the proxy's own request.
	hidesHost bool
}

// envoy imitates Envoy: it passes the Host unchanged and adds these headers.
func envoy(t testing.TB, up string) string {
	to := &url.URL{Scheme: "http", Host: up}
	s := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		for name, value := range map[string]string{"X-Forwarded-Proto": "https", "X-Request-Id": "8f2c", "X-Envoy-Expected-Rq-Timeout-Ms": "15000", "X-Envoy-Attempt-Count": "1", "X-Envoy-Internal": "true"} {
			r.Out.Header.Set(name, value)
		}
	}})
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func fronts() map[string]fronted {
	nginx := func(directives string) func(testing.TB, string) string {
		return func(t testing.TB, up string) string {
			return webproxy.Nginx(t, strings.ReplaceAll(directives, "UP", "http://"+up))
		}
	}
	caddy := func(directives string) func(testing.TB, string) string {
		return func(t testing.TB, up string) string {
			return webproxy.Caddy(t, strings.ReplaceAll(directives, "UP", up))
		}
	}
	named, below := Config{AllowedHosts: []string{public}}, Config{AllowedHosts: []string{public}, BasePath: "/bed"}
	return map[string]fronted{
		"nginx as it comes":                {Config{}, nginx(`location / { proxy_pass UP; }`), true},
		"nginx, whose name is configured":  {named, nginx(`location / { proxy_pass UP; }`), true},
		"nginx with a path in proxy_pass":  {named, nginx(`location / { proxy_pass UP/; }`), true},
		"nginx with the Host":              {named, nginx(`location / { proxy_pass UP; proxy_set_header Host $host; }`), false},
		"nginx below a path":               {below, nginx(`location /bed/ { proxy_pass UP; }`), true},
		"nginx that takes the path off":    {below, nginx(`location /bed/ { proxy_pass UP/; }`), true},
		"nginx that forwards, and trusted": {Config{AllowedHosts: []string{public}, TrustedProxies: []string{"127.0.0.0/8"}}, nginx(`location / { proxy_pass UP; proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Proto https; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; }`), false},
		"Caddy as it comes":                {named, caddy("reverse_proxy UP"), false},
		"Caddy that compresses":            {named, caddy("encode gzip\nreverse_proxy UP"), false},
		"Caddy below a path":               {below, caddy("handle /bed* {\nreverse_proxy UP\n}"), false},
		"Caddy that takes the path off":    {below, caddy("handle_path /bed* {\nreverse_proxy UP\n}"), false},
		"Envoy":                            {named, envoy, false},
	}
}

// ask asks through the proxy as a browser does.
func (f fronted) ask(t *testing.T, front, method, path, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+front+f.cfg.BasePath+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = public
	if body != "" {
		r.Header.Set("Content-Type", map[bool]string{true: "application/json", false: "application/x-www-form-urlencoded"}[strings.Contains(path, "/api/")])
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	w, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w, string(text)
}

var targets = regexp.MustCompile(`<form[^>]* action="([^"]*)"|data-events="([^"]*)"|hx-get="([^"]*)"`)

func TestEveryPageAndFormWorksBehindProxies(t *testing.T) {
	t.Parallel()
	for name, f := range fronts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var console atomic.Pointer[Console]
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { console.Load().ServeHTTP(w, r) }))
			t.Cleanup(up.Close)
			f.cfg.Listen = up.Listener.Addr().String()
			front := f.proxy(t, f.cfg.Listen)
			fresh := func() *fakeStore {
				c, store := stage(t, f.cfg)
				console.Store(c)
				return store
			}
			fresh()
			friendly := map[string]string{"Origin": "https://" + public, "Sec-Fetch-Site": "same-origin"}
			for _, s := range samples() {
				if s.path == "/events" {
					continue
				}
				if s.method() != "GET" {
					fresh()
				}
				w, body := f.ask(t, front, s.method(), s.path, s.body, friendly)
				if w.StatusCode != s.status {
					t.Errorf("%s %s: %d, want %d\n%.300s", s.method(), s.path, w.StatusCode, s.status, body)
				}
				addresses := append(links(body), w.Header.Get("Location"))
				for _, m := range targets.FindAllStringSubmatch(body, -1) {
					addresses = append(addresses, m[1:]...)
				}
				for _, to := range addresses {
					if to != "" && !strings.HasPrefix(to, f.cfg.BasePath+"/") {
						t.Errorf("%s leads to %s", s.path, to)
					}
				}
			}
			w, _ := f.ask(t, front, "GET", "/?lang=zh", "", nil)
			if cookie := w.Header.Get("Set-Cookie"); !strings.Contains(cookie, "Path="+f.cfg.BasePath+"/") {
				t.Errorf("the cookie is %q", cookie)
			}

			// Over plain HTTP a browser sends the Origin alone.
			park := "/entries/" + fakeID(5) + "/park"
			store := fresh()
			if w, body := f.ask(t, front, "POST", park, "reason=x", map[string]string{"Origin": "http://" + public}); w.StatusCode != http.StatusSeeOther && (!f.hidesHost || len(f.cfg.AllowedHosts) > 0) {
				t.Errorf("a form over plain HTTP: %d\n%.300s", w.StatusCode, body)
			}
			store = fresh()
			before := store.state()
			attacks := []map[string]string{
				{"Origin": "https://evil.example.com"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": "https://" + public},
				{"Origin": "https://evil.example.com", "Sec-Fetch-Site": "cross-site"}, {"Origin": "https://" + public + ":8443"},
			}
			if len(f.cfg.AllowedHosts) > 0 {
				attacks = append(attacks, map[string]string{"Origin": "https://evil.example.com", "Sec-Fetch-Site": "same-origin"})
			}
			for _, attack := range attacks {
				if w, _ := f.ask(t, front, "POST", park, "reason=x", attack); w.StatusCode < 400 || w.StatusCode > 499 {
					t.Errorf("a form of another site, %v: %d", attack, w.StatusCode)
				}
			}
			if store.state() != before {
				t.Error("another site's page has changed something")
			}
			f.streams(t, front)
		})
	}
}

// streams fails the test unless each event arrives as soon as it is sent.
func (f fronted) streams(t *testing.T, front string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+front+f.cfg.BasePath+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = public
	r.Header.Set("Accept", "text/event-stream")
	w, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	in, pulses := bufio.NewReader(w.Body), 0
	for pulses < 2 { // a proxy that buffers would pass on none for minutes
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream: %d, %v", w.StatusCode, err)
		}
		if line == "event: pulse\n" {
			pulses++
		}
	}
}

func TestOnlyATrustedProxySaysWhoAsks(t *testing.T) {
	t.Parallel()
	trusted, err := newProxies([]string{"10.0.0.0/8", "192.0.2.7", "fd00::/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, hops, host, address, seen string }{
		{"203.0.113.9:1", "198.51.100.1", public, "203.0.113.9:1", listen},
		{"10.1.2.3:1", "198.51.100.1", public, "198.51.100.1:0", public},
		{"[::ffff:10.1.2.3]:1", "198.51.100.1, 192.0.2.7", "evil.example.com, " + public, "198.51.100.1:0", public},
		{"[fd00::1]:1", "1.1.1.1, 198.51.100.1,10.0.0.1", public, "198.51.100.1:0", public},
		{"10.1.2.3:1", "", "", "10.1.2.3:1", listen},
		{"10.1.2.3:1", "nonsense, 10.0.0.2", public, "10.0.0.2:0", public},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr, r.Host = c.from, listen
		r.Header.Set("X-Forwarded-For", c.hops)
		r.Header.Set("X-Forwarded-Host", c.host)
		got := trusted.forwarded(r)
		if got.RemoteAddr != c.address || got.Host != c.seen {
			t.Errorf("%v: got %s, %s", c, got.RemoteAddr, got.Host)
		}
		if _, err := netip.ParseAddrPort(got.RemoteAddr); err != nil {
			t.Error(err)
		}
	}
	c, _ := stage(t, Config{AllowedHosts: []string{public}, TrustedProxies: []string{"127.0.0.1"}})
	for host, want := range map[string]int{public: 200, "evil.example.com": 421} {
		if w := ask4(t, c, request{path: "/?lang=zh", header: map[string]string{"X-Forwarded-Host": host, "X-Forwarded-Proto": "https"}}); w.Code != want ||
			want == 200 && !strings.Contains(w.Header().Get("Set-Cookie"), "Secure") {
			t.Errorf("%s: %d, %v", host, w.Code, w.Header())
		}
	}
}

// Prometheus asks by the address of a pod. No page can send a token.
func TestATokenReadsMetricsUnderAnyName(t *testing.T) {
	t.Parallel()
	c, _ := stage(t, Config{Users: people, Tokens: programs})
	for who, want := range map[string]int{"token read-token": 200, "token wrong": 421, "vera": 421, "": 421} {
		if w := ask4(t, c, request{path: "/metrics", host: "10.1.2.3:8390", as: who}); w.Code != want {
			t.Errorf("%q: %d, want %d", who, w.Code, want)
		}
		if w := ask4(t, c, request{path: "/entries", host: "10.1.2.3:8390", as: who}); w.Code != 421 {
			t.Errorf("the list as %q: %d", who, w.Code)
		}
	}
}

func TestProxyMayDecodeTheSlashesOfANamesPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/data-sources/127.0.0.1:3306/ledger/pause", "/api/v1/data-sources/127.0.0.1:3306/ledger/pause", "/data-sources/127.0.0.1:3306//ledger/pause"} {
		c, f := stage(t, Config{})
		body := map[bool]string{true: `{}`, false: "reason=x"}[strings.HasPrefix(path, "/api/")]
		if w := ask4(t, c, request{method: "POST", path: path, body: body}); w.Code >= 400 || !f.paused["127.0.0.1:3306/ledger"] {
			t.Errorf("%s: %d, paused %v", path, w.Code, f.paused)
		}
	}
}
