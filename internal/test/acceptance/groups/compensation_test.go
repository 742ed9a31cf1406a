package groups

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/txlog"
)

func TestGroupThatGoesWellIsNotUndone(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Moves(rig.Give)
		back := m.Stage(m.Soft.Compensation(m.Ctx), g.Rig.Wrapped, rig.Give, 0)
		if err := m.End(); err != nil {
			t.Fatal(err)
		}
		rig.WantResult(t, back, bedsql.ErrStaged)
		g.WantDone()
		g.WantEmpty()
	})
}

func TestJobDeliversAGroupWithoutUndoingIt(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		free := g.South.BlockRow(1)
		m := group(g)
		m.Moves(rig.Give)
		if err := m.End(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		free()
		finishes(g)
		g.WantDone()
	}, rig.NoSyncRetry, hurried)
}

func TestRefusedPartUndoesTheGroup(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Moves(rig.Short)
		err := m.End()
		var rows *bedsql.RowsError
		if wantCompensated(g, err); !errors.As(err, &rows) || rows.Want != 1 || rows.Got != 0 {
			t.Errorf("End says %v, want why", err)
		}
		if again := m.Soft.End(context.Background()); again == nil || again.Error() != err.Error() {
			t.Errorf("the second End says %v", again)
		}
		g.WantUndone()
		g.WantEmpty()
	})
}

func TestJobUndoesAGroupWhosePartIsRefused(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		free := g.South.BlockTable("account")
		m := group(g)
		m.Moves(rig.Short)
		if err := m.End(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		free()
		finishes(g)
		g.WantUndone()
		if state, err := bedsql.Status(context.Background(), g.Storage, m.Soft.ID()); err != nil || state != bedsql.StateDiscarded {
			t.Errorf("the group is %v, %v", state, err)
		}
	}, rig.NoSyncRetry, hurried)
}

// No End is called.
func TestJobUndoesACommittedGroupByItself(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		if g.Home == nil {
			return // nothing is written before End
		}
		m := group(g)
		m.Moves(rig.Short)
		m.Commit()
		finishes(g)
		g.WantUndone()
	})
}

func TestGroupOfAtLeastOnceWritesIsUndoneOnce(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Moves(rig.Short)
		wantCompensated(g, m.End())
		g.WantUndone()
		g.WantEmpty()
		if n := g.Receipts(); n != 1 {
			t.Errorf("the north has %d receipts", n)
		}
	}, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
}

// A job with another table of receipts must not take a part recorded under AtLeastOnce: the others
// would not see the result.
func TestGroupOfAtLeastOnceWritesSaysWhereItsReceiptsWillBe(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *rig.GroupRig) {
		if g.Home == nil {
			return // its attempts come at once, and say so themselves
		}
		m := group(g)
		m.Moves(rig.Give)
		m.Commit()
		units, err := g.Storage.List(t.Context(), txlog.Filter{})
		if err != nil || len(units) != 3 {
			t.Fatalf("the log has %d entries: %v", len(units), err)
		}
		for _, u := range units {
			if u.Undo == nil && u.Place == "" {
				t.Errorf("the entry for %s does not say it", u.DataSource)
			}
			for i := 0; u.Undo != nil && i < len(u.Undo.Parts); i++ {
				if p := u.Undo.Parts[i]; p.Place == "" {
					t.Errorf("the compensation does not say it for %s", p.DataSource)
				}
			}
		}
		finishes(g)
		g.WantDone()
	}, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
}
