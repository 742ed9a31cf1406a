package asyncjob

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

func TestNextUnitsAreClaimedDuringDelivery(t *testing.T) {
	t.Parallel()
	mem := newStore(t)
	addMany(t, mem, "orders", 12)
	cfg := brittle()
	cfg.Concurrency, cfg.TransactionLogFetchDataCount = 4, 8
	claims, again := 0, make(chan struct{})
	store := &spy{Storage: mem, onClaim: func() ([]*entry.Unit, error) {
		if claims++; claims == 2 {
			close(again)
		}
		return mem.Claim(context.Background(), entry.ClaimRequest{DataSource: "orders", Limit: 8, Lease: time.Minute})
	}}
	db := &fakeDB{onExec: func(context.Context, string) error {
		wait(t, "the next claim", again)
		return nil
	}}
	if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg)); r.Delivered != 12 || left(t, mem) != 0 {
		t.Errorf("report: %v", r)
	}
}

func TestATransactionKeepsItsOrderAcrossClaims(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 4} {
		t.Run(fmt.Sprint("DeliveryBatch ", batch), func(t *testing.T) {
			t.Parallel()
			store := newStore(t)
			const transactions, each = 3, 40
			var ids [transactions]string
			for i := range ids {
				ids[i] = entry.NewID()
			}
			for n := range each {
				for i, id := range ids {
					add(t, store, "orders", fmt.Sprintf("%d/%02d", i, n), func(u *entry.Unit) { u.TransactionID = id })
				}
			}
			cfg := brittle()
			cfg.Concurrency, cfg.TransactionLogFetchDataCount, cfg.DeliveryBatch = 2, 10, batch
			db := &fakeDB{}
			if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg)); r.Delivered != transactions*each {
				t.Errorf("report: %v", r)
			}
			for i := range ids {
				var got []string
				for _, q := range db.appliedCopy() {
					if strings.HasPrefix(q, fmt.Sprintf("%d/", i)) {
						got = append(got, q)
					}
				}
				if !slices.IsSorted(got) || len(got) != each {
					t.Errorf("transaction %d ran as %v", i, got)
				}
			}
		})
	}
}

// slowRemovals lets no removal begin before as many are delivered as may be.
type slowRemovals struct {
	txlog.Storage
	db *fakeDB
	t  *testing.T

	mu    sync.Mutex
	gone  int
	sizes []int
}

func (s *slowRemovals) Remove(ctx context.Context, units ...*entry.Unit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// At most these: a full batch, and one waiting for room.
	bound := min(s.gone+len(units)+removePerWorker+1, 100)
	for deadline := time.Now().Add(patience); len(s.db.appliedCopy()) < bound && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if n := len(s.db.appliedCopy()); n != bound {
		s.t.Errorf("%d are delivered while %d are removed of which %d are on their way, want %d", n, s.gone, len(units), bound)
	}
	s.gone += len(units)
	s.sizes = append(s.sizes, len(units))
	return s.Storage.Remove(ctx, units...)
}

func TestDeliveredUnitsAreRemovedTogetherAndSoon(t *testing.T) {
	t.Parallel()
	mem, db := newStore(t), &fakeDB{}
	addMany(t, mem, "orders", 100)
	store := &slowRemovals{Storage: mem, db: db, t: t}
	cfg := brittle()
	cfg.Concurrency = 1
	if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg)); r.Delivered != 100 || left(t, mem) != 0 {
		t.Errorf("report: %v", r)
	}
	if most := slices.Max(store.sizes); most != removePerWorker {
		t.Errorf("removed %v at a time", store.sizes)
	}
}

// joining is a configuration with four units in each delivery.
func joining() Config {
	cfg := brittle()
	cfg.Concurrency, cfg.DeliveryBatch = 1, 4
	return cfg
}

func TestWaitingUnitsAreDeliveredInOneTransaction(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), &fakeDB{}
	addMany(t, store, "orders", 40)
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, joining()))
	if _, sent := db.counts(); r.Delivered != 40 || left(t, store) != 0 || sent != 40 || db.commits < 10 || db.commits > 13 {
		t.Errorf("report %v, %d statements, %d commits", r, sent, db.commits)
	}
}

func TestFailingUnitDoesNotDelayItsBatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want func(Report) bool
	}{
		"refused": {answer{dialect.Refused, "fake: no"}, func(r Report) bool { return r.Parked == 1 }},
		"busy":    {answer{dialect.Retryable, "fake: locked"}, func(r Report) bool { return r.Failed == 1 }},
		"broken":  {errFake, func(r Report) bool { return r.Failed == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore(t)
			addMany(t, store, "orders", 40)
			db := &fakeDB{onExec: func(_ context.Context, q string) error {
				if q == "row 7" {
					return c.err
				}
				return nil
			}}
			cfg := joining()
			cfg.RetryDelay = time.Minute
			r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
			got := db.appliedCopy()
			slices.Sort(got)
			if r.Delivered != 39 || !c.want(r) || left(t, store) != 1 || len(slices.Compact(got)) != 39 || len(db.applied) != 39 {
				t.Errorf("report %v, applied %v", r, got)
			}
		})
	}
}

func TestUnansweredCommitLeavesJoinedUnitsInDoubt(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 4)
	db := &fakeDB{onCommit: func([]string) error { return errFake }}
	cfg := joining()
	cfg.RetryDelay = time.Minute
	j := newJob(t, store, Targets{"orders": db.target()}, cfg)
	runOnce(t, j)
	all, err := store.List(t.Context(), txlog.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	joined := 4
	for _, u := range all {
		if !u.InDoubt || u.Tries != 1 || !strings.Contains(u.LastError, errFake.Error()) {
			t.Errorf("the unit is %+v", u)
		}
	}
	if len(all) != joined {
		t.Errorf("%d units are left", len(all))
	}
}

func TestRefusedCommitHasJoinedUnitsDeliveredAlone(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	addMany(t, store, "orders", 40)
	db := &fakeDB{onCommit: func([]string) error { return answer{dialect.Retryable, "fake: serialization failure"} }}
	r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, joining()))
	if r.Delivered != 40 || len(db.applied) != 40 || db.commits != 0 || left(t, store) != 0 {
		t.Errorf("report %v, %d applied, %d commits", r, len(db.applied), db.commits)
	}
}

func TestUnitsInDoubtAreNeverJoined(t *testing.T) {
	t.Parallel()
	t.Run("in doubt", func(t *testing.T) {
		t.Parallel()
		store, db := newStore(t), &fakeDB{}
		for n := range 40 {
			add(t, store, "orders", fmt.Sprint("row ", n), func(u *entry.Unit) { u.InDoubt = true })
		}
		if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, joining())); r.Delivered != 40 || db.commits != 0 {
			t.Errorf("report %v, %d commits", r, db.commits)
		}
	})
	t.Run("a listener hears of each", func(t *testing.T) {
		t.Parallel()
		store, db := newStore(t), &fakeDB{}
		addMany(t, store, "orders", 40)
		cfg := joining()
		cfg.Bus = listener.NewBus(cfg.Logger)
		var mu sync.Mutex
		events := 0
		s := cfg.Bus.Subscribe(func(listener.Event) { mu.Lock(); events++; mu.Unlock() })
		r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
		s.Close()
		if r.Delivered != 40 || db.commits < 10 || db.commits > 13 || events != 80 {
			t.Errorf("report %v, %d commits, %d events", r, db.commits, events)
		}
	})
}
