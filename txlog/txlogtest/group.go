package txlogtest

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

var groupClaims = []claim{
	{"a group's units come back as they were written", groupKept},
	{"a group of which all went well is completed once", groupCompleted},
	{"a group is compensated as a whole, whoever leases its units", groupTurned},
	{"a group is either completed or compensated, whoever is first", groupDecidedOnce},
	{"a group is compensated by one at a time", groupTurnedAgain},
	{"a unit of a group is not discarded by itself", groupNotDiscarded},
	{"the compensation knows where a receipt is that was found later", groupLocated},
	{"a compensation goes to the data source where the next part is", groupMoved},
	{"a group that could be neither completed nor compensated is refused", groupRefused},
	{"the compensation is parked while a part is", groupParked},
}

// newGroup makes a group of two parts, on orders and on stock, with n statements each.
func newGroup(n int) (back *entry.Unit, forward []*entry.Unit) {
	id := entry.NewID()
	back = &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Undo: &entry.Undo{}, CompensateAfter: time.Minute, Lease: entry.Lease{Token: entry.NewID()}}
	for i, name := range []string{"orders", "stock"} {
		f := newUnit(name)
		f.TransactionID, f.Receipt, f.Place, f.Session, f.CompensateAfter = id, f.ID, name+".place", "session", back.CompensateAfter
		f.Lease.Token = back.Lease.Token
		for range n {
			f.Statements = append(f.Statements, entry.Statement{SQL: "UPDATE " + name, Part: i + 1})
			back.Statements = append(back.Statements, entry.Statement{SQL: "undo " + name, Params: `["x"]`, Prepared: true, Required: entry.Exactly(1), Part: i + 1})
		}
		forward = append(forward, f)
		back.Undo.Parts = append(back.Undo.Parts, entry.Part{Unit: f.ID, Receipt: f.Receipt, DataSource: name, Settings: f.Settings, Session: f.Session, Place: f.Place})
	}
	return back, forward
}

func groupKept(t *testing.T, s txlog.Storage) {
	k, f := newGroup(2)
	add(t, s, long, append(f, k)...)
	got := get(t, s, k.ID)
	if !reflect.DeepEqual(got.Undo, k.Undo) || !reflect.DeepEqual(got.Statements, k.Statements) || got.CompensateAfter != time.Minute || got.Compensating() || got.Group() || got.Unreadable != nil {
		t.Errorf("got %+v, want %+v", got, k)
	}
	for i, want := range f {
		got := get(t, s, want.ID)
		if !got.Group() || !reflect.DeepEqual(got.Statements, want.Statements) || got.CompensateAfter != time.Minute {
			t.Errorf("got %+v, want %+v", got, want)
		}
		part := k.Part(i)
		if part.DataSource != want.DataSource || part.Receipt != want.Receipt || part.Place != want.Place || part.Settings != want.Settings ||
			len(part.Statements) != 2 || part.Statements[0].SQL != "undo "+want.DataSource {
			t.Errorf("part %d is %+v", i, part)
		}
	}
	if got := k.Undo.Order(); !reflect.DeepEqual(got, []int{1, 0}) {
		t.Errorf("the parts are undone in the order %v", got)
	}
}

func groupParked(t *testing.T, s txlog.Storage) {
	k, f := newGroup(1)
	add(t, s, long, append(f, k)...)
	wants := func(want entry.State) {
		t.Helper()
		if got, err := s.States(t.Context(), k.ID); err != nil || got[0] != want {
			t.Errorf("the state is %v, %v, want %s", got, err, want)
		}
	}
	wants(entry.StateWaiting)
	must(t, s.Remove(t.Context(), f[0]))
	wants(entry.StateWaiting)
	must(t, s.Release(t.Context(), f[1], entry.Verdict{Park: true}))
	wants(entry.StateParked)
	must(t, s.Retry(t.Context(), f[1].ID))
	wants(entry.StateWaiting)
}

func groupCompleted(t *testing.T, s txlog.Storage) {
	for _, n := range []int{1, 200} {
		k, f := newGroup(n)
		add(t, s, long, append(f, k)...)
		must(t, s.Remove(t.Context(), f[0])) // a job has claimed the other, and would find it delivered
		must(t, s.Complete(t.Context(), k))
		wantHeld(t, s)
		wantError(t, "removal by who claimed it", s.Remove(t.Context(), f[1]), txlog.ErrLeaseLost)
		// A job took it over, and its compensation has not started.
		k.Lease.Deadline = time.Time{}
		wantError(t, "completing what is gone", s.Complete(t.Context(), k), txlog.ErrNotFound)
		_, err := s.Compensate(t.Context(), k.ID, long, "too late")
		wantError(t, "turning what is completed", err, txlog.ErrNotFound)
	}
	u := newUnit("orders", "UPDATE a")
	add(t, s, long, u)
	_, err := s.Compensate(t.Context(), u.ID, long, "no group")
	wantError(t, "turning what is no group", err, txlog.ErrNotFound)
	_, err = s.Compensate(t.Context(), "17", long, "no id")
	wantError(t, "turning what is nothing", err, txlog.ErrNotFound)
	must(t, s.Remove(t.Context(), u))
}

func groupTurned(t *testing.T, s txlog.Storage) {
	for _, n := range []int{1, 200} {
		k, f := newGroup(n)
		add(t, s, long, append(f, k)...)
		must(t, s.Remove(t.Context(), f[0]))
		got, err := s.Compensate(t.Context(), k.ID, long, "refused: \x00 it said no")
		must(t, err)
		if !got.Compensating() || got.Receipt != k.ID || got.DataSource != "stock" || got.Undo.Cause != "refused: \uFFFD it said no" || len(got.Statements) != 2*n || !got.Leased || got.Lease.Over() {
			t.Fatalf("got %+v", got)
		}
		wantHeld(t, s, k)
		stored := get(t, s, k.ID)
		if !stored.Compensating() || stored.DataSource != "stock" || !reflect.DeepEqual(stored.Undo, got.Undo) || !reflect.DeepEqual(stored.Statements, k.Statements) || stored.LastError != got.Undo.Cause || !stored.Leased {
			t.Fatalf("stored is %+v", stored)
		}
		states, err := s.States(t.Context(), f[0].ID, f[1].ID, k.ID)
		must(t, err)
		if !reflect.DeepEqual(states, []entry.State{entry.StateDiscarded, entry.StateDiscarded, entry.StateWaiting}) {
			t.Errorf("the states are %v", states)
		}
		wantError(t, "removal by the owner before", s.Remove(t.Context(), k), txlog.ErrLeaseLost)
		wantError(t, "removal of a forward unit", s.Remove(t.Context(), f[1]), txlog.ErrLeaseLost)
		wantError(t, "completing", s.Complete(t.Context(), k), txlog.ErrCompensated)
		missing, err := s.Missing(t.Context(), []string{k.ID})
		must(t, err)
		if len(missing) != 0 {
			t.Error("receipts would be purged while their group is being undone")
		}
		must(t, s.Remove(t.Context(), got))
		wantHeld(t, s)
		states, err = s.States(t.Context(), k.ID)
		must(t, err)
		if !reflect.DeepEqual(states, []entry.State{entry.StateDiscarded}) {
			t.Errorf("what is undone is %v", states)
		}
		wantError(t, "completing what is undone", s.Complete(t.Context(), k), txlog.ErrCompensated)
		k.Lease.Deadline = time.Time{} // even without the owner's deadline
		wantError(t, "completing what is undone", s.Complete(t.Context(), k), txlog.ErrCompensated)
	}
}

func groupDecidedOnce(t *testing.T, s txlog.Storage) {
	for range 8 {
		k, f := newGroup(1)
		add(t, s, long, append(f, k)...)
		must(t, s.Remove(t.Context(), f[0]))
		var completed, turned error
		var both sync.WaitGroup
		both.Add(3)
		go func() { defer both.Done(); completed = s.Complete(t.Context(), k) }()
		go func() { defer both.Done(); _, turned = s.Compensate(t.Context(), k.ID, 0, "racing") }()
		go func() { defer both.Done(); _ = s.Remove(t.Context(), f[1]) }()
		both.Wait()
		if (completed == nil) == (turned == nil) || completed != nil && !errors.Is(completed, txlog.ErrCompensated) || turned != nil && !errors.Is(turned, txlog.ErrNotFound) {
			t.Fatalf("completed: %v, turned: %v", completed, turned)
		}
		if turned == nil {
			must(t, s.Remove(t.Context(), takeOne(t, s, "stock", long)))
		}
		wantHeld(t, s)
	}
}

func groupTurnedAgain(t *testing.T, s txlog.Storage) {
	k, f := newGroup(1)
	add(t, s, long, append(f, k)...)
	first, err := s.Compensate(t.Context(), k.ID, long, "first")
	must(t, err)
	_, err = s.Compensate(t.Context(), k.ID, long, "second")
	wantError(t, "turning what is being undone", err, txlog.ErrLeased)
	must(t, s.Release(t.Context(), first, entry.Verdict{Park: true, CountTry: true, Err: "it said no"}))
	if got := get(t, s, k.ID); !got.HalfCompensated() || got.Tries != 1 {
		t.Errorf("got %+v", got)
	}
	second, err := s.Compensate(t.Context(), k.ID, 0, "second")
	must(t, err)
	if second.Undo.Cause != "first" || second.Parked || second.Leased {
		t.Errorf("got %+v", second)
	}
	// It has no owner, and is due at once whatever its age.
	got := take(t, s, entry.ClaimRequest{DataSource: "stock", Limit: 1, MinAge: long, Lease: long})
	wantIDs(t, "claimed", got, k)
	if got[0].Tries != 0 || !got[0].Compensating() {
		t.Errorf("got %+v", got[0])
	}
	must(t, s.Remove(t.Context(), got...))
}

func groupNotDiscarded(t *testing.T, s txlog.Storage) {
	k, f := newGroup(2)
	addDue(t, s, append(f, k)...)
	for _, u := range []*entry.Unit{f[0], f[1], k} {
		wantError(t, "discarding", s.Discard(t.Context(), u.ID), txlog.ErrGroup)
		must(t, s.Retry(t.Context(), u.ID))
	}
	wantHeld(t, s, k, f[0], f[1])
	// After the start of the compensation, an operator may discard it.
	_, err := s.Compensate(t.Context(), k.ID, 0, "no")
	must(t, err)
	must(t, s.Discard(t.Context(), k.ID))
	// Without its compensation a unit is like any other.
	_, f = newGroup(1)
	addDue(t, s, f[0])
	must(t, s.Discard(t.Context(), f[0].ID))
	wantHeld(t, s)
}

func groupLocated(t *testing.T, s txlog.Storage) {
	k, f := newGroup(1)
	f[1].Place, k.Undo.Parts[1].Place = "", ""
	add(t, s, long, append(f, k)...)
	must(t, s.Locate(t.Context(), f[1], "elsewhere", "another session"))
	got, err := s.Compensate(t.Context(), k.ID, long, "no")
	must(t, err)
	if p := got.Part(1); p.Place != "elsewhere" || p.Session != "another session" || got.Part(0).Place != "orders.place" {
		t.Errorf("got %+v", got.Undo.Parts)
	}
	must(t, s.Remove(t.Context(), got))
	wantError(t, "locating what is gone", s.Locate(t.Context(), f[1], "nowhere", ""), txlog.ErrLeaseLost)
}

func groupMoved(t *testing.T, s txlog.Storage) {
	k, f := newGroup(2)
	add(t, s, long, append(f, k)...)
	got, err := s.Compensate(t.Context(), k.ID, long, "no")
	must(t, err)
	must(t, s.Release(t.Context(), got, entry.Verdict{CountTry: true}))
	got = takeOne(t, s, "stock", long)
	must(t, s.Release(t.Context(), got, entry.Verdict{DataSource: "orders", InDoubt: true}))
	moved := takeOne(t, s, "orders", long)
	wantIDs(t, "claimed", []*entry.Unit{moved}, k)
	if moved.Tries != 0 || moved.DataSource != "orders" {
		t.Errorf("got %+v", moved)
	}
	must(t, s.Remove(t.Context(), moved))
	wantHeld(t, s)
}

func groupRefused(t *testing.T, s txlog.Storage) {
	for what, spoil := range map[string]func(k *entry.Unit, f []*entry.Unit){
		"a compensation under another id":         func(k *entry.Unit, _ []*entry.Unit) { k.ID = entry.NewID() },
		"a compensation with a receipt":           func(k *entry.Unit, _ []*entry.Unit) { k.Receipt = "r" },
		"a compensation without parts":            func(k *entry.Unit, _ []*entry.Unit) { k.Undo.Parts = nil },
		"a compensation on no part's data source": func(k *entry.Unit, _ []*entry.Unit) { k.DataSource = "ledger" },
		"a statement of no part":                  func(k *entry.Unit, _ []*entry.Unit) { k.Statements[0].Part = 3 },
		"a part without a receipt":                func(k *entry.Unit, _ []*entry.Unit) { k.Undo.Parts[0].Receipt = "" },
		"a part without a unit":                   func(k *entry.Unit, _ []*entry.Unit) { k.Undo.Parts[0].Unit = "x" },
		"a forward unit without a receipt":        func(_ *entry.Unit, f []*entry.Unit) { f[0].Receipt = "" },
		"a forward unit under a key":              func(_ *entry.Unit, f []*entry.Unit) { f[0].Fingerprint = "f" },
		"a forward unit that cannot be run again": func(_ *entry.Unit, f []*entry.Unit) { f[0].NotReplayable = "read" },
		"a forward unit of two parts":             func(_ *entry.Unit, f []*entry.Unit) { f[0].Statements[1].Part = 2 },
		"a time to compensate without a group": func(_ *entry.Unit, f []*entry.Unit) {
			f[0].Statements = []entry.Statement{{SQL: "UPDATE a"}}
		},
	} {
		k, f := newGroup(2)
		spoil(k, f)
		if err := s.Add(t.Context(), long, append(f, k)...); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	wantHeld(t, s)
}
