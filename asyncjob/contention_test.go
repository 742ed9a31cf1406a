package asyncjob

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

var contention = answer{dialect.Contention, "fake: lock wait timeout"}

// patient is brittle without rests between tries.
func patient() Config {
	cfg := brittle()
	cfg.RetryDelay = NoDelay
	return cfg
}

func TestContentionIsNoTryForADay(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	store, pool := sqlLog(t, db), db.Open(t)
	u := add(t, store, "orders", "UPDATE t SET n = 1", nil)
	j := newJob(t, store, Targets{"orders": always(contention).target()}, patient())
	round := func() {
		mustExec(t, pool, "UPDATE transaction_log SET next_try_time = 1")
		runOnce(t, j)
	}
	for range 10 {
		round()
	}
	got := get(t, store, u)
	if got.Tries != 0 || got.Parked || got.ContendedSince().IsZero() {
		t.Errorf("after ten lock waits the unit is %+v, want no try and since when it contended", got)
	}
	mustExec(t, pool, "UPDATE transaction_log SET creation_time = creation_time - 90000000") // 25 hours
	for range j.cfg.MaxDeliveryTryTimes {
		round()
	}
	if got = get(t, store, u); !got.Parked {
		t.Errorf("after a day of contention and %d more tries the unit is %+v, want it parked", j.cfg.MaxDeliveryTryTimes, got)
	}
	must(t, store.Retry(t.Context(), u.ID))
	runOnce(t, j)
	if got = get(t, store, u); got.Parked || got.Tries != 0 || time.Since(got.ContendedSince()) > time.Hour {
		t.Errorf("after an operator's retry the unit is %+v, want a new day", got)
	}
}

func TestContendedUnitsRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	store, pool := sqlLog(t, db), db.Open(t)
	addMany(t, store, "orders", 12)
	var busy, most atomic.Int64
	first := true
	fake := &fakeDB{onExec: func(context.Context, string) error {
		if first {
			return contention
		}
		if n := busy.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer busy.Add(-1)
		time.Sleep(time.Millisecond) // so that others could begin
		return nil
	}}
	j := newJob(t, store, Targets{"orders": fake.target()}, patient())
	runOnce(t, j)
	if n := left(t, store); n != 12 {
		t.Fatalf("%d units are left after contention", n)
	}
	first = false
	mustExec(t, pool, "UPDATE transaction_log SET next_try_time = 1")
	if r := runOnce(t, j); r.Delivered != 12 || most.Load() != 1 {
		t.Errorf("report %v, %d at a time, want all of them, one after the other", r, most.Load())
	}
}

// More units than a claim takes wait for a lock, and delay no others.
func TestLockWaitsDelayNoHealthyUnit(t *testing.T) {
	t.Parallel()
	const waiters = 600
	for _, concurrency := range []int{2, 16} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			store := &spy{Storage: newStore(t)}
			locked := make(chan struct{})
			var stuck atomic.Int64
			healthy, retried := make(chan struct{}), make(chan struct{})
			var again atomic.Bool
			db := &fakeDB{onExec: func(_ context.Context, q string) error {
				switch {
				case strings.Contains(q, "healthy"):
					close(healthy)
					return nil
				case strings.Contains(q, "= 599") && again.Load():
					close(retried)
					return nil
				}
				stuck.Add(1)
				defer stuck.Add(-1)
				<-locked
				return contention
			}}
			for i := range waiters {
				add(t, store, "orders", fmt.Sprintf("UPDATE stuck SET n = 1 WHERE id = %d", i), nil)
			}
			last, _ := lastUnit(t, store)
			cfg := patient()
			cfg.Concurrency = concurrency
			j := newJob(t, store, Targets{"orders": db.target()}, cfg)
			ended, begun := make(chan Report, 1), time.Now()
			go func() {
				r, _ := j.RunOnce(context.Background())
				ended <- r
			}()
			until(t, "half of the workers wait for the lock", func() bool { return stuck.Load() >= int64(concurrency/2) })
			add(t, store, "orders", "UPDATE healthy SET n = 1", nil)
			wait(t, "the healthy unit is delivered", healthy)
			again.Store(true)
			must(t, store.Retry(t.Context(), last.ID)) // it is not claimed, for others wait already
			wait(t, "the unit that an operator retried is delivered", retried)
			if n := stuck.Load(); n != int64(concurrency/2) {
				t.Errorf("%d workers wait for the lock, want half of %d", n, concurrency)
			}
			all, err := store.List(t.Context(), txlog.Filter{Limit: waiters})
			must(t, err)
			claimed := 0
			for _, u := range all {
				if u.Leased {
					claimed++
				} else if u.NextTry.After(u.ReadAt) {
					t.Fatalf("%+v rests, and no attempt was made at it", u)
				}
			}
			if claimed > 2*slowKept {
				t.Errorf("%d units are claimed, more than %d", claimed, 2*slowKept)
			}
			close(locked)
			if r := <-ended; r.Claimed != waiters+1 || r.Delivered != 2 || r.PushedBack != waiters-1 {
				t.Errorf("report %v, want each unit tried once", r)
			}
			// Seven claims see all units once a second; each of the others takes half of slowKept or more.
			if n, most := store.claims.get(), 2*waiters/slowKept+10*(2+int(time.Since(begun)/time.Second)); n > most {
				t.Errorf("%d claims, more than %d", n, most)
			}
		})
	}
}

// One round tries everything that was due when it began, however much of it failed before.
func TestRoundTriesEachDueUnitOnce(t *testing.T) {
	t.Parallel()
	const failing, healthy = 5 * slowKept, 20
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store, pool := &spy{Storage: sqlLog(t, db)}, db.Open(t)
		for i := range failing {
			add(t, store, "orders", fmt.Sprintf("UPDATE failing SET n = 1 WHERE id = %d", i), nil)
		}
		mustExec(t, pool, "UPDATE transaction_log SET async_delivery_try_times = 1, next_try_time = 1")
		for i := range healthy {
			add(t, store, "orders", fmt.Sprintf("UPDATE healthy SET n = %d", i), nil)
		}
		var before atomic.Int64
		tried := make(chan struct{})
		fake := &fakeDB{onExec: func(ctx context.Context, q string) error {
			if strings.Contains(q, "healthy") {
				if before.Add(1) == healthy {
					close(tried)
				}
				return nil
			}
			select { // what fails takes long, and holds up nothing
			case <-tried:
			case <-ctx.Done():
			}
			return answer{dialect.Retryable, "fake: locked"}
		}}
		cfg := brittle()
		cfg.RetryDelay = time.Hour
		r := runOnce(t, newJob(t, store, Targets{"orders": fake.target()}, cfg))
		if r.Delivered != healthy || r.Failed != failing || r.Claimed != healthy+failing {
			t.Errorf("report %v, want %d delivered and %d failed, each tried once", r, healthy, failing)
		}
	})
}

func lastUnit(t *testing.T, s txlog.Storage) (*entry.Unit, int) {
	t.Helper()
	all, err := s.List(t.Context(), txlog.Filter{})
	must(t, err)
	return all[len(all)-1], len(all)
}
