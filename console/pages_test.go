package console

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

var link = regexp.MustCompile(`<a\b[^>]*?\bhref="([^"]*)"`)

// links are those of a page that stay in the console.
func links(body string) (all []string) {
	for _, m := range link.FindAllStringSubmatch(body, -1) {
		if to := html.UnescapeString(m[1]); strings.HasPrefix(to, "/") {
			all = append(all, to)
		}
	}
	return all
}

func TestPlainLinksLeadFromTheFirstPageToEveryEntry(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	for i := 25; i < 180; i++ { // more than a page holds
		d := *f.entries[10]
		d.ID, d.TransactionID = fakeID(i), fakeID(i)
		f.entries = append(f.entries, &d)
	}
	c, before := open(t, f), f.state()
	seen, queue := map[string]bool{"/": true}, []string{"/"}
	for len(queue) > 0 && len(seen) < 2000 {
		at := queue[0]
		queue = queue[1:]
		w := get(t, c, at)
		if w.Code != 200 {
			t.Errorf("%s: %d", at, w.Code)
		}
		for _, to := range links(w.Body.String()) {
			u, err := url.Parse(to)
			if err != nil {
				t.Fatal(err)
			}
			// One way to each entry is enough; what asks before an action leads nowhere new.
			if u.Query().Has("kind") || u.Query().Has("lang") || u.Query().Has("hours") || strings.HasPrefix(u.Path, "/bulk") || seen[to] {
				continue
			}
			seen[to] = true
			queue = append(queue, to)
		}
	}
	for _, d := range f.entries {
		if !seen["/entries/"+d.ID] {
			t.Errorf("no link leads to %s", d.ID)
		}
	}
	if f.state() != before {
		t.Error("following links changed something")
	}
}

// A list is there at once, however many errors there are to group. A browser asks
// again for what was not ready, and without scripts a link leads there.
func TestAListDoesNotWaitForTheErrorsOfALargeLog(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	f.grouping = make(chan struct{})
	c := open(t, f)
	const kind, all = `Lock wait timeout exceeded <span class="quiet">on orders</span>`, "/entries?state=parked&kinds=all"
	early := get(t, c, "/entries?state=parked").Body.String()
	if !strings.Contains(early, fakeID(0)) || strings.Contains(early, kind) {
		t.Errorf("the list waited for the kinds of errors, or lacks its entries:\n%s", early)
	}
	if !slices.Contains(links(early), all) {
		t.Errorf("no link leads to %s but to %q", all, links(early))
	}
	if want := `hx-trigger="load, bed:changed from:body"`; !strings.Contains(early, want) {
		t.Errorf("a browser does not ask again: there is no %s", want)
	}
	close(f.grouping)
	late := get(t, c, all).Body.String()
	if !strings.Contains(late, kind) || strings.Contains(late, `hx-trigger="load`) {
		t.Errorf("all kinds of errors are asked for and not there:\n%s", late)
	}
}

func TestHostileSQLAndErrorsStayText(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	f.trial.Error = hostileError
	f.entries[1].NotReplayable, f.entries[1].Unreadable, f.entries[1].Settings = hostileError, hostileError, hostileError
	f.entries[1].Attempts = []ops.Attempt{{Time: fakeNow, Origin: hostileError, Class: hostileError, Error: hostileError}}
	f.audit = []ops.Record{{ID: "1", Who: hostileError, Action: ops.Action(hostileError), What: hostileSQL, Reason: hostileSQL}}
	c := open(t, f)
	for _, q := range []request{
		{path: "/"}, {path: "/entries"}, {path: "/entries?text=" + url.QueryEscape("<script>")}, {path: "/entries/" + fakeID(1)}, {path: "/audit"},
		{path: "/entries/" + fakeID(1) + "/discard"}, {path: "/bulk/retry?text=" + url.QueryEscape("<script>alert")},
		{path: "/entries/" + fakeID(1) + "/try", method: "POST", body: "x=1"}, {path: "/entries/" + fakeID(1) + "/reveal", method: "POST", body: "x=1"},
		{path: "/%3Cscript%3Ealert(1)%3C/script%3E"}, {path: "/entries?lang=%22%3E%3Cscript%3E"}, {path: "/?done=%3Cscript%3E&n=%3Cscript%3E"},
		{path: "/data-sources/%3Cscript%3Ealert(1)%3C%2Fscript%3E/pause"}, {path: "/entries?state=%3Cscript%3E"},
	} {
		body := ask4(t, c, q).Body.String()
		for _, bad := range []string{"<script>alert", "<img", "\u202e", "\x1b", "onerror=alert(2)>"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s holds %q", q.path, bad)
			}
		}
		if n := strings.Count(body, "<script"); n > 3 || strings.Count(body, "<script defer src=") != n {
			t.Errorf("%s has a script that is not ours", q.path)
		}
		if inline := regexp.MustCompile(`<[^>]* (?:style|on\w+)=`).FindString(body); inline != "" {
			t.Errorf("%s has %s, which the policy refuses", q.path, inline)
		}
	}
}

func TestNothingButTheEntryItselfIsRevealedAndThatIsAudited(t *testing.T) {
	t.Parallel()
	c, _ := stage(t, Config{Users: people})
	for _, s := range samples() {
		if s.role == Reveal || s.path == "/events" {
			continue
		}
		q := s.request()
		q.as = "vera"
		if w := ask4(t, c, q); strings.Contains(w.Body.String(), secretValue) || strings.Contains(w.Body.String(), bigValue) {
			t.Errorf("%s %s shows a value", s.method(), s.path)
		}
	}
	f := newFakeStore()
	c = made(t, f, Config{Listen: listen, Users: people, Logger: quiet()})
	for i, path := range []string{"/api/v1/entries/" + fakeID(5) + "?reveal=true", "/entries/" + fakeID(5) + "/reveal"} {
		q := request{path: path, as: "vera", method: map[int]string{1: "POST"}[i]}
		body := ask4(t, c, q).Body.String()
		if !strings.Contains(body, secretValue) || !strings.Contains(body, bigValue) {
			t.Errorf("%s does not show the values: %s", path, body)
		}
		if r := f.audit[0]; len(f.audit) != i+1 || r.Who != "vera" || r.Action != ops.Reveal || r.What != fakeID(5) {
			t.Errorf("the audit has %+v", f.audit)
		}
	}
	var got struct {
		Statements []struct{ Parameters []struct{ Value any } }
	}
	w := ask4(t, c, request{path: "/api/v1/entries/" + fakeID(5) + "?reveal=true", as: "vera"})
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Statements[0].Parameters[1].Value != bigValue {
		t.Errorf("the uint64 is %v, %v", got, err)
	}
}

func TestOddInputIsTheClientsMistakeAndChangesNothing(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("9", 400)
	entry := "/api/v1/entries/" + fakeID(5)
	for _, q := range []request{
		{path: "/api/v1/entries?limit=0"}, {path: "/api/v1/entries?limit=-1"}, {path: "/api/v1/entries?limit=x"}, {path: "/api/v1/entries?limit=1e3"},
		{path: "/api/v1/entries?state=gone"}, {path: "/api/v1/entries?olderThan=x"}, {path: "/api/v1/entries?olderThan=-5m"}, {path: "/api/v1/entries?after=%00"},
		{path: "/api/v1/entries?after=" + huge}, {path: "/api/v1/entries?text=" + strings.Repeat("a", 5000)}, {path: "/api/v1/entries?text=%ff"},
		{path: "/api/v1/entries?page=99999999999999999999"}, {path: "/api/v1/entries?state=parked&state=waiting"}, {path: "/api/v1/entries?text=%zz"},
		{path: "/api/v1/overview?hours=x"}, {path: "/entries?state=gone"}, {path: "/entries?limit=-5"}, {path: "/entries?olderThan=%00"},
		{path: "/api/v1/entries/" + huge}, {path: "/api/v1/entries/..%2f..%2fetc"}, {path: "/api/v1/entries/%00"}, {path: "/entries/%F0%9F%92%A9"}, {path: "/entries/';DROP TABLE x"[:10] + "%27"},
		{method: "POST", path: entry + "/explode"}, {method: "POST", path: entry + "/discard", body: `{}`}, {method: "POST", path: entry + "/discard", body: `{"reason": " \n "}`},
		{method: "POST", path: entry + "/retry", body: `{"reason": 5}`}, {method: "POST", path: entry + "/retry", body: `{"raeson": "x"}`}, {method: "POST", path: entry + "/retry", body: `[]`},
		{method: "POST", path: entry + "/retry", body: `{} {}`}, {method: "POST", path: entry + "/retry", body: `{`}, {method: "POST", path: entry + "/retry", body: `{"reason": "` + strings.Repeat("x", 2000) + `"}`},
		{method: "POST", path: entry + "/retry", body: `{"reason": "` + strings.Repeat("x", 100_000) + `"}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: ``}, {method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "retry"}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "reveal", "count": 25}`}, {method: "POST", path: "/api/v1/entries/bulk", body: `{"action": "retry", "count": 25}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {"sate": "parked"}, "action": "retry", "count": 25}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {"state": "parked"}, "action": "discard", "count": 23}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "retry", "count": -1}`}, {method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "retry", "count": 1.5}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "retry", "count": ` + huge + `}`}, {method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "retry", "count": 100001}`},
		{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {}, "action": "park", "count": 25}`}, // one of them is being delivered
		{method: "POST", path: "/api/v1/data-sources/nowhere/pause"}, {method: "POST", path: "/api/v1/data-sources/orders/explode"}, {method: "POST", path: "/api/v1/data-sources/orders/limit"},
		{method: "POST", path: "/api/v1/data-sources/orders/limit", body: `{"perSecond": -1}`}, {method: "POST", path: "/api/v1/data-sources/orders/limit", body: `{"perSecond": 18446744073709551616}`},
		{method: "POST", path: "/api/v1/data-sources/%00/pause"}, {method: "POST", path: "/api/v1/data-sources/%ff/pause"},
		{method: "POST", path: "/api/v1/entries/" + fakeID(2) + "/retry"}, {method: "POST", path: "/api/v1/entries/" + fakeID(999) + "/retry"},
		{method: "DELETE", path: entry}, {method: "PUT", path: entry + "/retry"}, {method: "POST", path: "/api/v1/overview"}, {method: "POST", path: "/"}, {method: "TRACE", path: "/"},
		{method: "POST", path: "/bulk/retry", body: "count=x"}, {method: "POST", path: "/bulk/retry", body: "state=parked&count=" + huge}, {method: "POST", path: "/bulk/explode", body: "count=1"},
		{method: "POST", path: "/entries/" + fakeID(5) + "/discard", body: "reason="}, {method: "POST", path: "/entries/" + fakeID(5) + "/discard", body: "reason=%zz"},
		{method: "POST", path: "/entries/" + fakeID(5) + "/discard?reason=by-address"}, {method: "POST", path: "/data-sources/orders/limit", body: "perSecond=x"},
		{path: "/data-sources/orders/explode"}, {path: "/bulk/explode"}, {path: "/entries/" + fakeID(5) + "/explode"}, {path: "/audit?limit=x"}, {path: "/api/v1/audit?limit=0"}, {path: "/api/v1/audit?page=2"},
	} {
		c, f := stage(t, Config{})
		before := f.state()
		w := ask4(t, c, q)
		if w.Code < 400 || w.Code > 499 {
			t.Errorf("%s %s %.80s: %d", q.method, q.path, q.body, w.Code)
		}
		if f.state() != before {
			t.Errorf("%s %s %.80s changed something", q.method, q.path, q.body)
		}
	}
}

func TestHugeNumbersAreClamped(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for _, path := range []string{
		"/api/v1/entries?limit=99999999999999999999999", "/api/v1/entries?olderThan=99999999999999999999d", "/api/v1/entries?olderThan=18446744073709551615",
		"/api/v1/overview?hours=99999999999999999999", "/entries?limit=99999999999999999999", "/api/v1/audit?limit=99999999999999999999", "/?hours=99999999999999999999",
	} {
		if w := get(t, c, path); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestABulkActionIsTakenOnlyForExactlyWhatWasCounted(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{})
	before := f.state()
	for _, count := range []string{"22", "24", "0", "\"24\""} {
		w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {"state": "parked"}, "action": "retry", "count": ` + count + `}`})
		if w.Code != http.StatusConflict || f.state() != before {
			t.Errorf("%s counted: %d %s", count, w.Code, w.Body)
		}
	}
	if w := ask4(t, c, request{method: "POST", path: "/bulk/retry", body: "state=parked&count=22"}); w.Code != http.StatusConflict || f.state() != before || !strings.Contains(w.Body.String(), "23 entries") {
		t.Errorf("a form that counted wrong: %d %s", w.Code, w.Body)
	}
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/bulk", body: `{"filter": {"state": "parked"}, "action": "retry", "count": "23", "reason": "outage"}`}); w.Code != 200 {
		t.Errorf("counted right: %d %s", w.Code, w.Body)
	}
	if r := f.audit[0]; r.Who != "local" || r.Action != ops.Retry || r.Count != 23 || r.Reason != "outage" {
		t.Errorf("the audit has %+v", r)
	}
}

func TestTheLanguageIsChosenAndKept(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	if body := ask4(t, c, request{path: "/", header: map[string]string{"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}}).Body.String(); !strings.Contains(body, `<html lang="zh">`) || !strings.Contains(body, "概览") {
		t.Error("a Chinese browser is not answered in Chinese")
	}
	w := get(t, c, "/entries?state=parked&lang=zh")
	cookies := w.Result().Cookies()
	if len(cookies) != 1 || !strings.Contains(w.Body.String(), "已搁置") {
		t.Fatalf("cookies %v", cookies)
	}
	w = ask4(t, c, request{path: "/entries?state=parked", header: map[string]string{"Cookie": cookies[0].Name + "=" + cookies[0].Value, "Accept-Language": "en"}})
	if body := w.Body.String(); !strings.Contains(body, "已搁置") || !slices.Contains(links(body), "/entries?state=parked&lang=en") {
		t.Error("the choice is not kept, or there is no way back")
	}
}

func TestAConsoleMountedBelowAPathLinksThere(t *testing.T) {
	t.Parallel()
	c := made(t, newFakeStore(), Config{Listen: listen, BasePath: "/bed", Logger: quiet()})
	for _, path := range []string{"/bed", "/bed/", "/bed/entries", "/bed/entries/" + fakeID(3), "/bed/data-sources/127.0.0.1:3306%2Fledger/limit", "/bed/audit", "/bed/api/v1/overview"} {
		w := get(t, c, path)
		if w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
		for _, to := range links(w.Body.String()) {
			if !strings.HasPrefix(to, "/bed/") {
				t.Errorf("%s links to %s", path, to)
			}
		}
	}
	for _, path := range []string{"/", "/entries", "/bedside", "/bed2/entries"} {
		if w := get(t, c, path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	w := ask4(t, c, request{method: "POST", path: "/bed/entries/" + fakeID(5) + "/retry", body: "reason="})
	if to := w.Header().Get("Location"); !strings.HasPrefix(to, "/bed/entries/") {
		t.Errorf("after an action it leads to %q", to)
	}
}

func TestAPageThatFollowsIsToldOfEachChange(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	told, leave, ok := c.events.listen()
	if !ok {
		t.Fatal("there is no room")
	}
	defer leave()
	wait := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody was told of %s", what)
		}
	}
	wait("the beginning")
	for i := 5; i < 8; i++ {
		if w := ask4(t, c, request{method: "POST", path: fmt.Sprintf("/api/v1/entries/%s/retry", fakeID(i))}); w.Code != 200 {
			t.Fatal(w.Body)
		}
		wait("a retry")
	}
}

func TestSQLIsLaidOutWithoutChangingMoreThanBlanks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"UPDATE orders SET paid = ? WHERE id = ? AND x IN (SELECT y FROM z WHERE 1=1)": "UPDATE orders\nSET paid = ?\nWHERE id = ?\n  AND x IN (SELECT y FROM z WHERE 1=1)",
		"INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE a = 1":                   "INSERT INTO t (a)\nVALUES (1)\nON DUPLICATE KEY UPDATE a = 1",
		"INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2 RETURNING a":     "INSERT INTO t\nVALUES (1)\nON CONFLICT (a) DO UPDATE SET a = 2\nRETURNING a",
		"DELETE\nFROM t":           "DELETE\nFROM t",
		"x 'not closed FROM":       "x 'not closed FROM",
		"DELETE FROM t -- WHERE a": "DELETE\nFROM t -- WHERE a",
	} {
		pieces, laid := layOut(text)
		var got strings.Builder
		for _, p := range pieces {
			got.WriteString(p.Text)
		}
		if got.String() != want || laid != (text != want) {
			t.Errorf("got  %q, %v\nwant %q", got.String(), laid, want)
		}
		if a, b := strings.Fields(got.String()), strings.Fields(text); !slices.Equal(a, b) {
			t.Errorf("%q lost something", text)
		}
	}
}
