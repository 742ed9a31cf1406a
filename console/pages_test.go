package console

import (
	"encoding/json"
	"errors"
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

// links are a page's links within the console.
func links(body string) (all []string) {
	for _, m := range link.FindAllStringSubmatch(body, -1) {
		if to := html.UnescapeString(m[1]); strings.HasPrefix(to, "/") {
			all = append(all, to)
		}
	}
	return all
}

func TestPlainLinksLeadToEveryEntry(t *testing.T) {
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
			// One way to each entry is enough; pages that ask before an action lead to no new ones.
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

// A list appears at once, regardless of the number of errors to group. A browser asks again for an
// unfinished grouping; without scripts a link leads to it.
func TestListDoesNotWaitForErrorCounts(t *testing.T) {
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
	f.entries[1].Attempts = []ops.Attempt{{At: fakeNow, Origin: hostileError, Class: hostileError, Err: hostileError}}
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

func TestOnlyTheEntryIsRevealedAndAudited(t *testing.T) {
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

func TestOddInputIsAHarmlessClientError(t *testing.T) {
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

func TestALimitAbove1000IsRefusedInClearWords(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for _, path := range []string{"/api/v1/entries?limit=1001", "/api/v1/entries?limit=99999999", "/api/v1/audit?limit=1001"} {
		if w := get(t, c, path); w.Code != 400 || !strings.Contains(w.Body.String(), "limit is a number from 1 to 1000") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestHugeNumbersAreClamped(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for _, path := range []string{
		"/api/v1/entries?olderThan=99999999999999999999d", "/api/v1/entries?olderThan=18446744073709551615",
		"/api/v1/overview?hours=99999999999999999999", "/api/v1/entries?limit=1000", "/api/v1/audit?limit=1000", "/?hours=99999999999999999999",
	} {
		if w := get(t, c, path); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestBulkActionAppliesOnlyToWhatWasCounted(t *testing.T) {
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

func TestPageSaysWhetherAReasonIsRequired(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	entry, group := "/entries/"+fakeID(5), "/transactions/"+fakeID(4)
	for path, a := range map[string]ops.Action{
		entry + "/retry": ops.Retry, entry + "/park": ops.Park, entry + "/discard": ops.Discard, entry + "/skip": ops.Skip, group + "/compensate": ops.Compensate,
	} {
		required := ops.By{Who: "vera"}.Check(a) != nil
		if w := ask4(t, c, request{path: path}); w.Code != 200 || strings.Contains(w.Body.String(), "(required)") != required {
			t.Errorf("%s: required is %v: %d %s", path, required, w.Code, w.Body)
		}
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
	if len(cookies) != 1 || !strings.Contains(w.Body.String(), "待人工处理") {
		t.Fatalf("cookies %v", cookies)
	}
	w = ask4(t, c, request{path: "/entries?state=parked", header: map[string]string{"Cookie": cookies[0].Name + "=" + cookies[0].Value, "Accept-Language": "en"}})
	if body := w.Body.String(); !strings.Contains(body, "待人工处理") || !slices.Contains(links(body), "/entries?state=parked&lang=en") {
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
	for path, want := range map[string]int{"/": 200, "/entries": 200, "/bedside": 404, "/bed2/entries": 404, "/bed//entries": 200} { // a proxy may take it off
		if w := get(t, c, path); w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	w := ask4(t, c, request{method: "POST", path: "/bed/entries/" + fakeID(5) + "/retry", body: "reason="})
	if to := w.Header().Get("Location"); !strings.HasPrefix(to, "/bed/entries/") {
		t.Errorf("after an action it leads to %q", to)
	}
}

func TestLivePageHearsOfEachChange(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	page, leave, ok := c.events.listen("ann")
	if !ok {
		t.Fatal("there is no room")
	}
	defer leave()
	wait := func(what string) {
		t.Helper()
		select {
		case <-page.changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody heard of %s", what)
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

func TestAPageHearsWhetherTheLogAnswers(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	c := open(t, s)
	page, leave, ok := c.events.listen("ann")
	if !ok {
		t.Fatal("there is no room")
	}
	defer leave()
	hear := func(want bool) {
		t.Helper()
		for late := time.After(20 * time.Second); ; {
			select {
			case up := <-page.pulse:
				if up == want {
					return
				}
			case <-late:
				t.Fatalf("nobody hears that the log answers: %v", want)
			}
		}
	}
	for _, fault := range []error{nil, errors.New("gone"), nil} {
		s.mu.Lock()
		s.err = fault
		s.mu.Unlock()
		hear(fault == nil)
	}
	s.mu.Lock() // it hangs
	hear(false)
	s.mu.Unlock()
	hear(true)
}

func TestOneUserCannotHoldAllStreams(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for i := range maxStreams {
		_, leave, ok := c.events.listen("greedy")
		if !ok {
			if i < 10 {
				t.Errorf("only %d streams for one user", i)
			}
			break
		}
		defer leave()
	}
	_, leave, ok := c.events.listen("ann")
	if !ok {
		t.Fatal("one user holds all streams")
	}
	leave()
}

func TestFailedPageIsLoadedAgain(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	s.err = errors.New("gone")
	c := open(t, s)
	if w := get(t, c, "/entries"); w.Code != 503 || !strings.Contains(w.Body.String(), "data-again") {
		t.Errorf("%d: the page would stay when the log is back", w.Code)
	}
	if w := ask4(t, c, request{method: "POST", path: "/entries/" + fakeID(5) + "/retry", body: "reason="}); strings.Contains(w.Body.String(), "data-again") {
		t.Error("what happened to an action would not stay")
	}
	if w := get(t, c, "/nothing"); strings.Contains(w.Body.String(), "data-again") {
		t.Error("a page that is not there is looked for again")
	}
}

func TestForgedAddressRevealsNothing(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	for _, query := range []string{"done=discard&n=99999", "done=retry&n=1", "done=000000", "done=zzz", "done=pause"} {
		if body := get(t, c, "/entries?"+query).Body.String(); strings.Contains(body, "flash ok") {
			t.Errorf("?%s is believed", query)
		}
	}
	w := ask4(t, c, request{method: "POST", path: "/entries/" + fakeID(5) + "/retry", body: "reason="})
	if body := get(t, c, w.Header().Get("Location")).Body.String(); !strings.Contains(body, "1 entry made due now.") {
		t.Errorf("%s does not say what was done", w.Header().Get("Location"))
	}
}

func TestRetryIsNotReportedAboveAnEntryThatWasParkedAgain(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	c := open(t, f)
	to := ask4(t, c, request{method: "POST", path: "/entries/" + fakeID(5) + "/retry", body: "reason="}).Header().Get("Location")
	const done = `class="flash ok retry" role="status">1 entry made due now.`
	if body := get(t, c, to).Body.String(); !strings.Contains(body, done) {
		t.Errorf("%s does not say what was done", to)
	}
	f.entries[slices.IndexFunc(f.entries, func(d *ops.Detail) bool { return d.ID == fakeID(5) })].State = ops.Parked
	if body := get(t, c, to).Body.String(); strings.Contains(body, "made due now") || !strings.Contains(body, `class="state parked"`) {
		t.Errorf("%s still reports the retry", to)
	}
}

func TestEntryPageSaysWhenItIsDue(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	body := get(t, c, "/entries/"+fakeID(3)).Body.String()
	if _, next, _ := strings.Cut(body, "The job delivers it at"); !strings.Contains(next[:min(len(next), 100)], `datetime="`+fakeNow.Add(time.Minute).Format("2006-01-02T15:04:05")) {
		t.Errorf("the page says %.200q", next)
	}
}

func TestOnlyWhatCanBeDoneIsOffered(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{Users: people})
	entry := "/entries/" + fakeID(5)
	at := slices.IndexFunc(f.entries, func(d *ops.Detail) bool { return d.ID == fakeID(5) })
	for _, s := range []struct {
		path, who, link string
		state           ops.State
		offered         bool
	}{
		{entry, "otto", entry + "/park", ops.Waiting, true},
		{entry, "otto", entry + "/park", ops.Parked, false},
		{entry, "otto", entry + "/retry", ops.Parked, true},
		{entry, "rita", entry + "/retry", ops.Parked, false},
		{"/", "otto", "/data-sources/orders/pause", ops.Parked, true},
		{"/", "rita", "/data-sources/orders/pause", ops.Parked, false},
	} {
		f.entries[at].State = s.state
		if got := slices.Contains(links(ask4(t, c, request{path: s.path, as: s.who}).Body.String()), s.link); got != s.offered {
			t.Errorf("%s of a %s entry as %s: %s is offered: %v", s.path, s.state, s.who, s.link, got)
		}
	}
}

func TestAGroupIsShownAndTurnedBackAsAWhole(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{Users: people})
	d := f.entries[slices.IndexFunc(f.entries, func(d *ops.Detail) bool { return d.ID == fakeID(5) })]
	d.Cause, d.TransactionID, d.Statements[0].Compensates = "sold out <b>", fakeID(4), "stock"
	entry := "/entries/" + fakeID(5)
	for _, s := range []struct {
		group      ops.GroupState
		says       string
		compensate bool
	}{
		{ops.GroupPart, "part of a compensable group", true},
		{ops.GroupRecorded, "compensation of its group, not started", true},
		{ops.GroupCompensating, "is being compensated", false},
		{ops.GroupHalfCompensated, "half compensated", false},
	} {
		d.Group = s.group
		body := ask4(t, c, request{path: entry, as: "otto"}).Body.String()
		if !strings.Contains(body, s.says) || !strings.Contains(body, "sold out &lt;b&gt;") || !strings.Contains(body, "Compensates the part on stock") {
			t.Errorf("the page of a %s entry lacks what it is, or why", s.group)
		}
		all := links(body)
		if slices.Contains(all, "/transactions/"+fakeID(4)+"/compensate") != s.compensate || slices.Contains(all, entry+"/discard") == s.compensate || slices.Contains(all, entry+"/amend?statement=1") {
			t.Errorf("the page of a %s entry offers %v", s.group, all)
		}
	}
	for _, path := range []string{"/", "/entries"} {
		if body := ask4(t, c, request{path: path, as: "rita"}).Body.String(); !strings.Contains(body, "half compensated") {
			t.Errorf("%s does not say that a group is half compensated", path)
		}
	}
}

func TestEntryLeadsToNextOfItsKind(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	kind := "?kind=" + url.QueryEscape("Error 1205 (HY000): Lock wait timeout exceeded")
	page := links(get(t, c, "/entries/"+fakeID(5)).Body.String())
	for _, to := range []string{"/entries" + kind, "/entries/" + fakeID(5) + "/next" + kind, "/entries"} {
		if !slices.ContainsFunc(page, func(l string) bool { return l == to }) {
			t.Errorf("no link to %s in %q", to, page)
		}
	}
	for from, want := range map[string]string{
		fakeID(5) + "/next" + kind: "/entries/" + fakeID(6), fakeID(0) + "/next" + kind: "/entries/" + fakeID(2), // 1 has another error
		fakeID(24) + "/next" + kind: "/entries" + kind, fakeID(5) + "/next": "/entries",
	} {
		if w := get(t, c, "/entries/"+from); w.Code != http.StatusSeeOther || w.Header().Get("Location") != want {
			t.Errorf("%s: %d to %s, want %s", from, w.Code, w.Header().Get("Location"), want)
		}
	}
	// After a discard the next entry appears, with a note on the discard.
	w := ask4(t, c, request{method: "POST", path: "/entries/" + fakeID(5) + "/discard" + kind, body: url.Values{"reason": {"twice"}}.Encode()})
	w = get(t, c, w.Header().Get("Location"))
	if to := w.Header().Get("Location"); !strings.HasPrefix(to, "/entries/"+fakeID(6)+"?done=") || !strings.Contains(get(t, c, to).Body.String(), "1 entry discarded.") {
		t.Errorf("after a discard: %d to %s", w.Code, to)
	}
	if all := links(get(t, c, "/entries").Body.String()); !slices.ContainsFunc(all, func(l string) bool { return strings.HasPrefix(l, "/bulk/retry?kind=") }) {
		t.Errorf("no kind can be retried from the list: %q", all)
	}
}

func TestKindsBeyondTwelveAreCountedAndReached(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{})
	f.mu.Lock()
	for i, d := range f.entries {
		d.LastError = fmt.Sprintf("Error 1146 (42S02): Table 'shop.t%02d' doesn't exist", i%20)
	}
	f.mu.Unlock()
	page := get(t, c, "/entries").Body.String()
	if !strings.Contains(page, `<a id="morekinds" href="/entries?kinds=every">`) || !strings.Contains(page, "of 8 further kinds") || strings.Count(page, `class="retry"`) != 12 {
		t.Error("twelve of twenty kinds are not what the page shows")
	}
	every := get(t, c, "/entries?kinds=every").Body.String()
	if strings.Count(every, `class="retry"`) != 20 || strings.Contains(every, "further kinds") || !strings.Contains(every, `hx-get="/entries?kinds=every"`) {
		t.Error("the page of all kinds has not twenty")
	}
	if ask := get(t, c, "/bulk/discard").Body.String(); !strings.Contains(ask, "of 8 further kinds") {
		t.Error("a question leaves them out")
	}
}
