package console

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/bedsql/bed/internal/test/webproxy"
)

// proxied logs in by X-Forwarded-User from the address 10.0.0.5.
func proxied() Config {
	return Config{
		TrustedProxies: []string{"10.0.0.5", "10.1.0.0/16"},
		ProxyAuth:      ProxyAuth{Header: "X-Forwarded-User", Roles: map[string]Role{"ann": Operate, "vera": Reveal}, Default: Read},
	}
}

// parking parks an entry, as a program does.
func parking(header map[string][]string, from string) *http.Request {
	r := httptest.NewRequest("POST", "/api/v1/entries/"+fakeID(5)+"/park", strings.NewReader(`{"reason": "x"}`))
	r.Host, r.RemoteAddr = listen, from
	for name, values := range header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return r
}

func send(t *testing.T, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(t.Context()))
	return w
}

// actors are the names in the journal.
func (f *fakeStore) actors() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.audit {
		all = append(all, r.Who)
	}
	return all
}

func TestTheProxysUserHasTheRoleOfTheNameAndIsInTheJournal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"ann": 200, "vera": 200, "bob": 403, "Ann": 403, "ann,vera": 403, "李雷": 403, "o'hara@example.com": 403} {
		for _, from := range []string{"10.0.0.5:4711", "10.1.255.9:1", "[::ffff:10.0.0.5]:4711"} {
			c, f := stage(t, proxied())
			w := send(t, c, parking(map[string][]string{"X-Forwarded-User": {name}}, from))
			if w.Code != want {
				t.Errorf("%q from %s: %d, want %d: %s", name, from, w.Code, want, w.Body)
			}
			if who := f.actors(); want == 200 && !slices.Equal(who, []string{name}) || want != 200 && len(who) > 0 {
				t.Errorf("%q: the journal names %q", name, who)
			}
		}
		c, _ := stage(t, proxied())
		r := httptest.NewRequest("GET", "/", nil)
		r.Host, r.RemoteAddr = listen, "10.0.0.5:1"
		r.Header.Set("X-Forwarded-User", name)
		if w := send(t, c, r); w.Code != 200 || !strings.Contains(w.Body.String(), ` · `) {
			t.Errorf("%q reads: %d", name, w.Code)
		}
	}
	// The role by name holds where it is lower than everybody else's, too.
	cfg := proxied()
	cfg.ProxyAuth.Roles, cfg.ProxyAuth.Default = map[string]Role{"ann": Read}, Operate
	for name, want := range map[string]int{"ann": 403, "bob": 200} {
		c, _ := stage(t, cfg)
		if w := send(t, c, parking(map[string][]string{"X-Forwarded-User": {name}}, "10.0.0.5:1")); w.Code != want {
			t.Errorf("%s, where everybody operates: %d, want %d", name, w.Code, want)
		}
	}
	cfg = proxied()
	cfg.ProxyAuth.Default = 0
	c, _ := stage(t, cfg)
	if w := send(t, c, parking(map[string][]string{"X-Forwarded-User": {"bob"}}, "10.0.0.5:1")); w.Code != 403 {
		t.Errorf("without a role bob gets %d", w.Code)
	}
}

func TestGroupsDecideTheRole(t *testing.T) {
	t.Parallel()
	cfg := proxied()
	cfg.ProxyAuth = ProxyAuth{Header: "X-Forwarded-User", Groups: "X-Forwarded-Groups", Roles: map[string]Role{"ops": Operate, "auditors": Read}}
	for groups, want := range map[string]int{"ops": 200, "auditors, ops": 200, "auditors,": 403, "": 403, "Ops": 403, "ops/sub": 403, "opsx": 403} {
		c, f := stage(t, cfg)
		w := send(t, c, parking(map[string][]string{"X-Forwarded-User": {"ann"}, "X-Forwarded-Groups": {groups}}, "10.0.0.5:1"))
		if w.Code != want || want == 200 && !slices.Equal(f.actors(), []string{"ann"}) {
			t.Errorf("%q: %d, want %d; the journal names %q", groups, w.Code, want, f.actors())
		}
	}
	// A user who is called as a group is, has none of its rights; nor has one without a name.
	for what, header := range map[string]map[string][]string{
		"the name of a group": {"X-Forwarded-User": {"ops"}}, "groups alone": {"X-Forwarded-Groups": {"ops"}},
		"two lines of groups": {"X-Forwarded-User": {"ann"}, "X-Forwarded-Groups": {"auditors", "ops"}},
		"endless groups":      {"X-Forwarded-User": {"ann"}, "X-Forwarded-Groups": {strings.Repeat("x,", maxGroups) + "ops"}},
	} {
		c, f := stage(t, cfg)
		if w := send(t, c, parking(header, "10.0.0.5:1")); w.Code != 401 && w.Code != 403 || len(f.actors()) > 0 {
			t.Errorf("%s: %d, and the journal names %q", what, w.Code, f.actors())
		}
	}
}

func TestNobodyElseCanNameAUser(t *testing.T) {
	t.Parallel()
	ann := []string{"ann"}
	for what, c := range map[string]struct {
		from   string
		header map[string][]string
	}{
		"another address":                {"10.0.0.6:1", map[string][]string{"X-Forwarded-User": ann}},
		"loopback":                       {"127.0.0.1:1", map[string][]string{"X-Forwarded-User": ann}},
		"no address":                     {"@", map[string][]string{"X-Forwarded-User": ann}},
		"a name as address":              {"10.0.0.5", map[string][]string{"X-Forwarded-User": ann}},
		"X-Forwarded-For":                {"203.0.113.9:1", map[string][]string{"X-Forwarded-User": ann, "X-Forwarded-For": {"10.0.0.5"}}},
		"X-Real-Ip and Forwarded":        {"203.0.113.9:1", map[string][]string{"X-Forwarded-User": ann, "X-Real-Ip": {"10.0.0.5"}, "Forwarded": {"for=10.0.0.5"}}},
		"Client-Ip, True-Client-Ip":      {"203.0.113.9:1", map[string][]string{"X-Forwarded-User": ann, "Client-Ip": {"10.0.0.5"}, "True-Client-Ip": {"10.0.0.5"}}},
		"two lines":                      {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann", "ann"}}},
		"a second line":                  {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"bob", "ann"}}},
		"empty":                          {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {""}}},
		"blank":                          {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"  "}}},
		"blanks at the ends":             {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann "}}},
		"256 bytes":                      {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {strings.Repeat("a", 256)}}},
		"a line break":                   {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\nbob"}}},
		"NUL":                            {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\x00"}}},
		"escape":                         {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\x1b[2K"}}},
		"DEL":                            {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\x7f"}}},
		"C1":                             {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\u009b"}}},
		"right to left":                  {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\u202e"}}},
		"no UTF-8":                       {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"ann\xff"}}},
		"the name of a token":            {"10.0.0.5:1", map[string][]string{"X-Forwarded-User": {"token grafana"}}},
		"underscores":                    {"10.0.0.5:1", map[string][]string{"X_forwarded_user": ann}},
		"no header":                      {"10.0.0.5:1", nil},
		"Basic with a forged name":       {"203.0.113.9:1", map[string][]string{"X-Forwarded-User": ann, "Authorization": {"Basic cml0YTpyaXRhLXB3"}}},
		"a trusted hop behind a foreign": {"203.0.113.9:1", map[string][]string{"X-Forwarded-User": ann, "X-Forwarded-For": {"10.0.0.5, 10.0.0.5"}, "X-Forwarded-Host": {listen}}},
	} {
		cfg := proxied()
		cfg.Users = people
		console, f := stage(t, cfg)
		console.gate.slow.pace = 0
		if w := send(t, console, parking(c.header, c.from)); w.Code != 401 || len(f.actors()) > 0 {
			t.Errorf("%s: %d, and the journal names %q", what, w.Code, f.actors())
		}
	}
	// The log-ins of users and tokens stay, through the proxy and around it.
	for _, from := range []string{"10.0.0.5:1", "203.0.113.9:1"} {
		cfg := proxied()
		cfg.Users = people
		console, f := stage(t, cfg)
		r := parking(nil, from)
		r.SetBasicAuth("otto", "otto-pw")
		if w := send(t, console, r); w.Code != 200 || !slices.Equal(f.actors(), []string{"otto"}) {
			t.Errorf("otto from %s: %d, the journal names %q", from, w.Code, f.actors())
		}
	}
}

func TestMistakesInProxyAuthAreRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"trustedProxies is empty":       func(c *Config) { c.TrustedProxies = nil },
		"includes every address":        func(c *Config) { c.TrustedProxies = []string{"10.0.0.5", "0.0.0.0/0"} },
		"header is missing":             func(c *Config) { c.ProxyAuth.Header = "" },
		"names of two headers, ":        func(c *Config) { c.ProxyAuth.Header = "X_Forwarded_User" },
		"letters, digits and dashes":    func(c *Config) { c.ProxyAuth.Groups = "X-Groups: x" },
		"names of two headers":          func(c *Config) { c.ProxyAuth.Groups = "x-forwarded-user" },
		"nobody has a role":             func(c *Config) { c.ProxyAuth.Roles, c.ProxyAuth.Default = nil, 0 },
		`"ann": a role is read`:         func(c *Config) { c.ProxyAuth.Roles = map[string]Role{"ann": 0} },
		`no group is called ""`:         func(c *Config) { c.ProxyAuth.Roles = map[string]Role{"": Read} },
		`no group is called "a,b"`:      func(c *Config) { c.ProxyAuth.Groups, c.ProxyAuth.Roles = "X-Groups", map[string]Role{"a,b": Read} },
		"default is no role":            func(c *Config) { c.ProxyAuth.Default = Reveal + 1 },
		"neither an address nor a netw": func(c *Config) { c.TrustedProxies = []string{"proxy.example.com"} },
	} {
		cfg := proxied()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	cfg := proxied()
	cfg.Listen = "0.0.0.0:8390"
	if err := cfg.Validate(); err != nil {
		t.Errorf("beyond loopback, with a proxy that logs in: %v", err)
	}
}

// An application's own session logs in: by a function, or by a value that a middleware left.
func TestAnApplicationLogsItsUsersIn(t *testing.T) {
	t.Parallel()
	type session struct{}
	var seen atomic.Pointer[http.Request]
	cfg := Config{Users: people, TrustedProxies: []string{"10.0.0.5"}, Authenticate: func(r *http.Request) (string, Role) {
		seen.Store(r)
		name, _ := r.Context().Value(session{}).(string)
		return name, map[string]Role{"ann": Operate, "bob": Read, "odd": Reveal + 1, "token grafana\n": Reveal}[name]
	}}
	for name, want := range map[string]int{"ann": 200, "bob": 403, "carl": 403, "odd": 401, "token grafana\n": 401, strings.Repeat("n", 300): 401, "": 401} {
		c, f := stage(t, cfg)
		c.gate.slow.pace = 0
		r := parking(map[string][]string{"X-Forwarded-For": {"198.51.100.1"}}, "10.0.0.5:1")
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), session{}, name)))
		if w.Code != want || want == 200 && !slices.Equal(f.actors(), []string{name}) || want != 200 && len(f.actors()) > 0 {
			t.Errorf("%q: %d, want %d; the journal names %q", name, w.Code, want, f.actors())
		}
		if got := seen.Load(); got.RemoteAddr != "10.0.0.5:1" || got.URL.Path != r.URL.Path {
			t.Errorf("the application sees %s, %s", got.RemoteAddr, got.URL.Path)
		}
	}
	// Its users are no exception to the care for other sites' pages, and others log in as before.
	c, f := stage(t, cfg)
	r := parking(map[string][]string{"Origin": {"https://evil.example.com"}}, "10.0.0.5:1")
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r.WithContext(context.WithValue(t.Context(), session{}, "ann")))
	if w.Code != 403 || len(f.actors()) > 0 {
		t.Errorf("another site's page: %d", w.Code)
	}
	r = parking(nil, "127.0.0.1:1")
	r.SetBasicAuth("otto", "otto-pw")
	if w := send(t, c, r); w.Code != 200 || !slices.Equal(f.actors(), []string{"otto"}) {
		t.Errorf("otto: %d, the journal names %q", w.Code, f.actors())
	}
	if err := (Config{Authenticate: cfg.Authenticate}).Validate(); err != nil {
		t.Errorf("mounted, with a function that logs in: %v", err)
	}
}

// loggingIn are proxies that ask for a password and name the user.
func loggingIn(t *testing.T) map[string]func(t testing.TB, up string) string {
	hash, err := bcrypt.GenerateFromPassword([]byte("ann-pw"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(file, []byte("ann:{PLAIN}ann-pw\nbob:{PLAIN}bob-pw\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]func(t testing.TB, up string) string{
		"nginx": func(t testing.TB, up string) string {
			return webproxy.Nginx(t, "auth_basic bed; auth_basic_user_file "+file+"; "+
				"location / { proxy_pass http://"+up+"; proxy_set_header X-Forwarded-User $remote_user; proxy_set_header Authorization \"\"; }")
		},
		"nginx that keeps connections": func(t testing.TB, up string) string {
			return webproxy.Nginx(t, "auth_basic bed; auth_basic_user_file "+file+"; underscores_in_headers on; "+
				"location / { proxy_pass http://"+up+"; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header X-Forwarded-User $remote_user; proxy_set_header Authorization \"\"; }")
		},
		"Caddy": func(t testing.TB, up string) string {
			return webproxy.Caddy(t, fmt.Sprintf("basicauth {\nann %s\n}\nreverse_proxy %s {\nheader_up X-Forwarded-User {http.auth.user.id}\nheader_up -Authorization\n}", hash, up))
		},
	}
}

// Whatever a client adds to its request, the journal names the user whose password it has.
func TestNoClientNamesAnotherUserThroughAProxy(t *testing.T) {
	t.Parallel()
	const basic = "Authorization: Basic YW5uOmFubi1wdw==\r\n" // ann
	for name, proxy := range loggingIn(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var console atomic.Pointer[Console]
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { console.Load().ServeHTTP(w, r) }))
			t.Cleanup(up.Close)
			cfg := Config{
				Listen: up.Listener.Addr().String(), AllowedHosts: []string{public}, TrustedProxies: []string{"127.0.0.1"},
				ProxyAuth: ProxyAuth{Header: "X-Forwarded-User", Roles: map[string]Role{"ann": Operate, "vera": Reveal}},
			}
			front := proxy(t, cfg.Listen)
			park := "POST /api/v1/entries/" + fakeID(5) + "/park HTTP/1.1\r\nHost: " + public + "\r\n"
			const body = "Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"reason\": \"x\"}"
			smuggled := park + "X-Forwarded-User: vera\r\n" + body
			for what, attack := range map[string]struct {
				request string
				allowed bool // the request itself may be carried out, in ann's name
			}{
				"nothing added":          {park + basic + body, true},
				"another name":           {park + basic + "X-Forwarded-User: vera\r\n" + body, true},
				"two other names":        {park + basic + "X-Forwarded-User: vera\r\nx-forwarded-user: vera\r\n" + body, true},
				"underscores":            {park + basic + "X_Forwarded_User: vera\r\nX_FORWARDED-USER: vera\r\n" + body, true},
				"a blank before a colon": {park + basic + "X-Forwarded-User : vera\r\n" + body, true},
				"a folded line":          {park + basic + "X-Any: x\r\n X-Forwarded-User: vera\r\n" + body, true},
				"a bare line feed":       {park + basic + "X-Any: x\nX-Forwarded-User: vera\r\n" + body, true},
				"a bare carriage return": {park + basic + "X-Any: x\rX-Forwarded-User: vera\r\n" + body, true},
				"removed as a hop's own": {park + basic + "Connection: close, X-Forwarded-User\r\nX-Forwarded-User: vera\r\n" + body, true},
				"no password":            {park + "X-Forwarded-User: vera\r\n" + body, false},
				"a wrong password":       {park + "Authorization: Basic YW5uOnZlcmE=\r\nX-Forwarded-User: vera\r\n" + body, false},
				"two lengths":            {park + basic + "Content-Length: 0\r\n" + body + smuggled, true},
				"length and chunks":      {park + basic + "Transfer-Encoding: chunked\r\n" + "Content-Type: application/json\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled, true},
				"odd chunks":             {park + basic + "Transfer-Encoding: chunked\r\nTransfer-encoding: x\r\n" + "Content-Type: application/json\r\n\r\n0\r\n\r\n" + smuggled, true},
				"hidden chunks":          {park + basic + "Transfer-Encoding:\x0bchunked\r\n" + body + smuggled, true},
				"a request in a body":    {park + basic + fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", 15+len(smuggled), `{"reason": "x"}`+smuggled), true},
				"an address in the line": {strings.Replace(park, "POST /", "POST http://"+public+"/", 1) + basic + "X-Forwarded-User: vera\r\n" + body, true},
				"a line in the path":     {strings.Replace(park, "/park", "/park%0d%0aX-Forwarded-User:%20vera", 1) + basic + body, true},
			} {
				c, f := stage(t, cfg)
				console.Store(c)
				status := raw(t, "127.0.0.1", front, attack.request)
				if who := f.actors(); slices.ContainsFunc(who, func(n string) bool { return n != "ann" }) || len(who) > 1 || !attack.allowed && len(who) > 0 {
					t.Errorf("%s: %s, and the journal names %q", what, status, who)
				}
				if what == "nothing added" || what == "another name" || what == "two other names" {
					if who := f.actors(); !slices.Equal(who, []string{"ann"}) {
						t.Errorf("%s: %s, and the journal names %q, want ann", what, status, who)
					}
				}
			}

			// The browser adds the password by itself, to the forms of other sites too.
			for _, origin := range []string{"Origin: https://evil.example.com\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\nOrigin: https://" + public + "\r\n"} {
				c, f := stage(t, cfg)
				console.Store(c)
				form := strings.Replace(strings.Replace(park, "/api/v1", "", 1), "Host", "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 8\r\nHost", 1)
				if status := raw(t, "127.0.0.1", front, form+basic+origin+"\r\nreason=x"); !strings.Contains(status, " 403 ") || len(f.actors()) > 0 {
					t.Errorf("%q: %s, and the journal names %q", origin, status, f.actors())
				}
				if status := raw(t, "127.0.0.1", front, "GET /api/v1/entries/"+fakeID(5)+"?reveal=true HTTP/1.1\r\nHost: "+public+"\r\n"+basic+origin+"\r\n"); !strings.Contains(status, " 403 ") {
					t.Errorf("reveal, %q: %s", origin, status)
				}
			}
			// Around the proxy, from an address that is not trusted.
			c, f := stage(t, cfg)
			console.Store(c)
			for _, more := range []string{"", "X-Forwarded-For: 127.0.0.1\r\n", "Forwarded: for=127.0.0.1\r\nX-Real-Ip: 127.0.0.1\r\n"} {
				if status := raw(t, "127.0.0.2", cfg.Listen, park+more+"X-Forwarded-User: ann\r\n"+body); !strings.Contains(status, " 401 ") || len(f.actors()) > 0 {
					t.Errorf("%q: %s, and the journal names %q", more, status, f.actors())
				}
			}
			// A name under which another site leads here.
			if status := raw(t, "127.0.0.1", front, strings.Replace(park, public, "evil.example.com", 1)+"X-Forwarded-Host: "+public+"\r\n"+basic+body); name == "Caddy" && !strings.Contains(status, " 421 ") {
				t.Errorf("another site's name: %s, %q", status, f.actors())
			}
		})
	}
}

// raw sends bytes as they are from an address, and returns the first line of the answer. It waits
// until the server has closed the connection, or has answered what it takes for the last request.
func raw(t *testing.T, from, to, text string) string {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second)) // a proxy may wait for more of the body
	if _, err := conn.Write([]byte(text + "GET /healthz HTTP/1.1\r\nHost: " + public + "\r\nConnection: close\r\n\r\n")); err != nil {
		return "reset"
	}
	in := bufio.NewReader(conn)
	first, _ := in.ReadString('\n')
	for { // until it is closed
		if _, err := in.Discard(1); err != nil {
			return strings.TrimSpace(first)
		}
	}
}
