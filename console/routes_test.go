package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A sample is a request for a route, and its answer to users with the right.
type sample struct {
	route  string // method and pattern
	path   string
	body   string
	role   Role // the lowest that may, as the contract says it
	status int
	// page: it is answered with HTML.
	page bool
}

func samples() []sample {
	id := fakeID(5)
	form := "reason=because"
	return []sample{
		{"GET /healthz", "/healthz", "", 0, 200, false},
		{"GET /readyz", "/readyz", "", 0, 200, false},
		{"GET /metrics", "/metrics", "", Read, 200, false}, // TestMetrics…
		{"GET /assets/{file...}", "/assets/app.css", "", Read, 200, false},
		{"GET /events", "/events", "", Read, 200, false},
		{"GET /{$}", "/", "", Read, 200, true},
		{"GET /entries", "/entries", "", Read, 200, true},
		{"GET /entries/{id}", "/entries/" + id, "", Read, 200, true},
		{"GET /entries/{id}/next", "/entries/" + id + "/next", "", Read, 303, false},
		{"POST /entries/{id}/reveal", "/entries/" + id + "/reveal", "x=1", Reveal, 200, true},
		{"POST /entries/{id}/try", "/entries/" + id + "/try", "x=1", Operate, 200, true},
		{"POST /entries/{id}/amend", "/entries/" + id + "/amend", form + "&sql=DELETE+FROM+t&statement=1", Reveal, 303, false},
		{"GET /entries/{id}/{action}", "/entries/" + id + "/amend?statement=1", "", Read, 200, true},
		{"GET /entries/{id}/{action}", "/entries/" + id + "/discard", "", Read, 200, true},
		{"POST /entries/{id}/{action}", "/entries/" + id + "/park", form, Operate, 303, false},
		{"GET /bulk/{action}", "/bulk/retry?state=parked", "", Read, 200, true},
		{"POST /bulk/amend", "/bulk/amend", form + "&kind=x&count=9&sql=DELETE+FROM+t", Reveal, 409, true},
		{"POST /bulk/{action}", "/bulk/park", form + "&state=waiting&count=1", Operate, 303, false},
		{"GET /data-sources/{name}/{action}", "/data-sources/orders/pause", "", Read, 200, true},
		{"POST /data-sources/{name}/{action}", "/data-sources/127.0.0.1:3306%2Fledger/pause", form, Operate, 303, false},
		{"GET /audit", "/audit", "", Read, 200, true},
		{"GET /audit", "/audit?reveal=true", "", Reveal, 200, true},
		{"GET /api/v1/openapi.json", "/api/v1/openapi.json", "", Read, 200, false},
		{"GET /api/v1/overview", "/api/v1/overview", "", Read, 200, false},
		{"GET /api/v1/entries", "/api/v1/entries?state=parked&limit=3", "", Read, 200, false},
		{"GET /api/v1/entries/count", "/api/v1/entries/count?state=parked", "", Read, 200, false},
		{"GET /api/v1/entries/kinds", "/api/v1/entries/kinds", "", Read, 200, false},
		{"GET /api/v1/entries/{id}", "/api/v1/entries/" + id, "", Read, 200, false},
		{"GET /api/v1/entries/{id}", "/api/v1/entries/" + id + "?reveal=true", "", Reveal, 200, false},
		{"GET /api/v1/entries/{id}", "/api/v1/entries/" + id + "?reveal=TRUE", "", Reveal, 200, false},
		{"GET /api/v1/entries/{id}", "/api/v1/entries/" + id + "?reveal", "", Reveal, 200, false},
		{"GET /transactions/{id}/compensate", "/transactions/" + id + "/compensate", "", Read, 200, true},
		{"POST /transactions/{id}/compensate", "/transactions/" + id + "/compensate", form, Operate, 303, false},
		{"POST /api/v1/transactions/{id}/compensate", "/api/v1/transactions/" + id + "/compensate", `{"reason": "x"}`, Operate, 200, false},
		{"POST /api/v1/entries/bulk", "/api/v1/entries/bulk", `{"filter": {"state": "waiting"}, "action": "park", "count": 1}`, Operate, 200, false},
		{"POST /api/v1/entries/{id}/amend", "/api/v1/entries/" + id + "/amend", `{"sql": "DELETE FROM t", "parameters": [], "reason": "x"}`, Reveal, 200, false},
		{"POST /api/v1/entries/{id}/{action}", "/api/v1/entries/" + id + "/retry", `{}`, Operate, 200, false},
		{"POST /api/v1/entries/{id}/{action}", "/api/v1/entries/" + id + "/park", `{"reason": "x"}`, Operate, 200, false},
		{"POST /api/v1/entries/{id}/{action}", "/api/v1/entries/" + id + "/discard", `{"reason": "x"}`, Operate, 200, false},
		{"POST /api/v1/entries/{id}/{action}", "/api/v1/entries/" + id + "/try", ``, Operate, 200, false},
		{"POST /api/v1/data-sources/{name}/{action}", "/api/v1/data-sources/orders/pause", `{}`, Operate, 200, false},
		{"POST /api/v1/data-sources/{name}/{action}", "/api/v1/data-sources/orders/resume", `{}`, Operate, 200, false},
		{"POST /api/v1/data-sources/{name}/{action}", "/api/v1/data-sources/orders/limit", `{"perSecond": 5}`, Operate, 200, false},
		{"GET /api/v1/audit", "/api/v1/audit", "", Read, 200, false},
		{"GET /api/v1/audit", "/api/v1/audit?reveal=true", "", Reveal, 200, false},
	}
}

func (s sample) method() string { m, _, _ := strings.Cut(s.route, " "); return m }

func (s sample) request() request { return request{method: s.method(), path: s.path, body: s.body} }

func TestEveryRouteHasASample(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	for _, s := range samples() {
		have[s.route] = true
	}
	for _, r := range routes(&site{}) {
		if !have[r.method+" "+r.path] {
			t.Errorf("no sample of %s %s", r.method, r.path)
		}
	}
}

func metricsText(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("bed_up 1\n")) }

// stage makes a console on a log of its own for a request.
func stage(t *testing.T, cfg Config) (*Console, *fakeStore) {
	t.Helper()
	f := newFakeStore()
	cfg.Metrics, cfg.Logger = http.HandlerFunc(metricsText), quiet()
	if cfg.Listen == "" {
		cfg.Listen = listen
	}
	return made(t, f, cfg), f
}

// answer returns the status. A stream would last as long as its client; on a closed console it is
// 429 for users with the right.
func answer(t *testing.T, c *Console, q request) int {
	t.Helper()
	stream := q.path == "/events"
	if stream {
		c.Close()
	}
	code := ask4(t, c, q).Code
	if stream && code == http.StatusTooManyRequests {
		return http.StatusOK
	}
	return code
}

func TestRolesHoldOnEveryRoute(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		for who, role := range map[string]Role{"rita": Read, "otto": Operate, "vera": Reveal, "token read-token": Read, "token operate-token": Operate, "token reveal-token": Reveal} {
			c, f := stage(t, Config{Users: people, Tokens: programs})
			before := f.state()
			q := s.request()
			q.as = who
			if role < s.role && s.body != "" {
				q.body = "{ no JSON, and more of it than is read " // the role is asked before the body is looked at
			}
			want := s.status
			if role < s.role {
				want = http.StatusForbidden
			}
			if got := answer(t, c, q); got != want {
				t.Errorf("%s %s as %s: %d, want %d", s.method(), s.path, who, got, want)
			}
			if role < s.role && f.state() != before {
				t.Errorf("%s %s as %s changed something", s.method(), s.path, who)
			}
			if s.method() == "GET" && s.role < Reveal && f.state() != before {
				t.Errorf("GET %s changed something", s.path)
			}
		}
	}
}

func TestNobodyGetsInWithoutTheRightCredentials(t *testing.T) {
	t.Parallel()
	hash := people[0].PasswordHash
	for name, header := range map[string]string{
		"nothing":             "",
		"a wrong token":       "Bearer wrong",
		"an empty token":      "Bearer ",
		"a token's hash":      "Bearer " + programs[1].TokenHash,
		"half a token":        "Bearer operate-toke",
		"a wrong password":    basic(people[0].Name, "wrong"),
		"no password":         basic(people[0].Name, ""),
		"a hash as password":  basic(people[0].Name, hash),
		"another's password":  basic("otto", "vera-pw"),
		"an unknown user":     basic("mallory", "x"),
		"a token as password": basic("robot", "operate-token"),
		"another scheme":      "Digest username=\"otto\"",
		"no base64":           "Basic !!!",
		"a NUL":               basic("otto\x00", "otto-pw"),
		"a long password":     basic("otto", "otto-pw"+strings.Repeat("\x00", 100)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, f := stage(t, Config{Users: people, Tokens: programs})
			c.gate.slow.pace = 0
			before := f.state()
			for _, s := range samples() {
				q := s.request()
				q.header = map[string]string{}
				if header != "" {
					q.header["Authorization"] = header
				}
				w := ask4(t, c, q)
				if want := map[bool]int{true: s.status, false: http.StatusUnauthorized}[s.role == 0]; w.Code != want {
					t.Errorf("%s %s: %d, want %d", s.method(), s.path, w.Code, want)
				}
				if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
					t.Errorf("%s does not say how to log in", s.path)
				}
				if strings.Contains(w.Body.String(), hash) || strings.Contains(w.Body.String(), secretValue) {
					t.Errorf("%s tells a secret", s.path)
				}
			}
			if f.state() != before {
				t.Error("something was changed")
			}
		})
	}
}

func basic(name, password string) string {
	r, _ := http.NewRequest(http.MethodGet, "/", nil)
	r.SetBasicAuth(name, password)
	return r.Header.Get("Authorization")
}

func TestForeignHostOrOriginIsAlwaysRefused(t *testing.T) {
	t.Parallel()
	for _, attack := range []struct {
		name   string
		host   string
		header map[string]string
		posts  bool // only what acts
	}{
		{"a rebinding host", "evil.example.com:8390", nil, false},
		{"the right address and another port", "127.0.0.1:80", nil, false},
		{"a name that begins like ours", "127.0.0.1.evil.example.com:8390", nil, false},
		{"a name that ends like ours", "evil-127.0.0.1:8390", nil, false},
		{"another address of this machine", "192.168.1.5:8390", nil, false},
		{"no port", "127.0.0.1", nil, false},
		{"a list", "127.0.0.1:8390, evil.example.com", nil, false},
		{"a foreign origin", "", map[string]string{"Origin": "https://evil.example.com"}, true},
		{"a foreign origin that claims to be friendly", "", map[string]string{"Origin": "https://evil.example.com", "Sec-Fetch-Site": "same-origin"}, true},
		{"no origin", "", map[string]string{"Origin": "null"}, true},
		{"our address with another port", "", map[string]string{"Origin": "http://127.0.0.1:9999"}, true},
		{"cross-site", "", map[string]string{"Sec-Fetch-Site": "cross-site"}, true},
		{"cross-site with our origin", "", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://" + listen}, true},
		{"same site, another origin", "", map[string]string{"Sec-Fetch-Site": "same-site"}, true},
	} {
		t.Run(attack.name, func(t *testing.T) {
			t.Parallel()
			for _, cfg := range []Config{{}, {Users: people, Tokens: programs}} {
				c, f := stage(t, cfg)
				before := f.state()
				for _, s := range samples() {
					if attack.posts && s.method() == "GET" {
						continue
					}
					q := s.request()
					q.host, q.header, q.as = attack.host, attack.header, "vera"
					if w := ask4(t, c, q); w.Code < 400 || w.Code > 499 {
						t.Errorf("%s %s: %d", s.method(), s.path, w.Code)
					}
				}
				if f.state() != before {
					t.Error("something was changed")
				}
			}
		})
	}
}

func TestAForeignPageCannotRevealByALink(t *testing.T) {
	t.Parallel()
	for site, want := range map[string]int{"cross-site": 403, "same-site": 403, "anything": 403, "same-origin": 200, "none": 200, "": 200} {
		c, f := stage(t, Config{})
		w := ask4(t, c, request{path: "/api/v1/entries/" + fakeID(5) + "?reveal=true", header: map[string]string{"Sec-Fetch-Site": site}})
		if w.Code != want || len(f.audit) != map[int]int{403: 0, 200: 1}[want] {
			t.Errorf("%q: %d, and the audit has %v", site, w.Code, f.audit)
		}
	}
}

func TestOwnHostsAndOriginsAreTaken(t *testing.T) {
	t.Parallel()
	c, _ := stage(t, Config{AllowedHosts: []string{"bed.example.com", "Ops.example.com:444"}})
	for _, host := range []string{listen, "localhost:8390", "[::1]:8390", "bed.example.com", "BED.example.com:80", "ops.example.com:444"} {
		if w := ask4(t, c, request{path: "/", host: host}); w.Code != 200 {
			t.Errorf("%s: %d", host, w.Code)
		}
		w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/" + fakeID(5) + "/park", host: host, header: map[string]string{"Origin": "http://" + host, "Sec-Fetch-Site": "same-origin"}})
		if w.Code != 200 {
			t.Errorf("a POST to %s: %d %s", host, w.Code, w.Body)
		}
	}
	if w := ask4(t, c, request{path: "/", host: "ops.example.com"}); w.Code != http.StatusMisdirectedRequest {
		t.Errorf("a host without its port: %d", w.Code)
	}
}

func TestMetricsRequireALogInUnlessConfiguredOtherwise(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{listen, "0.0.0.0:8390"} {
		for open, anonymous := range map[bool]int{false: 401, true: 200} {
			c, _ := stage(t, Config{Listen: addr, AllowedHosts: []string{"bed.example.com"}, Users: people, Tokens: programs, OpenMetrics: open})
			if w := ask4(t, c, request{path: "/metrics", host: "bed.example.com"}); w.Code != anonymous {
				t.Errorf("on %s, open %v: %d", addr, open, w.Code)
			}
			if w := ask4(t, c, request{path: "/metrics", as: "token read-token"}); w.Code != 200 || w.Body.String() != "bed_up 1\n" {
				t.Errorf("on %s with a token: %d %s", addr, w.Code, w.Body)
			}
		}
	}
	c, _ := stage(t, Config{})
	if w := get(t, c, "/metrics"); w.Code != 200 {
		t.Errorf("where nobody logs in: %d", w.Code)
	}
}

func TestEveryAnswerCarriesThePolicy(t *testing.T) {
	t.Parallel()
	check := func(what string, h http.Header) {
		t.Helper()
		csp := h.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "script-src 'self'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: the policy is %q", what, csp)
		}
		if cors := h.Get("Access-Control-Allow-Origin"); cors != "" {
			t.Errorf("%s allows the origin %s", what, cors)
		}
		for _, cookie := range h.Values("Set-Cookie") {
			if !strings.Contains(cookie, "SameSite=Lax") || !strings.Contains(cookie, "HttpOnly") {
				t.Errorf("%s: cookie %s", what, cookie)
			}
		}
	}
	c, f := stage(t, Config{Users: people})
	c.gate.slow.pace = 0
	for _, s := range samples() {
		for _, who := range []string{"", "rita", "vera"} {
			for _, host := range []string{"", "evil.example.com"} {
				q := s.request()
				q.as, q.host = who, host
				q.header = map[string]string{"Origin": "http://" + listen}
				if strings.HasPrefix(s.path, "/events") {
					c.Close()
				}
				w := ask4(t, c, q)
				check(fmt.Sprintf("%s %s as %q: %d", s.method(), s.path, who, w.Code), w.Header())
				if s.page && who == "vera" && host == "" && !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
					t.Errorf("%s is %s", s.path, w.Header().Get("Content-Type"))
				}
			}
		}
	}
	for _, path := range []string{"/nowhere", "/entries/none", "//entries", "/entries/../audit", "/?lang=zh", "/api/v1/nowhere", "/entries?state=no", "/assets/", "/assets/../console.go", "/assets/..%2fopenapi.json"} {
		w := ask4(t, c, request{path: path, as: "vera"})
		check(path, w.Header())
		if w.Code >= 500 || strings.HasPrefix(path, "/assets") && w.Code == 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	f.err = fmt.Errorf("dial tcp: password=%s", secretValue)
	for _, path := range []string{"/", "/entries", "/audit", "/api/v1/overview"} {
		w := ask4(t, c, request{path: path, as: "vera"})
		check(path+" without a log", w.Header())
		if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), secretValue) {
			t.Errorf("%s without a log: %d %s", path, w.Code, w.Body)
		}
	}
	if w := get(t, c, "/readyz"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("/readyz without a log: %d", w.Code)
	}
	if w := get(t, c, "/healthz"); w.Code != 200 {
		t.Errorf("/healthz without a log: %d", w.Code)
	}
}
