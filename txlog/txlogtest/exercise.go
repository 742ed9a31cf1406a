package txlogtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

type corrupter interface {
	Corrupt(ctx context.Context, id string) error
}

// claim is one claim about a storage.
type claim struct {
	name string
	run  func(t *testing.T, s txlog.Storage)
}

// Exercise runs the suite. newStorage returns an empty storage for each of its tests, which
// closes it. A storage with a method Corrupt(ctx, id) error, which makes a unit partly
// unreadable, is also tested with such units.
func Exercise(t *testing.T, newStorage func(t *testing.T) txlog.Storage) {
	t.Helper()
	for _, group := range [][]claim{writerClaims, claimerClaims, operatorClaims, groupClaims, orderClaims} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				s := newStorage(t)
				t.Cleanup(func() { _ = s.Close() })
				c.run(t, s)
			})
		}
	}
}

const (
	// long is a lease for the whole of a test.
	long = time.Hour
	// short is a lease that ends soon; tests wait for its end.
	short = 30 * time.Millisecond
	// patience is the time limit for an event.
	patience = 20 * time.Second
)

// newUnit makes a unit of the given statements.
func newUnit(dataSource string, statements ...string) *entry.Unit {
	id := entry.NewID()
	u := &entry.Unit{ID: id, TransactionID: id, DataSource: dataSource, Settings: "time_zone=UTC", Lease: entry.Lease{Token: entry.NewID()}}
	for _, text := range statements {
		u.Statements = append(u.Statements, entry.Statement{SQL: text, Params: "[1]"})
	}
	return u
}

func add(t *testing.T, s txlog.Storage, lease time.Duration, units ...*entry.Unit) {
	t.Helper()
	must(t, s.Add(t.Context(), lease, units...))
}

// addShort adds a unit with a short lease. It shortens the lease after the write, because
// the write may take longer on a busy machine.
func addShort(t *testing.T, s txlog.Storage, units ...*entry.Unit) {
	t.Helper()
	add(t, s, long, units...)
	renew(t, s, short, units...)
}

// addDue adds units for immediate claims, in their order.
func addDue(t *testing.T, s txlog.Storage, units ...*entry.Unit) {
	t.Helper()
	add(t, s, long, units...)
	for _, u := range units {
		must(t, s.Release(t.Context(), u, entry.Verdict{}))
	}
}

func take(t *testing.T, s txlog.Storage, r entry.ClaimRequest) []*entry.Unit {
	t.Helper()
	units, err := s.Claim(t.Context(), r)
	must(t, err)
	return units
}

// takeOne waits for a claimable unit of the data source.
func takeOne(t *testing.T, s txlog.Storage, dataSource string, lease time.Duration) *entry.Unit {
	t.Helper()
	var units []*entry.Unit
	eventually(t, "a unit can be claimed", func() bool {
		units = take(t, s, entry.ClaimRequest{DataSource: dataSource, Limit: 1, Lease: lease})
		return len(units) == 1
	})
	return units[0]
}

func get(t *testing.T, s txlog.Storage, id string) *entry.Unit {
	t.Helper()
	u, err := s.Get(t.Context(), id)
	must(t, err)
	return u
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not come to pass that %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}

// renew renews the leases of owned units.
func renew(t *testing.T, s txlog.Storage, lease time.Duration, units ...*entry.Unit) {
	t.Helper()
	lost, err := s.Renew(t.Context(), lease, units...)
	must(t, err)
	wantIDs(t, "lost", lost)
}

// wantHeld asserts which units the store holds, in the order of their ids.
func wantHeld(t *testing.T, s txlog.Storage, want ...*entry.Unit) {
	t.Helper()
	list, err := s.List(t.Context(), txlog.Filter{})
	must(t, err)
	wantIDs(t, "list", list, want...)
	if names, err := s.DataSources(t.Context()); err != nil || len(want) == 0 && len(names) != 0 {
		t.Fatalf("rows of %v were left behind (%v)", names, err)
	}
}

func ids(units []*entry.Unit) []string {
	all := make([]string, len(units))
	for i, u := range units {
		all[i] = u.ID
	}
	return all
}

func wantIDs(t *testing.T, what string, got []*entry.Unit, want ...*entry.Unit) {
	t.Helper()
	if g, w := ids(got), ids(want); !slices.Equal(g, w) {
		t.Fatalf("%s: got units %v, want %v", what, g, w)
	}
}
