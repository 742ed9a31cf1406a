package ops_test

import (
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// group writes a due group of two parts.
func (r *rig) group(t *testing.T) (k *entry.Unit, f []*entry.Unit) {
	t.Helper()
	id := entry.NewID()
	k = &entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Undo: &entry.Undo{}}
	for i, name := range []string{"orders", "stock"} {
		u := &entry.Unit{ID: entry.NewID(), TransactionID: id, DataSource: name, Receipt: entry.NewID(),
			Statements: []entry.Statement{{SQL: "UPDATE " + name, Params: `["s3cr3t"]`, Part: i + 1}}}
		f = append(f, u)
		k.Undo.Parts = append(k.Undo.Parts, entry.Part{Unit: u.ID, Receipt: u.Receipt, DataSource: name})
		k.Statements = append(k.Statements, entry.Statement{SQL: "undo " + name, Params: `["s3cr3t"]`, Part: i + 1})
	}
	must(t, r.log.Add(t.Context(), time.Hour, append(f, k)...))
	for _, u := range append(f, k) {
		r.wait(t, u, "")
	}
	return k, f
}

func TestAGroupIsTurnedBackAndAudited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		k, f := r.group(t)
		for id, want := range map[string]ops.GroupState{k.ID: ops.GroupRecorded, f[1].ID: ops.GroupPart} {
			d, err := r.Entry(t.Context(), id)
			must(t, err)
			if d.Group != want || d.Verdict != string(ops.CannotTell) && d.Verdict != string(ops.NotConfigured) {
				t.Errorf("it is %q, judged %q", d.Group, d.Verdict)
			}
		}
		_, err := r.Compensate(t.Context(), k.ID, ops.By{Who: "ann"})
		wantError(t, "without a reason", err, ops.ErrInvalid)
		_, err = r.Compensate(t.Context(), entry.NewID(), ann)
		wantError(t, "what is no group", err, txlog.ErrNotFound)
		plain := r.wait(t, r.write(t, "orders", "UPDATE a"), "")
		_, err = r.Compensate(t.Context(), plain.ID, ann)
		wantError(t, "a single entry", err, txlog.ErrNotFound)
		wantAudit(t, r)

		done, err := r.Compensate(t.Context(), f[0].ID, ann)
		must(t, err)
		if *done != (ops.Compensated{TransactionID: k.ID, Parts: 2, DataSource: "stock"}) {
			t.Errorf("got %+v", done)
		}
		wantAudit(t, r, "ann compensate "+k.ID+" 1 because")
		d, err := r.Entry(t.Context(), k.ID)
		must(t, err)
		if d.Group != ops.GroupCompensating || d.Cause != "compensated by an operator: because" || d.Statements[1].Compensates != "stock" || d.VerdictText == "" {
			t.Errorf("got %+v", d)
		}
		_, err = r.Entry(t.Context(), f[1].ID)
		wantError(t, "a forward entry", err, txlog.ErrNotFound)
	})
}

func TestEntriesOfAGroupAreNotDecidedForByThemselves(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		k, f := r.group(t)
		other := r.wait(t, r.write(t, "orders", "UPDATE a"), "")
		for _, u := range append(f, k) {
			for _, a := range []ops.Action{ops.Park, ops.Discard} {
				err := r.Act(t.Context(), a, u.ID, ann)
				wantError(t, string(a), err, txlog.ErrGroup)
				if !strings.Contains(err.Error(), "compensate") {
					t.Errorf("it does not say what to do: %v", err)
				}
			}
			_, err := r.Amend(t.Context(), u.ID, ops.Amendment{SQL: "UPDATE b"}, ann)
			wantError(t, "amend", err, ops.ErrNotAmendable)
		}
		_, err := r.Try(t.Context(), k.ID, ann)
		wantError(t, "try", err, ops.ErrInvalid)
		sel, err := r.Select(t.Context(), ops.Filter{})
		must(t, err)
		all, err := r.ActAll(t.Context(), ops.Discard, sel, ann)
		must(t, err)
		if len(all.Changed) != 1 || all.Changed[0] != other.ID || all.Left != 3 {
			t.Errorf("got %+v", all)
		}
		must(t, r.Act(t.Context(), ops.Retry, f[0].ID, ann))
	})
}

func TestHalfUndoneGroupsAreCounted(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.park(t, r.write(t, "orders", "UPDATE a"), "no")
		count := func(want int) {
			t.Helper()
			o, err := r.Overview(t.Context(), ops.OverviewOptions{Cap: -1})
			must(t, err)
			if o.HalfCompensated != want {
				t.Errorf("%d groups are half compensated, want %d", o.HalfCompensated, want)
			}
		}
		k, _ := r.group(t)
		count(0)
		turned, err := r.log.Compensate(t.Context(), k.ID, time.Hour, "it said no")
		must(t, err)
		count(0)
		r.park(t, turned, "refused")
		count(1)
		d, err := r.Entry(t.Context(), k.ID)
		must(t, err)
		if d.Group != ops.GroupHalfCompensated {
			t.Errorf("it is %q", d.Group)
		}
		must(t, r.Act(t.Context(), ops.Discard, k.ID, ann)) // a person did the rest
		count(0)
	})
}
