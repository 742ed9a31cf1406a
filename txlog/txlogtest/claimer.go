package txlogtest

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

var claimerClaims = []claim{
	{"a unit cannot be claimed while its writer owns it", ownedIsNotClaimed},
	{"units are claimed in the order of their next try, then of their ids, up to the limit", claimOrder},
	{"a claim leaves what its Pick does not want as it is, and goes on after a unit", picked},
	{"a young unit is left alone", minAge},
	{"only units of the asked data source are claimed", oneDataSource},
	{"a claimed unit tells of the attempts before it and is in doubt from then on", inDoubt},
	{"a released unit rests, counts its try and keeps its error", released},
	{"a parked unit is left alone", parkedIsLeft},
	{"two claimers never get the same unit", neverShared},
	{"a claim without sense is refused", refusedClaims},
	{"the data sources are those with units not parked, in order", dataSources},
	{"a unit that cannot be read is handed out marked and does not fail the others", unreadable},
}

func ownedIsNotClaimed(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a")
	add(t, s, long, u)
	wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 10, Lease: long}))
	must(t, s.Release(t.Context(), u, entry.Verdict{}))
	wantIDs(t, "claimed", []*entry.Unit{takeOne(t, s, "orders", long)}, u)
	wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 10, Lease: long}))
}

func claimOrder(t *testing.T, s txlog.Storage) {
	a, b, c := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE b", "UPDATE c"), newUnit("orders", "UPDATE d")
	add(t, s, long, a, b, c)
	// Release them in another order than they were added, never two within one millisecond.
	for _, u := range []*entry.Unit{b, c, a} {
		must(t, s.Release(t.Context(), u, entry.Verdict{}))
		time.Sleep(3 * time.Millisecond)
	}
	first := take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 2, Lease: long})
	wantIDs(t, "first claim", first, b, c)
	wantIDs(t, "second claim", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 2, Lease: long}), a)
	if len(first[0].Statements) != 2 || first[0].Statements[1].SQL != "UPDATE c" {
		t.Errorf("got statements %+v", first[0].Statements)
	}
	if first[0].Lease.Token == "" || first[0].Lease.Token == b.Lease.Token || !first[0].Leased {
		t.Errorf("got lease %+v, want a new one", first[0].Lease)
	}
	// With leases that end at the same time, the ids decide.
	d, e, f := newUnit("ties", "UPDATE a"), newUnit("ties", "UPDATE b"), newUnit("ties", "UPDATE c")
	addShort(t, s, f, d, e)
	eventually(t, "the leases end", func() bool {
		return !get(t, s, d.ID).Leased && !get(t, s, e.ID).Leased && !get(t, s, f.ID).Leased
	})
	got := take(t, s, entry.ClaimRequest{DataSource: "ties", Limit: 9, Lease: long})
	if len(got) != 3 || got[0].NextTry.IsZero() {
		t.Fatalf("got %d units, want 3", len(got))
	}
	wantIDs(t, "claim of ties", got, d, e, f)
}

func picked(t *testing.T, s txlog.Storage) {
	units := make([]*entry.Unit, 6)
	for i := range units {
		units[i] = newUnit("orders", "UPDATE "+strconv.Itoa(i), "UPDATE more")
	}
	add(t, s, long, units...)
	for _, u := range slices.Backward(units) { // the order is not that of the ids
		must(t, s.Release(t.Context(), u, entry.Verdict{}))
		time.Sleep(3 * time.Millisecond)
	}
	var last *entry.Unit
	every := func(second int) func([]*entry.Unit) []*entry.Unit {
		return func(due []*entry.Unit) (some []*entry.Unit) {
			for i, u := range due {
				if last = (&entry.Unit{ID: u.ID, NextTry: u.NextTry}); i%2 == second {
					some = append(some, u)
				}
			}
			return some
		}
	}
	r := entry.ClaimRequest{DataSource: "orders", Limit: 3, Lease: long, Pick: every(1)}
	wantIDs(t, "picked", take(t, s, r), units[4])
	if left := get(t, s, units[5].ID); left.Leased || left.InDoubt || left.Tries != 0 || left.NextTry.After(left.ReadAt) {
		t.Errorf("a unit that was left is now %+v", left)
	}
	must(t, s.Retry(t.Context(), units[3].ID)) // it comes first, although it is before the last one
	r.After, r.Pick = last, every(0)
	got := take(t, s, r)
	wantIDs(t, "picked after the last one", got, units[3], units[1])
	if len(got[0].Statements) != 2 {
		t.Errorf("it has the statements %+v", got[0].Statements)
	}
	wantIDs(t, "at the end", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: long, After: last}), units[0])
	wantIDs(t, "from the beginning", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: long}), units[5], units[2])
	// Several may be due at the same moment.
	ties := []*entry.Unit{newUnit("ties", "UPDATE a"), newUnit("ties", "UPDATE b"), newUnit("ties", "UPDATE c")}
	addShort(t, s, ties...)
	eventually(t, "the leases end", func() bool { return !get(t, s, ties[0].ID).Leased && !get(t, s, ties[2].ID).Leased })
	first := get(t, s, ties[0].ID)
	wantIDs(t, "after a tie", take(t, s, entry.ClaimRequest{DataSource: "ties", Limit: 9, Lease: long, After: first}), ties[1:]...)
}

func minAge(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a")
	addDue(t, s, u)
	wantIDs(t, "claimed too early", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 1, MinAge: long, Lease: long}))
	eventually(t, "the unit is old enough", func() bool {
		got := take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 1, MinAge: short, Lease: long})
		return len(got) == 1
	})
}

func oneDataSource(t *testing.T, s txlog.Storage) {
	a, b := newUnit("orders", "UPDATE a"), newUnit("Orders", "UPDATE b")
	addDue(t, s, a, b)
	wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "Orders", Limit: 9, Lease: long}), b)
	wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "none", Limit: 9, Lease: long}))
	wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: long}), a)
}

func inDoubt(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		// Its owner vanished.
		addShort(t, s, u)
		got := takeOne(t, s, "orders", long)
		if !got.InDoubt {
			t.Error("a unit whose owner vanished is not in doubt")
		}
		must(t, s.Release(t.Context(), got, entry.Verdict{InDoubt: false}))
		// Its owner says that nothing was applied.
		got = takeOne(t, s, "orders", long)
		if got.InDoubt {
			t.Error("a unit that was certainly not applied is in doubt")
		}
		if !get(t, s, u.ID).InDoubt {
			t.Error("a unit that is being delivered is not in doubt for those who come after")
		}
		must(t, s.Release(t.Context(), got, entry.Verdict{InDoubt: true}))
		got = takeOne(t, s, "orders", long)
		if !got.InDoubt {
			t.Error("a unit released in doubt is not in doubt")
		}
		must(t, s.Remove(t.Context(), got))
	}
}

func released(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		addDue(t, s, u)
		got := takeOne(t, s, "orders", long)
		must(t, s.Release(t.Context(), got, entry.Verdict{After: long}))
		wantIDs(t, "claimed while it rests", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: long}))
		must(t, s.Retry(t.Context(), u.ID))
		got = takeOne(t, s, "orders", long)
		must(t, s.Release(t.Context(), got, entry.Verdict{CountTry: true, Err: "no", After: 50 * time.Millisecond}))
		wantError(t, "second release", s.Release(t.Context(), got, entry.Verdict{}), txlog.ErrLeaseLost)
		if now := get(t, s, u.ID); now.Leased || now.Tries != 1 || now.LastError != "no" || now.Parked {
			t.Errorf("got %+v", now)
		}
		got = takeOne(t, s, "orders", long)
		must(t, s.Release(t.Context(), got, entry.Verdict{After: long}))
		now := get(t, s, u.ID)
		if now.Tries != 1 || now.LastError != "no" {
			t.Errorf("got %d tries and error %q, want both unchanged", now.Tries, now.LastError)
		}
		if d := time.Until(now.NextTry); d < long-time.Minute || d > long+time.Minute {
			t.Errorf("the next try is %v from now, want %v", d, long)
		}
	}
}

func parkedIsLeft(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		add(t, s, long, u)
		must(t, s.Release(t.Context(), u, entry.Verdict{Park: true, Err: "hopeless"}))
		wantIDs(t, "claimed", take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: long}))
		if got := get(t, s, u.ID); !got.Parked || got.LastError != "hopeless" || got.Leased {
			t.Errorf("got %+v", got)
		}
	}
}

func neverShared(t *testing.T, s txlog.Storage) {
	const claimers, units = 8, 120
	all := make([]*entry.Unit, units)
	for i := range all {
		texts := []string{"UPDATE a", "UPDATE b", "UPDATE c"}
		all[i] = newUnit("orders", texts[:1+i%3]...)
	}
	addDue(t, s, all...)
	var mu sync.Mutex
	owners := map[string]int{}
	var group sync.WaitGroup
	for n := range claimers {
		group.Go(func() {
			for end := time.Now().Add(patience); time.Now().Before(end); {
				got, err := s.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 5, Lease: long})
				mu.Lock()
				if err != nil {
					t.Errorf("claimer %d: %v", n, err)
				}
				for _, u := range got {
					if other, taken := owners[u.ID]; taken {
						t.Errorf("unit %s was given to claimer %d and to %d", u.ID, other, n)
					}
					owners[u.ID] = n
				}
				done := len(owners) == units || t.Failed()
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	group.Wait()
	if len(owners) != units {
		t.Errorf("%d units were claimed, want %d", len(owners), units)
	}
}

func refusedClaims(t *testing.T, s txlog.Storage) {
	for what, r := range map[string]entry.ClaimRequest{
		"no limit":       {DataSource: "orders", Lease: long},
		"no lease":       {DataSource: "orders", Limit: 1},
		"no data source": {Limit: 1, Lease: long},
	} {
		if _, err := s.Claim(t.Context(), r); err == nil {
			t.Errorf("a claim with %s was accepted", what)
		}
	}
}

func dataSources(t *testing.T, s txlog.Storage) {
	want := []string{"A", "B/x", "a", "ä", "日"}
	for _, i := range []int{3, 0, 4, 2, 1} {
		for n := range 3 {
			add(t, s, long, newUnit(want[i], "UPDATE "+strconv.Itoa(n), "UPDATE b"))
		}
	}
	parked := newUnit("parked", "UPDATE a")
	add(t, s, long, parked)
	must(t, s.Release(t.Context(), parked, entry.Verdict{Park: true}))
	got, err := s.DataSources(t.Context())
	must(t, err)
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func unreadable(t *testing.T, s txlog.Storage) {
	damaged, ok := s.(corrupter)
	if !ok {
		t.Skip("the storage has no method Corrupt")
	}
	a, b, c := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE b", "UPDATE c"), newUnit("orders", "UPDATE d")
	addDue(t, s, a, b, c)
	must(t, damaged.Corrupt(t.Context(), b.ID))
	got := take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: long})
	if len(got) != 3 {
		t.Fatalf("got units %v, want all three", ids(got))
	}
	for _, u := range got {
		if bad := u.ID == b.ID; bad != (u.Unreadable != nil) {
			t.Errorf("unit %s: got Unreadable %v", u.ID, u.Unreadable)
		}
		if u.ID == b.ID {
			must(t, s.Release(t.Context(), u, entry.Verdict{Park: true, Err: u.Unreadable.Error()}))
		} else {
			must(t, s.Remove(t.Context(), u))
		}
	}
	if got := get(t, s, b.ID); !got.Parked || got.Unreadable == nil || got.LastError == "" {
		t.Errorf("got %+v, want it parked and marked", got)
	}
	must(t, s.Discard(t.Context(), b.ID))
	_, err := s.Get(t.Context(), b.ID)
	wantError(t, "get", err, txlog.ErrNotFound)
}
