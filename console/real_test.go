package console

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// The whole API on a real log, against the OpenAPI file.
func TestAPIOnARealLogMatchesItsDescription(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		targets := testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}
		log, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		target := db
		if db.Driver == testdb.DriverSQLite {
			target = testdb.SQLite(t)
		}
		if _, err := target.Open(t).Exec("CREATE TABLE amounts (id INTEGER PRIMARY KEY, n BIGINT)"); err != nil {
			t.Fatal(err)
		}
		where, err := targets.For(db.Driver)(target.DSN)
		if err != nil {
			t.Fatal(err)
		}
		mark := map[string]string{"postgres": "$1"}[db.Driver]
		if mark == "" {
			mark = "?"
		}
		params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: int64(9007199254740993)}})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for i := range 5 {
			u := &entry.Unit{ID: entry.NewID(), DataSource: "amounts", Statements: []entry.Statement{{SQL: fmt.Sprintf("INSERT INTO amounts VALUES (%d, %s)", i, mark), Params: params}}, Settings: where.Settings}
			u.TransactionID = u.ID
			if i > 0 {
				u.TransactionID = ids[0]
			}
			ids = append(ids, u.ID)
			if err := log.Add(t.Context(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
			if i < 4 {
				if err := log.Release(t.Context(), u, entry.Verdict{Park: i > 0, Err: "Error 1062 (23000): Duplicate entry '" + secretValue + "' for key 'u'", CountTry: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		c, err := New(log, map[string]delivery.Target{"amounts": where}, Config{Listen: listen, Users: people, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s := readSpec(t)
		call := func(status int, method, route, path, body, who string) string {
			t.Helper()
			w := ask4(t, c, request{method: method, path: "/api/v1" + path, body: body, as: who})
			if w.Code != status {
				t.Errorf("%s %s: %d, want %d: %s", method, path, w.Code, status, w.Body)
			}
			answer := map[bool]string{true: "200", false: "default"}[w.Code == 200]
			var v any
			if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, wrong := range s.check(path, s.Paths[route][strings.ToLower(method)].Responses[answer].Content["application/json"].Schema, v) {
				t.Errorf("%s %s: %s", method, path, wrong)
			}
			return w.Body.String()
		}
		call(200, "GET", "/overview", "/overview?hours=2", "", "rita")
		list := call(200, "GET", "/entries", "/entries?limit=3&dataSource=amounts", "", "rita")
		if strings.Contains(list, secretValue) || strings.Contains(list, "9007199254740993") {
			t.Errorf("a list shows a value: %s", list)
		}
		var page struct{ Next string }
		if err := json.Unmarshal([]byte(list), &page); err != nil || page.Next == "" {
			t.Errorf("there is no next page: %s", list)
		}
		if rest := call(200, "GET", "/entries", "/entries?limit=3&after="+url.QueryEscape(page.Next), "", "rita"); strings.Contains(rest, `"id":"`+ids[0]) || !strings.Contains(rest, `"id":"`+ids[4]) {
			t.Errorf("the second page is %s", rest)
		}
		// A search does not disclose masked values.
		for who, want := range map[string]string{"rita": `"count":0`, "otto": `"count":0`, "vera": `"count":4`} {
			if n := call(200, "GET", "/entries/count", "/entries/count?text="+secretValue, "", who); !strings.Contains(n, want) {
				t.Errorf("a search for a value by %s: %s", who, n)
			}
		}
		call(200, "GET", "/entries/kinds", "/entries/kinds?state=parked", "", "rita")
		one := "/entries/{id}"
		if text := call(200, "GET", one, "/entries/"+ids[1], "", "otto"); strings.Contains(text, secretValue) || strings.Contains(text, "9007199254740993") || !strings.Contains(text, ids[0]) {
			t.Errorf("one entry is %s", text)
		}
		if text := call(200, "GET", one, "/entries/"+ids[1]+"?reveal=true", "", "vera"); !strings.Contains(text, secretValue) || !strings.Contains(text, `"9007199254740993"`) {
			t.Errorf("one entry with its values is %s", text)
		}
		act := "/entries/{id}/{action}"
		if text := call(200, "POST", act, "/entries/"+ids[1]+"/try", "", "otto"); !strings.Contains(text, `"rows":["1"]`) {
			t.Errorf("a trial says %s", text)
		}
		call(200, "POST", act, "/entries/"+ids[1]+"/retry", `{"reason": "r"}`, "otto")
		call(200, "POST", act, "/entries/"+ids[1]+"/park", `{}`, "otto")
		call(400, "POST", act, "/entries/"+ids[1]+"/discard", `{}`, "otto")
		call(409, "POST", act, "/entries/"+ids[4]+"/discard", `{"reason": "r"}`, "otto")
		call(404, "POST", act, "/entries/"+entry.NewID()+"/discard", `{"reason": "r"}`, "otto")
		amend := "/entries/{id}/amend"
		call(200, "POST", amend, "/entries/"+ids[2]+"/amend", `{"sql": "INSERT INTO amounts VALUES (2, `+mark+`)", "parameters": [9007199254740995], "reason": "r"}`, "vera")
		call(409, "POST", amend, "/entries/"+ids[2]+"/amend", `{"sql": "DELETE FROM gone", "reason": "r"}`, "vera")
		call(400, "POST", amend, "/entries/"+ids[2]+"/amend", `{"sql": "DROP TABLE amounts", "reason": "r"}`, "vera")
		call(409, "POST", amend, "/entries/"+ids[4]+"/amend", `{"sql": "DELETE FROM amounts", "reason": "r"}`, "vera")
		call(403, "POST", amend, "/entries/"+ids[2]+"/amend", `{`, "otto")
		for who, shown := range map[string]bool{"rita": false, "vera": true} {
			if text := call(200, "GET", "/audit", "/audit"+map[bool]string{true: "?reveal=true"}[shown], "", who); strings.Contains(text, "9007199254740995") != shown || !strings.Contains(text, "INSERT INTO amounts VALUES (2, ") {
				t.Errorf("the audit for %s is %s", who, text)
			}
		}
		bulk := "/entries/bulk"
		call(409, "POST", bulk, bulk, `{"filter": {"state": "parked"}, "action": "retry", "count": 2}`, "otto")
		call(409, "POST", bulk, bulk, `{"filter": {}, "action": "retry", "count": 5}`, "otto") // one of them is leased
		call(200, "POST", bulk, bulk, `{"filter": {"state": "parked", "text": "Duplicate entry", "transaction": "`+ids[0]+`"}, "action": "retry", "count": 3}`, "otto")
		call(200, "POST", act, "/entries/"+ids[3]+"/discard", `{"reason": "r"}`, "otto")
		for _, action := range []string{"pause", "resume", "limit"} {
			call(200, "POST", "/data-sources/{name}/{action}", "/data-sources/amounts/"+action, `{"perSecond": 7, "reason": "r"}`, "otto")
		}
		call(404, "POST", "/data-sources/{name}/{action}", "/data-sources/nowhere/pause", `{}`, "otto")
		if text := call(200, "GET", "/overview", "/overview", "", "rita"); !strings.Contains(text, `"perSecond":7`) {
			t.Errorf("the limit is not shown: %s", text)
		}
		audit := call(200, "GET", "/audit", "/audit", "", "rita")
		for _, want := range []string{`"who":"vera"`, `"action":"reveal"`, `"action":"limit"`, `"count":3`} {
			if !strings.Contains(audit, want) {
				t.Errorf("the audit lacks %s: %s", want, audit)
			}
		}
		if strings.Contains(audit, secretValue) {
			t.Error("the audit holds a value")
		}
		// Bad input is never the log's fault.
		for _, odd := range []string{"%F0%9F%92%A9", "%C3%A9", "%27%22%5C%25_", "zzz", "-1", "%E2%80%AE", "99999999999999999999999", "ids%5B%5D", strings.Repeat("a", 60)} {
			for _, path := range []string{"entries?after=", "entries?transaction=", "entries?dataSource=", "entries?text=", "entries?kind=", "entries?olderThan=", "audit?after=", "entries/", "entries/kinds?transaction=", "entries/count?kind="} {
				if w := ask4(t, c, request{path: "/api/v1/" + path + odd, as: "rita"}); w.Code >= 500 {
					t.Errorf("%s%s: %d %s", path, odd, w.Code, w.Body)
				}
			}
			for _, path := range []string{"entries/" + odd + "/retry", "entries/" + odd + "/try", "data-sources/" + odd + "/pause"} {
				if w := ask4(t, c, request{method: "POST", path: "/api/v1/" + path, as: "otto"}); w.Code >= 500 {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		}
		if w := get(t, c, "/readyz"); w.Code != 200 {
			t.Errorf("/readyz: %d", w.Code)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if w := get(t, c, "/readyz"); w.Code != 503 {
			t.Errorf("/readyz of a closed log: %d", w.Code)
		}
		for _, path := range []string{"/", "/entries", "/entries/" + ids[1], "/audit", "/api/v1/overview"} {
			if w := ask4(t, c, request{path: path, as: "rita"}); w.Code != 503 {
				t.Errorf("%s of a closed log: %d", path, w.Code)
			}
		}
	})
}
