package requests

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
	"github.com/bedsql/bed/internal/test/acceptance/rig"
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db)
				r.Account(0)
				s := rig.NewService(t, r, paysAnd(201, "done"))
				s.Wants(s.Asks("other", "{}"), 201, false)
				struck := c.cut(p)
				a := s.Asks("k", "{}")
				rig.WaitFor(t, "the fault", struck)
				s.Wants(a, c.status, false)
				s.WantsRuns(2, 1+c.balance)
				again := s.Asks("k", "{}")
				s.Wants(again, 201, c.balance == 1)
				s.WantsRuns(3-int64(c.balance), 2)
				r.WantNoLog()
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db)
				r.Account(0)
				s := rig.NewService(t, r, paysAnd(c.handler, ""))
				s.Wants(s.Asks("other", "{}"), c.handler, false)
				struck := p.Mute(testproxy.Text(text))
				answer := make(chan rig.HttpAnswer, 1)
				go func() { answer <- s.Asks("k", "{}") }()
				rig.WaitFor(t, "the fault", struck)
				select {
				case a := <-answer:
					s.Wants(a, c.answered, false)
				case <-time.After(rig.Patience):
					t.Fatal("the client waits for ever")
				}
				s.Wants(s.Asks("k", "{}"), c.again, c.handler == 201)
			})
		})
	}
}

// A handler's 4xx is kept together with its rows, or not at all.
func TestHTTPRefusalWhoseRowsAreLostIsNotKept(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(0)
		cut := true
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if rig.Pays(w, r) && cut {
				p.CutAll()
			}
			w.WriteHeader(409)
		})
		s.Wants(s.Asks("k", "{}"), 503, false)
		cut = false
		s.Wants(s.Asks("k", "{}"), 409, false)
		s.Wants(s.Asks("k", "{}"), 409, true)
		s.WantsRuns(2, 1)
	})
}

// The rows of a request have no entry that could wait for their turn.
func TestHTTPOwnRowsUnderAnOrderKeyAreRefused(t *testing.T) {
	t.Parallel()
	eachHome(t, func(t *testing.T, r *rig.Rig) {
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			if _, err := bedhttp.Tx(r.Context()).ExecContext(bedsql.WithOrderKey(r.Context(), "k"), rig.AddOne); !errors.Is(err, bedsql.ErrOrderUnusable) {
				t.Errorf("the write says %v", err)
			}
			w.WriteHeader(201)
		})
		s.Wants(s.Asks("k", "{}"), 201, false)
		s.WantsRuns(1, 0)
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db)
				r.Account(0)
				var again <-chan struct{}
				s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if rig.Pays(w, r) && r.Header.Get("Idempotency-Key") == "k" {
						again = p.CutBefore(testproxy.Text("INSERT INTO bed_receipt")) // the first question
					}
					w.WriteHeader(201)
				}, func(c *bedhttp.Config) { c.Wait = rig.Patience })
				s.Wants(s.Asks("other", "{}"), 201, false)
				struck := c.cut(p)
				a := s.Asks("k", "{}")
				rig.WaitFor(t, "the fault", struck)
				rig.WaitFor(t, "a question without an answer", again)
				if s.Wants(a, c.status, false); c.status == 503 && a.Header.Get("Retry-After") == "" {
					t.Errorf("%v", a.Header)
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db)
				r.Account(0)
				var struck <-chan struct{}
				s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
					if rig.Pays(w, r) && struck != nil {
						p.Refuse()
					}
					w.WriteHeader(201)
				})
				s.Wants(s.Asks("other", "{}"), 201, false)
				struck = cut(p)
				a := s.Asks("k", "{}")
				rig.WaitFor(t, "the fault", struck)
				if s.Wants(a, http.StatusServiceUnavailable, false); a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "outcome-unknown") {
					t.Errorf("%v %v", a, a.Header)
				}
				b := s.Asks("k", "{}") // nothing can be begun, and the first may have been applied
				if s.Wants(b, http.StatusServiceUnavailable, false); strings.Contains(strings.ToLower(string(b.Body)), "not applied") || strings.Contains(string(b.Body), "othing was applied") {
					t.Errorf("%v", b)
				}
				struck = nil
				p.Accept()
				s.Wants(s.Asks("k", "{}"), 201, name == "it was committed")
				s.Wants(s.Asks("k", "{}"), 201, true)
				if b := r.Balance(1); b != 2 {
					t.Errorf("the balance is %d, want 2", b)
				}
			})
		})
	}
}

// wantsGroup checks the balances of account 1 at home and in the stock.
func wantsGroup(w *rig.WithRig, home, stock int) {
	w.T.Helper()
	if a, b := w.AtHome(), w.Rig.Balance(1); a != home || b != stock {
		w.T.Errorf("home has %d and the stock %d, want %d and %d", a, b, home, stock)
	}
}

func TestHTTPGroupsOfARequestShareItsFate(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, option := range map[string]func(r *http.Request) bedsql.TxOption{
			"with the transaction": func(r *http.Request) bedsql.TxOption { return bedsql.WithTx(bedhttp.Tx(r.Context())) },
			"staged":               func(*http.Request) bedsql.TxOption { return bedsql.Staged() },
		} {
			if name == "staged" && db.Driver == testdb.DriverSQLite {
				continue // the request holds the file of its log
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
				status := 500
				home := &rig.Rig{T: t, DB: w.HomeDB, Cfg: w.Cfg}
				s := rig.NewService(t, home, func(rw http.ResponseWriter, r *http.Request) {
					ctx := r.Context()
					home.Must(bedhttp.Tx(ctx), "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
					group, soft, err := bedsql.Begin(ctx, option(r))
					if err != nil {
						t.Error(err)
						return
					}
					w.Stage(group, w.Wrapped, rig.Increment, 1, 1)
					if name == "staged" && status < 500 {
						if err := soft.End(ctx); err != nil {
							t.Error(err)
						}
					}
					rw.WriteHeader(status)
				})
				s.Wants(s.Asks("k", "{}"), 500, false)
				wantsGroup(w, 100, 100)
				status = 201
				s.Wants(s.Asks("k", "{}"), 201, false)
				wantsGroup(w, 99, 101) // delivered before the response, without the job
				s.Wants(s.Asks("k", "{}"), 201, true)
				wantsGroup(w, 99, 101)
				w.WantEmpty()
			})
		}
	})
}

func TestHTTPGroupIsDeliveredByTheJobIfTheProcessEndsAfterCommit(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		w := rig.NewWith(t, testdb.NewLog(t, db.Driver))
		home := &rig.Rig{T: t, DB: w.HomeDB, Cfg: w.Cfg}
		s := rig.NewService(t, home, func(_ http.ResponseWriter, r *http.Request) {
			ctx, soft, err := bedsql.Begin(r.Context(), bedsql.WithTx(bedhttp.Tx(r.Context())))
			if err != nil {
				t.Error(err)
			}
			w.Stage(ctx, w.Wrapped, rig.Increment, 1, 1)
			if err := soft.End(ctx); err == nil { // it is too early: from now on the job alone delivers it
				t.Error("End before the COMMIT returned nil")
			}
		})
		s.Wants(s.Asks("k", "{}"), 200, false)
		wantsGroup(w, 100, 100)
		w.Drain(w.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = time.Hour }))
		wantsGroup(w, 100, 101)
		s.Wants(s.Asks("k", "{}"), 200, true)
		wantsGroup(w, 100, 101)
	})
}

func TestHTTPPendingWriteIsAcceptedWithAnAddressWhereAwaitAnswers(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, rig.FreshLike(t, db))
		r.Account(0)
		other, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		other.Account(0)
		s := rig.NewService(t, r, func(w http.ResponseWriter, r *http.Request) {
			rig.Pays(w, r)
			_, err := other.Wrapped.ExecContext(r.Context(), rig.AddOne)
			bedhttp.Error(w, r, err)
		}, func(c *bedhttp.Config) { c.StatusURL = func(id string) string { return "/pending/" + id } })
		p.Refuse()
		a := s.Asks("k", "{}")
		if s.Wants(a, http.StatusAccepted, false); !strings.HasPrefix(a.Header.Get("Location"), "/pending/") {
			t.Fatalf("%v %v", a, a.Header)
		}
		s.Wants(s.Asks("k", "{}"), http.StatusAccepted, true)
		s.WantsRuns(1, 1)
		status := bedhttp.Status(other.Storage, 50*time.Millisecond)
		wants := func(code int, state bedsql.State) {
			t.Helper()
			w := &recorded{header: http.Header{}}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, a.Header.Get("Location"), http.NoBody)
			status.ServeHTTP(w, req)
			var got map[string]string
			if err := json.Unmarshal([]byte(w.body), &got); err != nil || w.status != code || got["state"] != string(state) {
				t.Errorf("Status answers %d %q (%v), want %d %s", w.status, w.body, err, code, state)
			}
		}
		wants(http.StatusAccepted, bedsql.StateWaiting)
		p.Accept()
		other.Drain(other.Job())
		wants(http.StatusOK, bedsql.StateDelivered)
		other.WantBalances(1)
	})
}

// recorded is a handler's answer.
type recorded struct {
	header http.Header
	status int
	body   string
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) WriteHeader(status int) { r.status = status }

func (r *recorded) Write(p []byte) (int, error) {
	r.body += string(p)
	return len(p), nil
}

// The request's key covers writes recorded in its transaction, and their compensation.
func TestHTTPGroupOfWhichAPartIsRefusedIsUndone(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		g := rig.NewGroup(t, testdb.NewLog(t, db.Driver), rig.WithGroup)
		s := rig.NewService(t, &rig.Rig{T: t, DB: g.AtHome.DB, Bare: g.AtHome.Bare, Cfg: g.Cfg}, func(_ http.ResponseWriter, r *http.Request) {
			m := &rig.Turning{GroupRig: g, Tx: bedhttp.Tx(r.Context())}
			var err error
			if m.Ctx, m.Soft, err = bedsql.Begin(r.Context(), bedsql.WithTx(m.Tx)); err != nil {
				t.Error(err)
				return
			}
			south := rig.Give
			if r.Header.Get("Idempotency-Key") == "refused" {
				south = rig.Short
			}
			m.Moves(south)
		})
		for _, replayed := range []bool{false, true} {
			s.Wants(s.Asks("refused", "{}"), 200, replayed)
			g.WantUndone()
		}
		for _, replayed := range []bool{false, true} {
			s.Wants(s.Asks("delivered", "{}"), 200, replayed)
			g.WantDone()
		}
		g.WantEmpty()
	})
}
