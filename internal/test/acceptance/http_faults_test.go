package acceptance

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestHTTPLostAnswerToCommitIsFoundOutByTheKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut     func(p *testproxy.Proxy) <-chan struct{}
		status  int
		balance int // before it is sent again
	}{
		"it was committed":     {func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Text("commit")) }, 201, 1},
		"it was not committed": {func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Text("commit")) }, 503, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db)
				r.account(0)
				s := newService(t, r, paysAnd(201, "done"))
				s.wants(s.asks("other", "{}"), 201, false)
				struck := c.cut(p)
				a := s.asks("k", "{}")
				waitFor(t, "the fault", struck)
				s.wants(a, c.status, false)
				s.wantsRuns(2, 1+c.balance)
				again := s.asks("k", "{}")
				s.wants(again, 201, c.balance == 1)
				s.wantsRuns(3-int64(c.balance), 2)
				r.wantNoLog()
			})
		})
	}
}

// A network that swallows an answer keeps neither the client nor the key for ever.
func TestHTTPSilentNetworkHoldsUpNoRequest(t *testing.T) {
	t.Parallel()
	for text, c := range map[string]struct{ handler, answered, again int }{
		"commit":   {201, 201, 201},
		"rollback": {500, 500, 500},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db)
				r.account(0)
				s := newService(t, r, paysAnd(c.handler, ""))
				s.wants(s.asks("other", "{}"), c.handler, false)
				struck := p.Mute(testproxy.Text(text))
				answer := make(chan httpAnswer, 1)
				go func() { answer <- s.asks("k", "{}") }()
				waitFor(t, "the fault", struck)
				select {
				case a := <-answer:
					s.wants(a, c.answered, false)
				case <-time.After(patience):
					t.Fatal("the client waits for ever")
				}
				s.wants(s.asks("k", "{}"), c.again, c.handler == 201)
			})
		})
	}
}

// A handler's 4xx is kept together with its rows, or not at all.
func TestHTTPRefusalWhoseRowsAreLostIsNotKept(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(0)
		cut := true
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if pays(w, r) && cut {
				p.CutAll()
			}
			w.WriteHeader(409)
		})
		s.wants(s.asks("k", "{}"), 503, false)
		cut = false
		s.wants(s.asks("k", "{}"), 409, false)
		s.wants(s.asks("k", "{}"), 409, true)
		s.wantsRuns(2, 1)
	})
}

// The rows of a request have no entry that could wait for their turn.
func TestHTTPOwnRowsUnderAnOrderKeyAreRefused(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig) {
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if _, err := bedhttp.Tx(r.Context()).ExecContext(bedsql.WithOrderKey(r.Context(), "k"), addOne); !errors.Is(err, bedsql.ErrOrderUnusable) {
				t.Errorf("the write says %v", err)
			}
			w.WriteHeader(201)
		})
		s.wants(s.asks("k", "{}"), 201, false)
		s.wantsRuns(1, 0)
	})
}

// A COMMIT without an answer is asked about until Wait is over.
func TestHTTPUnansweredCommitIsAskedAboutUntilKnown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut    func(p *testproxy.Proxy) <-chan struct{}
		status int
	}{
		"it was committed":     {func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Text("commit")) }, 201},
		"it was not committed": {func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Text("commit")) }, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db)
				r.account(0)
				var again <-chan struct{}
				s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if pays(w, r) && r.Header.Get("Idempotency-Key") == "k" {
						again = p.CutBefore(testproxy.Text("INSERT INTO bed_receipt")) // the first question
					}
					w.WriteHeader(201)
				}, func(c *bedhttp.Config) { c.Wait = patience })
				s.wants(s.asks("other", "{}"), 201, false)
				struck := c.cut(p)
				a := s.asks("k", "{}")
				waitFor(t, "the fault", struck)
				waitFor(t, "a question without an answer", again)
				if s.wants(a, c.status, false); c.status == 503 && a.header.Get("Retry-After") == "" {
					t.Errorf("%v", a.header)
				}
			})
		})
	}
}

func TestHTTPCommitWithoutAnswerWhileTheDatabaseIsGoneIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(p *testproxy.Proxy) <-chan struct{}{
		"it was committed":     func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Text("commit")) },
		"it was not committed": func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Text("commit")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db)
				r.account(0)
				var struck <-chan struct{}
				s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if pays(w, r) && struck != nil {
						p.Refuse()
					}
					w.WriteHeader(201)
				})
				s.wants(s.asks("other", "{}"), 201, false)
				struck = cut(p)
				a := s.asks("k", "{}")
				waitFor(t, "the fault", struck)
				if s.wants(a, http.StatusServiceUnavailable, false); a.header.Get("Retry-After") == "" || !strings.Contains(string(a.body), "outcome-unknown") {
					t.Errorf("%v %v", a, a.header)
				}
				b := s.asks("k", "{}") // nothing can be begun, and the first may have been applied
				if s.wants(b, http.StatusServiceUnavailable, false); strings.Contains(strings.ToLower(string(b.body)), "not applied") || strings.Contains(string(b.body), "othing was applied") {
					t.Errorf("%v", b)
				}
				struck = nil
				p.Accept()
				s.wants(s.asks("k", "{}"), 201, name == "it was committed")
				s.wants(s.asks("k", "{}"), 201, true)
				if b := r.balance(1); b != 2 {
					t.Errorf("the balance is %d, want 2", b)
				}
			})
		})
	}
}

// wantsGroup checks the balances of account 1 at home and in the stock.
func (w *withRig) wantsGroup(home, stock int) {
	w.t.Helper()
	if a, b := w.atHome(), w.rig.balance(1); a != home || b != stock {
		w.t.Errorf("home has %d and the stock %d, want %d and %d", a, b, home, stock)
	}
}

func TestHTTPGroupsOfARequestShareItsFate(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, option := range map[string]func(r *http.Request) bedsql.TxOption{
			"with the transaction": func(r *http.Request) bedsql.TxOption { return bedsql.WithTx(bedhttp.Tx(r.Context())) },
			"staged":               func(*http.Request) bedsql.TxOption { return bedsql.Staged() },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWith(t, freshLike(t, db), true)
				status := 500
				home := &rig{t: t, db: w.homeDB, cfg: w.cfg}
				s := newService(t, home, func(rw http.ResponseWriter, r *http.Request) {
					ctx := r.Context()
					home.must(bedhttp.Tx(ctx), "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
					group, soft, err := bedsql.Begin(ctx, option(r))
					if err != nil {
						t.Error(err)
						return
					}
					w.stage(group, w.wrapped, increment, 1, 1)
					if name == "staged" && status < 500 {
						if err := soft.End(ctx); err != nil {
							t.Error(err)
						}
					}
					rw.WriteHeader(status)
				})
				s.wants(s.asks("k", "{}"), 500, false)
				w.wantsGroup(100, 100)
				status = 201
				s.wants(s.asks("k", "{}"), 201, false)
				w.wantsGroup(99, 101) // delivered before the response, without the job
				s.wants(s.asks("k", "{}"), 201, true)
				w.wantsGroup(99, 101)
				w.wantEmpty()
			})
		}
	})
}

func TestHTTPGroupIsDeliveredByTheJobIfTheProcessEndsAfterCommit(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		w := newWith(t, freshLike(t, db), true)
		home := &rig{t: t, db: w.homeDB, cfg: w.cfg}
		s := newService(t, home, func(_ http.ResponseWriter, r *http.Request) {
			ctx, soft, err := bedsql.Begin(r.Context(), bedsql.WithTx(bedhttp.Tx(r.Context())))
			if err != nil {
				t.Error(err)
			}
			w.stage(ctx, w.wrapped, increment, 1, 1)
			if err := soft.End(ctx); err == nil { // it is too early: from now on the job alone delivers it
				t.Error("End before the COMMIT returned nil")
			}
		})
		s.wants(s.asks("k", "{}"), 200, false)
		w.wantsGroup(100, 100)
		w.drain(w.job(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour }))
		w.wantsGroup(100, 101)
		s.wants(s.asks("k", "{}"), 200, true)
		w.wantsGroup(100, 101)
	})
}

func TestHTTPPendingWriteIsAcceptedWithAnAddressWhereAwaitAnswers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, freshLike(t, db))
		r.account(0)
		other, p := newRigBehindProxy(t, db, noSyncRetry)
		other.account(0)
		s := newService(t, r, func(w http.ResponseWriter, r *http.Request) {
			pays(w, r)
			_, err := other.wrapped.ExecContext(r.Context(), addOne)
			bedhttp.Error(w, r, err)
		}, func(c *bedhttp.Config) { c.StatusURL = func(id string) string { return "/pending/" + id } })
		p.Refuse()
		a := s.asks("k", "{}")
		if s.wants(a, http.StatusAccepted, false); !strings.HasPrefix(a.header.Get("Location"), "/pending/") {
			t.Fatalf("%v %v", a, a.header)
		}
		s.wants(s.asks("k", "{}"), http.StatusAccepted, true)
		s.wantsRuns(1, 1)
		status := bedhttp.Status(other.storage, 50*time.Millisecond)
		wants := func(code int, state bedsql.State) {
			t.Helper()
			w := &recorded{header: http.Header{}}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, a.header.Get("Location"), http.NoBody)
			status.ServeHTTP(w, req)
			var got map[string]string
			if err := json.Unmarshal([]byte(w.body), &got); err != nil || w.status != code || got["state"] != string(state) {
				t.Errorf("Status answers %d %q (%v), want %d %s", w.status, w.body, err, code, state)
			}
		}
		wants(http.StatusAccepted, bedsql.StateWaiting)
		p.Accept()
		other.drain(other.job())
		wants(http.StatusOK, bedsql.StateDelivered)
		other.wantBalances(1)
	})
}

// recorded is a handler's answer.
type recorded struct {
	header http.Header
	status int
	body   string
}

func (r *recorded) Header() http.Header    { return r.header }
func (r *recorded) WriteHeader(status int) { r.status = status }
func (r *recorded) Write(p []byte) (int, error) {
	r.body += string(p)
	return len(p), nil
}

// The request's key covers writes recorded in its transaction, and their compensation.
func TestHTTPGroupOfWhichAPartIsRefusedIsUndone(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		g := newGroup(t, freshLike(t, db), wrappedGroup)
		s := newService(t, &rig{t: t, db: g.atHome.db, bare: g.atHome.bare, cfg: g.cfg}, func(_ http.ResponseWriter, r *http.Request) {
			m := &turning{groupRig: g, tx: bedhttp.Tx(r.Context())}
			var err error
			if m.ctx, m.soft, err = bedsql.Begin(r.Context(), bedsql.WithTx(m.tx)); err != nil {
				t.Error(err)
				return
			}
			south := give
			if r.Header.Get("Idempotency-Key") == "refused" {
				south = short
			}
			m.moves(south)
		})
		for _, replayed := range []bool{false, true} {
			s.wants(s.asks("refused", "{}"), 200, replayed)
			g.wantUndone()
		}
		for _, replayed := range []bool{false, true} {
			s.wants(s.asks("delivered", "{}"), 200, replayed)
			g.wantDone()
		}
		g.wantEmpty()
	})
}
