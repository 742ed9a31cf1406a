package asyncjob

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

func TestAVerdictIsRepeatedUntilItIsWritten(t *testing.T) {
	t.Parallel()
	errLog := errors.New("fake: the log is down")
	twice := func() func() error {
		n := 0
		return func() error {
			if n++; n <= 2 {
				return errLog
			}
			return nil
		}
	}
	t.Run("removal", func(t *testing.T) {
		t.Parallel()
		mem, db := newStore(t), &fakeDB{}
		add(t, mem, "orders", "one", nil)
		r := runOnce(t, newJob(t, &spy{Storage: mem, onRemove: twice()}, Targets{"orders": db.target()}, brittle()))
		if _, sent := db.counts(); r.Delivered != 1 || left(t, mem) != 0 || sent != 1 {
			t.Errorf("report %v, %d statements", r, sent)
		}
	})
	t.Run("release", func(t *testing.T) {
		t.Parallel()
		mem := newStore(t)
		u := add(t, mem, "orders", "one", nil)
		fail := twice()
		store := &spy{Storage: mem, onRelease: func(*entry.Unit, entry.Verdict) error { return fail() }}
		r := runOnce(t, newJob(t, store, Targets{"orders": always(answer{dialect.Refused, "no"}).target()}, brittle()))
		if r.Parked != 1 || !get(t, mem, u).Parked {
			t.Errorf("report %v", r)
		}
	})
}

func TestALostLeaseLeavesNoVerdict(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{
		"delivered": nil, "refused": answer{dialect.Refused, "no"}, "broken": errFake,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem := newStore(t)
				u := add(t, mem, "orders", "one", nil)
				claim := func() ([]*entry.Unit, error) {
					return mem.Claim(context.Background(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: 100 * time.Millisecond})
				}
				var mine *entry.Unit
				store := &spy{
					Storage: mem,
					onRenew: func() error { return errors.New("fake: the log is down") },
					onClaim: func() ([]*entry.Unit, error) {
						units, err := claim()
						mine = units[0]
						return units, err
					},
				}
				var j *Job
				db := &fakeDB{onExec: func(ctx context.Context, _ string) error {
					// This hangs until another owner has the unit.
					for taken := false; ctx.Err() == nil; time.Sleep(time.Millisecond) {
						if !taken {
							got, err := mem.Claim(ctx, entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Hour})
							taken = err == nil && len(got) == 1
						}
						if taken && !time.Now().Before(mine.Lease.Deadline) {
							return end
						}
					}
					return ctx.Err()
				}}
				cfg := brittle()
				cfg.Lease = 100 * time.Millisecond
				j = newJob(t, store, Targets{"orders": db.target()}, cfg)
				r := runOnce(t, j)
				if r.Lost != 1 || store.releases.get() != 0 || store.removes.get() != 0 {
					t.Errorf("report %v, %d releases, %d removals", r, store.releases.get(), store.removes.get())
				}
				if got := get(t, mem, u); !got.Leased || got.Parked || got.Tries != 0 || got.LastError != "" || !got.InDoubt {
					t.Errorf("the other owner's unit is %+v", got)
				}
			})
		})
	}
}

func TestALongDeliveryKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := newStore(t)
		add(t, mem, "orders", "one", nil)
		renewed := make(chan struct{}, 100)
		store := &spy{Storage: mem, onRenew: func() error {
			select {
			case renewed <- struct{}{}:
			default:
			}
			return nil
		}}
		cfg := brittle()
		cfg.Lease = 300 * time.Millisecond
		db := &fakeDB{onExec: func(context.Context, string) error {
			for range 6 { // longer than the lease
				wait(t, "a renewal", renewed)
			}
			return nil
		}}
		if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg)); r.Delivered != 1 || r.Lost != 0 || left(t, mem) != 0 {
			t.Errorf("report: %v", r)
		}
	})
}

func TestTwoJobsDeliverEachUnitOnce(t *testing.T) {
	t.Parallel()
	store, db := newStore(t), &fakeDB{}
	const units = 2000
	addMany(t, store, "orders", units)
	cfg := brittle()
	cfg.TransactionLogFetchDataCount = 50
	var all sync.WaitGroup
	var delivered atomic.Int32
	for range 2 {
		j := newJob(t, store, Targets{"orders": db.target()}, cfg)
		all.Go(func() {
			for {
				r, err := j.RunOnce(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				delivered.Add(int32(r.Delivered))
				if r.Claimed == 0 {
					return
				}
			}
		})
	}
	all.Wait()
	got := db.appliedCopy()
	slices.Sort(got)
	if distinct := len(slices.Compact(slices.Clone(got))); len(got) != units || distinct != units || delivered.Load() != units {
		t.Errorf("%d deliveries of %d units, %d reported", len(got), distinct, delivered.Load())
	}
	if n := left(t, store); n != 0 {
		t.Errorf("%d units are left", n)
	}
}

func TestNoLeaseIsRenewedAfterARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := txlog.NewMemory()
		add(t, mem, "orders", "good", nil)
		add(t, mem, "orders", "bad", nil)
		var renewals atomic.Int32
		store := &spy{Storage: mem, onRenew: func() error { renewals.Add(1); return nil }}
		db := &fakeDB{onExec: func(_ context.Context, q string) error {
			time.Sleep(2 * time.Minute)
			if q == "bad" {
				return answer{dialect.Retryable, "fake: busy"}
			}
			return nil
		}}
		cfg := brittle()
		cfg.Lease, cfg.DeliveryTimeout = time.Minute, time.Hour
		runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg))
		during := renewals.Load()
		time.Sleep(time.Hour)
		if n := renewals.Load(); during == 0 || n != during {
			t.Errorf("%d renewals during the round, want some, and %d after it, want none", during, n-during)
		}
	})
}
