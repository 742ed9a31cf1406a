package requests

import (
	"database/sql"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestUnansweredCommitOfAnUndoIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut  func(p *testproxy.Proxy) <-chan struct{}
		done bool
	}{
		"it was committed":     {func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Text("commit")) }, true},
		"it was not committed": {func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Text("commit")) }, false},
	} {
		for _, forward := range []string{"applied", "unknown"} {
			t.Run(name+", "+forward, func(t *testing.T) {
				t.Parallel()
				rig.EachServer(t, func(t *testing.T, db testdb.DB) {
					r, p := rig.NewBehindProxy(t, db)
					r.Account(0)
					u := newUndoRig(t, r)
					word := "nothing"
					u.Wants(u.Asks("other", "{}"), 201, false)
					if forward == "applied" {
						u.Wants(u.Asks("f", "{}"), 201, false)
						word = "done"
					}
					scope := u.scopeOf("t1")
					struck := c.cut(p)
					a := u.undoes("u", "f", header("Idempotency-Scope", scope))
					rig.WaitFor(t, "the fault", struck)
					if c.done {
						u.wantsUndone(a, word, false)
					} else {
						u.wantsProblem(a, http.StatusServiceUnavailable, "try-again")
					}
					u.wantsUndone(u.undoes("u", "f"), word, c.done)
					u.wantsProblem(u.Asks("f", "{}"), http.StatusConflict, "undone")
					u.wantsBalance(1)
				})
			})
		}
	}
}

// The lock on the forward's receipt is lost with the connection.
func TestUndoWhoseLockIsNotAnsweredChangesNothing(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(0)
		u := newUndoRig(t, r)
		u.Wants(u.Asks("f", "{}"), 201, false)
		scope := u.scopeOf("t1")
		text := "ON CONFLICT (id) DO UPDATE"
		if db.Driver == testdb.DriverMySQL {
			text = "ON DUPLICATE KEY UPDATE"
		}
		struck := p.CutAfter(testproxy.Text(text))
		a := u.undoes("u", "f", header("Idempotency-Scope", scope))
		rig.WaitFor(t, "the fault", struck)
		u.wantsProblem(a, http.StatusServiceUnavailable, "try-again")
		u.Wants(u.Asks("f", "{}"), 201, true)
		u.wantsUndone(u.undoes("u", "f"), "done", false)
		u.wantsBalance(0)
	})
}

// The forward's COMMIT is not answered, and by the time it is asked about the forward is undone.
func TestUnansweredCommitOfAnUndoneRequestIsUndone(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(0)
		u := newUndoRig(t, r, shop(r), func(c *bedhttp.Config) { c.DB.SetMaxOpenConns(1) })
		past := &rig.Rig{T: t, DB: db, Bare: r.Bare, Cfg: r.Cfg}
		direct := newUndoRig(t, past, shop(past))
		u.Wants(u.Asks("other", "{}"), 201, false)
		scope := u.scopeOf("t1")
		struck := p.CutAfter(testproxy.Text("commit"))
		forward := make(chan rig.HttpAnswer, 1)
		var asked <-chan struct{}
		free := func() {}
		u.before = func(*http.Request) { asked, free = p.Hold(testproxy.Text("INSERT INTO bed_receipt")) } // the question
		go func() { forward <- u.Asks("f", "{}") }()
		rig.WaitFor(t, "the fault", struck)
		rig.WaitFor(t, "the question", asked)
		direct.wantsUndone(direct.undoes("u", "f", header("Idempotency-Scope", scope)), "done", false)
		free()
		u.wantsProblem(<-forward, http.StatusConflict, "undone")
		u.wantsBalance(1)
	})
}

// Undos of one key wait for it together, and leave the pool to others.
func TestUndosOfOneKeyDoNotDrainThePool(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		const n = 20
		u := newUndoRig(t, r, func(c *bedhttp.Config) { c.DB.SetMaxOpenConns(2) })
		scope := u.scopeOf("t1")
		u.Wants(u.Asks("other", "{}"), 201, false)
		held, free := make(chan struct{}), make(chan struct{})
		u.before = func(r *http.Request) {
			if r.Header.Get("Idempotency-Key") == "f" {
				held <- struct{}{}
				<-free
			}
		}
		answers := make(chan rig.HttpAnswer, n+1)
		go func() { answers <- u.Asks("f", "{}") }()
		rig.WaitFor(t, "the handler", held)
		sent := make(chan struct{}, n)
		for i := range n {
			go func() {
				key := string(rune('A' + i))
				answers <- u.Asks(key, "{}", header("Idempotency-Undoes", "f"), sentAt(time.Now()), header("Idempotency-Scope", scope), func(*http.Request) { sent <- struct{}{} })
			}()
		}
		for range n {
			<-sent
		}
		if open := u.cfg.DB.Stats().InUse; open > 1 {
			t.Errorf("%d connections are in use", open)
		}
		close(free)
		words := map[string]int{}
		for range n + 1 {
			a := <-answers
			words[a.Header.Get("Idempotency-Undone")]++
			if a.Status >= 300 {
				t.Errorf("%v", a)
			}
		}
		if words["done"] != 1 || words["already"] != n-1 || words[""] != 1 {
			t.Errorf("%v", words)
		}
		u.wantsBalance(1)
	})
}

// Higher levels of isolation show an undo the forward that it waited for.
func TestUndoAtEachLevelOfIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r := rig.New(t, db)
				r.Account(0)
				at := func(c *bedhttp.Config) { c.Isolation = level }
				u, other := newUndoRig(t, r, at), newUndoRig(t, r, at)
				scope := u.scopeOf("t1")
				held, free := make(chan struct{}), make(chan struct{})
				u.before = func(*http.Request) {
					held <- struct{}{}
					<-free
				}
				forward, undo := make(chan rig.HttpAnswer, 1), make(chan rig.HttpAnswer, 1)
				go func() { forward <- u.Asks("f", "{}") }()
				rig.WaitFor(t, "the handler", held)
				go func() { undo <- other.undoes("u", "f", header("Idempotency-Scope", scope)) }()
				rig.Eventually(t, "the undo waits for the lock", func() bool { return r.Waiting() > 0 })
				close(free)
				u.Wants(<-forward, 201, false)
				u.wantsUndone(<-undo, "done", false)
				u.wantsBalance(0)
			})
		})
	}
}

// The identity is read once a process, and no request pays for undos.
func TestScopeIsReadOnceAProcess(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(0)
		makesReceipts(r)
		read := p.Count(testproxy.Text("id = 'identity'"))
		locked, updated := p.Count(testproxy.Text("ON CONFLICT (id) DO UPDATE")), p.Count(testproxy.Text("ON DUPLICATE KEY UPDATE"))
		u := newUndoRig(t, r, func(c *bedhttp.Config) { c.DB.SetMaxOpenConns(1) })
		begun := p.Count(testproxy.Text("INSERT INTO bed_receipt"))
		for i := range 10 {
			u.Wants(u.Asks(strconv.Itoa(i), "{}"), 201, false)
		}
		if read() != 1 || locked()+updated() != 0 {
			t.Errorf("the identity was read %d times, and %d receipts were locked, for %d inserts", read(), locked()+updated(), begun())
		}
	})
}

// The first request of all makes the identity. It is not answered later if that takes two attempts.
func TestUnansweredCommitOfTheIdentityIsNoFailure(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(0)
		r.ReceiptTable()
		u := newUndoRig(t, r)
		struck := p.CutAfter(testproxy.Text("commit"))
		u.Wants(u.Asks("f", "{}"), 201, false)
		rig.WaitFor(t, "the fault", struck)
		if n := r.Receipts(); n != 2 {
			t.Errorf("%d receipts, want the identity and the request's", n)
		}
		u.wantsUndone(u.undoes("u", "f"), "done", false)
	})
}
