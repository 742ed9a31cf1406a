package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// counting counts renewals, and can be made to fail.
type counting struct {
	txlog.Storage
	mu    sync.Mutex
	calls [][]string
	fail  func(ctx context.Context) error
}

func (c *counting) Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) ([]*entry.Unit, error) {
	c.mu.Lock()
	var ids []string
	for _, u := range units {
		ids = append(ids, u.ID)
	}
	c.calls = append(c.calls, ids)
	fail := c.fail
	c.mu.Unlock()
	if fail != nil {
		if err := fail(ctx); err != nil {
			return nil, err
		}
	}
	return c.Storage.Renew(ctx, lease, units...)
}

func (c *counting) renewals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func unit() *entry.Unit {
	return &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
}

const keepFor = time.Minute

func add(t *testing.T, s txlog.Storage) *entry.Unit {
	t.Helper()
	u := unit()
	if err := s.Add(t.Context(), keepFor, u); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestHeldUnitKeepsItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory()}
		r := NewRenewer(s.Renew, keepFor)
		a, b := add(t, s), add(t, s)
		keptA, keptB := r.Keep(a), r.Keep(b)
		for range 60 {
			time.Sleep(keepFor / 6)
			if keptA.Lost() || keptB.Lost() {
				t.Fatal("a held unit was lost")
			}
			claimed, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: keepFor})
			if err != nil || len(claimed) != 0 {
				t.Fatalf("claimed %d held units, %v", len(claimed), err)
			}
		}
		synctest.Wait() // a renewal is due at the moment the last sleep ends
		for _, ids := range s.calls {
			if len(ids) != 2 {
				t.Errorf("a renewal was for %d units, want both at once", len(ids))
			}
		}
		keptA.Release()
		keptB.Release()
		keptB.Release()
		if left := time.Until(a.Lease.Deadline); left < keepFor/3 {
			t.Errorf("the released unit's deadline is %v away: it was not brought up to date", left)
		}
		if err := s.Remove(t.Context(), a, b); err != nil {
			t.Error(err)
		}
		before := s.renewals()
		time.Sleep(10 * keepFor)
		if n := s.renewals() - before; n != 0 {
			t.Errorf("%d renewals while nothing was held", n)
		}
	})
}

func TestBrieflyHeldUnitIsNeverRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory()}
		r := NewRenewer(s.Renew, keepFor)
		for range 100 {
			u := add(t, s)
			lease := r.Keep(u)
			time.Sleep(keepFor / 10)
			lease.Release()
		}
		if n := s.renewals(); n != 0 {
			t.Errorf("%d renewals", n)
		}
	})
}

func TestAUnitThatSomebodyElseTookIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory()}
		r := NewRenewer(s.Renew, keepFor)
		u, other := add(t, s), add(t, s)
		lease, otherLease := r.Keep(u), r.Keep(other)
		defer lease.Release()
		defer otherLease.Release()
		thief := *u
		if err := s.Remove(t.Context(), &thief); err != nil {
			t.Fatal(err)
		}
		time.Sleep(keepFor / 2)
		if !lease.Lost() {
			t.Error("the unit that is gone is not lost")
		}
		if otherLease.Lost() {
			t.Error("the other unit is lost")
		}
	})
}

func TestUnrenewedUnitIsLostAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory(), fail: func(context.Context) error { return errors.New("away") }}
		r := NewRenewer(s.Renew, keepFor)
		u := add(t, s)
		lease := r.Keep(u)
		defer lease.Release()
		time.Sleep(keepFor - time.Second)
		if lease.Lost() {
			t.Error("it is lost before its deadline")
		}
		if n := s.renewals(); n < 4 {
			t.Errorf("only %d renewals were tried", n)
		}
		time.Sleep(time.Second)
		if !lease.Lost() {
			t.Error("it is not lost at its deadline")
		}
		s.mu.Lock()
		s.fail = nil
		s.mu.Unlock()
		time.Sleep(keepFor)
		if !lease.Lost() {
			t.Error("it is not lost any more")
		}
	})
}

func TestLeaseIsRenewedInTimeAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := true
		s := &counting{Storage: txlog.NewMemory(), fail: func(context.Context) error {
			if first {
				first = false
				return errors.New("away")
			}
			return nil
		}}
		r := NewRenewer(s.Renew, keepFor)
		u := add(t, s)
		lease := r.Keep(u)
		defer lease.Release()
		time.Sleep(keepFor * 3 / 2)
		if lease.Lost() {
			t.Error("it was lost")
		}
	})
}

func TestHangingRenewalIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory(), fail: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		r := NewRenewer(s.Renew, keepFor)
		u := add(t, s)
		lease := r.Keep(u)
		time.Sleep(keepFor / 2)
		start := time.Now()
		lease.Release()
		synctest.Wait()
		if d := time.Since(start); d != 0 {
			t.Errorf("the renewal went on for %v", d)
		}
		if lease.Lost() {
			t.Error("the released unit is lost before its deadline")
		}
	})
}

// After a standstill, a process must not continue as before.
func TestSuspendedProcessSeesItsUnitsAsLost(t *testing.T) {
	t.Parallel()
	s := txlog.NewMemory()
	r := NewRenewer(s.Renew, keepFor)
	u := add(t, s)
	for what, deadline := range map[string]time.Time{
		"by both clocks": time.Now().Add(-time.Second),
		// The machine slept, and its monotonic clock with it.
		"by the wall clock alone": time.Now().Round(0).Add(-time.Second),
	} {
		held := *u
		held.Lease.Deadline = deadline
		lease := r.Keep(&held)
		if !lease.Lost() {
			t.Errorf("%s: it is not lost", what)
		}
		lease.Release()
		if !lease.Lost() {
			t.Errorf("%s: released, it is not lost", what)
		}
	}
}

func TestARenewerIsSafeForManyOwners(t *testing.T) {
	t.Parallel()
	s := txlog.NewMemory()
	r := NewRenewer(s.Renew, 200*time.Millisecond)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				u := unit()
				if err := s.Add(context.Background(), time.Minute, u); err != nil {
					t.Error(err)
					return
				}
				lease := r.Keep(u)
				lease.Lost()
				lease.Release()
				_ = u.Lease.Deadline
				if err := s.Remove(context.Background(), u); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkKeepAndRelease(b *testing.B) {
	s := txlog.NewMemory()
	r := NewRenewer(s.Renew, time.Minute)
	u := unit()
	u.Lease = entry.Lease{Token: "t", Deadline: time.Now().Add(time.Minute)}
	b.ReportAllocs()
	for b.Loop() {
		r.Keep(u).Release()
	}
}

// untaken returns a unit that its token owns without a known lease.
func untaken(t *testing.T, s txlog.Storage) *entry.Unit {
	t.Helper()
	u := add(t, s)
	u.Lease.Deadline = time.Time{}
	return u
}

func TestUntakenLeaseBeginsWithItsRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := txlog.NewMemory()
		r, u := NewRenewer(s.Renew, keepFor), untaken(t, s)
		k := r.KeepUntaken(u, time.Now().Add(keepFor))
		time.Sleep(keepFor / 4)
		if k.Refresh(); k.Lost() || !u.Lease.Deadline.IsZero() {
			t.Errorf("before: lost %v, until %v", k.Lost(), u.Lease.Deadline)
		}
		time.Sleep(keepFor)
		if k.Refresh(); k.Lost() || !time.Now().Before(u.Lease.Deadline) {
			t.Errorf("after: lost %v, until %v", k.Lost(), u.Lease.Deadline)
		}
		k.Release()
	})
}

func TestUntakenLeaseIsLostAfterItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &counting{Storage: txlog.NewMemory(), fail: func(context.Context) error { return errors.New("down") }}
		u := untaken(t, s.Storage)
		k := NewRenewer(s.Renew, keepFor).KeepUntaken(u, time.Now().Add(time.Second))
		if k.Lost() {
			t.Error("lost at once")
		}
		time.Sleep(2 * time.Second)
		if k.Release(); !k.Lost() || !u.Lease.Deadline.IsZero() {
			t.Errorf("lost %v, until %v", k.Lost(), u.Lease.Deadline)
		}
	})
}
