package barrier

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/bedhttp"
	"github.com/bedsql/bed/bedsql/call"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestGroupWithACallIsDeliveredWhole(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.must(w.begin(takes, "charge").End(t.Context()))
		w.settles(0)
		w.wants(99, 1, 0)
	})
}

func TestRefusedGroupUndoesItsCall(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		err := w.begin(never, "charge").End(t.Context())
		if !errors.As(err, new(*bedsql.CompensatedError)) || bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		w.settles(0)
		w.wants(100, 0, 1)
	})
}

// A charge that was declined is not refunded.
func TestDeclinedCallIsNotUndone(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		err := w.begin(takes, "decline").End(t.Context())
		var declined *call.StatusError
		if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated || !errors.As(err, &declined) || declined.Status != http.StatusPaymentRequired {
			t.Errorf("End: %v", err)
		}
		w.settles(0)
		w.wants(100, 1, 0) // the handler had written before it declined, and a 4xx keeps its rows
	})
}

// Whether an unanswered charge was applied is found out by its undo.
func TestUnansweredCallIsUndone(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.net.faults(loses("/charges"))
		err := w.begin(never, "charge").End(t.Context())
		if o := bedsql.OutcomeOf(err); o != bedsql.OutcomeCompensated && o != bedsql.OutcomeAccepted {
			t.Errorf("End: %v", err)
		}
		w.settles(0)
		w.wants(100, 0, 1)
	})
}

// A charge that arrives after its undo is not applied.
func TestLateCallIsNeverApplied(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		held := make(chan *http.Request, 10)
		w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
			if r.URL.Path != "/charges" {
				return send(r)
			}
			held <- r
			return nil, errCut
		})
		_ = w.begin(never, "charge").End(t.Context())
		w.settles(0)
		w.wants(100, 0, 0)
		late := (<-held).Clone(context.Background())
		late.Body, _ = late.GetBody()
		res, err := http.DefaultTransport.RoundTrip(late)
		w.must(err)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusConflict || res.Header.Get("Retry-After") != "" {
			t.Errorf("the late charge is answered %s", res.Status)
		}
		w.wants(100, 0, 0)
	})
}

// An overdue group is compensated although the charge is still being handled: its undo waits for it.
func TestUndoWaitsForTheCallInFlight(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		begun, free := make(chan bool, 1), make(chan bool)
		var once sync.Once
		w.payments.answers(func(rw http.ResponseWriter, r *http.Request, handle http.HandlerFunc) {
			if r.URL.Path == "/charges" {
				begun <- true
				<-free
			}
			handle(rw, r)
		})
		w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
			if r.URL.Path != "/charges" {
				return send(r)
			}
			once.Do(func() {
				go func() {
					if res, err := send(r.Clone(context.Background())); err == nil {
						_ = res.Body.Close()
					}
				}()
				<-begun
			})
			return nil, errCut
		})
		ended := make(chan error)
		go func() { ended <- w.begin(never, "charge").End(context.Background()) }()
		rig.Eventually(t, "the refund arrives", func() bool { return w.payments.ran("/charges") > 0 })
		select {
		case err := <-ended:
			t.Errorf("End did not wait for the charge: %v", err)
		case <-time.After(200 * time.Millisecond): // it could not be seen waiting
		}
		close(free)
		<-ended
		w.settles(0)
		w.wants(100, 0, 1)
	})
}

// Each compensation undoes the last call before it that has none, the last one first.
func TestCallsAreUndoneOneByOne(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		var undone []string
		w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
			res, err := send(r)
			if err == nil && r.URL.Path == "/refunds" {
				undone = append(undone, r.URL.RawQuery+" "+res.Header.Get("Idempotency-Undone"))
			}
			return res, err
		})
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		w.must(err)
		undo := soft.Compensation(ctx)
		send := func(ctx context.Context, path, body string) {
			_, err := w.service.Send(ctx, post(path, body))
			w.must(err)
		}
		send(ctx, "/charges?a", "charge")
		send(ctx, "/charges?b", "charge")
		send(undo, "/refunds?b", "")
		send(undo, "/refunds?a", "")
		send(ctx, "/charges?c", "charge")
		send(undo, "/refunds?c", "")
		if _, err := w.service.Send(undo, post("/refunds?d", "")); err == nil || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("a compensation of nothing: %v", err)
		}
		send(ctx, "/charges?d", "decline")
		send(undo, "/refunds?d", "")
		if err := soft.End(t.Context()); bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		w.settles(0)
		if got := strings.Join(undone, ", "); got != "d nothing, c done, b done, a done" {
			t.Errorf("undone: %s", got)
		}
	})
}

// An undo whose answer is lost is sent again, and runs once.
func TestUndoIsDoneOnce(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.net.faults(loses("/refunds"))
		err := w.begin(never, "charge").End(t.Context())
		if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		w.round()
		w.wants(100, 0, 1)
		w.net.faults(nil)
		w.settles(0)
		w.wants(100, 0, 1)
	})
}

// A refund that fails is rolled back whole, and tried again.
func TestFailedUndoIsTriedAgain(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		fails := true
		w.payments.answers(func(rw http.ResponseWriter, r *http.Request, handle http.HandlerFunc) {
			if handle(rw, r); r.URL.Path == "/refunds" && fails {
				panic(http.ErrAbortHandler)
			}
		})
		_ = w.begin(never, "charge").End(t.Context())
		if n := w.payments.Balance(1); n != 1 {
			t.Errorf("there %d after a refund that failed", n)
		}
		fails = false
		w.settles(0)
		if n := w.payments.Balance(1); n != 0 {
			t.Errorf("there %d in the end", n)
		}
	})
}

// A fault for an operator leaves the group half undone until it is fixed. No try counts.
func TestUndoWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.net.faults(turnsAway("/refunds"))
		err := w.begin(never, "charge").End(t.Context())
		if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		for range 8 {
			if r := w.round(); r.Parked > 0 {
				t.Fatalf("the job: %+v", r)
			}
		}
		if u := w.WantOneLog(); u.Tries > 0 {
			t.Errorf("the entry has %d tries", u.Tries)
		}
		w.net.faults(nil)
		w.settles(0)
		w.wants(100, 0, 1)
	})
}

// An expired token compensates nothing.
func TestExpiredTokenCompensatesNothing(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.net.faults(turnsAway("/charges"))
		if err := w.begin(takes, "charge").End(t.Context()); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("End: %v", err)
		}
		for range 8 {
			w.round()
		}
		w.wants(99, 0, 0)
		w.net.faults(nil)
		w.settles(0)
		w.wants(99, 1, 0)
	})
}

// A purged receipt of a charge that was seen to be applied is no proof that there is nothing to undo.
func TestForgottenCallIsForAnOperator(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		refund := make(chan bool, 1)
		w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
			if r.URL.Path == "/refunds" && len(refund) == 0 {
				refund <- true
				rowsOf(t, w.payments.Bare, "DELETE FROM bed_receipt WHERE id LIKE 'key-%'")
			}
			return send(r)
		})
		err := w.begin(never, "charge").End(t.Context())
		if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		w.round()
		if u := w.WantOneLog(); !u.HalfCompensated() || !strings.Contains(u.LastError, "409") {
			t.Errorf("the entry: parked %v, %s", u.Parked, u.LastError)
		}
		w.wants(100, 1, 0)
	})
}

// Which calls are applied, a job that compensates a group knows from the log.
func TestCallForgottenUnderTheJobIsForAnOperator(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		passes := func(queries string) {
			w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
				if !strings.Contains(queries, r.URL.RawQuery) {
					return nil, errCut
				}
				return send(r)
			})
		}
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		w.must(err)
		undo := soft.Compensation(ctx)
		for _, c := range [][2]string{{"a", "charge"}, {"b", "decline"}} {
			_, err := w.service.Send(ctx, post("/charges?"+c[0], c[1]))
			w.must(err)
			_, err = w.service.Send(undo, post("/refunds?undo-"+c[0], ""))
			w.must(err)
		}
		passes("")
		if err := soft.End(t.Context()); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("End: %v", err)
		}
		passes("a")
		rig.Eventually(t, "the job delivers the first call", func() bool { w.round(); return w.payments.ran("/charges") > 0 })
		passes("b")
		rig.Eventually(t, "the service declines the second call", func() bool { w.round(); return w.payments.ran("/charges") > 1 })
		rowsOf(t, w.payments.Bare, "DELETE FROM bed_receipt WHERE id LIKE 'key-%'")
		w.net.faults(nil)
		rig.Eventually(t, "the group is compensated as far as it can be", func() bool {
			w.round()
			all := w.Logs()
			return len(all) == 0 || all[0].HalfCompensated()
		})
		if u := w.WantOneLog(); !strings.Contains(u.LastError, "409") {
			t.Errorf("the entry: %s", u.LastError)
		}
		w.wants(100, 2, 0) // the declined handler had written
	})
}

// The undo goes to the keys of the charge or nowhere.
func TestUndoInAnotherScopeWaits(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		elsewhere := w.elsewhere()
		w.net.faults(leads("/refunds", elsewhere))
		err := w.begin(never, "charge").End(t.Context())
		if bedsql.OutcomeOf(err) != bedsql.OutcomeCompensated {
			t.Errorf("End: %v", err)
		}
		for range 3 {
			w.round()
		}
		if u := w.WantOneLog(); u.Parked || u.Tries > 0 || !strings.Contains(u.LastError, "421") {
			t.Errorf("the entry: parked %v, %d tries, %s", u.Parked, u.Tries, u.LastError)
		}
		w.wants(100, 1, 0)
		w.net.faults(nil)
		w.settles(0)
		if w.wants(100, 0, 1); elsewhere.Balance(1) != 0 {
			t.Error("the other database has changed")
		}
	})
}

// A call that reaches other keys than those of its group is not handled there: no undo would find it.
func TestCallInAnotherScopeWaits(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		elsewhere := w.elsewhere()
		w.net.faults(leads("/charges", elsewhere))
		if err := w.begin(takes, "charge").End(t.Context()); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("End: %v", err)
		}
		for range 3 {
			w.round()
		}
		if w.wants(99, 0, 0); elsewhere.Balance(1) != 0 {
			t.Error("the other database has changed")
		}
		w.net.faults(nil)
		w.settles(0)
		w.wants(99, 1, 0)
	})
}

// A service that does not let its calls be undone, or is older, is refused before anything is sent.
func TestServiceThatCannotUndoIsRefused(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.calls(newPayments(t, w.payments.Rig, func(c *bedhttp.Config) { c.Undo = nil }))
		refused := func(what string) {
			ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
			w.must(err)
			defer soft.Discard()
			_, err = w.service.Send(ctx, post("/charges", "charge"))
			w.must(err)
			if _, err := w.service.Send(soft.Compensation(ctx), post("/refunds", "")); err == nil || !strings.Contains(err.Error(), "can be undone") {
				t.Errorf("%s: %v", what, err)
			}
		}
		refused("nobody may")
		w.net.faults(func(r *http.Request, send send) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Header: http.Header{}}, nil
		})
		refused("an older one")
		// A service that may not recognize keys has no place in such a group either.
		w.net.faults(nil)
		s, err := call.New(&http.Client{Transport: w.net}, "payments", newPayments(t, w.payments.Rig).url, w.Cfg)
		w.must(err)
		defer s.Close()
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
		w.must(err)
		defer soft.Discard()
		_, err = s.Send(ctx, post("/charges", "charge"))
		w.must(err)
		if _, err := s.Send(soft.Compensation(ctx), post("/refunds", "")); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("at least once: %v", err)
		}
	})
}

// While the service is away, a group that is overdue is compensated; what was never sent is not undone.
func TestOverdueGroupIsCompensated(t *testing.T) {
	t.Parallel()
	eachWorld(t, func(t *testing.T, w *world) {
		w.net.faults(func(*http.Request, send) (*http.Response, error) {
			return nil, errCut
		})
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged(), bedsql.CompensateAfter(time.Millisecond))
		w.must(err)
		_, err = w.Wrapped.ExecContext(ctx, takes)
		w.must(err)
		_, err = w.Wrapped.ExecContext(soft.Compensation(ctx), gives)
		w.must(err)
		w.charges(ctx, soft.Compensation(ctx), "charge")
		if err := soft.End(t.Context()); err == nil {
			t.Error("End reports success")
		}
		w.round(func(c *asyncjob.Config) { c.RetryDelay = time.Millisecond })
		w.net.faults(nil)
		w.settles(0)
		w.wants(100, 0, 0)
	})
}

// Under WithTx the call follows the rows of the transaction, and its compensation with it.
func TestCallUnderWithTxIsUndone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		w := newWorld(t, db)
		own := rig.NewWithLog(t, db, db)
		w.Rig = own
		w.calls(w.payments)
		tx, err := own.Wrapped.Begin()
		w.must(err)
		_, err = tx.Exec(takes)
		w.must(err)
		ctx, soft, err := bedsql.Begin(t.Context(), bedsql.WithTx(tx))
		w.must(err)
		w.charges(ctx, soft.Compensation(ctx), "charge")
		two := w.charges(ctx, soft.Compensation(ctx), "decline")
		w.must(tx.Commit())
		if err := soft.End(t.Context()); bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused { // the rows of tx stay
			t.Errorf("End: %v", err)
		}
		if _, err := two.Status(); !errors.As(err, new(*call.StatusError)) {
			t.Errorf("the declined charge: %v", err)
		}
		w.settles(0)
		w.wants(99, 1, 1) // the rows of tx have no compensation; the declined handler had written
	})
}
