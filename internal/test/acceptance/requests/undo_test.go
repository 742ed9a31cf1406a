package requests

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestUndoOfAnAppliedRequestRunsOnce(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		first := u.Asks("f", "{}")
		if u.Wants(first, 201, false); first.Header.Get("Idempotency-Scope") != u.scopeOf("t1") || first.Header.Get("Idempotency-Undone") != "" {
			t.Errorf("the forward's headers: %v", first.Header)
		}
		u.wantsUndone(u.undoes("u", "f", applied), "done", false)
		u.wantsUndone(u.undoes("u", "f", applied), "done", true)
		u.wantsUndone(u.undoes("u", "f"), "done", true) // what the caller has seen meanwhile is no other request
		u.wantsUndone(u.undoes("v", "f", applied), "already", false)
		u.wantsUndone(u.undoes("v", "f", applied), "already", true)
		u.wantsProblem(u.Asks("f", "{}"), http.StatusConflict, "undone")
		u.wantsProblem(u.Asks("f", "another request"), http.StatusConflict, "undone")
		if u.WantsRuns(2, 0); u.counters.Undone.Load() != 2 {
			t.Errorf("%d are counted as undone, want 2", u.counters.Undone.Load())
		}
	})
}

func TestUndoOfAnUnknownRequestKeepsItFromBeingApplied(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		u.wantsUndone(u.undoes("u", "f"), "nothing", false)
		u.wantsUndone(u.undoes("u", "f"), "nothing", true)
		u.wantsUndone(u.undoes("v", "f"), "already", false)
		u.wantsProblem(u.Asks("f", "{}"), http.StatusConflict, "undone")
		u.WantsRuns(0, 0)
	})
}

func TestUndoOfADeclinedRequestDoesNothing(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		declined := u.Asks("f", "{}", header("X-Answer", "402"))
		if u.Wants(declined, 402, false); declined.Header.Get("Idempotency-Scope") != u.scopeOf("t1") {
			t.Errorf("its headers: %v", declined.Header)
		}
		u.wantsBalance(1) // its rows stay with its response
		u.wantsProblem(u.undoes("w", "f", applied), http.StatusConflict, "forgotten")
		u.wantsUndone(u.undoes("u", "f"), "nothing", false)
		u.wantsUndone(u.undoes("v", "f"), "already", false)
		u.wantsProblem(u.Asks("f", "{}"), http.StatusConflict, "undone")
		u.WantsRuns(1, 1)
	})
}

func TestUndoThatFailsKeepsNothingAndCanBeSentAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"402", "409", "500", "303", "panic", "late"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			eachHome(t, func(t *testing.T, r *rig.Rig) {
				u := newUndoRig(t, r, func(c *bedhttp.Config) {
					if c.Keep = func(int) bool { return true }; how == "late" {
						c.HandlerTimeout = 5 * time.Second
					}
				})
				u.Wants(u.Asks("f", "{}"), 201, false)
				a := u.undoes("u", "f", header("X-Answer", how))
				switch {
				case how == "panic" && a.Err != nil:
				case how == "late":
					u.wantsProblem(a, http.StatusServiceUnavailable, "try-again")
				case fmt.Sprint(a.Status) != how || a.Header.Get("Idempotency-Undone") != "":
					t.Errorf("answered %v %v", a, a.Header)
				}
				u.wantsBalance(1)
				u.Wants(u.Asks("f", "{}"), 201, true) // it is not void
				u.wantsUndone(u.undoes("u", "f"), "done", false)
				u.wantsUndone(u.undoes("u", "f"), "done", true)
				if u.wantsBalance(0); how != "panic" { // net/http sends a request with a key again
					u.WantsRuns(3, 0)
				}
			})
		})
	}
}

// The undo comes while the handler of the forward runs, in this process and in another one.
func TestUndoWaitsForARunningRequest(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"", "402", "500"} {
		t.Run("answered "+status, func(t *testing.T) {
			t.Parallel()
			eachHome(t, func(t *testing.T, r *rig.Rig) {
				u := newUndoRig(t, r)
				other := newUndoRig(t, r)
				short := newUndoRig(t, r, func(c *bedhttp.Config) { c.Wait = 5 * time.Second })
				other.Wants(other.Asks("other", "{}"), 201, false)
				short.Wants(short.Asks("short", "{}"), 201, false)
				held, free := make(chan struct{}), make(chan struct{})
				u.before = func(r *http.Request) {
					if r.Header.Get("Idempotency-Undoes") == "" {
						held <- struct{}{}
						<-free
					}
				}
				forward, near, far := make(chan rig.HttpAnswer, 1), make(chan rig.HttpAnswer, 1), make(chan rig.HttpAnswer, 1)
				go func() { forward <- u.Asks("f", "{}", header("X-Answer", status)) }()
				rig.WaitFor(t, "the forward's handler", held)
				u.wantsProblem(short.undoes("v", "f"), http.StatusConflict, "outstanding")
				scope := u.scopeOf("t1")
				go func() { near <- u.undoes("u", "f", header("Idempotency-Scope", scope)) }()
				go func() { far <- other.undoes("w", "f", header("Idempotency-Scope", scope)) }()
				select {
				case a := <-near:
					t.Fatalf("the undo did not wait: %v", a)
				case a := <-far:
					t.Fatalf("the undo did not wait: %v", a)
				case <-time.After(50 * time.Millisecond):
				}
				close(free)
				a, b, c := <-forward, <-near, <-far
				words := b.Header.Get("Idempotency-Undone") + ", " + c.Header.Get("Idempotency-Undone")
				want, balance := "nothing", 2 // others have added
				switch {
				case status == "":
					want = "done"
				case status == "402":
					balance = 3 // its rows stay
				}
				if words != want+", already" && words != "already, "+want {
					t.Errorf("the forward: %v; the undos: %v, %v: %s", a, b, c, words)
				}
				u.wantsBalance(balance)
				u.before = nil
				u.wantsProblem(u.Asks("f", "{}"), http.StatusConflict, "undone")
			})
		})
	}
}

// The forward comes while the handler of the undo runs, which may fail.
func TestRequestWaitsForItsUndo(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"", "500"} {
		t.Run("answered "+status, func(t *testing.T) {
			t.Parallel()
			eachHome(t, func(t *testing.T, r *rig.Rig) {
				u := newUndoRig(t, r)
				other := newUndoRig(t, r)
				other.Wants(other.Asks("other", "{}"), 201, false)
				u.Wants(u.Asks("f", "{}"), 201, false)
				held, free := make(chan struct{}), make(chan struct{})
				u.before = func(*http.Request) {
					held <- struct{}{}
					<-free
				}
				undo, near, far := make(chan rig.HttpAnswer, 1), make(chan rig.HttpAnswer, 1), make(chan rig.HttpAnswer, 1)
				go func() { undo <- u.undoes("u", "f", header("X-Answer", status)) }()
				rig.WaitFor(t, "the undo's handler", held)
				go func() { near <- u.Asks("f", "{}") }()
				if r.DB.Driver == testdb.DriverSQLite {
					close(far) // the other process may read the response that is not void yet
				} else {
					go func() { far <- other.Asks("f", "{}"); close(far) }()
				}
				select {
				case a := <-near:
					t.Fatalf("the forward did not wait: %v", a)
				case <-time.After(50 * time.Millisecond):
				}
				close(free)
				a := <-undo
				u.before = nil
				for _, b := range []rig.HttpAnswer{<-near, <-far} {
					switch {
					case b.Status == 0: // SQLite
					case status == "":
						u.wantsProblem(b, http.StatusConflict, "undone")
					default:
						u.Wants(b, 201, true)
					}
				}
				if status == "" {
					u.wantsUndone(a, "done", false)
				} else {
					u.Wants(a, 500, false)
					u.wantsUndone(u.undoes("u", "f"), "done", false)
				}
				u.wantsBalance(1) // of the other
			})
		})
	}
}

// Forwards and undos race in two processes. Each pair ends with an effect and its undo, or without.
func TestHundredsOfPairsOfRequestAndUndo(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		pairs := 300
		if r.DB.Driver == testdb.DriverSQLite {
			pairs = 100 // one at a time
		}
		services := []*undoRig{newUndoRig(t, r), newUndoRig(t, r)}
		scope := services[0].scopeOf("t1")
		again := func(send func() rig.HttpAnswer) (a rig.HttpAnswer) {
			for until := time.Now().Add(rig.Patience); time.Now().Before(until); {
				if a = send(); a.Err == nil && a.Header.Get("Retry-After") == "" {
					return a
				}
			}
			return a
		}
		var all sync.WaitGroup
		room := make(chan struct{}, 16)
		for i := range pairs {
			f := fmt.Sprint("f", i)
			var of, by, twice rig.HttpAnswer
			var three sync.WaitGroup
			room <- struct{}{}
			three.Go(func() {
				of = again(func() rig.HttpAnswer { return services[i%2].Asks(f, "{}") })
			})
			undo := func(key string, s *undoRig) rig.HttpAnswer {
				return again(func() rig.HttpAnswer { return s.undoes(key, f, header("Idempotency-Scope", scope)) })
			}
			three.Go(func() { by = undo("u"+f, services[0]) })
			three.Go(func() { twice = undo("v"+f, services[1]) })
			all.Go(func() {
				three.Wait()
				<-room
				words := by.Header.Get("Idempotency-Undone") + " " + twice.Header.Get("Idempotency-Undone")
				forward := of.Status
				switch {
				case forward == 201 && (words == "done already" || words == "already done"):
				case forward == 409 && (words == "nothing already" || words == "already nothing" || words == "done already" || words == "already done"):
				default:
					t.Errorf("the forward: %v; its undos: %v, %v: %s", of, by, twice, words)
				}
				if a := services[1].Asks(f, "{}"); a.Status != 409 {
					t.Errorf("the forward afterwards: %v", a)
				}
			})
		}
		all.Wait()
		services[0].wantsBalance(0)
	})
}

func TestUndoFromAnotherScopeIsMisdirected(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		u := newUndoRig(t, r, shop(r))
		u.Wants(u.Asks("f", "{}"), 201, false)
		u.Wants(u.Asks("f", "{}", header("Tenant", "t2")), 201, false)
		scope := u.scopeOf("t1")
		u.wantsProblem(u.undoes("u", "f", header("Tenant", "t2")), http.StatusMisdirectedRequest, "other-scope") // with t1's scope
		u.wantsProblem(u.undoes("u", "f", header("Idempotency-Scope", "other")), http.StatusMisdirectedRequest, "other-scope")
		service := newUndoRig(t, r, shop(r), func(c *bedhttp.Config) { c.Service = "refunds" })
		u.wantsProblem(service.undoes("u", "f", header("Idempotency-Scope", scope)), http.StatusMisdirectedRequest, "other-scope")
		for name, other := range map[string]testdb.DB{"another": rig.FreshLike(t, db), "a copy": copied(t, r)} {
			there := rig.New(t, other)
			if name == "another" {
				there.Account(0)
			}
			s := newUndoRig(t, there, shop(there))
			if s.scopeOf("t1") == scope {
				t.Errorf("%s has the same scope", name)
			}
			u.wantsProblem(s.undoes("u", "f", header("Idempotency-Scope", scope)), http.StatusMisdirectedRequest, "other-scope")
			if n := s.Runs.Load(); n != 0 {
				t.Errorf("%s: the handler has run", name)
			}
		}
		if process := newUndoRig(t, r, shop(r)); process.scopeOf("t1") != scope {
			t.Error("another process has another scope")
		}
		u.WantsRuns(2, 2)
		u.wantsUndone(u.undoes("u", "f"), "done", false)
	})
}

// copied copies the rows of r's database to another one.
func copied(t *testing.T, r *rig.Rig) testdb.DB {
	t.Helper()
	if r.DB.Driver == testdb.DriverSQLite {
		r.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
		to := testdb.SQLite(t)
		text, err := os.ReadFile(fileOf(r.DB))
		if err == nil {
			err = os.WriteFile(fileOf(to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	to := rig.FreshLike(t, r.DB)
	c := rig.New(t, to)
	c.Account(r.Balance(1))
	c.ReceiptTable()
	rows, err := r.Bare.Query("SELECT id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result FROM bed_receipt")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rig.Content(t, rows) {
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = string(b)
			}
		}
		c.Must(c.Bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row...)
	}
	return to
}

func fileOf(db testdb.DB) string {
	file, _, _ := strings.Cut(strings.TrimPrefix(db.DSN, "file:"), "?")
	return file
}

// Identity rows are deleted in a copy that keeps the name of the database.
func TestNewIdentityIsAnotherScope(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		u.Wants(u.Asks("f", "{}"), 201, false)
		scope := u.scopeOf("t1")
		u.Exec("DELETE FROM bed_receipt WHERE id = 'identity'")
		u.wantsProblem(u.Asks("u", "{}", header("Idempotency-Undoes", "f"), sentAt(time.Now()), header("Idempotency-Scope", scope)), http.StatusMisdirectedRequest, "other-scope")
		if now := u.scopeOf("t1"); now == scope {
			t.Error("the scope is the same")
		}
		u.wantsProblem(u.undoes("u", "f", header("Idempotency-Scope", scope)), http.StatusMisdirectedRequest, "other-scope")
		u.WantsRuns(1, 1)
	})
}

func TestUndoAfterThePurgeIsForgotten(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		u.Wants(u.Asks("f", "{}"), 201, false)
		for range 3 { // found to be gone from the log, and then due
			u.ReceiptsAge(15 * 24 * time.Hour)
			u.RunOnce()
		}
		if n := u.Receipts(); n != 1 {
			t.Fatalf("%d receipts, want the identity alone", n)
		}
		u.wantsProblem(u.undoes("u", "f", applied), http.StatusConflict, "forgotten")
		for _, sent := range []time.Time{time.Now().Add(-8 * 24 * time.Hour), time.Now().Add(-7*24*time.Hour + 30*time.Minute), time.Now().Add(2 * time.Hour), {}} {
			u.wantsProblem(u.undoes("u", "f", sentAt(sent)), http.StatusConflict, "forgotten")
		}
		if n := u.Receipts(); n != 1 {
			t.Errorf("%d receipts: an undo that is forgotten has changed something", n)
		}
		u.wantsUndone(u.undoes("u", "f", sentAt(time.Now().Add(-6*24*time.Hour))), "nothing", false)
		u.WantsRuns(1, 1)

		// A receipt that is there, but too old for certainty, is not undone either.
		u.Wants(u.Asks("g", "{}"), 201, false)
		u.wantsProblem(u.undoes("w", "g", sentAt(time.Now().Add(-8*24*time.Hour)), applied), http.StatusConflict, "forgotten")
		u.Wants(u.Asks("g", "{}"), 201, true)
	})
}

// A void receipt is kept for as long as a new one.
func TestVoidReceiptsAreKeptForKeyRetention(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, u *undoRig) {
		u.Wants(u.Asks("f", "{}"), 201, false)
		u.ReceiptsAge(time.Hour)
		u.RunOnce() // it is not in the log, from which its retention counts
		u.ReceiptsAge(6 * 24 * time.Hour)
		u.wantsUndone(u.undoes("u", "f", sentAt(time.Now().Add(-6*24*time.Hour))), "done", false)
		u.wantsUndone(u.undoes("v", "g"), "nothing", false)
		u.ReceiptsAge(6 * 24 * time.Hour)
		for range 2 {
			u.RunOnce()
		}
		for _, key := range []string{"f", "g"} {
			u.wantsProblem(u.Asks(key, "{}"), http.StatusConflict, "undone")
		}
	})
}

func TestHostileUndoHeadersAreRefused(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		u := newUndoRig(t, r, func(c *bedhttp.Config) { c.Required = false })
		u.Wants(u.Asks("f", "{}"), 201, false)
		twice := func(name string) change {
			return func(r *http.Request) { r.Header[name] = append(r.Header[name], r.Header.Get(name)) }
		}
		without := func(name string) change { return func(r *http.Request) { r.Header.Del(name) } }
		for name, c := range map[string]change{
			"two lines":          twice("Idempotency-Undoes"),
			"two joined":         header("Idempotency-Undoes", "f, g"),
			"two quoted":         header("Idempotency-Undoes", `"f", "g"`),
			"empty":              header("Idempotency-Undoes", ""),
			"too long":           header("Idempotency-Undoes", strings.Repeat("f", 256)),
			"binary":             header("Idempotency-Undoes", "\xff"),
			"itself":             header("Idempotency-Undoes", "u"),
			"itself, quoted":     header("Idempotency-Undoes", `"u"`),
			"lost on its way":    without("Idempotency-Undoes"),
			"no scope":           without("Idempotency-Scope"),
			"two scopes":         twice("Idempotency-Scope"),
			"no time":            without("Idempotency-Undoes-Sent"),
			"two times":          twice("Idempotency-Undoes-Sent"),
			"seconds":            header("Idempotency-Undoes-Sent", "2026-01-02T15:04:05Z"),
			"another zone":       header("Idempotency-Undoes-Sent", "2026-01-02T15:04:05.000+01:00"),
			"no date":            header("Idempotency-Undoes-Sent", "2026-02-30T15:04:05.000Z"),
			"applied true":       header("Idempotency-Undoes-Applied", "true"),
			"applied empty":      header("Idempotency-Undoes-Applied", ""),
			"applied twice":      func(r *http.Request) { r.Header["Idempotency-Undoes-Applied"] = []string{"?1", "?1"} },
			"a method without":   func(r *http.Request) { r.Method = http.MethodPut },
			"a method that asks": func(r *http.Request) { r.Method = http.MethodGet },
		} {
			if a := u.undoes("u", "f", c); a.Status != 400 || !strings.Contains(string(a.Body), "#malformed-undo") {
				t.Errorf("%s: %v", name, a)
			}
		}
		u.wantsProblem(u.undoes("", "f"), http.StatusBadRequest, "missing-key")
		u.wantsProblem(u.undoes(`"`, "f"), http.StatusBadRequest, "malformed-key")
		u.wantsProblem(u.undoes("u", "f", header("Tenant", "guest")), http.StatusForbidden, "undo-forbidden")
		u.WantsRuns(1, 1)

		unset := newUndoRig(t, r, func(c *bedhttp.Config) { c.Required, c.Undo = false, nil })
		for _, method := range []string{"POST", "GET", "DELETE", "HEAD"} {
			for _, name := range []string{"Idempotency-Undoes", "Idempotency-Undoes-Sent", "Idempotency-Undoes-Applied"} {
				if a := unset.Asks("", "", header(name, "f"), func(r *http.Request) { r.Method = method }); a.Status != 400 {
					t.Errorf("%s with %s: %v", method, name, a)
				}
			}
		}
		unset.wantsProblem(unset.undoes("u", "f"), http.StatusBadRequest, "undo-unsupported")
		unset.WantsRuns(0, 1)

		u.wantsUndone(u.undoes("u", "f"), "done", false)
		u.wantsProblem(u.undoes("w", "u"), http.StatusBadRequest, "malformed-undo")                // no undo is undone
		u.wantsProblem(u.undoes("u", "g"), http.StatusUnprocessableEntity, "key-reused")           // another request
		u.wantsProblem(u.Asks("u", `{"undo":true}`), http.StatusUnprocessableEntity, "key-reused") // and another still
		u.wantsBalance(0)
	})
}

func TestDiscoverySaysTheScopeAndWhetherUndoingIsSupported(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		u := newUndoRig(t, r)
		for tenant, undo := range map[string]bool{"t1": true, "guest": false} {
			w := u.discovers(tenant)
			var said struct {
				Scope        string
				Undo         bool
				KeyRetention int
			}
			if err := json.Unmarshal(w.Body.Bytes(), &said); err != nil || w.Code != 200 || said.Undo != undo || said.KeyRetention != 7*24*3600 || said.Scope != w.Header().Get("Idempotency-Scope") ||
				w.Header().Get("Idempotency-Key-Retention") != "604800" || w.Header().Get("Idempotency-Undo") != map[bool]string{true: "?1", false: "?0"}[undo] {
				t.Errorf("%s: %d %s %v (%v)", tenant, w.Code, w.Body, w.Header(), err)
			}
			if a := u.Asks("k", "{}", header("Tenant", tenant)); a.Header.Get("Idempotency-Scope") != said.Scope {
				t.Errorf("%s: a request is answered with another scope: %v", tenant, a.Header)
			}
		}
		if w := u.discovers(""); w.Code != http.StatusForbidden {
			t.Errorf("nobody: %d", w.Code)
		}
	})
}

// Receipts of a middleware without Undo do not say what the handler wrote elsewhere.
func TestRequestHandledWithoutUndoIsForgotten(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		before, u := newUndoRig(t, r, func(c *bedhttp.Config) { c.Undo = nil }), newUndoRig(t, r)
		before.Wants(before.Asks("f", "{}"), 201, false)
		u.wantsProblem(u.undoes("u", "f", applied), http.StatusConflict, "forgotten")
		u.Wants(u.Asks("f", "{}"), 201, true)
		u.wantsBalance(1)
	})
}

// What a forward recorded for other databases must arrive before it is undone there.
func TestUndoWaitsForTheGroupsOfTheRequest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver), rig.NoSyncRetry)
		home := &rig.Rig{T: t, DB: w.HomeDB, Bare: w.Bare, Storage: w.Storage, Cfg: w.Cfg}
		late := true
		u := newUndoRig(t, home)
		s := rig.NewService(t, home, func(rw http.ResponseWriter, r *http.Request) {
			ctx, soft, err := bedsql.Begin(r.Context(), bedsql.WithTx(bedhttp.Tx(r.Context())))
			if err != nil {
				t.Error(err)
				return
			}
			n := 1
			if r.Header.Get("Idempotency-Undoes") != "" {
				n = -1
			}
			home.Must(bedhttp.Tx(r.Context()), "UPDATE account SET balance = balance - ? WHERE id = ?", n, 1)
			w.Stage(ctx, w.Wrapped, rig.Increment, n, 1)
			if late {
				_ = soft.End(r.Context()) // too early: the job alone delivers it
			}
			rw.WriteHeader(201)
		}, mayUndo)
		u.Service = s
		s.Wants(s.Asks("f", "{}"), 201, false)
		wantsGroup(w, 99, 100)
		u.wantsProblem(u.undoes("u", "f", applied), http.StatusConflict, "outstanding")
		wantsGroup(w, 99, 100)
		late = false
		w.Drain(w.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour }))
		wantsGroup(w, 99, 101)
		u.wantsUndone(u.undoes("u", "f", applied), "done", false)
		wantsGroup(w, 100, 100)
		w.WantEmpty()
	})
}

// Under Config.Undo everything that a request writes is in its transaction, or recorded there.
func TestUndoableRequestWritesNothingElsewhere(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		home := &rig.Rig{T: t, DB: w.HomeDB, Bare: w.Bare, Storage: w.Storage, Cfg: w.Cfg}
		staged, outside, err := bedsql.Begin(t.Context(), bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		w.Stage(staged, w.Wrapped, rig.Increment, 1, 2)
		write := w.Q(rig.Increment)
		s := rig.NewService(t, home, func(rw http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, bedsql.ErrOutsideRequest) {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err := w.Wrapped.ExecContext(ctx, write, 1, 1)
			refused("a write", err)
			part := bedsql.WithKeyPart(ctx, "stock")
			_, err = w.Wrapped.ExecContext(part, write, 1, 1)
			refused("a write under a part of the key", err)
			other, _ := bedsql.WithIdempotencyKey(ctx, "other")
			_, err = w.Wrapped.ExecContext(other, write, 1, 1)
			refused("a write under another key", err)
			_, err = w.Wrapped.ExecContext(bedsql.Unlogged(ctx), write, 1, 1)
			refused("an unlogged write", err)
			_, err = w.Wrapped.ExecContext(ctx, "CREATE TABLE other (id INT)")
			refused("DDL", err)
			_, err = w.Wrapped.BeginTx(part, nil)
			refused("a local transaction", err)
			conn, err := w.Wrapped.Conn(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			refused("raw access", conn.Raw(func(c any) error {
				_, err := c.(*bedsql.Conn).Raw(ctx)
				return err
			}))
			_ = conn.Close()
			refused("End of a group from elsewhere", outside.End(ctx))
			group, soft, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Error(err)
			}
			_, err = w.Wrapped.ExecContext(group, write, 1, 1)
			refused("a staged write", err)
			soft.Discard()
			if group, soft, err = bedsql.Begin(ctx, bedsql.WithTx(bedhttp.Tx(ctx))); err != nil {
				t.Error(err)
				return
			}
			w.Stage(group, w.Wrapped, rig.Increment, 1, 1)
			_, err = w.Wrapped.ExecContext(bedsql.Unlogged(group), write, 1, 1)
			refused("an unlogged write in its group", err)
			if _, err = w.Wrapped.ExecContext(soft.Compensation(group), write, -1, 1); err == nil || !strings.Contains(err.Error(), "bedhttp.Config.Undo") {
				t.Errorf("a compensation: %v", err)
			}
			var n int
			if err := w.Wrapped.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 1").Scan(&n); err != nil {
				t.Errorf("a query: %v", err)
			}
			rw.WriteHeader(201)
		}, mayUndo)
		s.Wants(s.Asks("f", "{}"), 201, false)
		wantsGroup(w, 100, 101)
		if n := w.Rig.Balance(2); n != 100 {
			t.Errorf("what was staged outside was delivered: %d", n)
		}
		mistaken := rig.NewService(t, home, func(rw http.ResponseWriter, r *http.Request) {
			_, err := w.Wrapped.ExecContext(r.Context(), write, 1, 1)
			bedhttp.Error(rw, r, err)
		}, mayUndo)
		mistaken.Wants(mistaken.Asks("m", "{}"), 500, false) // the service's own mistake: nothing is kept
		wantsGroup(w, 100, 101)
	})
}

// Two requests that would each undo the other cannot both go on. Neither waits for ever.
func TestRequestsThatUndoEachOtherEnd(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		services := []*undoRig{newUndoRig(t, r, brief), newUndoRig(t, r, brief)}
		scope := services[0].scopeOf("t1")
		for i, pair := range [][2]*undoRig{{services[0], services[0]}, {services[0], services[1]}} {
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			answers := make(chan rig.HttpAnswer, 2)
			go func() { answers <- pair[0].undoes(a, b, header("Idempotency-Scope", scope)) }()
			go func() { answers <- pair[1].undoes(b, a, header("Idempotency-Scope", scope)) }()
			for range 2 {
				// One voids the other, whose answer depends on who was first.
				switch a := <-answers; a.Status {
				case 200, 400, 409, 503:
				default:
					t.Errorf("%v", a)
				}
			}
		}
		services[0].WantsRuns(0, 0)
	})
}

func brief(c *bedhttp.Config) { c.Wait = time.Second }
