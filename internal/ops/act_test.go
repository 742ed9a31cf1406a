package ops_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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

func (r *rig) get(t *testing.T, id string) *txlog.Unit {
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
		wantError(t, "again", r.Act(t.Context(), ops.Discard, u.ID, ann), ops.ErrNotFound)
		wantError(t, "a mistyped id", r.Act(t.Context(), ops.Retry, "x", ann), ops.ErrNotFound)
		leased := r.write(t, "orders", "UPDATE a")
		for _, a := range []ops.Action{ops.Retry, ops.Park, ops.Discard} {
			wantError(t, string(a), r.Act(t.Context(), a, leased.ID, ann), ops.ErrLeased)
		}
		wantAudit(t, r, "ann discard "+u.ID+" 1 because", "bob park "+u.ID+" 1 ", "ann retry "+u.ID+" 1 because")
	})
}

func TestABulkActionChangesExactlyWhatWasCountedOrNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		const n = 600 // more than one statement names
		for i := range n {
			statements := []string{"UPDATE a"}
			if i%100 == 0 {
				statements = append(statements, "UPDATE b")
			}
			r.park(t, r.write(t, "orders", statements...), "Error 1205 (HY000): Lock wait timeout exceeded")
		}
		other := r.park(t, r.write(t, "users", "UPDATE a"), "Error 1205 (HY000): Lock wait timeout exceeded")
		f := ops.Filter{DataSource: "orders", Text: "Lock wait"}
		for _, count := range []int{0, n - 1, n + 1} {
			err := r.ActAll(t.Context(), ops.Retry, f, count, ann)
			var conflict *ops.ConflictError
			if !errors.As(err, &conflict) || conflict.Counted != count || conflict.Matches != n {
				t.Errorf("counted %d: got %v", count, err)
			}
		}
		for _, count := range []int{-1, ops.MaxBulk + 1} {
			wantError(t, fmt.Sprint(count), r.ActAll(t.Context(), ops.Retry, f, count, ann), ops.ErrInvalid)
		}
		wantAudit(t, r)
		if c, err := r.Count(t.Context(), ops.Filter{State: ops.Parked}, -1); err != nil || c.N != n+1 {
			t.Errorf("%+v are parked, %v, want all", c, err)
		}
		must(t, r.ActAll(t.Context(), ops.Retry, f, n, ann))
		if c, err := r.Count(t.Context(), ops.Filter{State: ops.Waiting}, -1); err != nil || c.N != n {
			t.Errorf("%+v wait, %v, want %d", c, err, n)
		}
		// One of them is being delivered: nothing happens to the others.
		claimed, err := r.log.Claim(t.Context(), txlog.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Hour})
		must(t, err)
		wantError(t, "one is leased", r.ActAll(t.Context(), ops.Discard, f, n, ann), ops.ErrConflict)
		if c, err := r.Count(t.Context(), ops.Filter{}, -1); err != nil || c.N != n+1 {
			t.Errorf("%+v are there, %v, want all", c, err)
		}
		must(t, r.log.Release(t.Context(), claimed[0], txlog.Verdict{Park: true}))
		f.State = ops.Waiting
		must(t, r.ActAll(t.Context(), ops.Discard, f, n-1, ann))
		if all := r.list(t, ops.Filter{}, 0); len(all) != 2 || all[1] != other.ID {
			t.Errorf("left are %v", all)
		}
		wantAudit(t, r, fmt.Sprintf(`ann discard {"dataSource":"orders","state":"waiting","text":"Lock wait"} %d because`, n-1),
			fmt.Sprintf(`ann retry {"dataSource":"orders","text":"Lock wait"} %d because`, n))
	})
}

// What cannot be audited is not done.
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
		if err := r.ActAll(t.Context(), ops.Retry, ops.Filter{}, 1, ann); err == nil {
			t.Error("they were retried")
		}
		if err := r.Pause(t.Context(), "orders", ann); err == nil {
			t.Error("it was paused")
		}
		if got := r.get(t, u.ID); !got.Parked {
			t.Errorf("got %+v", got)
		}
		if c, err := r.log.Journal().Control(t.Context(), "orders"); c.Paused || err != nil {
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
		wantError(t, "an unknown one", r.Pause(t.Context(), "other", ann), ops.ErrUnknownDataSource)
		wantError(t, "none", r.Pause(t.Context(), "", ann), ops.ErrUnknownDataSource)
		wantError(t, "a limit below 0", r.Limit(t.Context(), "orders", -1, ann), ops.ErrInvalid)
		see := func() ops.DataSource {
			o, err := r.Overview(t.Context(), ops.OverviewOptions{})
			must(t, err)
			return o.DataSources[0]
		}
		must(t, r.Limit(t.Context(), "orders", 20, ann))
		must(t, r.Pause(t.Context(), "orders", ann))
		if d := see(); !d.Paused || d.PerSecond != 20 {
			t.Errorf("got %+v", d)
		}
		must(t, r.Resume(t.Context(), "orders", ops.By{Who: "bob"}))
		if d := see(); d.Paused || d.PerSecond != 20 {
			t.Errorf("got %+v", d)
		}
		must(t, r.Limit(t.Context(), "orders", 0, ops.By{Who: "bob"}))
		if d := see(); d.PerSecond != 0 {
			t.Errorf("got %+v", d)
		}
		wantAudit(t, r, "bob limit orders 0 0 per second", "bob resume orders 0 ", "ann pause orders 0 because", "ann limit orders 0 20 per second: because")
	})
}
