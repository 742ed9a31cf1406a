package console

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

var (
	listed   = regexp.MustCompile(`id="e-([^"]+)"`)
	relation = regexp.MustCompile(`id="(next|previous|first|order)"[^>]* href="([^"]*)"`)
)

// walk returns the ids on a list's page, and its links.
func walk(t *testing.T, c *Console, path string) (ids []string, to map[string]string) {
	t.Helper()
	w := get(t, c, path)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %.300s", path, w.Code, w.Body)
	}
	for _, m := range listed.FindAllStringSubmatch(w.Body.String(), -1) {
		ids = append(ids, m[1])
	}
	to = map[string]string{}
	for _, m := range relation.FindAllStringSubmatch(w.Body.String(), -1) {
		to[m[1]] = strings.ReplaceAll(m[2], "&amp;", "&")
	}
	return ids, to
}

func TestTheListIsPagedForthAndBackInBothOrders(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	for i := 25; i < 130; i++ {
		d := *f.entries[10]
		d.ID = fakeID(i)
		f.entries = append(f.entries, &d)
	}
	c := open(t, f)
	_, to := walk(t, c, "/entries")
	for order, first := range map[string]string{"oldest": "/entries", "newest": to["order"]} {
		var pages [][]string
		at := first
		for at != "" {
			ids, to := walk(t, c, at)
			pages = append(pages, ids)
			if (to["previous"] == "") != (len(pages) == 1) {
				t.Errorf("%s: page %d leads back to %q", order, len(pages), to["previous"])
			}
			if at = to["next"]; at != "" {
				first = at
			}
		}
		all := slices.Concat(pages...)
		if sorted := slices.Sorted(slices.Values(all)); len(all) != 130 || order == "oldest" && !slices.Equal(all, sorted) || order == "newest" && (all[0] != fakeID(129) || all[129] != fakeID(0)) {
			t.Errorf("%s: %d entries, from %s to %s", order, len(all), all[0], all[len(all)-1])
		}
		for i := len(pages) - 2; i >= 0; i-- {
			_, to := walk(t, c, first)
			first = to["previous"]
			if ids, _ := walk(t, c, first); !slices.Equal(ids, pages[i]) {
				t.Errorf("%s: back on page %d are %d entries from %s, want %d from %s", order, i, len(ids), ids[0], len(pages[i]), pages[i][0])
			}
		}
	}
	if w := get(t, c, "/api/v1/entries?order=newest&limit=1"); !strings.Contains(w.Body.String(), fakeID(129)) {
		t.Errorf("the newest by call: %s", w.Body)
	}
	if w := get(t, c, "/api/v1/entries?order=best"); w.Code != http.StatusBadRequest {
		t.Errorf("an order that is none: %d", w.Code)
	}
}

func TestKindsStayWhileTheMachineIsBusy(t *testing.T) {
	t.Parallel()
	f := newFakeStore()
	c := open(t, f)
	want := "Lock wait timeout exceeded"
	for _, path := range []string{"/entries?kinds=all", "/"} {
		if page := get(t, c, path).Body.String(); !strings.Contains(page, want) || !strings.Contains(page, "written <time") {
			t.Fatalf("%s has no kinds", path)
		}
	}
	f.grouping = make(chan struct{}) // nothing is grouped any more
	for _, path := range []string{"/entries", "/"} {
		if page := get(t, c, path).Body.String(); !strings.Contains(page, want) {
			t.Errorf("%s has lost its kinds", path)
		}
	}
}

func TestAKindIsReadyForTheCommandLine(t *testing.T) {
	t.Parallel()
	c := open(t, newFakeStore())
	kind := "Error 1205 (HY000): Lock wait timeout exceeded"
	if page := get(t, c, "/entries?kind="+url.QueryEscape(kind)).Body.String(); !strings.Contains(page, "--kind "+kind) {
		t.Errorf("the page of a kind does not say --kind")
	}
}

func TestChartsShowTheLastMinutes(t *testing.T) {
	t.Parallel()
	o := &ops.Overview{At: fakeNow.Add(30 * time.Second)}
	for i := range 120 {
		o.Minutes = append(o.Minutes, ops.Minute{Start: fakeNow.Add(-time.Duration(i) * time.Minute), DataSource: "orders", Funnel: ops.Funnel{AtOnce: float64(i + 1)}})
	}
	for minutes, want := range map[int]int{15: 15, 6 * 60: 72, 24 * 60: 72, 168 * 60: 72} {
		ch := charts(languages[0], o, minutes)[0]
		if n := strings.Count(ch.X, ",") + 1; n != want {
			t.Errorf("%d minutes have %d places", minutes, n)
		}
		if minutes == 15 && (len(ch.Rows) != 15 || ch.Rows[0].Values[0] != 1 || ch.Rows[14].Values[0] != 15) {
			t.Errorf("the last 15 minutes: %v", ch.Rows)
		}
	}
	if page := get(t, open(t, newFakeStore()), "/?minutes=15").Body.String(); !strings.Contains(page, fmt.Sprintf(`<a id="h%d" href="/?minutes=15" aria-current="true">`, 15)) {
		t.Error("the page does not offer 15 minutes")
	}
}

func TestContendedEntriesAreShownAsThat(t *testing.T) {
	t.Parallel()
	log, err := txlog.Open(t.Context(), "sqlite", testdb.SQLite(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
	if err = log.Add(t.Context(), time.Hour, u); err == nil {
		err = log.Release(t.Context(), u, entry.Verdict{After: time.Hour, Contended: true, Err: "Error 1213 (40001): Deadlock found"})
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(log, nil, Config{Listen: listen, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for path, said := range map[string]string{"/entries": ">contended<", "/entries/" + u.ID: "<dt>Contended since</dt><dd>"} {
		if w := get(t, c, path); w.Code != 200 || !strings.Contains(w.Body.String(), said) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
