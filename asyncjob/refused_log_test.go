package asyncjob

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

// The log answers and renews leases, but refuses reports on units. The job does not ask it for
// ever.
func TestLogThatRejectsVerdictsFailsTheRound(t *testing.T) {
	t.Parallel()
	full := errors.New("the log refuses it")
	for what, refuse := range map[string]func(*spy){
		"removed":    func(s *spy) { s.onRemove = func() error { return full } },
		"given back": func(s *spy) { s.onRelease = func(*entry.Unit, entry.Verdict) error { return full } },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, db := newStore(t), &fakeDB{}
				u := add(t, mem, "orders", "row 1", nil)
				if what == "given back" {
					db = always(errFake)
				}
				store := &spy{Storage: mem}
				refuse(store)
				cfg := brittle()
				cfg.Lease, cfg.DeliveryTimeout = 300*time.Millisecond, 200*time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), patience/3)
				defer cancel()
				r, err := newJob(t, store, Targets{"orders": db.target()}, cfg).RunOnce(ctx)
				if !errors.Is(err, full) || ctx.Err() != nil || !strings.Contains(err.Error(), "orders") {
					t.Errorf("the round ended with %v, %v", r, err)
				}
				if got := get(t, mem, u); got.Parked || got.Tries != 0 {
					t.Errorf("the unit is %+v", got)
				}
				for until := time.Now().Add(patience); get(t, mem, u).Leased && time.Now().Before(until); {
					time.Sleep(time.Millisecond)
				}
				if get(t, mem, u).Leased {
					t.Error("its lease does not run out")
				}
			})
		})
	}
}
