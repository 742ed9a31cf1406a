package console

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// formOf returns the fields of the form on a page.
func formOf(t *testing.T, c http.Handler, path string) url.Values {
	t.Helper()
	w := ask4(t, c, request{path: path})
	form := url.Values{"reason": {"outage"}}
	for _, m := range hidden.FindAllStringSubmatch(w.Body.String(), -1) {
		form.Set(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `id="counted"`) || form.Get("until") == "" {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return form
}

// Every few milliseconds a write fails, while an operator confirms the counted ones.
func TestBulkActionsSucceedWhileFailuresArrive(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		c, err := New(log, nil, Config{Listen: listen, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		counted := func(filter string) (n struct {
			Count int
			Until string
		}) {
			t.Helper()
			w := ask4(t, c, request{path: "/api/v1/entries/count?" + filter})
			if err := json.Unmarshal(w.Body.Bytes(), &n); err != nil || n.Until == "" {
				t.Fatalf("%d %s %v", w.Code, w.Body, err)
			}
			return n
		}
		ctx, stop := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		var mu sync.Mutex
		written := 0
		for range 3 {
			writers.Go(func() {
				for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C { // 150 a second
					u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
					if err := log.Add(t.Context(), time.Minute, u); err != nil {
						t.Error(err)
					}
					if err := log.Release(t.Context(), u, entry.Verdict{Park: true, Err: "Error 1205 (HY000): Lock wait timeout exceeded"}); err != nil {
						t.Error(err)
					}
					mu.Lock()
					written++
					mu.Unlock()
				}
			})
		}
		arrive := func() {
			mu.Lock()
			until := written + 20
			mu.Unlock()
			for n := 0; n < until; time.Sleep(time.Millisecond) {
				mu.Lock()
				n = written
				mu.Unlock()
			}
		}
		arrive()
		discarded := 0
		for _, filter := range []string{"state=parked", "dataSource=orders", "text=Lock+wait", "olderThan=0"} {
			form := formOf(t, c, "/bulk/discard?"+filter)
			arrive()
			w := ask4(t, c, request{method: "POST", path: "/bulk/discard", body: form.Encode()})
			var n int
			_, _ = fmt.Sscan(form.Get("count"), &n)
			if w.Code != http.StatusSeeOther || n == 0 {
				t.Errorf("by form, of %d counted: %d", n, w.Code)
			} else if page := get(t, c, w.Header().Get("Location")).Body.String(); !strings.Contains(page, languages[0].entries(n)+" discarded.") {
				t.Errorf("by form, of %d counted: the page does not say so", n)
			}
			discarded += n

			arrive()
			frozen := counted(filter)
			arrive()
			fields, _ := url.ParseQuery(filter)
			object := map[string]string{}
			for name := range fields {
				object[name] = fields.Get(name)
			}
			body, _ := json.Marshal(map[string]any{"filter": object, "action": "discard", "count": frozen.Count, "until": frozen.Until, "reason": "outage"})
			var did done
			w = ask4(t, c, request{method: "POST", path: "/api/v1/entries/bulk", body: string(body)})
			if err := json.Unmarshal(w.Body.Bytes(), &did); err != nil || w.Code != http.StatusOK || did != (done{ops.Discard, frozen.Count, 0, 0}) || frozen.Count == 0 {
				t.Errorf("by the API, of %d counted: %d %s", frozen.Count, w.Code, w.Body)
			}
			discarded += frozen.Count
		}
		stop()
		writers.Wait()
		if left := counted("").Count; left != written-discarded {
			t.Errorf("%d are left, want %d", left, written-discarded)
		}
	})
}

func TestAConfirmationIsForWhatWasCounted(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{})
	form := formOf(t, c, "/bulk/retry?state=parked")
	f.mu.Lock()
	for _, d := range f.entries {
		if d.State == ops.Leased {
			d.State = ops.Parked // it was under way at the count
		}
	}
	gone := *f.entries[0]
	f.entries = f.entries[1:]
	f.entries = append(f.entries, &gone)
	gone.ID = fakeID(99) // one is delivered, another arrives
	f.mu.Unlock()
	before := f.state()
	post := func(form url.Values) int {
		return ask4(t, c, request{method: "POST", path: "/bulk/retry", body: form.Encode()}).Code
	}
	for name, value := range map[string]string{"until": "2020-01-01T00:00:00Z", "count": "22", "state": "waiting", "dataSource": "orders", "olderThan": "5m"} {
		other := url.Values{}
		for field := range form {
			other.Set(field, form.Get(field))
		}
		other.Set(name, value)
		if code := post(other); code != http.StatusConflict || f.state() != before {
			t.Errorf("with another %s: %d", name, code)
		}
	}
	w := ask4(t, c, request{method: "POST", path: "/bulk/retry", body: form.Encode()})
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || !strings.HasPrefix(to, "/entries?state=parked&follow=") {
		t.Errorf("%d, to %s", w.Code, to)
	}
	if page := ask4(t, c, request{path: w.Header().Get("Location")}).Body.String(); !strings.Contains(page, "22 entries made due now. 1 entry gone: delivered or discarded since they were counted.") {
		t.Errorf("the page says %s", page)
	}
	left := 0
	for _, d := range f.entries {
		if d.State == ops.Parked {
			left++
		}
	}
	if left != 2 {
		t.Errorf("%d are parked, want the one that was under way and the one that arrived", left)
	}
	// If all counted entries are being delivered, no action is offered.
	if page := ask4(t, c, request{path: "/bulk/retry?state=leased"}).Body.String(); !strings.Contains(page, "cannot be changed") || strings.Contains(page, `id="confirm"`) {
		t.Errorf("of leased ones: %s", page)
	}
}

func TestWhatWasCountedIsForgottenOldestFirst(t *testing.T) {
	t.Parallel()
	c := &counted{}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var untils []string
	for range 3 {
		untils = append(untils, c.keep(&ops.Selection{At: at, IDs: make([]string, countedIDs/2)}))
	}
	for i, until := range untils {
		if _, err := c.find(until, ops.Filter{}); (err == nil) != (i > 0) {
			t.Errorf("%s: %v", until, err)
		}
	}
}
