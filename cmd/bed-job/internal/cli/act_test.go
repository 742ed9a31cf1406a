package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// fill adds n units to a log and parks them; leased ones stay with their writer.
func fill(t *testing.T, st txlog.Storage, n int, dataSource string, leased bool) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		u := &entry.Unit{ID: entry.NewID(), DataSource: dataSource, Statements: []entry.Statement{{SQL: "DELETE FROM a"}}, Lease: entry.Lease{Token: "t"}}
		u.TransactionID = u.ID
		ids[i] = u.ID
		err := st.Add(t.Context(), time.Hour, u)
		if err == nil && !leased {
			err = st.Release(t.Context(), u, entry.Verdict{Park: true, CountTry: true, Err: "no"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

func count(t *testing.T, st txlog.Storage, f txlog.Filter) int {
	t.Helper()
	units, err := st.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return len(units)
}

func TestRetryMakesLogsDueWithTheirTriesReset(t *testing.T) {
	st := newLog(t)
	ids := fill(t, st, 2, "a", false)
	newHarness(t, st).run(t, "retry", ids[0]).want(t, 0, ids[0]+": due now\n")
	u, err := st.Get(t.Context(), ids[0])
	if err != nil || u.Parked || u.Tries != 0 || u.NextTry.After(time.Now()) {
		t.Errorf("it is %+v, %v", u, err)
	}
	if n := count(t, st, txlog.Filter{Parked: true}); n != 1 {
		t.Errorf("%d are parked, want the other one", n)
	}
}

func TestActionsContinuePastFailuresAndEndWithStatus1(t *testing.T) {
	st := newLog(t)
	ids, leased := fill(t, st, 2, "a", false), fill(t, st, 1, "a", true)[0]
	h := newHarness(t, st)
	r := h.run(t, "retry", "nope", ids[0], leased, ids[1])
	r.want(t, 1, ids[0]+": due now\n"+ids[1]+": due now\n")
	want := "bed-job: nope: the log holds no such id: it was delivered or discarded, or the id is mistyped\n" +
		"bed-job: " + leased + ": it is being delivered at this moment; look again in a while (bed-job show says until when it is leased)\n"
	if r.err != want {
		t.Errorf("stderr is\n%s\nwant\n%s", r.err, want)
	}
	if r := h.run(t, "discard", "--yes", "--reason", "a test", leased, ids[0]); r.status != 1 || count(t, st, txlog.Filter{}) != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestAllThatIsParkedIsRetriedAtOnce(t *testing.T) {
	st := newLog(t)
	fill(t, st, 2*pageSize+1, "a", false)
	fill(t, st, 3, "b", false)
	h := newHarness(t, st)
	r := h.run(t, "retry", "--parked", "--data-source", "a")
	r.want(t, 0, fmt.Sprintf("%d entries of %[1]d due now\n", 2*pageSize+1))
	for _, next := range []string{"bed-job watch", "bed-job kinds --parked"} { // lead to the outcome
		if !strings.Contains(r.err, next) {
			t.Errorf("it does not name %s: %q", next, r.err)
		}
	}
	if n := count(t, st, txlog.Filter{Parked: true}); n != 3 {
		t.Errorf("%d are parked, want the 3 of b", n)
	}
	h.run(t, "discard", "--parked", "--yes", "--reason", "a test").want(t, 0, "3 entries of 3 discarded\n")
	if n := count(t, st, txlog.Filter{Limit: 5000}); n != 2*pageSize+1 {
		t.Errorf("%d are left", n)
	}
	if r := h.run(t, "retry", "--parked"); r.status != 0 || r.err != "Nothing of that kind is parked.\n" {
		t.Errorf("got %+v", r)
	}
}

func TestDiscardAsksOnATerminal(t *testing.T) {
	for answer, discarded := range map[string]bool{"y\n": true, "yes\n": true, "YES\n": true, "\n": false, "n\n": false, "": false} {
		st := newLog(t)
		id := fill(t, st, 1, "a", false)[0]
		h := newHarness(t, st)
		h.InTTY, h.In = true, strings.NewReader(answer)
		r := h.run(t, "discard", id, "--reason", "a test")
		if !strings.Contains(r.err, "discard 1 entry? It will never be delivered. [y/N] ") {
			t.Errorf("it asked %q", r.err)
		}
		if left := count(t, st, txlog.Filter{}); (left == 0) != discarded || (r.status == 0) != discarded {
			t.Errorf("after %q, %d are left, status %d", answer, left, r.status)
		}
	}
}

func TestDiscardRefusesWithoutConfirmation(t *testing.T) {
	st := newLog(t)
	id := fill(t, st, 1, "a", false)[0]
	for _, what := range []string{id, "--parked"} {
		r := newHarness(t, st).run(t, "discard", what, "--reason", "a test")
		if r.status != 2 || !strings.Contains(r.err, "confirm it with --yes") || count(t, st, txlog.Filter{}) != 1 {
			t.Errorf("got %+v", r)
		}
	}
}

func TestDiscardNeedsAReason(t *testing.T) {
	st := newLog(t)
	id := fill(t, st, 1, "a", false)[0]
	h := newHarness(t, st)
	for _, what := range [][]string{{id}, {"--parked"}, {id, "--reason", ""}, {"--parked", "--reason", " \t"}} {
		for _, tty := range []bool{false, true} {
			h.InTTY, h.In = tty, strings.NewReader("y\n")
			r := h.run(t, append([]string{"discard", "--yes"}, what...)...)
			if r.status != 2 || !strings.Contains(r.err, "discard needs a reason") || !strings.Contains(r.err, "--reason") || count(t, st, txlog.Filter{}) != 1 {
				t.Errorf("%q: got %+v", what, r)
			}
		}
	}
	h.InTTY = false
	h.run(t, "discard", "--parked", "--dry-run").want(t, 0, "1 entry of 1 would be discarded\n")
	h.run(t, "discard", "--parked", "--yes", "--reason", "the order was cancelled").want(t, 0, "1 entry of 1 discarded\n")
	store, err := openDesk(&h.app, boundedLog{Storage: st}, &config{})
	if err != nil {
		t.Fatal(err)
	}
	audit, err := store.Audit(t.Context(), ops.Page{})
	if err != nil || len(audit.Records) != 1 || audit.Records[0].Reason != "the order was cancelled" {
		t.Errorf("the audit holds %+v (%v)", audit, err)
	}
}

func TestActionAppliesToExactlyTheFilteredEntries(t *testing.T) {
	st := newLog(t)
	fill(t, st, 5, "a", false)
	b := fill(t, st, 3, "b", false)
	h := newHarness(t, st)
	h.run(t, "retry", "--data-source", "b", "--state", "parked", "--dry-run").want(t, 0, "3 entries of 3 would be due now\n")
	if n := count(t, st, txlog.Filter{Parked: true}); n != 8 {
		t.Fatalf("a dry run has left %d parked", n)
	}
	h.run(t, "retry", "--data-source", "b", "--text", "DELETE", "--reason", "fixed").want(t, 0, "3 entries of 3 due now\n")
	h.run(t, "retry", "--text", "no such text").want(t, 0, "")
	var parked acted
	r := h.run(t, "park", "--state", "waiting", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &parked); err != nil || r.status != 0 || parked.Changed != 3 || !slices.Equal(parked.IDs, b) || parked.Until == "" {
		t.Errorf("park says %+v, want the ids %v", r, b)
	}
	id := fill(t, st, 1, "c", false)[0]
	h.run(t, "discard", id, "--dry-run").want(t, 0, id+": would be discarded\n")
	h.run(t, "discard", id, "--yes", "--reason", "the order was cancelled").want(t, 0, id+": discarded\n")
	store, err := openDesk(&h.app, boundedLog{Storage: st}, &config{})
	if err != nil {
		t.Fatal(err)
	}
	audit, err := store.Audit(t.Context(), ops.Page{})
	if err != nil || len(audit.Records) != 3 {
		t.Fatalf("the audit holds %+v, %v", audit, err)
	}
	for i, want := range []ops.Record{
		{Action: ops.Discard, What: id, Count: 1, Reason: "the order was cancelled"},
		{Action: ops.Park, What: `{"state":"waiting"}`, Count: 3},
		{Action: ops.Retry, What: `{"dataSource":"b","text":"\u003cmasked\u003e"}`, Count: 3, Reason: "fixed"},
	} {
		got := audit.Records[i]
		if got.Action != want.Action || got.Count != want.Count || got.Reason != want.Reason || !strings.HasPrefix(got.Who, "bed-job ") ||
			!strings.HasPrefix(got.What, want.What[:8]) {
			t.Errorf("record %d is %+v, want %+v", i, got, want)
		}
	}
}

func TestEntriesAreListedByEachFilter(t *testing.T) {
	st := newLog(t)
	fill(t, st, 2, "a", false)
	leased := fill(t, st, 1, "b", true)[0]
	h := newHarness(t, st)
	for args, n := range map[string]int{
		"--state parked": 2, "--state leased": 1, "--state waiting": 0, "--data-source b": 1, "--text DELETE": 3, "--text delete": 0,
		"--transaction " + leased: 1, "--text % --state parked": 0, "--text DELETE --limit 2": 2, "--parked --text no": 2,
	} {
		r := h.run(t, append([]string{"list", "-o", "json"}, strings.Fields(args)...)...)
		if got := strings.Count(r.out, `"transactionId"`); r.status != 0 || got != n {
			t.Errorf("list %s shows %d, want %d: %+v", args, got, n, r)
		}
	}
	if r := h.run(t, "list", "--state", "lost"); r.status != 2 {
		t.Errorf("an unknown state: %+v", r)
	}
}

// confirming runs first and then answers yes.
type confirming struct{ first func() }

func (c confirming) Read(p []byte) (int, error) {
	c.first()
	return copy(p, "y\n"), nil
}

func TestActionsByFilterSucceedWhileFailuresKeepArriving(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		st, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithoutActivity())
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		ctx, stop := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		var written atomic.Int64
		for range 3 {
			writers.Go(func() {
				for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C { // 150 a second
					fill(t, st, 1, "a", false)
					written.Add(1)
				}
			})
		}
		arrive := func() {
			for until := written.Load() + 20; written.Load() < until; {
				time.Sleep(time.Millisecond)
			}
		}
		h := newHarness(t, st)
		h.In, h.InTTY = confirming{arrive}, true
		changed := 0
		for _, args := range []string{"park --data-source a", "retry --parked", "park --text no", "discard --data-source a --reason x", "discard --parked --reason x"} {
			arrive()
			r := h.run(t, append(strings.Fields(args), "-o", "json")...)
			var did acted
			if err := json.Unmarshal([]byte(r.out), &did); err != nil || r.status != 0 || did.Changed == 0 || did.Gone+did.Left > 0 || len(did.IDs) != did.Changed {
				t.Errorf("%s: %+v", args, r)
			}
			if strings.HasPrefix(args, "discard") {
				changed += did.Changed
			}
		}
		stop()
		writers.Wait()
		if n := count(t, st, txlog.Filter{Limit: 5000}); n != int(written.Load())-changed {
			t.Errorf("%d are left, want %d", n, int(written.Load())-changed)
		}
	})
}

func TestSkipFreesThoseBehind(t *testing.T) {
	st := newLog(t)
	var ids []string
	for range 3 {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}, Order: []entry.Order{{Key: entry.OrderPrefix + "k"}}}
		u.TransactionID, u.Receipt = u.ID, u.ID
		ids = append(ids, u.ID)
		if err := st.Add(t.Context(), time.Hour, u); err != nil {
			t.Fatal(err)
		}
		if u.Behind == "" {
			if err := st.Release(t.Context(), u, entry.Verdict{Park: true, CountTry: true, Err: "no"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := newHarness(t, st)
	if r := h.run(t, "show", ids[0]); r.status != 0 || !strings.Contains(r.out, "2 entries behind it under its order key") {
		t.Errorf("show says %+v", r)
	}
	for _, wrong := range [][]string{{ids[0]}, {ids[0], "--reason", " "}, {ids[0], ids[1], "--reason", "r"}} {
		if r := h.run(t, append([]string{"skip"}, wrong...)...); r.status != 2 {
			t.Errorf("%q: %+v", wrong, r)
		}
	}
	for _, id := range []string{ids[1], entry.NewID()} {
		if r := h.run(t, "skip", id, "--reason", "r"); r.status != 1 || !strings.Contains(r.err, id) {
			t.Errorf("%s: %+v", id, r)
		}
	}
	if u, err := st.Get(t.Context(), ids[1]); err != nil || u.Behind != ids[0] {
		t.Errorf("it is behind %q, %v", u.Behind, err)
	}
	h.run(t, "skip", ids[0], "--reason", "paid by hand").want(t, 0, ids[0]+": skipped and parked, those behind it are delivered in their order\n")
	if r := h.run(t, "skip", ids[0], "--reason", "again"); r.status != 1 {
		t.Errorf("a second time: %+v", r)
	}
	if r := h.run(t, "skip", ids[1], "--reason", "r", "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"action": "skip"`) || !strings.Contains(r.out, ids[1]) {
		t.Errorf("as JSON: %+v", r)
	}
	due, err := st.Claim(t.Context(), entry.ClaimRequest{DataSource: "a", Limit: 9, Lease: time.Minute})
	if err != nil || len(due) != 1 || due[0].ID != ids[2] || count(t, st, txlog.Filter{Parked: true}) != 2 {
		t.Errorf("due is %+v, %v", due, err)
	}
	if r := h.run(t, "audit"); r.status != 0 || !strings.Contains(r.out, "paid by hand") {
		t.Errorf("the audit says %+v", r)
	}
}
