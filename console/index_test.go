package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/ops"
)

// twoLogs makes a console of two logs, eu and "us/1". Their entries differ only in their ids.
func twoLogs(t *testing.T, cfg Config) (c *Console, eu, us *fakeStore) {
	t.Helper()
	eu, us = newFakeStore(), newFakeStore()
	values := map[string]*ops.Detail{}
	for _, d := range us.entries {
		other := strings.Replace(d.ID, "0192f0c1", "0192f0c2", 1)
		values[other] = us.values[d.ID]
		values[other].ID = other
		d.ID, d.TransactionID = other, strings.Replace(d.TransactionID, "0192f0c1", "0192f0c2", 1)
		for i := range d.Siblings {
			d.Siblings[i].ID = strings.Replace(d.Siblings[i].ID, "0192f0c1", "0192f0c2", 1)
		}
	}
	us.values = values
	cfg.Listen, cfg.Logger, cfg.Metrics = listen, quiet(), http.HandlerFunc(metricsText)
	c, err := newOn(cfg, source{"eu", func() store { return eu }}, source{"us/1", func() store { return us }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, eu, us
}

func TestEachLogHasAllRoutesWithTheirRoles(t *testing.T) {
	t.Parallel()
	for _, s := range samples() {
		for who, role := range map[string]Role{"": 0, "rita": Read, "otto": Operate, "vera": Reveal} {
			c, eu, us := twoLogs(t, Config{Users: people})
			c.gate.slow.pace = 0
			before, other := eu.state(), us.state()
			q := s.request()
			q.as, q.path = who, "/logs/eu"+q.path
			want := s.status
			switch {
			case role < s.role && who == "":
				want = http.StatusUnauthorized
			case role < s.role:
				want = http.StatusForbidden
			}
			var got int
			if s.path == "/events" {
				c.Close()
				if got = ask4(t, c, q).Code; got == http.StatusTooManyRequests {
					got = http.StatusOK
				}
			} else {
				got = ask4(t, c, q).Code
			}
			if got != want {
				t.Errorf("%s %s as %q: %d, want %d", s.method(), q.path, who, got, want)
			}
			if us.state() != other || role < s.role && eu.state() != before {
				t.Errorf("%s %s as %q changed what it must not", s.method(), q.path, who)
			}
		}
	}
	c, _, _ := twoLogs(t, Config{})
	for _, q := range []request{{method: "GET", path: "/logs/asia/"}, {method: "GET", path: "/logs/"}, {method: "GET", path: "/logs/eu/logs/eu/"}} {
		if code := ask4(t, c, q).Code; code != http.StatusNotFound {
			t.Errorf("%s: %d", q.path, code)
		}
	}
	if w := ask4(t, c, request{method: "POST", path: "/logs/us%2F1/entries/" + strings.Replace(fakeID(5), "c1", "c2", 1) + "/park", body: "reason=x"}); !strings.HasPrefix(w.Header().Get("Location"), "/logs/us%2F1/entries/"+strings.Replace(fakeID(5), "c1", "c2", 1)+"?done=") {
		t.Errorf("%d, to %s", w.Code, w.Header().Get("Location"))
	}
}

// answered reads a JSON answer.
func answered[T any](t *testing.T, c *Console, path string) (v T) {
	t.Helper()
	w := get(t, c, path)
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s %v", path, w.Code, w.Body, err)
	}
	return v
}

func TestTheIndexShowsEachLogWithItsFigures(t *testing.T) {
	t.Parallel()
	c, eu, us := twoLogs(t, Config{})
	us.entries = us.entries[:10]
	type logs struct{ Logs []logFigures }
	parked := func() (n []int) {
		for _, l := range answered[logs](t, c, "/api/v1/logs").Logs {
			sum := -1
			if l.Overview != nil {
				for sum = 0; len(l.Overview.DataSources) > 0; l.Overview.DataSources = l.Overview.DataSources[1:] {
					sum += l.Overview.DataSources[0].Parked
				}
			}
			n = append(n, sum)
		}
		return n
	}
	if n := parked(); !slices.Equal(n, []int{23, 8}) {
		t.Errorf("parked are %v", n)
	}
	if text := get(t, c, "/").Body.String(); !strings.Contains(text, `"/logs/eu/entries?state=parked" class="bad">23<`) || !strings.Contains(text, `"/logs/us%2F1/entries?state=parked" class="bad">8<`) {
		t.Error(text)
	}
	// An action on a log's page applies to that log.
	before := eu.state()
	in := strings.Replace(fakeID(5), "c1", "c2", 1)
	if w := ask4(t, c, request{method: "POST", path: "/logs/us%2F1/api/v1/entries/" + in + "/discard", body: `{"reason": "twice"}`}); w.Code != http.StatusOK || eu.state() != before || len(us.entries) != 9 {
		t.Errorf("%d %s; %d entries are left there", w.Code, w.Body, len(us.entries))
	}
	for _, path := range []string{"/entries", "/audit", "/api/v1/overview", "/api/v1/entries", "/entries/" + fakeID(3)} {
		if code := get(t, c, path).Code; code != http.StatusNotFound {
			t.Errorf("%s, of no log: %d", path, code)
		}
	}
	us.mu.Lock()
	us.err = errors.New("down")
	us.mu.Unlock()
	spec := readSpec(t)
	for _, wrong := range spec.check("logs", spec.Paths["/logs"]["get"].Responses["200"].Content["application/json"].Schema, answered[any](t, c, "/api/v1/logs")) {
		t.Error(wrong)
	}
	if n := parked(); !slices.Equal(n, []int{23, -1}) {
		t.Errorf("with one down parked are %v", n)
	}
	if w := get(t, c, "/"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "The log cannot be reached.") || !strings.Contains(w.Body.String(), ">23<") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for path, want := range map[string]int{"/readyz": 503, "/logs/us%2F1/readyz": 503, "/logs/eu/readyz": 200, "/logs/us%2F1/entries": 503, "/logs/eu/entries": 200, "/logs/eu": 200} {
		if code := get(t, c, path).Code; code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
}

func TestIndexOfSeveralLogsRequiresLogin(t *testing.T) {
	t.Parallel()
	for path, role := range map[string]Role{"/": Read, "/api/v1/logs": Read, "/metrics": Read, "/api/v1/openapi.json": Read, "/nowhere": Read, "/logs/nowhere/": Read, "/healthz": 0, "/readyz": 0} {
		c, _, _ := twoLogs(t, Config{Users: people})
		c.gate.slow.pace = 0
		if code := get(t, c, path).Code; (code == http.StatusUnauthorized) != (role > 0) {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestPagesOfSeveralLogsHangTogetherByLinks(t *testing.T) {
	t.Parallel()
	c, _, _ := twoLogs(t, Config{})
	seen := map[string]bool{}
	entries := map[string]bool{}
	for todo := []string{"/"}; len(todo) > 0 && len(seen) < 2000; todo = todo[1:] {
		path, _, _ := strings.Cut(todo[0], "#")
		if seen[path] {
			continue
		}
		seen[path] = true
		w := ask4(t, c, request{method: "GET", path: path})
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
			continue
		}
		if i := strings.LastIndex(path, "/entries/"); i >= 0 {
			entries[path[i+9:]] = true
			continue
		}
		for _, m := range link.FindAllStringSubmatch(w.Body.String(), -1) {
			if to := strings.ReplaceAll(m[1], "&amp;", "&"); strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/assets/") && !strings.Contains(to, "/assets/") && !strings.Contains(to, "lang=") {
				todo = append(todo, to)
			}
		}
	}
	if len(entries) < 50 {
		t.Errorf("%d entries are reached, want 50", len(entries))
	}
	for _, path := range []string{"/logs/eu/", "/logs/us%2F1/", "/logs/us%2F1/audit", "/logs/eu/entries"} {
		if !seen[path] {
			t.Errorf("%s is not reached", path)
		}
	}
}
