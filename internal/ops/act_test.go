package ops_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func (r *rig) audit(t *testing.T) (all []string) {
	t.Helper()
	page, err := r.Audit(t.Context(), ops.Page{})
	must(t, err)
	for _, a := range page.Records {
		if time.Since(a.Time).Abs() > time.Hour || a.ID == "" {
			t.Errorf("got %+v", a)
		}
		all = append(all, fmt.Sprintf("%s %s %s %d %s", a.Who, a.Action, a.What, a.Count, a.Reason))
	}
	return all
}

func wantAudit(t *testing.T, r *rig, want ...string) {
	t.Helper()
	if got := r.audit(t); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the audit says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (r *rig) get(t *testing.T, id string) *entry.Unit {
	t.Helper()
	u, err := r.log.Get(t.Context(), id)
	must(t, err)
	return u
}

func TestWhatIsDoneToOneEntryIsAudited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		u := r.park(t, r.write(t, "orders", "UPDATE a", "UPDATE b"), "no")
		second := u.ID[:35] + "1"
		must(t, r.Act(t.Context(), ops.Retry, second, ann))
		if got := r.get(t, u.ID); got.Parked || !got.AtOnce || got.Tries != 0 {
			t.Errorf("got %+v", got)
		}
		must(t, r.Act(t.Context(), ops.Park, u.ID, ops.By{Who: "bob"}))
		if got := r.get(t, u.ID); !got.Parked || got.LastError != "no" {
			t.Errorf("got %+v", got)
		}
		wantError(t, "a discard without a reason", r.Act(t.Context(), ops.Discard, u.ID, ops.By{Who: "ann", Reason: " "}), ops.ErrInvalid)
		wantError(t, "nobody", r.Act(t.Context(), ops.Retry, u.ID, ops.By{Reason: "x"}), ops.ErrInvalid)
		wantError(t, "another action", r.Act(t.Context(), ops.Pause, u.ID, ann), ops.ErrInvalid)
		must(t, r.Act(t.Context(), ops.Discard, u.ID, ann))
		wantError(t, "again", r.Act(t.Context(), ops.Discard, u.ID, ann), txlog.ErrNotFound)
		wantError(t, "a mistyped id", r.Act(t.Context(), ops.Retry, "x", ann), txlog.ErrNotFound)
		leased := r.write(t, "orders", "UPDATE a")
		for _, a := range []ops.Action{ops.Retry, ops.Park, ops.Discard} {
			wantError(t, string(a), r.Act(t.Context(), a, leased.ID, ann), txlog.ErrLeased)
		}
		wantAudit(t, r, "ann discard "+u.ID+" 1 because", "bob park "+u.ID+" 1 ", "ann retry "+u.ID+" 1 because")
	})
}

func (r *rig) selected(t *testing.T, f ops.Filter, want int) *ops.Selection {
	t.Helper()
	sel, err := r.Select(t.Context(), f)
	must(t, err)
	if len(sel.IDs) != want || sel.More || time.Since(sel.At).Abs() > time.Hour {
		t.Fatalf("%d are selected at %v, want %d", len(sel.IDs), sel.At, want)
	}
	return sel
}

// wantDone carries a bulk action out.
func (r *rig) wantDone(t *testing.T, a ops.Action, sel *ops.Selection, changed, gone, left int) {
	t.Helper()
	done, err := r.ActAll(t.Context(), a, sel, ann)
	must(t, err)
	if len(done.Changed) != changed || done.Gone != gone || done.Left != left {
		t.Errorf("%s: %d changed, %d gone, %d left; want %d, %d, %d", a, len(done.Changed), done.Gone, done.Left, changed, gone, left)
	}
}

func (r *rig) claim(t *testing.T) *entry.Unit {
	t.Helper()
	claimed, err := r.log.Claim(t.Context(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Hour})
	must(t, err)
	return claimed[0]
}

func TestBulkActionChangesOnlyWhatWasCounted(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		const n = 600 // more than one statement names
		const timeout = "Error 1205 (HY000): Lock wait timeout exceeded"
		for i := range n {
			statements := []string{"UPDATE a"}
			if i%100 == 0 {
				statements = append(statements, "UPDATE b")
			}
			r.park(t, r.write(t, "orders", statements...), timeout)
		}
		other := r.park(t, r.write(t, "users", "UPDATE a"), timeout)
		underWay := r.write(t, "orders", "UPDATE a")
		f := ops.Filter{DataSource: "orders", Text: "UPDATE a"}
		sel := r.selected(t, f, n)
		must(t, r.Act(t.Context(), ops.Discard, sel.IDs[0], ann))
		r.park(t, underWay, timeout)
		later := r.park(t, r.write(t, "orders", "UPDATE a"), timeout)
		r.wantDone(t, ops.Retry, sel, n-1, 1, 0)
		for _, u := range []*entry.Unit{underWay, later, other} {
			if !r.get(t, u.ID).Parked {
				t.Errorf("%s was not counted, and was retried", u.ID)
			}
		}
		// The counted entries are changed if they still can be: one is being delivered, one was
		// tried meanwhile.
		f.State = ops.Waiting
		sel = r.selected(t, f, n-1)
		tried := r.claim(t)
		must(t, r.log.Release(t.Context(), tried, entry.Verdict{CountTry: true, Err: timeout}))
		if c := r.claim(t); c.ID == tried.ID {
			t.Fatal("the claim gave the same entry twice")
		}
		r.wantDone(t, ops.Discard, sel, n-2, 0, 1)
		if _, err := r.log.Get(t.Context(), tried.ID); !errors.Is(err, txlog.ErrNotFound) {
			t.Errorf("what was counted and tried meanwhile: %v", err)
		}
		if all := r.list(t, ops.Filter{}, 0); len(all) != 4 {
			t.Errorf("left are %v", all)
		}
		r.selected(t, ops.Filter{State: ops.Leased}, 0)
		records, err := r.Audit(t.Context(), ops.Page{})
		must(t, err)
		for i, want := range []string{`"state":"waiting","text":"UPDATE a","until":"2`, `"text":"UPDATE a","until":"2`} {
			if a := records.Records[i]; !strings.Contains(a.What, want) || a.Count != n-2+i || a.Who != "ann" {
				t.Errorf("the audit says %+v", a)
			}
		}
		if what := records.Records[1].What; !strings.Contains(what, `"counted":600,"gone":1`) {
			t.Errorf("the audit says %s", what)
		}
	})
}

// A write fails every few milliseconds: it is leased, released, and parked or left to the job.
func (r *rig) failing(t *testing.T) (stop func() (written int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var written atomic.Int64
	for i := range 3 {
		wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond) // 150 a second
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
				if err := r.log.Add(t.Context(), time.Minute, u); err != nil {
					t.Error(err)
					return
				}
				if err := r.log.Release(t.Context(), u, entry.Verdict{Park: (n+i)%2 == 0, Err: "Error 1205 (HY000): Lock wait timeout exceeded"}); err != nil {
					t.Error(err)
					return
				}
				written.Add(1)
			}
		})
	}
	return func() int { cancel(); wg.Wait(); return int(written.Load()) }
}

func TestBulkActionsSucceedWhileFailuresKeepArriving(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		for range 20 {
			r.park(t, r.write(t, "orders", "UPDATE a"), "no")
		}
		stop := r.failing(t)
		discarded := 0
		for _, f := range []ops.Filter{{State: ops.Parked}, {DataSource: "orders"}, {Text: "UPDATE"}, {State: ops.Waiting}, {OlderThan: 50 * time.Millisecond}} {
			before, err := r.Count(t.Context(), ops.Filter{}, -1)
			must(t, err)
			sel, err := r.Select(t.Context(), f)
			must(t, err)
			for n := before; n.N < before.N+20; { // others arrive before the confirmation
				n, err = r.Count(t.Context(), ops.Filter{}, -1)
				must(t, err)
			}
			done, err := r.ActAll(t.Context(), ops.Discard, sel, ann)
			must(t, err)
			if len(sel.IDs) == 0 || !slices.Equal(done.Changed, sel.IDs) || done.Gone+done.Left > 0 {
				t.Errorf("%+v: %d were counted, %d were discarded, %d are gone and %d left", f, len(sel.IDs), len(done.Changed), done.Gone, done.Left)
			}
			discarded += len(done.Changed)
		}
		written := stop()
		if c, err := r.Count(t.Context(), ops.Filter{}, -1); err != nil || c.N != 20+written-discarded {
			t.Errorf("%d are left, %v; want %d", c.N, err, 20+written-discarded)
		}
	})
}

// Without an audit, no action takes effect.
func TestNothingIsDoneWithoutAnAudit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		u := r.park(t, r.write(t, "orders", "UPDATE a"), "no")
		_, err := db.Open(t).ExecContext(t.Context(), "DROP TABLE bed_audit")
		must(t, err)
		if err := r.Act(t.Context(), ops.Discard, u.ID, ann); err == nil {
			t.Error("it was discarded")
		}
		if _, err := r.ActAll(t.Context(), ops.Retry, r.selected(t, ops.Filter{}, 1), ann); err == nil {
			t.Error("they were retried")
		}
		if err := r.Control(t.Context(), ops.Pause, "orders", 0, ann); err == nil {
			t.Error("it was paused")
		}
		if got := r.get(t, u.ID); !got.Parked {
			t.Errorf("got %+v", got)
		}
		if _, _, c, err := logdb.Journal(r.log).Reserve(t.Context(), "orders", 0); c.Paused || err != nil {
			t.Errorf("got %+v, %v", c, err)
		}
		again, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithoutCreate())
		must(t, err)
		t.Cleanup(func() { _ = again.Close() })
		s, err := ops.New(again, ops.Config{})
		must(t, err)
		wantError(t, "without the table", s.Act(t.Context(), ops.Retry, u.ID, ann), ops.ErrNoTables)
	})
}

func TestADataSourceIsPausedResumedAndLimited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.park(t, r.write(t, "orders", "UPDATE a"), "no")
		wantError(t, "an unknown one", r.Control(t.Context(), ops.Pause, "other", 0, ann), ops.ErrUnknownDataSource)
		wantError(t, "none", r.Control(t.Context(), ops.Pause, "", 0, ann), ops.ErrUnknownDataSource)
		wantError(t, "a limit below 0", r.Control(t.Context(), ops.Limit, "orders", -1, ann), ops.ErrInvalid)
		see := func() ops.DataSource {
			o, err := r.Overview(t.Context(), ops.OverviewOptions{})
			must(t, err)
			return o.DataSources[0]
		}
		must(t, r.Control(t.Context(), ops.Limit, "orders", 20, ann))
		must(t, r.Control(t.Context(), ops.Pause, "orders", 0, ann))
		if d := see(); !d.Paused || d.PerSecond != 20 {
			t.Errorf("got %+v", d)
		}
		must(t, r.Control(t.Context(), ops.Resume, "orders", 0, ops.By{Who: "bob"}))
		if d := see(); d.Paused || d.PerSecond != 20 {
			t.Errorf("got %+v", d)
		}
		must(t, r.Control(t.Context(), ops.Limit, "orders", 0, ops.By{Who: "bob"}))
		if d := see(); d.PerSecond != 0 {
			t.Errorf("got %+v", d)
		}
		wantAudit(t, r, "bob limit orders 0 0 per second", "bob resume orders 0 ", "ann pause orders 0 because", "ann limit orders 0 20 per second: because")
	})
}
