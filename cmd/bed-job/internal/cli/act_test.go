package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/txlog"
)

// fill adds n units to a log and parks them; leased ones stay with their writer.
func fill(t *testing.T, st txlog.Storage, n int, dataSource string, leased bool) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		u := &txlog.Unit{ID: txlog.NewID(), DataSource: dataSource, Statements: []txlog.Statement{{SQL: "DELETE FROM a"}}, Lease: txlog.Lease{Token: "t"}}
		u.TransactionID = u.ID
		ids[i] = u.ID
		err := st.Add(t.Context(), time.Hour, u)
		if err == nil && !leased {
			err = st.Release(t.Context(), u, txlog.Verdict{Park: true, CountTry: true, Err: "no"})
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
	st := txlog.NewMemory()
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
	st := txlog.NewMemory()
	ids, leased := fill(t, st, 2, "a", false), fill(t, st, 1, "a", true)[0]
	h := newHarness(t, st)
	r := h.run(t, "retry", "nope", ids[0], leased, ids[1])
	r.want(t, 1, ids[0]+": due now\n"+ids[1]+": due now\n")
	want := "bed-job: nope: the log holds no such id: it was delivered or discarded, or the id is mistyped\n" +
		"bed-job: " + leased + ": it is being delivered at this moment; look again in a while (bed-job show says until when it is leased)\n"
	if r.err != want {
		t.Errorf("stderr is\n%s\nwant\n%s", r.err, want)
	}
	if r := h.run(t, "discard", "--yes", leased, ids[0]); r.status != 1 || count(t, st, txlog.Filter{}) != 2 {
		t.Errorf("got %+v", r)
	}
}

func TestAllThatIsParkedIsRetriedPageByPage(t *testing.T) {
	st := txlog.NewMemory()
	fill(t, st, 2*pageSize+1, "a", false)
	fill(t, st, 3, "b", false)
	h := newHarness(t, st)
	h.run(t, "retry", "--parked", "--data-source", "a").want(t, 0, fmt.Sprintf("%d entries of %[1]d due now\n", 2*pageSize+1))
	if n := count(t, st, txlog.Filter{Parked: true}); n != 3 {
		t.Errorf("%d are parked, want the 3 of b", n)
	}
	h.run(t, "discard", "--parked", "--yes").want(t, 0, "3 entries of 3 discarded\n")
	if n := count(t, st, txlog.Filter{Limit: 5000}); n != 2*pageSize+1 {
		t.Errorf("%d are left", n)
	}
	if r := h.run(t, "retry", "--parked"); r.status != 0 || r.err != "Nothing of that kind is parked.\n" {
		t.Errorf("got %+v", r)
	}
}

func TestProgressIsShownOnATerminalOnly(t *testing.T) {
	st := txlog.NewMemory()
	fill(t, st, 2, "a", false)
	h := newHarness(t, st)
	h.ErrTTY = true
	if r := h.run(t, "retry", "--parked"); !strings.Contains(r.err, "retry") || r.out != "2 entries of 2 due now\n" {
		t.Errorf("got %+v", r)
	}
}

func TestDiscardAsksOnATerminal(t *testing.T) {
	for answer, discarded := range map[string]bool{"y\n": true, "yes\n": true, "YES\n": true, "\n": false, "n\n": false, "": false} {
		st := txlog.NewMemory()
		id := fill(t, st, 1, "a", false)[0]
		h := newHarness(t, st)
		h.InTTY, h.In = true, strings.NewReader(answer)
		r := h.run(t, "discard", id)
		if !strings.Contains(r.err, "discard 1 entry for good? Nothing of it will be delivered. [y/N] ") {
			t.Errorf("it asked %q", r.err)
		}
		if left := count(t, st, txlog.Filter{}); (left == 0) != discarded || (r.status == 0) != discarded {
			t.Errorf("after %q, %d are left, status %d", answer, left, r.status)
		}
	}
}

func TestDiscardRefusesWithoutConfirmation(t *testing.T) {
	st := txlog.NewMemory()
	id := fill(t, st, 1, "a", false)[0]
	for _, what := range []string{id, "--parked"} {
		r := newHarness(t, st).run(t, "discard", what)
		if r.status != 2 || !strings.Contains(r.err, "confirm it with --yes") || count(t, st, txlog.Filter{}) != 1 {
			t.Errorf("got %+v", r)
		}
	}
}

// deciding is a log in which somebody else retries a unit between it being
// listed and it being acted upon.
type deciding struct {
	*txlog.Memory
	retried string
}

func (d deciding) List(ctx context.Context, f txlog.Filter) ([]*txlog.Unit, error) {
	units, err := d.Memory.List(ctx, f)
	return units, errors.Join(err, d.Memory.Retry(ctx, d.retried))
}

func TestWhatIsNotParkedAnyMoreIsNotDiscarded(t *testing.T) {
	st := txlog.NewMemory()
	ids := fill(t, st, 2, "a", false)
	newHarness(t, deciding{st, ids[0]}).run(t, "discard", "--parked", "--yes").want(t, 0, "1 entry of 2 discarded, 1 not parked any more\n")
	if _, err := st.Get(t.Context(), ids[0]); err != nil {
		t.Errorf("the one that was retried meanwhile: %v", err)
	}
}

// failing is a log that breaks after some calls.
type failing struct {
	*txlog.Memory
	left *int
}

func (f failing) Retry(ctx context.Context, id string) error {
	if *f.left--; *f.left < 0 {
		return errors.New("the log's database is gone")
	}
	return f.Memory.Retry(ctx, id)
}

func TestALogThatBreaksStopsTheWholeWork(t *testing.T) {
	st, left := txlog.NewMemory(), 1
	fill(t, st, 3, "a", false)
	r := newHarness(t, failing{st, &left}).run(t, "retry", "--parked")
	r.want(t, 1, "1 entry of 3 due now\n")
	if r.err != "bed-job: stopped: the log's database is gone\n" || left != -1 {
		t.Errorf("stderr is %q, %d calls too many", r.err, -1-left)
	}
}
