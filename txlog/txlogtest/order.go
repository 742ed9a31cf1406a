package txlogtest

import (
	"sync"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

var orderClaims = []claim{
	{"the second unit under an order key waits for the first, and is due once that is removed", orderedFollows},
	{"numbers rise under a key, and begin again beyond the last", orderNumbers},
	{"a unit under two keys waits for both", orderedTwice},
	{"units under one key that are added together are in their order", orderedTogether},
	{"a unit that is parked or retried blocks its key only, until it is discarded", orderedParked},
	{"one that waits can be discarded, parked and retried without losing its place", orderedWaiting},
	{"units added at the same time under few keys are claimed in the order of their numbers", orderedRace},
	{"an order key is there while a unit is under it", orderMissing},
	{"an order key is written as it is, and once", orderValid},
}

// ordered makes a unit under order keys.
func ordered(keys ...string) *entry.Unit {
	u := newUnit("orders", "UPDATE a")
	u.Receipt = u.ID
	for _, k := range keys {
		u.Order = append(u.Order, entry.Order{Key: entry.OrderPrefix + k})
	}
	return u
}

func wantBehind(t *testing.T, s txlog.Storage, u, head *entry.Unit) {
	t.Helper()
	want := ""
	if head != nil {
		want = head.ID
	}
	if got := get(t, s, u.ID); got.Behind != want || got.Leased && head != nil {
		t.Fatalf("it is behind %q (leased %v), want %q", got.Behind, got.Leased, want)
	}
}

func claimOrdered(t *testing.T, s txlog.Storage) []*entry.Unit {
	t.Helper()
	return take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 100, Lease: long})
}

func orderedFollows(t *testing.T, s txlog.Storage) {
	key := entry.NewID()
	a, b, c, other := ordered(key), ordered(key), ordered(key), ordered(entry.NewID())
	a.Statements = append(a.Statements, a.Statements[0])
	b.Statements = append(b.Statements, b.Statements[0])
	for _, u := range []*entry.Unit{a, b, c, other} {
		add(t, s, long, u)
	}
	if a.Behind != "" || b.Behind != a.ID || c.Behind != a.ID || other.Behind != "" {
		t.Fatalf("behind: %q %q %q %q", a.Behind, b.Behind, c.Behind, other.Behind)
	}
	wantBehind(t, s, b, a)
	if got := get(t, s, a.ID); got.Blocks != 2 || len(got.Order) != 1 || got.Order[0] != a.Order[0] || got.Statements[0].Params != "[1]" {
		t.Fatalf("got %+v", got)
	}
	wantIDs(t, "claimed", claimOrdered(t, s))
	must(t, s.Remove(t.Context(), a))
	wantBehind(t, s, b, nil)
	wantBehind(t, s, c, b)
	got := take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 100, Lease: long, MinAge: long})
	wantIDs(t, "claimed whatever its age", got, b)
	if len(got[0].Statements) != 2 || !got[0].InDoubt {
		t.Fatalf("got %+v", got[0])
	}
	must(t, s.Remove(t.Context(), got...))
	// Its writer may take it itself.
	renew(t, s, long, c)
	wantIDs(t, "claimed", claimOrdered(t, s))
	must(t, s.Remove(t.Context(), c, other))
	wantHeld(t, s)
}

func orderNumbers(t *testing.T, s txlog.Storage) {
	key, last := entry.NewID(), int64(0)
	for range 5 {
		u := ordered(key)
		add(t, s, long, u)
		if u.Order[0].Number <= last || u.Behind != "" {
			t.Fatalf("number %d after %d, behind %q", u.Order[0].Number, last, u.Behind)
		}
		last = u.Order[0].Number
		must(t, s.Remove(t.Context(), u))
	}
}

func orderedTwice(t *testing.T, s txlog.Storage) {
	x, y := entry.NewID(), entry.NewID()
	a, b, both, after := ordered(x), ordered(y), ordered(y, x), ordered(x)
	for _, u := range []*entry.Unit{a, b, both, after} {
		add(t, s, long, u)
	}
	must(t, s.Remove(t.Context(), a))
	wantBehind(t, s, both, b)
	wantBehind(t, s, after, both)
	must(t, s.Remove(t.Context(), b))
	got := claimOrdered(t, s)
	wantIDs(t, "claimed", got, both)
	must(t, s.Remove(t.Context(), got...))
	wantIDs(t, "claimed", claimOrdered(t, s), after)
}

func orderedTogether(t *testing.T, s txlog.Storage) {
	key := entry.NewID()
	a, b := ordered(key), ordered(key)
	add(t, s, long, a, newUnit("orders", "UPDATE b"), b)
	if a.Behind != "" || b.Behind != a.ID || b.Order[0].Number <= a.Order[0].Number {
		t.Fatalf("got %+v and %+v", a, b)
	}
	must(t, s.Remove(t.Context(), a))
	wantIDs(t, "claimed", claimOrdered(t, s), b)
}

func orderedParked(t *testing.T, s txlog.Storage) {
	key := entry.NewID()
	a, b := ordered(key), ordered(key)
	add(t, s, long, a)
	add(t, s, long, b)
	must(t, s.Release(t.Context(), a, entry.Verdict{Park: true, Err: "no"}))
	wantIDs(t, "claimed beside a parked head", claimOrdered(t, s))
	must(t, s.Retry(t.Context(), a.ID))
	got := claimOrdered(t, s)
	wantIDs(t, "claimed", got, a)
	must(t, s.Release(t.Context(), got[0], entry.Verdict{Park: true, Err: "no"}))
	must(t, s.Discard(t.Context(), a.ID))
	wantIDs(t, "claimed", claimOrdered(t, s), b)
}

func orderedWaiting(t *testing.T, s txlog.Storage) {
	key := entry.NewID()
	a, b, c, d := ordered(key), ordered(key), ordered(key), ordered(key)
	for _, u := range []*entry.Unit{a, b, c, d} {
		add(t, s, long, u)
	}
	must(t, s.Discard(t.Context(), b.ID))
	must(t, s.Retry(t.Context(), c.ID))
	wantBehind(t, s, c, a)
	wantIDs(t, "claimed though another is before it", claimOrdered(t, s))
	must(t, s.Remove(t.Context(), a))
	got := claimOrdered(t, s)
	wantIDs(t, "claimed", got, c)
	must(t, s.Remove(t.Context(), got...))
	wantIDs(t, "claimed", claimOrdered(t, s), d)
}

func orderedRace(t *testing.T, s txlog.Storage) {
	keys := []string{entry.NewID(), entry.NewID(), entry.NewID()}
	var mu sync.Mutex
	seen := map[string][]int64{}
	deliver := func(u *entry.Unit) {
		mu.Lock()
		for _, o := range u.Order {
			seen[o.Key] = append(seen[o.Key], o.Number)
		}
		mu.Unlock()
		if err := s.Remove(t.Context(), u); err != nil {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 25 {
				u := ordered(keys[(w+i)%3])
				if i%5 == 0 {
					u = ordered(keys[2], keys[0])
				}
				if err := s.Add(t.Context(), long, u); err != nil {
					t.Error(err)
				} else if u.Behind == "" {
					deliver(u)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for open := true; open; {
		select {
		case <-done:
			open = false
		default:
		}
		for got := claimOrdered(t, s); len(got) > 0; got = claimOrdered(t, s) {
			for _, u := range got {
				deliver(u)
			}
		}
	}
	wantHeld(t, s)
	total := 0
	for k, numbers := range seen {
		total += len(numbers)
		for i, n := range numbers {
			if i > 0 && n <= numbers[i-1] {
				t.Fatalf("under %s number %d came after %d", k, n, numbers[i-1])
			}
		}
	}
	if want := 8 * (20 + 5*2); total != want {
		t.Fatalf("%d units were delivered, want %d", total, want)
	}
}

func orderMissing(t *testing.T, s txlog.Storage) {
	a := ordered(entry.NewID())
	key := a.Order[0].Key
	isThere := func() bool {
		missing, err := s.Missing(t.Context(), []string{key})
		must(t, err)
		return len(missing) == 0
	}
	before := isThere()
	add(t, s, long, a)
	during := isThere()
	must(t, s.Remove(t.Context(), a))
	if after := isThere(); before || !during || after {
		t.Fatalf("there before %v, during %v, after %v", before, during, after)
	}
}

func orderValid(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{ordered("a'b"), ordered("a", "a")} {
		if s.Add(t.Context(), long, u) == nil {
			t.Errorf("%+v was added", u)
		}
	}
	wantHeld(t, s)
}
