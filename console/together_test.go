package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/ops"
)

// twoLogs makes a console of two logs, eu and "us/1", whose entries are alike but for
// their ids.
func twoLogs(t *testing.T, cfg Config) (c *Console, eu, us *fakeStore) {
	t.Helper()
	eu, us = newFakeStore(), newFakeStore()
	values := map[string]*ops.Revealed{}
	for _, d := range us.entries {
		other := strings.Replace(d.ID, "0192f0c1", "0192f0c2", 1)
		values[other] = us.values[d.ID]
		d.ID, d.TransactionID = other, strings.Replace(d.TransactionID, "0192f0c1", "0192f0c2", 1)
		for i := range d.Siblings {
			d.Siblings[i].ID = strings.Replace(d.Siblings[i].ID, "0192f0c1", "0192f0c2", 1)
		}
	}
	us.values = values
	cfg.Listen, cfg.Logger, cfg.Metrics = listen, quiet(), http.HandlerFunc(metricsText)
	c, err := NewOnAll([]Log{{"eu", func() Store { return eu }}, {"us/1", func() Store { return us }}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, eu, us
}

func TestEachOfSeveralLogsHasAllRoutesOfOneWithTheirRoles(t *testing.T) {
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
	if w := ask4(t, c, request{method: "POST", path: "/logs/us%2F1/entries/" + strings.Replace(fakeID(5), "c1", "c2", 1) + "/park", body: "reason=x"}); w.Header().Get("Location") != "/logs/us%2F1/entries/"+strings.Replace(fakeID(5), "c1", "c2", 1)+"?done=park&n=1" {
		t.Errorf("%d, to %s", w.Code, w.Header().Get("Location"))
	}
}

// read reads a JSON answer.
func read[T any](t *testing.T, c *Console, path string) (v T) {
	t.Helper()
	w := ask4(t, c, request{method: "GET", path: path})
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSeveralLogsAreShownTogether(t *testing.T) {
	t.Parallel()
	c, eu, us := twoLogs(t, Config{})
	o := read[ops.Overview](t, c, "/api/v1/overview")
	var names []string
	for _, ds := range o.DataSources {
		names = append(names, ds.Log+" "+ds.Name)
	}
	if want := []string{"eu 127.0.0.1:3306/ledger", "eu orders", "us/1 127.0.0.1:3306/ledger", "us/1 orders"}; !slices.Equal(names, want) {
		t.Errorf("data sources %v, want %v", names, want)
	}
	if n := read[ops.Count](t, c, "/api/v1/entries/count"); n.N != 50 {
		t.Errorf("%d entries, want 50", n.N)
	}

	// Pages hold each entry once, in the order of ids, however long they are.
	for _, limit := range []int{1, 7, 25, 26, 1000} {
		var ids []string
		for after := ""; ; {
			page := read[ops.Entries](t, c, fmt.Sprintf("/api/v1/entries?limit=%d&after=%s", limit, url.QueryEscape(after)))
			for _, e := range page.Entries {
				ids = append(ids, e.ID)
				if want := map[bool]string{true: "eu", false: "us/1"}[strings.HasPrefix(e.ID, "0192f0c1")]; e.Log != want {
					t.Errorf("%s is of the log %q, want %q", e.ID, e.Log, want)
				}
			}
			if after = page.Next; after == "" {
				break
			}
		}
		if len(ids) != 50 || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != 50 {
			t.Errorf("by %d: %d ids: %v", limit, len(ids), ids)
		}
	}

	// What is done to an entry is done where it is; the audit tells of both.
	in := strings.Replace(fakeID(5), "c1", "c2", 1)
	before := eu.state()
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/" + in + "/discard", body: `{"reason": "twice"}`}); w.Code != http.StatusOK || eu.state() != before || len(us.entries) != 24 {
		t.Errorf("%d %s; %d entries are left there", w.Code, w.Body, len(us.entries))
	}
	if d := read[ops.Detail](t, c, "/api/v1/entries/"+fakeID(3)); d.Log != "eu" {
		t.Errorf("the entry is of the log %q", d.Log)
	}
	if w := ask4(t, c, request{method: "GET", path: "/api/v1/entries/" + in}); w.Code != http.StatusNotFound {
		t.Errorf("what is gone: %d", w.Code)
	}

	// A bulk action is done in one log, or not at all.
	before, other := eu.state(), us.state()
	bulk := func(base string, n int) int {
		return ask4(t, c, request{method: "POST", path: base + "/api/v1/entries/bulk", body: fmt.Sprintf(`{"filter": {"state": "parked"}, "action": "retry", "count": %d}`, n)}).Code
	}
	if code := bulk("", 45); code != http.StatusConflict || eu.state() != before || us.state() != other {
		t.Errorf("on two logs at once: %d", code)
	}
	if code := bulk("/logs/eu", 23); code != http.StatusOK || us.state() != other {
		t.Errorf("on one: %d", code)
	}
	if code := bulk("", 22); code != http.StatusOK {
		t.Errorf("on the one that holds what the filter matches: %d", code)
	}

	// A data source is paused for all of them.
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/data-sources/orders/pause", body: `{}`}); w.Code != http.StatusOK || !eu.paused["orders"] || !us.paused["orders"] {
		t.Errorf("pause: %d %s", w.Code, w.Body)
	}
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/data-sources/nowhere/pause", body: `{}`}); w.Code != http.StatusNotFound {
		t.Errorf("of a data source that no log knows: %d", w.Code)
	}
	logs := map[string]bool{}
	for _, r := range read[ops.Audit](t, c, "/api/v1/audit?limit=1000").Records {
		logs[r.Log] = true
	}
	if len(logs) != 2 {
		t.Errorf("the audit tells of %v", logs)
	}
}

func TestALogThatIsDownIsNamedAndTheOthersAreShown(t *testing.T) {
	t.Parallel()
	c, _, us := twoLogs(t, Config{})
	us.mu.Lock()
	us.err = errors.New("down")
	us.mu.Unlock()
	w := ask4(t, c, request{method: "GET", path: "/"})
	if text := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(text, "The log us/1 cannot be reached") || !strings.Contains(text, "orders") {
		t.Errorf("%d %s", w.Code, text)
	}
	if o := read[ops.Overview](t, c, "/api/v1/overview"); !slices.Equal(o.UnreachableLogs, []string{"us/1"}) {
		t.Errorf("unreachable are %v", o.UnreachableLogs)
	}
	for path, want := range map[string]int{"/readyz": 503, "/logs/us%2F1/readyz": 503, "/logs/eu/readyz": 200, "/entries": 503, "/logs/eu/entries": 200, "/api/v1/entries/" + fakeID(3): 200, "/api/v1/entries/" + fakeID(99): 503} {
		if code := ask4(t, c, request{method: "GET", path: path}).Code; code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	if err := together(nil).Ping(context.Background()); err != nil {
		t.Error(err)
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
