package console

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestSkipFreesThoseBehindByPageAndAPI(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		c, err := New(log, nil, Config{Listen: listen, Users: people, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var ids []string
		for range 4 {
			u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}, Order: []entry.Order{{Key: entry.OrderPrefix + "k"}}}
			u.TransactionID, u.Receipt = u.ID, u.ID
			ids = append(ids, u.ID)
			if err := log.Add(t.Context(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
			if u.Behind == "" {
				if err := log.Release(t.Context(), u, entry.Verdict{Park: true, CountTry: true, Err: "no"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		post := func(path, body, who string) (int, string, string) {
			w := ask4(t, c, request{method: "POST", path: path, body: body, as: who})
			return w.Code, w.Body.String(), w.Header().Get("Location")
		}
		state := func(i int, parked bool, behind string, blocks int) {
			t.Helper()
			got, err := log.Get(t.Context(), ids[i])
			if err != nil || got.Parked != parked || got.Behind != behind || got.Blocks != blocks {
				t.Errorf("entry %d: parked %v, behind %q, blocks %d (%v), want %v, %q, %d", i, got.Parked, got.Behind, got.Blocks, err, parked, behind, blocks)
			}
		}
		page := func(i int) string { return ask4(t, c, request{path: "/entries/" + ids[i], as: "otto"}).Body.String() }
		if offers := links(page(0)); !slices.Contains(offers, "/entries/"+ids[0]+"/skip") {
			t.Errorf("the page of the first does not offer it: %q", offers)
		}
		if offers := links(page(1)); slices.Contains(offers, "/entries/"+ids[1]+"/skip") {
			t.Error("the page of one that waits offers it")
		}
		if ask := ask4(t, c, request{path: "/entries/" + ids[0] + "/skip", as: "otto"}); ask.Code != 200 || !strings.Contains(ask.Body.String(), "those that wait behind it under its order key are delivered") {
			t.Errorf("the question: %d %s", ask.Code, ask.Body)
		}
		api := "/api/v1/entries/" + ids[0] + "/skip"
		for what, got := range map[string]struct {
			path, body, who string
			want            int
		}{
			"a reader":         {api, `{"reason": "r"}`, "rita", 403},
			"without a reason": {api, `{}`, "otto", 400},
			"one that waits":   {"/api/v1/entries/" + ids[1] + "/skip", `{"reason": "r"}`, "otto", 409},
			"one that is gone": {"/api/v1/entries/" + entry.NewID() + "/skip", `{"reason": "r"}`, "otto", 404},
			"several":          {"/api/v1/entries/bulk", `{"filter": {"state": "parked"}, "action": "skip", "count": 1, "reason": "r"}`, "otto", 404},
		} {
			if code, body, _ := post(got.path, got.body, got.who); code != got.want {
				t.Errorf("%s: %d %s, want %d", what, code, body, got.want)
			}
		}
		state(0, true, "", 3)
		if code, body, _ := post(api, `{"reason": "paid by hand"}`, "otto"); code != 200 {
			t.Fatalf("skip: %d %s", code, body)
		}
		state(0, true, "", 0)
		state(1, false, "", 2)
		code, body, to := post("/entries/"+ids[1]+"/skip", url.Values{"reason": {"and this one"}}.Encode(), "otto")
		if code != 303 || !strings.Contains(ask4(t, c, request{path: to, as: "otto"}).Body.String(), "The entry is skipped and parked: those behind it are delivered.") {
			t.Errorf("by the page: %d to %q: %s", code, to, body)
		}
		state(1, true, "", 0)
		state(2, false, "", 1)
		got, err := log.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: time.Minute})
		if err != nil || len(got) != 1 || got[0].ID != ids[2] {
			t.Errorf("due is %+v, %v", got, err)
		}
		audit := ask4(t, c, request{path: "/api/v1/audit", as: "rita"}).Body.String()
		if strings.Count(audit, `"action":"skip"`) != 2 || !strings.Contains(audit, "paid by hand") || !strings.Contains(audit, "and this one") {
			t.Errorf("the audit holds %s", audit)
		}
	})
}
