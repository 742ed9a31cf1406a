package txlogtest

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

var writerClaims = []claim{
	{"an added unit is there whole, in doubt and leased", addedIsThere},
	{"the receipt and the fingerprint of a request come back to all who read it", receiptKept},
	{"what was added does not change with the writer's unit", copiedIn},
	{"several units are added at once", severalUnits},
	{"a removed unit is gone and cannot be removed again", removed},
	{"one lost unit does not keep the others from being removed", removeSome},
	{"odd bytes come back as they were", oddBytes},
	{"a statement of 1 MiB comes back as it was", megabyte},
	{"a unit of 4096 statements is kept, one of 4097 refused", manyStatements},
	{"a unit that could not be found again is refused", refusedUnits},
	{"a context that is done leaves nothing behind", contextDone},
	{"a renewed lease lasts", renewed},
	{"an owner may say later where the receipt is, nobody else", located},
	{"a unit whose lease ended can be claimed, and its stale owner can neither remove, renew nor release it", staleOwner},
	{"an owner whose lease ran out keeps a unit that nobody took", expiredButHeld},
	{"a closed storage says so", closed},
}

func addedIsThere(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a SET x = 1", "UPDATE b SET y = ?")
	u.TransactionID = entry.NewID()
	u.NotReplayable, u.Place, u.Session = "it read first", `"a \\ b".c`, `search_path="a \\ b"`
	u.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	u.Statements[0].Prepared, u.Statements[1].Prepared, u.Statements[1].Params = true, true, ""
	u.Statements[0].Required, u.Statements[1].Required = entry.AtLeast(2), entry.Exactly(0)
	u.After = []string{entry.NewID(), entry.NewID()}
	before := time.Now()
	add(t, s, long, u)
	if d := u.Lease.Deadline; d.Before(before.Add(long)) || d.After(time.Now().Add(long)) {
		t.Errorf("the deadline is %v from now, want %v", time.Until(d), long)
	}
	got := get(t, s, u.ID)
	if !got.InDoubt || !got.Leased || got.Parked || got.Tries != 0 || got.LastError != "" || got.Unreadable != nil {
		t.Errorf("got state %+v, want in doubt, leased, nothing else", got)
	}
	if got.Lease.Token != "" {
		t.Error("somebody who only looked was given the owner's token")
	}
	if got.ID != u.ID || got.TransactionID != u.TransactionID || got.DataSource != u.DataSource || got.Settings != u.Settings || got.Session != u.Session || got.Place != u.Place || got.TraceParent != u.TraceParent ||
		got.NotReplayable != u.NotReplayable || !reflect.DeepEqual(got.Statements, u.Statements) || !slices.Equal(got.After, u.After) {
		t.Errorf("got unit %+v, want %+v", got, u)
	}
	if d := time.Since(got.CreatedAt); d > time.Hour || d < -time.Hour {
		t.Errorf("created %v ago", d)
	}
	if d := got.NextTry.Sub(got.CreatedAt); d < long-time.Second || d > long+time.Minute { // PostgreSQL reads its clock for each
		t.Errorf("the next try is %v after the creation, want the end of the lease, %v", d, long)
	}
	last := u.ID[:len(u.ID)-1] + "1"
	if got := get(t, s, last); got.ID != u.ID {
		t.Errorf("by the id of its second row got unit %s, want %s", got.ID, u.ID)
	}
}

func receiptKept(t *testing.T, s txlog.Storage) {
	plain, own, keyed := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")
	own.Receipt = own.ID
	keyed.Receipt, keyed.Fingerprint = strings.Repeat("~", 80), strings.Repeat("日", 21)+" "
	all := []*entry.Unit{plain, own, keyed}
	same := func(how string, got []*entry.Unit) {
		t.Helper()
		wantIDs(t, how, got, all...)
		for i, u := range got {
			if u.Receipt != all[i].Receipt || u.Fingerprint != all[i].Fingerprint || u.Unreadable != nil {
				t.Errorf("%s: got receipt %q, fingerprint %q, Unreadable %v, want %q and %q", how, u.Receipt, u.Fingerprint, u.Unreadable, all[i].Receipt, all[i].Fingerprint)
			}
		}
	}
	addDue(t, s, all...)
	same("get", []*entry.Unit{get(t, s, plain.ID), get(t, s, own.ID), get(t, s, keyed.ID)})
	list, err := s.List(t.Context(), txlog.Filter{})
	must(t, err)
	same("list", list)
	var claimed []*entry.Unit
	eventually(t, "all are claimed", func() bool {
		claimed = append(claimed, take(t, s, entry.ClaimRequest{DataSource: "orders", Limit: 9, Lease: long})...)
		return len(claimed) == len(all)
	})
	same("claim", claimed)
}

func copiedIn(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a SET x = 1")
	add(t, s, long, u)
	u.Statements[0].SQL = "changed"
	got := get(t, s, u.ID)
	if got.Statements[0].SQL != "UPDATE a SET x = 1" {
		t.Errorf("got %q", got.Statements[0].SQL)
	}
	got.Statements[0].SQL = "changed"
	if again := get(t, s, u.ID); again.Statements[0].SQL != "UPDATE a SET x = 1" {
		t.Errorf("got %q", again.Statements[0].SQL)
	}
}

func severalUnits(t *testing.T, s txlog.Storage) {
	must(t, s.Add(t.Context(), long))
	var all []*entry.Unit
	for i := range 3 {
		all = append(all, newUnit("ds"+strconv.Itoa(i), strings.Split(strings.Repeat("UPDATE a,", i+1), ",")[:i+1]...))
	}
	add(t, s, long, all...)
	wantHeld(t, s, all...)
	must(t, s.Remove(t.Context(), all...))
	wantHeld(t, s)
}

func removed(t *testing.T, s txlog.Storage) {
	one, two := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")
	add(t, s, long, one, two)
	for _, u := range []*entry.Unit{one, two} {
		must(t, s.Remove(t.Context(), u))
		_, err := s.Get(t.Context(), u.ID)
		wantError(t, "get", err, txlog.ErrNotFound)
		wantError(t, "second removal", s.Remove(t.Context(), u), txlog.ErrLeaseLost)
	}
	wantHeld(t, s)
}

func removeSome(t *testing.T, s txlog.Storage) {
	a, b, c := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE b"), newUnit("orders", "UPDATE c")
	add(t, s, long, a, b, c)
	stale := *b
	stale.Lease.Token = entry.NewID()
	wantError(t, "removal", s.Remove(t.Context(), a, &stale, c), txlog.ErrLeaseLost)
	wantHeld(t, s, b)
}

func oddBytes(t *testing.T, s txlog.Storage) {
	texts := []string{
		"SELECT '\x00'", "\xff\xfe", "INSERT INTO t VALUES ('日本語 🚚 \\ '' \" ` ? $1 :a {sql}')", "-- base64 AAAA", "", "  \r\n\t ", "-- base64",
	}
	u := newUnit("Größe/☃ a", texts...)
	params, err := entry.EncodeParams([]driver.NamedValue{
		{Ordinal: 1, Value: "\x00\xff"}, {Ordinal: 2, Value: []byte{0, 1, 255}}, {Ordinal: 3, Value: "🚚 \\' \" \u2028"},
	})
	must(t, err)
	u.Statements[0].Params = params
	u.Statements[1].Params = ""
	addDue(t, s, u)
	got := takeOne(t, s, u.DataSource, long)
	if !reflect.DeepEqual(got.Statements, u.Statements) {
		t.Errorf("got %+v, want %+v", got.Statements, u.Statements)
	}
	must(t, s.Release(t.Context(), got, entry.Verdict{Err: "at \x00 and \xff: 日本"}))
	if e := get(t, s, u.ID).LastError; !strings.HasPrefix(e, "at ") || !strings.HasSuffix(e, ": 日本") {
		t.Errorf("got the error text %q", e)
	}
	got = takeOne(t, s, u.DataSource, long)
	must(t, s.Release(t.Context(), got, entry.Verdict{Err: strings.Repeat("日本", 100_000)}))
	if e := get(t, s, u.ID).LastError; !strings.HasPrefix(e, "日本") || !strings.HasSuffix(e, "…") {
		t.Errorf("got an error text of %d bytes", len(e))
	}
}

func megabyte(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", strings.Repeat("x", 1<<20), "UPDATE b", strings.Repeat("ü", 1<<19))
	add(t, s, long, u)
	if got := get(t, s, u.ID); !reflect.DeepEqual(got.Statements, u.Statements) {
		t.Error("the statements came back changed")
	}
	must(t, s.Remove(t.Context(), u))
}

func manyStatements(t *testing.T, s txlog.Storage) {
	texts := make([]string, entry.MaxStatements+1)
	for i := range texts {
		texts[i] = "UPDATE t SET x = " + strconv.Itoa(i)
	}
	if err := s.Add(t.Context(), long, newUnit("orders", texts...)); err == nil {
		t.Error("a unit of 4097 statements was accepted")
	}
	u := newUnit("orders", texts[:entry.MaxStatements]...)
	add(t, s, long, u)
	renew(t, s, long, u)
	must(t, s.Release(t.Context(), u, entry.Verdict{}))
	got := takeOne(t, s, "orders", long)
	if got.Unreadable != nil || !reflect.DeepEqual(got.Statements, u.Statements) {
		t.Errorf("the statements came back changed (%v)", got.Unreadable)
	}
	must(t, s.Remove(t.Context(), got))
	wantHeld(t, s)
}

func refusedUnits(t *testing.T, s txlog.Storage) {
	for name, spoil := range map[string]func(*entry.Unit){
		"no id":                  func(u *entry.Unit) { u.ID = "" },
		"an id of another kind":  func(u *entry.Unit) { u.ID = "17" },
		"the id of a second row": func(u *entry.Unit) { u.ID = u.ID[:len(u.ID)-1] + "1" },
		"no statement":           func(u *entry.Unit) { u.Statements = nil },
		"no data source":         func(u *entry.Unit) { u.DataSource = "" },
		"a data source with NUL": func(u *entry.Unit) { u.DataSource = "a\x00" },
		"a blank at the end":     func(u *entry.Unit) { u.DataSource = "a " },
		"a long data source":     func(u *entry.Unit) { u.DataSource = strings.Repeat("ü", 256) },
		"a long token":           func(u *entry.Unit) { u.Lease.Token = strings.Repeat("x", 41) },
		"a long transaction id":  func(u *entry.Unit) { u.TransactionID = strings.Repeat("x", 41) },
		"a long receipt":         func(u *entry.Unit) { u.Receipt = strings.Repeat("x", 81) },
		"a receipt with blanks":  func(u *entry.Unit) { u.Receipt = "a b" },
		"a receipt not in ASCII": func(u *entry.Unit) { u.Receipt = "ü" },
		"a long fingerprint":     func(u *entry.Unit) { u.Receipt, u.Fingerprint = "r", strings.Repeat("日", 22) },
		"an odd fingerprint":     func(u *entry.Unit) { u.Receipt, u.Fingerprint = "r", "\xff" },
		"only a fingerprint":     func(u *entry.Unit) { u.Fingerprint = "f" },
		"a negative requirement": func(u *entry.Unit) { u.Statements[0].Required = entry.Exactly(-1) },
		"foreign parameters":     func(u *entry.Unit) { u.Statements[0].Params = "\xff" },
	} {
		u := newUnit("orders", "UPDATE a")
		spoil(u)
		if err := s.Add(t.Context(), long, newUnit("orders", "UPDATE b"), u); err == nil || errors.Is(err, txlog.ErrInDoubt) {
			t.Errorf("%s: got error %v, want a refusal", name, err)
		}
	}
	if err := s.Add(t.Context(), 0, newUnit("orders", "UPDATE a")); err == nil {
		t.Error("a lease of no length was accepted")
	}
	if err := s.Add(t.Context(), long, nil); err == nil {
		t.Error("a nil unit was accepted")
	}
	wantHeld(t, s)
}

func contextDone(t *testing.T, s txlog.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Add(ctx, long, newUnit("orders", "UPDATE a"))
	wantError(t, "add", err, context.Canceled)
	if errors.Is(err, txlog.ErrInDoubt) {
		t.Errorf("it says that it does not know: %v", err)
	}
	wantHeld(t, s)
}

func renewed(t *testing.T, s txlog.Storage) {
	a, b, c := newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE b", "UPDATE c"), newUnit("orders", "UPDATE d")
	add(t, s, 10*time.Minute, a, b, c)
	gone := newUnit("orders", "UPDATE e")
	before := time.Now()
	lost, err := s.Renew(t.Context(), long, a, gone, b, c)
	must(t, err)
	wantIDs(t, "lost", lost, gone)
	for _, u := range []*entry.Unit{a, b, c} {
		if u.Lease.Deadline.Before(before.Add(long)) {
			t.Errorf("the deadline of %s is %v from now, want %v", u.ID, time.Until(u.Lease.Deadline), long)
		}
		if got := get(t, s, u.ID); !got.Leased || got.NextTry.Sub(got.CreatedAt) < long-time.Second {
			t.Errorf("the store has the lease end %v after the creation, want %v", got.NextTry.Sub(got.CreatedAt), long)
		}
	}
	// A second renewal within a millisecond changes nothing.
	for range 20 {
		renew(t, s, long, a, b)
	}
}

func located(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a", "UPDATE b")
	u.Receipt, u.Account = u.ID, `a "b"`
	add(t, s, long, u)
	must(t, s.Locate(t.Context(), u, "c", ""))
	if got := get(t, s, u.ID); got.Account != u.Account || got.Place != "c" {
		t.Errorf("got %+v, want its account", got)
	}
	for _, place := range []string{`"a \\ b".c`, `"a \\ b".c`, "`日本`"} {
		must(t, s.Locate(t.Context(), u, place, "a="+place))
		if got := get(t, s, u.ID); got.Place != place || u.Place != place || got.Session != "a="+place || u.Session != got.Session || got.Settings != u.Settings || got.TraceParent != u.TraceParent || !got.Leased || got.Unreadable != nil {
			t.Errorf("got %+v, want the place %q", got, place)
		}
	}
	stale := *u
	stale.Lease.Token = entry.NewID()
	wantError(t, "a stranger's word", s.Locate(t.Context(), &stale, "elsewhere", ""), txlog.ErrLeaseLost)
	if err := s.Locate(t.Context(), u, strings.Repeat("x", 1<<12), ""); err == nil {
		t.Error("a place without end was taken")
	}
	if got := get(t, s, u.ID); got.Place != u.Place || stale.Place != u.Place {
		t.Errorf("got the place %q, want %q", got.Place, u.Place)
	}
}

func staleOwner(t *testing.T, s txlog.Storage) {
	for _, u := range []*entry.Unit{newUnit("orders", "UPDATE a"), newUnit("orders", "UPDATE a", "UPDATE b")} {
		addShort(t, s, u)
		owner := u
		for _, lease := range []time.Duration{short, long} { // that of its writer ended, then that of a claimer
			taken := takeOne(t, s, "orders", lease)
			wantIDs(t, "claimed", []*entry.Unit{taken}, u)
			if !time.Now().After(owner.Lease.Deadline) {
				t.Error("the unit was handed out before its owner's deadline")
			}
			if owner.Lease.Token == taken.Lease.Token {
				t.Error("two owners have the same token")
			}
			wantError(t, "removal", s.Remove(t.Context(), owner), txlog.ErrLeaseLost)
			wantError(t, "release", s.Release(t.Context(), owner, entry.Verdict{Park: true, CountTry: true, Err: "stale"}), txlog.ErrLeaseLost)
			lost, err := s.Renew(t.Context(), long, owner)
			must(t, err)
			wantIDs(t, "lost", lost, owner)
			got := get(t, s, u.ID)
			if got.Parked || got.Tries != 0 || got.LastError != "" || lease == long && !got.Leased {
				t.Errorf("the stale owner left %+v behind", got)
			}
			owner = taken
		}
		must(t, s.Remove(t.Context(), owner))
	}
}

func expiredButHeld(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a")
	addShort(t, s, u)
	eventually(t, "the lease ends", func() bool { return !get(t, s, u.ID).Leased })
	renew(t, s, long, u)
	must(t, s.Remove(t.Context(), u))
}

func closed(t *testing.T, s txlog.Storage) {
	u := newUnit("orders", "UPDATE a")
	must(t, s.Close())
	ctx := t.Context()
	_, claimErr := s.Claim(ctx, entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: long})
	_, renewErr := s.Renew(ctx, long, u)
	_, sourcesErr := s.DataSources(ctx)
	_, listErr := s.List(ctx, txlog.Filter{})
	_, missingErr := s.Missing(ctx, nil)
	_, getErr := s.Get(ctx, u.ID)
	_, statsErr := s.Stats(ctx)
	for what, err := range map[string]error{
		"Add": s.Add(ctx, long, u), "Remove": s.Remove(ctx, u), "Release": s.Release(ctx, u, entry.Verdict{}), "Locate": s.Locate(ctx, u, "x", ""), "Claim": claimErr,
		"Renew": renewErr, "DataSources": sourcesErr, "List": listErr, "Get": getErr, "Missing": missingErr, "Stats": statsErr,
		"Retry": s.Retry(ctx, u.ID), "Discard": s.Discard(ctx, u.ID),
	} {
		wantError(t, what, err, txlog.ErrClosed)
	}
}
