package txlogtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

var operatorClaims = []claim{
	{"a retried unit is due at once, with its tries reset and not parked", retried},
	{"a retried unit is due whatever its age, and before the others", retriedYoung},
	{"a discarded unit is gone", discarded},
	{"a unit that is being delivered can be neither retried nor discarded", leasedIsRefused},
	{"an unknown id is said to be unknown", unknownID},
	{"an id that differs from a unit's is not taken for it", mistypedID},
	{"units are listed by age, with filters, page by page", listed},
	{"it is known which of many units are not there", missing},
	{"the state of each unit is known, also once it is gone", states},
	{"the log has an identity that stays", identified},
	{"the schema of a data source's receipts is what was set first", receiptSchemas},
	{"units are counted by data source and state", counted},
}

func retried(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		add(t, s, long, u)
		must(t, s.Release(t.Context(), u, entry.Verdict{Park: true, CountTry: true, InDoubt: true, Err: "no", After: long}))
		must(t, s.Retry(t.Context(), u.ID))
		if got := get(t, s, u.ID); got.Parked || got.Tries != 0 || !got.InDoubt || got.LastError != "no" {
			t.Errorf("got %+v", got)
		}
		got := takeOne(t, s, "orders", long)
		wantIDs(t, "claimed", []*entry.Unit{got}, u)
		if len(got.Statements) != len(u.Statements) || got.Unreadable != nil {
			t.Errorf("got %+v", got)
		}
		// Retry also works on a resting unit.
		must(t, s.Release(t.Context(), got, entry.Verdict{After: long}))
		must(t, s.Retry(t.Context(), u.ID))
		got = takeOne(t, s, "orders", short)
		// A stale owner stays stale after an operator's decision.
		eventually(t, "the lease ends", func() bool { return !get(t, s, u.ID).Leased })
		must(t, s.Retry(t.Context(), u.ID))
		wantError(t, "removal", s.Remove(t.Context(), got), txlog.ErrLeaseLost)
		must(t, s.Discard(t.Context(), u.ID))
	}
}

func retriedYoung(t *testing.T, s txlog.Storage) {
	young := func() []*entry.Unit {
		return take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: long, MinAge: long})
	}
	other, u := newUnit("orders", "UPDATE b"), newUnit("orders", "UPDATE a", "UPDATE b")
	addDue(t, s, other, u)
	wantIDs(t, "claimed too young", young())
	must(t, s.Retry(t.Context(), u.ID))
	got := get(t, s, u.ID)
	if due := got.Due(long); due.After(got.ReadAt) || got.ReadAt.IsZero() || got.NextTry.After(got.ReadAt) || got.NextTry.Before(got.CreatedAt) {
		t.Errorf("it is due at %v, read at %v, next try %v, created %v", due, got.ReadAt, got.NextTry, got.CreatedAt)
	}
	if rests := get(t, s, other.ID); !rests.Due(long).Equal(rests.CreatedAt.Add(long)) {
		t.Errorf("one that is too young is due at %v, created at %v", rests.Due(long), rests.CreatedAt)
	}
	claimed := young()
	wantIDs(t, "claimed", claimed, u)
	// From then on its age counts again.
	must(t, s.Release(t.Context(), claimed[0], entry.Verdict{}))
	wantIDs(t, "claimed once more", young())
}

func discarded(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		addDue(t, s, u)
		must(t, s.Discard(t.Context(), u.ID))
		_, err := s.Get(t.Context(), u.ID)
		wantError(t, "get", err, txlog.ErrNotFound)
		wantError(t, "second discard", s.Discard(t.Context(), u.ID), txlog.ErrNotFound)
	}
	wantHeld(t, s)
}

func leasedIsRefused(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a")
	add(t, s, long, u)
	wantError(t, "retry", s.Retry(t.Context(), u.ID), txlog.ErrLeased)
	wantError(t, "discard", s.Discard(t.Context(), u.ID), txlog.ErrLeased)
	must(t, s.Remove(t.Context(), u))
}

func mistypedID(t *testing.T, s txlog.Storage) {
	one, two := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")
	addDue(t, s, one, two)
	for _, u := range []*entry.Unit{one, two} {
		head := strings.TrimSuffix(u.ID, "000")
		for _, end := range []string{"001", "002", "010", "fff", "00g"} {
			id := head + end
			if end == "001" && u == two { // the id of its second row
				if got := get(t, s, id); got.ID != two.ID {
					t.Errorf("got %+v", got)
				}
				continue
			}
			_, err := s.Get(t.Context(), id)
			wantError(t, "reading "+end, err, txlog.ErrNotFound)
			wantError(t, "retrying "+end, s.Retry(t.Context(), id), txlog.ErrNotFound)
			wantError(t, "discarding "+end, s.Discard(t.Context(), id), txlog.ErrNotFound)
		}
		if got := get(t, s, u.ID); got.ID != u.ID {
			t.Errorf("got %+v", got)
		}
	}
}

func unknownID(t *testing.T, s txlog.Storage) {
	for _, id := range []string{entry.NewID(), "", "17", "'; DROP TABLE transaction_log; --"} {
		_, err := s.Get(t.Context(), id)
		wantError(t, "get", err, txlog.ErrNotFound)
		wantError(t, "retry", s.Retry(t.Context(), id), txlog.ErrNotFound)
		wantError(t, "discard", s.Discard(t.Context(), id), txlog.ErrNotFound)
	}
}

func listed(t *testing.T, s txlog.Storage) {
	a, b := newUnit("orders", "UPDATE a"), newUnit("users", "UPDATE b", "UPDATE c")
	c, d := newUnit("orders", "UPDATE d"), newUnit("users", "UPDATE e")
	add(t, s, long, d, c, b, a)
	must(t, s.Release(t.Context(), b, entry.Verdict{Park: true}))
	must(t, s.Release(t.Context(), c, entry.Verdict{Park: true}))
	second := b.ID[:len(b.ID)-1] + "1"
	for what, q := range map[string]struct {
		filter txlog.Filter
		want   []*entry.Unit
	}{
		"all":                      {txlog.Filter{}, []*entry.Unit{a, b, c, d}},
		"parked":                   {txlog.Filter{Parked: true}, []*entry.Unit{b, c}},
		"of a data source":         {txlog.Filter{DataSource: "users"}, []*entry.Unit{b, d}},
		"parked of a data source":  {txlog.Filter{DataSource: "orders", Parked: true}, []*entry.Unit{c}},
		"old":                      {txlog.Filter{OlderThan: long}, nil},
		"first page":               {txlog.Filter{Limit: 3}, []*entry.Unit{a, b, c}},
		"next page":                {txlog.Filter{Limit: 3, After: c.ID}, []*entry.Unit{d}},
		"after a unit's other row": {txlog.Filter{After: second}, []*entry.Unit{c, d}},
		"all filters":              {txlog.Filter{Parked: true, DataSource: "users", After: a.ID, OlderThan: time.Nanosecond, Limit: 1}, []*entry.Unit{b}},
	} {
		eventually(t, "the units are a millisecond old", func() bool {
			old, err := s.List(t.Context(), txlog.Filter{OlderThan: time.Nanosecond})
			must(t, err)
			return len(old) == 4
		})
		got, err := s.List(t.Context(), q.filter)
		must(t, err)
		wantIDs(t, what, got, q.want...)
		for _, u := range got {
			if u.ID == b.ID && (len(u.Statements) != 2 || u.Statements[1].SQL != "UPDATE c") {
				t.Errorf("%s: got statements %+v", what, u.Statements)
			}
		}
	}
}

func states(t *testing.T, s txlog.Storage) {
	waiting, parked, removed, discarded := newUnit("orders", "UPDATE a", "UPDATE b"), newUnit("orders", "UPDATE a"),
		newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")
	delivered := newUnit("orders", "UPDATE a", "UPDATE b")
	add(t, s, long, waiting, parked, removed, discarded, delivered)
	delivered.Delivered = true
	must(t, s.Remove(t.Context(), delivered))
	must(t, s.Release(t.Context(), parked, entry.Verdict{Park: true}))
	must(t, s.Remove(t.Context(), removed))
	must(t, s.Release(t.Context(), discarded, entry.Verdict{Park: true}))
	must(t, s.Discard(t.Context(), discarded.ID))
	second := func(u *entry.Unit) string { return u.ID[:len(u.ID)-1] + "1" }
	got, err := s.States(t.Context(), waiting.ID, parked.ID, removed.ID, discarded.ID, second(waiting), second(discarded), waiting.ID, "", "17", delivered.ID, second(delivered), "\xff", entry.NewID())
	must(t, err)
	want := []entry.State{entry.StateWaiting, entry.StateParked, entry.StateUnknown, entry.StateDiscarded,
		entry.StateWaiting, entry.StateDiscarded, entry.StateWaiting, entry.StateUnknown, entry.StateUnknown,
		entry.StateDelivered, entry.StateDelivered, entry.StateUnknown, entry.StateUnknown}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// A text that no database can store is not the id of any unit, and must not fail the
	// others.
	odd := []string{"\xff", "\x00", waiting.ID[:35] + "\xff", waiting.ID[:35] + "\x00", strings.Repeat("a", 1<<20), "' OR 1=1"}
	got, err = s.States(t.Context(), append(odd, waiting.ID)...)
	must(t, err)
	if n := len(got); n != len(odd)+1 || got[n-1] != entry.StateWaiting || slices.Contains(got[:3], entry.StateWaiting) {
		t.Errorf("of ids that are none: %q", got)
	}
}

func missing(t *testing.T, s txlog.Storage) {
	none, err := s.Missing(t.Context(), nil)
	must(t, err)
	if len(none) != 0 {
		t.Errorf("of no units %q are missing", none)
	}
	var there []*entry.Unit
	var asked, want []string
	for i := range 700 {
		u := newUnit("orders", "UPDATE a", "UPDATE b")
		asked = append(asked, u.ID)
		if i%3 == 0 {
			there = append(there, u)
		} else {
			want = append(want, u.ID)
		}
	}
	add(t, s, long, there...)
	must(t, s.Release(t.Context(), there[0], entry.Verdict{Park: true}))
	// Other texts are missing, too.
	odd := []string{"", "17", "\x00\xff", strings.ToUpper(there[0].ID), strings.Repeat("x", 100_000)}
	second := there[1].ID[:len(there[1].ID)-1] + "1"
	got, err := s.Missing(t.Context(), append(append(asked, odd...), second))
	must(t, err)
	if want = append(want, odd...); !slices.Equal(got, want) {
		t.Errorf("%d units are missing, want %d, in the order asked", len(got), len(want))
	}
	for _, id := range []string{"key-1", "key-1", "key-2"} {
		u := newUnit("orders", "UPDATE a")
		u.Receipt, u.Fingerprint = id, "f"
		add(t, s, long, u)
	}
	unkeyed := newUnit("orders", "UPDATE a")
	unkeyed.Receipt = "7f-1"
	add(t, s, long, unkeyed)
	got, err = s.Missing(t.Context(), []string{"key-3", "key-1", there[1].ID, "key-2", "7f-1"})
	must(t, err)
	if want := []string{"key-3", "7f-1"}; !slices.Equal(got, want) {
		t.Errorf("%q are missing, want those that no unit carries under a key: %q", got, want)
	}
	must(t, s.Remove(t.Context(), there[1:]...))
	got, err = s.Missing(t.Context(), []string{there[0].ID, there[1].ID})
	must(t, err)
	if !slices.Equal(got, []string{there[1].ID}) {
		t.Errorf("%q are missing, want the unit that was removed", got)
	}
}

func identified(t *testing.T, s txlog.Storage) {
	id := s.Identity()
	if id == "" || len(id) > 40 {
		t.Errorf("the log is called %q", id)
	}
	add(t, s, long, newUnit("orders", "UPDATE a"))
	if now := s.Identity(); now != id {
		t.Errorf("the log was called %s, now %s", id, now)
	}
}

func receiptSchemas(t *testing.T, s txlog.Storage) {
	for _, first := range []string{"", "bed"} {
		source := "orders:" + first
		if schema, known, err := s.ReceiptSchema(t.Context(), source); err != nil || known {
			t.Errorf("%s: got %q, known: %v, %v before it was set", source, schema, known, err)
		}
		for _, schema := range []string{first, "other", ""} {
			must(t, s.SetReceiptSchema(t.Context(), source, schema))
			if got, known, err := s.ReceiptSchema(t.Context(), source); err != nil || !known || got != first {
				t.Errorf("%s: got %q, known: %v, %v", source, got, known, err)
			}
		}
	}
	for _, bad := range []string{strings.Repeat("x", 64), "a b", "\x00"} {
		if err := s.SetReceiptSchema(t.Context(), "bad", bad); err == nil {
			t.Errorf("%q was set", bad)
		}
	}
}

func counted(t *testing.T, s txlog.Storage) {
	empty, err := s.Stats(t.Context())
	must(t, err)
	if len(empty) != 0 {
		t.Errorf("got %+v of an empty store", empty)
	}
	a, b, c := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE b", "UPDATE c"), newUnit("orders", "UPDATE d")
	d := newUnit("Users", "UPDATE e")
	add(t, s, long, a)
	add(t, s, long, b, c, d)
	must(t, s.Release(t.Context(), b, entry.Verdict{}))
	must(t, s.Release(t.Context(), c, entry.Verdict{Park: true}))
	stats, err := s.Stats(t.Context())
	must(t, err)
	if len(stats) != 2 || stats[0].DataSource != "Users" || stats[1].DataSource != "orders" {
		t.Fatalf("got %+v, want Users and orders", stats)
	}
	if o := stats[1]; o.Waiting != 1 || o.Leased != 1 || o.Parked != 1 || !o.Oldest.Equal(get(t, s, a.ID).CreatedAt) {
		t.Errorf("got %+v", o)
	}
	if u := stats[0]; u.Waiting != 0 || u.Leased != 1 || u.Parked != 0 {
		t.Errorf("got %+v", u)
	}
}
