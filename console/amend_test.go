package console

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func TestAmendmentIsAskedForByFormAndCall(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{Users: people})
	page := "/entries/" + fakeID(5)
	for who, may := range map[string]bool{"rita": false, "otto": false, "vera": true} {
		if w := ask4(t, c, request{path: page, as: who}); strings.Contains(w.Body.String(), page+"/amend?statement=1") != may {
			t.Errorf("the page of a parked entry, for %s: %s", who, w.Body)
		}
		if w := ask4(t, c, request{path: page + "/amend", as: who}); strings.Contains(w.Body.String(), "<textarea") != may || strings.Contains(w.Body.String(), secretValue) {
			t.Errorf("the form, for %s: %s", who, w.Body)
		}
	}
	if w := ask4(t, c, request{path: "/entries/" + fakeID(3), as: "vera"}); strings.Contains(w.Body.String(), "/amend") {
		t.Error("one that waits can be amended")
	}
	// A refusal does not lose the typed text.
	typed := url.Values{"sql": {""}, "parameters": {""}, "reason": {"x"}, "statement": {"1"}}
	if w := ask4(t, c, request{method: "POST", path: page + "/amend", body: typed.Encode(), as: "vera"}); w.Code != 400 || !strings.Contains(w.Body.String(), "an amendment needs an SQL text") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	typed.Set("sql", "DELETE FROM <typed>")
	typed.Set("reason", " ")
	if w := ask4(t, c, request{method: "POST", path: page + "/amend", body: typed.Encode(), as: "vera"}); w.Code != 400 || !strings.Contains(w.Body.String(), "DELETE FROM &lt;typed&gt;") {
		t.Errorf("without a reason: %d %s", w.Code, w.Body)
	}
	typed.Set("reason", "renamed")
	w := ask4(t, c, request{method: "POST", path: page + "/amend", body: typed.Encode(), as: "vera"})
	if w.Code != 303 || f.entries[5].Statements[0].SQL != "DELETE FROM <typed>" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if w := ask4(t, c, request{path: w.Header().Get("Location"), as: "vera"}); !strings.Contains(w.Body.String(), "still parked") {
		t.Errorf("afterwards: %s", w.Body)
	}
	for path, body := range map[string]string{
		"/amend":  `{"sql": "DELETE FROM a", "parameters": [9007199254740993, {"uint64": 18446744073709551615}], "statement": 1, "reason": "r"}`,
		"/amend?": `{"parameters": "[1]", "reason": "r"}`,
	} {
		if w := ask4(t, c, request{method: "POST", path: "/api/v1" + page + path, body: body, as: "vera"}); w.Code != 200 || !strings.Contains(w.Body.String(), `"unprepared":""`) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	for body, want := range map[string]int{`{"sql": "x"}`: 400, `{"sql": "x", "reason": "r", "yes": true}`: 400, `{"sql": 1, "reason": "r"}`: 400, `{"statement": "x", "sql": "x", "reason": "r"}`: 400} {
		if w := ask4(t, c, request{method: "POST", path: "/api/v1" + page + "/amend", body: body, as: "vera"}); w.Code != want {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/" + fakeID(3) + "/amend", body: `{"sql": "x", "reason": "r"}`, as: "vera"}); w.Code != 409 || !strings.Contains(w.Body.String(), "park it first") {
		t.Errorf("one that waits: %d %s", w.Code, w.Body)
	}
	long := `{"sql": "DELETE FROM a /* ` + strings.Repeat("x", 2*maxBody) + ` */", "reason": "r"}`
	if w := ask4(t, c, request{method: "POST", path: "/api/v1" + page + "/amend", body: long, as: "vera"}); w.Code != 200 {
		t.Errorf("a long text: %d", w.Code)
	}
}

func TestAmendedParametersAreMaskedWithoutTheRole(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{Users: people})
	if w := ask4(t, c, request{method: "POST", path: "/api/v1/entries/" + fakeID(5) + "/amend", body: `{"sql": "DELETE FROM a", "reason": "r"}`, as: "vera"}); w.Code != 200 {
		t.Fatal(w.Body)
	}
	for _, path := range []string{"/audit", "/api/v1/audit"} {
		for _, who := range []string{"rita", "otto", "vera"} {
			if w := ask4(t, c, request{path: path, as: who}); w.Code != 200 || strings.Contains(w.Body.String(), secretValue) || !strings.Contains(w.Body.String(), "UPDATE orders SET paid") {
				t.Errorf("%s as %s: %d %s", path, who, w.Code, w.Body)
			}
		}
		before := len(f.audit)
		if w := ask4(t, c, request{path: path + "?reveal=true", as: "vera"}); !strings.Contains(w.Body.String(), secretValue) || len(f.audit) != before+1 {
			t.Errorf("%s with values: %s", path, w.Body)
		}
		if w := ask4(t, c, request{path: path + "?reveal=true", as: "otto"}); w.Code != 403 {
			t.Errorf("%s with values as otto: %d", path, w.Code)
		}
	}
}

func TestBulkAmendmentNeedsRevealAndItsCount(t *testing.T) {
	t.Parallel()
	c, f := stage(t, Config{Users: people})
	key := ""
	for _, d := range f.entries {
		if d.State == "parked" {
			key = d.LastError
		}
	}
	q := url.Values{"kind": {key}, "state": {"parked"}}
	var counted struct {
		Count int
		Until string
	}
	if w := ask4(t, c, request{path: "/api/v1/entries/count?" + q.Encode(), as: "vera"}); json.Unmarshal(w.Body.Bytes(), &counted) != nil || counted.Count == 0 {
		t.Fatal(w.Body)
	}
	for who, may := range map[string]bool{"otto": false, "vera": true} {
		if w := ask4(t, c, request{path: "/entries?" + q.Encode(), as: who}); strings.Contains(w.Body.String(), "/bulk/amend?") != may {
			t.Errorf("the page of a kind, for %s: %s", who, w.Body)
		}
		if w := ask4(t, c, request{path: "/bulk/amend?" + q.Encode(), as: who}); w.Code != 200 || strings.Contains(w.Body.String(), "<textarea") != may {
			t.Errorf("the form, for %s: %d %s", who, w.Code, w.Body)
		}
	}
	if w := ask4(t, c, request{path: "/bulk/amend?state=parked", as: "vera"}); strings.Contains(w.Body.String(), "<textarea") {
		t.Error("entries of all kinds can be amended at once")
	}
	body := func(n int, more string) string {
		return fmt.Sprintf(`{"filter": {"kind": %q, "state": "parked"}, "action": "amend", "count": %d, "until": %q, "sql": "DELETE FROM amended", "reason": "renamed"%s}`, key, n, counted.Until, more)
	}
	bulk := "/api/v1/entries/bulk"
	for text, want := range map[string]int{body(counted.Count+1, ""): 409, body(counted.Count, `, "sql": 1`): 400, body(counted.Count, `, "parametres": []`): 400} {
		if w := ask4(t, c, request{method: "POST", path: bulk, body: text, as: "vera"}); w.Code != want {
			t.Errorf("%s: %d %s", text, w.Code, w.Body)
		}
	}
	if w := ask4(t, c, request{method: "POST", path: bulk, body: body(counted.Count, ""), as: "otto"}); w.Code != 403 {
		t.Errorf("without the role: %d", w.Code)
	}
	before := f.state()
	form := url.Values{"kind": {key}, "state": {"parked"}, "count": {fmt.Sprint(counted.Count)}, "until": {counted.Until}, "sql": {"DELETE FROM amended"}, "reason": {"renamed"}, "try": {"1"}}
	if w := ask4(t, c, request{method: "POST", path: "/bulk/amend", body: form.Encode(), as: "vera"}); w.Code != 200 || !strings.Contains(w.Body.String(), "would change 1 row") || !strings.Contains(w.Body.String(), "DELETE FROM amended") || f.state() != before {
		t.Errorf("the first one tried: %d %s", w.Code, w.Body)
	}
	w := ask4(t, c, request{method: "POST", path: bulk, body: body(counted.Count, ""), as: "vera"})
	if w.Code != 200 || !strings.Contains(w.Body.String(), fmt.Sprintf(`"count":%d`, counted.Count)) || !strings.Contains(w.Body.String(), `"kept":[{"why"`) || !strings.Contains(w.Body.String(), `"rows":["1"]`) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	form.Del("try")
	form.Del("until")
	if w := ask4(t, c, request{method: "POST", path: "/bulk/amend", body: form.Encode(), as: "vera"}); w.Code != 303 || !strings.Contains(w.Header().Get("Location"), "kind=") {
		t.Errorf("the form: %d %s", w.Code, w.Body)
	} else if w := ask4(t, c, request{path: w.Header().Get("Location"), as: "vera"}); !strings.Contains(w.Body.String(), "amended. They are still parked") {
		t.Errorf("afterwards: %s", w.Body)
	}
	if w := ask4(t, c, request{path: "/audit", as: "rita"}); !strings.Contains(w.Body.String(), "DELETE FROM amended") {
		t.Errorf("the audit: %s", w.Body)
	}
}
