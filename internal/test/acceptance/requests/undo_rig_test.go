package requests

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// mayUndo lets all clients but guests undo their requests.
func mayUndo(c *bedhttp.Config) {
	c.Undo = func(r *http.Request) bool { return r.Header.Get("Tenant") != "guest" }
}

// undoRig is a service whose requests add one to account 1, and whose undos take one away. A request
// without an answer in its header X-Answer is answered 201.
type undoRig struct {
	*rig.Service
	counters *bedhttp.Counters
	cfg      bedhttp.Config
	// before, if set, runs in the handler before it writes.
	before func(r *http.Request)
}

const takeOne = "UPDATE account SET balance = balance - 1 WHERE id = 1"

func newUndoRig(t testing.TB, r *rig.Rig, change ...func(*bedhttp.Config)) *undoRig {
	t.Helper()
	u := &undoRig{counters: new(bedhttp.Counters)}
	u.Service = rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
		if u.before != nil {
			u.before(r)
		}
		text := rig.AddOne
		if r.Header.Get("Idempotency-Undoes") != "" {
			text = takeOne
		}
		if _, err := bedhttp.Tx(r.Context()).ExecContext(r.Context(), text); err != nil {
			bedhttp.Error(w, r, err)
			return
		}
		switch status := r.Header.Get("X-Answer"); status {
		case "":
			w.WriteHeader(http.StatusCreated)
		case "panic":
			panic(http.ErrAbortHandler)
		case "late":
			<-r.Context().Done()
		default:
			w.Header().Set("Idempotency-Undone", "by the handler") // it has no say in this
			w.Header().Set("Idempotency-Scope", "by the handler")
			w.WriteHeader(map[string]int{"402": 402, "409": 409, "500": 500, "303": 303}[status])
		}
	}, append([]func(*bedhttp.Config){mayUndo, func(c *bedhttp.Config) {
		c.Counters, c.Wait = u.counters, rig.Patience
	}}, append(change, func(c *bedhttp.Config) { u.cfg = *c })...)...)
	return u
}

// shop gives the data source a name that does not come from its place.
func shop(r *rig.Rig) func(*bedhttp.Config) {
	return func(c *bedhttp.Config) {
		sign := "?"
		if strings.Contains(r.DB.DSN, "?") {
			sign = "&"
		}
		c.DB = r.Open(r.DB.DSN + sign + "bedDataSource=shop")
	}
}

// change is a change of a request before it is sent.
type change = func(*http.Request)

func header(name, value string) change { return func(r *http.Request) { r.Header.Set(name, value) } }

// scopeOf asks the service for the scope of a tenant.
func (u *undoRig) scopeOf(tenant string) string {
	u.T.Helper()
	return u.discovers(tenant).Header().Get("Idempotency-Scope")
}

func (u *undoRig) discovers(tenant string) *httptest.ResponseRecorder {
	u.T.Helper()
	h, err := bedhttp.Scope(u.cfg)
	if err != nil {
		u.T.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(u.T.Context(), http.MethodOptions, "/scope", http.NoBody)
	r.Header.Set("Tenant", tenant)
	h.ServeHTTP(w, r)
	return w
}

// undoes sends the undo of the key f, first sent a moment ago, under the key u.
func (u *undoRig) undoes(key, f string, changes ...change) rig.HttpAnswer {
	u.T.Helper()
	return u.Asks(key, `{"undo":true}`, append([]change{header("Idempotency-Undoes", f), sentAt(time.Now()), header("Idempotency-Scope", u.scopeOf("t1"))}, changes...)...)
}

func sentAt(at time.Time) change {
	return header("Idempotency-Undoes-Sent", at.UTC().Format("2006-01-02T15:04:05.000Z"))
}

var applied = header("Idempotency-Undoes-Applied", "?1")

// wantsUndone checks the answer to an undo.
func (u *undoRig) wantsUndone(a rig.HttpAnswer, undone string, replayed bool) {
	u.T.Helper()
	status := http.StatusOK
	if undone == "done" {
		status = http.StatusCreated
	}
	if u.Wants(a, status, replayed); a.Header.Get("Idempotency-Undone") != undone || a.Header.Get("Idempotency-Scope") != u.scopeOf("t1") {
		u.T.Errorf("answered %v %v, want %s", a, a.Header, undone)
	}
}

// wantsProblem checks the answer for a problem of a type; one that may pass has a Retry-After.
func (u *undoRig) wantsProblem(a rig.HttpAnswer, status int, kind string) {
	u.T.Helper()
	var p struct{ Type string }
	if err := json.Unmarshal(a.Body, &p); err != nil || !strings.HasSuffix(p.Type, "#"+kind) || (a.Header.Get("Retry-After") != "") != (kind == "outstanding" || kind == "try-again") {
		u.T.Errorf("answered %v %v (%v), want the problem %s", a, a.Header, err, kind)
	}
	u.Wants(a, status, false)
}

// wantsBalance checks that the account has the sum of what was applied and not undone.
func (u *undoRig) wantsBalance(want int) {
	u.T.Helper()
	if n := u.Balance(1); n != want {
		u.T.Errorf("the balance is %d, want %d", n, want)
	}
}

// eachUndo runs f on a service of each kind of database.
func eachUndo(t *testing.T, f func(t *testing.T, u *undoRig)) {
	t.Helper()
	eachHome(t, func(t *testing.T, r *rig.Rig) { f(t, newUndoRig(t, r)) })
}
