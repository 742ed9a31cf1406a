package calls

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// world is an application with a home, a stock, and a peer that adds one to its account.
type world struct {
	*rig.WithRig
	peer    *rig.Peer
	service *call.Service
	status  atomic.Int64 // of the peer's answers
}

func newWorld(t *testing.T, db testdb.DB) *world {
	t.Helper()
	w := &world{WithRig: rig.NewWith(t, testdb.NewLog(t, db.Driver))}
	w.status.Store(http.StatusCreated)
	w.peer = rig.NewPeer(t, db, func(rw http.ResponseWriter, r *http.Request) {
		code := int(w.status.Load())
		if code < 300 && !rig.Pays(rw, r) {
			return
		}
		rw.WriteHeader(code)
	})
	cfg := w.Cfg
	cfg.Guarantee = bedsql.ExactlyOnce
	w.service = w.peer.Caller(cfg)
	return w
}

func (w *world) targets() asyncjob.Targets {
	stock := rig.TargetOf(w.T, w.DB)
	return asyncjob.Targets{rig.Payments: w.peer.Target(), stock.DataSource: stock}
}

// drains runs the job until only parked entries are left.
func (w *world) drains() {
	w.T.Helper()
	job := w.JobFor(w.targets(), func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
	rig.Eventually(w.T, "only parked entries are left", func() bool {
		if _, err := job.RunOnce(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		return w.Left() == len(w.Parked())
	})
}

func (w *world) sends(ctx context.Context) *call.Result {
	w.T.Helper()
	r, err := w.service.Send(ctx, rig.Post(w.T, "/charges", "1"))
	if err != nil {
		w.T.Fatal(err)
	}
	return r
}

// wants checks the balances at home, in the stock and at the peer.
func (w *world) wants(home, stock, peer int) {
	w.T.Helper()
	if a, b, c := w.AtHome(), w.Rig.Balance(1), w.peer.Balance(1); a != home || b != stock || c != peer {
		w.T.Errorf("the balances are %d at home, %d in the stock and %d at the peer; want %d, %d, %d", a, b, c, home, stock, peer)
	}
}

func TestCallWithATransactionIsSentIfItCommits(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		for _, commits := range []bool{false, true} {
			b := w.Begun()
			w.Must(b.Tx, "UPDATE account SET balance = balance - 1 WHERE id = 1")
			r := w.sends(b.Ctx)
			if _, err := r.Status(); !errors.Is(err, bedsql.ErrStaged) {
				t.Errorf("before the end the answer is %v", err)
			}
			w.wants(100, 100, 0)
			if !commits {
				if err := b.Tx.Rollback(); err != nil {
					t.Fatal(err)
				}
				if err := b.End(); !errors.Is(err, bedsql.ErrRolledBack) {
					t.Errorf("End: %v", err)
				}
				w.drains()
				w.wants(100, 100, 0)
				continue
			}
			b.Commit()
			w.wants(99, 100, 0)
			if err := b.End(); err != nil {
				t.Fatal(err)
			}
			if code, err := r.Status(); code != http.StatusCreated || err != nil {
				t.Errorf("the answer is %d, %v", code, err)
			}
		}
		w.wants(99, 100, 1)
		w.WantEmpty()
		// Nobody calls End.
		b := w.Begun()
		w.Must(b.Tx, "UPDATE account SET balance = balance - 1 WHERE id = 1")
		w.sends(b.Ctx)
		b.Commit()
		w.drains()
		w.wants(98, 100, 2)
	})
}

// The rows at home and the call share the fate of a COMMIT that was not answered.
func TestCallSharesTheFateOfAnUnansweredCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut     func(p *testproxy.Proxy) <-chan struct{}
		applied int
	}{
		"it was committed":     {func(p *testproxy.Proxy) <-chan struct{} { return p.CutAfter(testproxy.Text("commit")) }, 1},
		"it was not committed": {func(p *testproxy.Proxy) <-chan struct{} { return p.CutBefore(testproxy.Text("commit")) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				w := newWorld(t, db)
				p := testproxy.New(t, w.HomeDB.Addr())
				home := w.Open(w.HomeDB.Via(p.Addr()).DSN)
				tx, err := home.Begin()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = tx.Rollback() }()
				b := w.With(tx, tx)
				w.Must(tx, "UPDATE account SET balance = balance - 1 WHERE id = 1")
				w.sends(b.Ctx)
				struck := c.cut(p)
				if err := tx.Commit(); err == nil {
					t.Error("COMMIT was answered")
				}
				rig.WaitFor(t, "the fault", struck)
				if err := b.End(); (err == nil) != (c.applied == 1) && bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
					t.Errorf("End: %v", err)
				}
				w.drains()
				w.wants(100-c.applied, 100, c.applied)
			})
		})
	}
}

func TestRefusedCallOfAGroupIsParked(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		w.status.Store(http.StatusPaymentRequired)
		for i, with := range []bool{false, true} {
			ctx, soft := rig.Staged(t)
			commit := func() {}
			if with {
				b := w.Begun()
				ctx, soft, commit = b.Ctx, b.Soft, b.Commit
			}
			r := w.sends(ctx)
			w.Stage(ctx, w.Rig.Wrapped, rig.Increment, 1, 1)
			commit()
			err := soft.End(t.Context())
			rig.WantOutcomeOf(t, "the group", err, bedsql.OutcomePartlyRefused)
			var refused *call.StatusError
			if _, err := r.Status(); !errors.As(err, &refused) || refused.Status != http.StatusPaymentRequired {
				t.Errorf("the call: %v", err)
			}
			w.drains()
			w.wants(100, 101+i, 0)
			if parked := w.Parked(); len(parked) != 1+i {
				t.Errorf("parked: %v", parked)
			}
		}
		// An operator retries it when the peer has another opinion. Under its key the answer stands.
		w.status.Store(http.StatusCreated)
		for _, u := range w.Logs() {
			if err := w.Storage.Retry(t.Context(), u.ID); err != nil {
				t.Fatal(err)
			}
		}
		w.drains()
		w.wants(100, 102, 0)
		if parked := w.Parked(); len(parked) != 2 {
			t.Errorf("parked: %v", parked)
		}
	})
}

// Everything of a group that is refused whole leaves the log.
func TestGroupOfRefusedCallsLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		w.status.Store(http.StatusPaymentRequired)
		ctx, soft := rig.Staged(t)
		w.sends(ctx)
		w.sends(ctx)
		rig.WantOutcomeOf(t, "the group", soft.End(t.Context()), bedsql.OutcomeRefused)
		w.WantEmpty()
		w.wants(100, 100, 0)
	})
}

// keyless is a service that knows no keys: each request adds one.
func keyless(t *testing.T, status *atomic.Int64) (url string, handled *atomic.Int64) {
	t.Helper()
	handled = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body)
			handled.Add(1)
		}
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(s.Close)
	return s.URL, handled
}

// Without keys a call is handled again if its answer was lost, and never lost itself.
func TestPeerWithoutKeysHandlesCallsAtLeastOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		var status atomic.Int64
		status.Store(http.StatusNoContent)
		url, handled := keyless(t, &status)
		net := rig.NewNetwork(t, url)
		peer := &rig.Peer{Service: &rig.Service{Rig: r}, Net: net}
		send := func(guarantee bedsql.Guarantee) error {
			cfg := r.Cfg
			cfg.Guarantee, cfg.NoSyncRetry = guarantee, true
			_, err := peer.Caller(cfg).Send(t.Context(), rig.Post(t, "/charges", "1"))
			return err
		}
		job := r.JobFor(asyncjob.Targets{rig.Payments: peer.Target()})
		if err := send(bedsql.AtLeastOnce); err != nil || handled.Load() != 1 {
			t.Fatalf("%v, handled %d times", err, handled.Load())
		}
		net.Fails(func(*http.Request) rig.Fate { return rig.DropsAnswer })
		r.WantPending(send(bedsql.AtLeastOnce))
		before := handled.Load()
		net.Fails(nil)
		r.Drain(job)
		if n := handled.Load(); before < 2 || n != before+1 {
			t.Errorf("handled %d times, then %d", before, n)
		}
		// A refusal does not say what became of the attempt before.
		net.Fails(func(*http.Request) rig.Fate { return rig.DropsAnswer })
		r.WantPending(send(bedsql.AtLeastOnce))
		net.Fails(nil)
		status.Store(http.StatusConflict)
		if report, err := job.RunOnce(t.Context()); err != nil || report.Parked != 1 {
			t.Errorf("%+v, %v", report, err)
		}
		if u := r.WantParked("409"); !u.InDoubt {
			t.Error("the parked call is not in doubt")
		}
		// An operator who wanted keys learns that there are none.
		status.Store(http.StatusNoContent)
		if p := r.WantPending(send(bedsql.ExactlyOnce)); p.Parked || !errors.As(p, new(*call.StatusError)) {
			t.Errorf("pending: %+v", p)
		}
	})
}

// A request that the caller's own client sends again makes its calls once, with its rows.
func TestResentRequestMakesItsCallsOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		var fails atomic.Bool
		home := &rig.Rig{T: t, DB: w.HomeDB, Cfg: w.Cfg}
		s := rig.NewService(t, home, func(rw http.ResponseWriter, r *http.Request) {
			home.Must(bedhttp.Tx(r.Context()), "UPDATE account SET balance = balance - 2 WHERE id = 1")
			ctx, _, err := bedsql.Begin(r.Context(), bedsql.WithTx(bedhttp.Tx(r.Context())))
			if err != nil {
				t.Error(err)
				return
			}
			for range 2 {
				w.sends(ctx)
			}
			if fails.Load() {
				rw.WriteHeader(http.StatusInternalServerError)
				return
			}
			rw.WriteHeader(http.StatusCreated)
		})
		fails.Store(true)
		s.Wants(s.Asks("k", "{}"), http.StatusInternalServerError, false)
		w.drains()
		w.wants(100, 100, 0)
		fails.Store(false)
		s.Wants(s.Asks("k", "{}"), http.StatusCreated, false)
		w.wants(98, 100, 2)
		for range 3 {
			s.Wants(s.Asks("k", "{}"), http.StatusCreated, true)
		}
		w.wants(98, 100, 2)
		// The peer is away for the rest of the request.
		w.peer.Net.Fails(func(*http.Request) rig.Fate { return rig.DropsRequest })
		s.Wants(s.Asks("away", "{}"), http.StatusCreated, false)
		s.Wants(s.Asks("away", "{}"), http.StatusCreated, true)
		w.wants(96, 100, 2)
		w.peer.Net.Fails(nil)
		w.drains()
		w.wants(96, 100, 4)
	})
}

// Under the key of a request that has no home, the peer recognizes the calls of the request sent
// again, from whatever process.
func TestCallsUnderAKeyAreMadeOnceByTwoProcesses(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		cfg := w.Cfg
		cfg.Guarantee = bedsql.ExactlyOnce
		for i, service := range []*call.Service{w.service, w.peer.Caller(cfg), w.peer.Caller(cfg)} {
			ctx, key := bedsql.WithIdempotencyKey(t.Context(), "request")
			if _, err := service.Send(ctx, rig.Post(t, "/charges", "1")); err != nil || key.Replayed() != (i > 0) {
				t.Errorf("process %d: %v, replayed %v", i, err, key.Replayed())
			}
			// Another request under the key is the peer's 422.
			ctx, _ = bedsql.WithIdempotencyKey(t.Context(), "request")
			if _, err := service.Send(ctx, rig.Post(t, "/charges", "2")); !errors.Is(err, bedsql.ErrKeyReused) {
				t.Errorf("another request under the key: %v", err)
			}
		}
		w.wants(100, 100, 1)
		w.WantEmpty()
	})
}
