package acceptance

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestGroupThatGoesWellIsNotUndone(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.moves(give)
		back := m.stage(m.soft.Compensation(m.ctx), g.rig.wrapped, give, 0)
		if err := m.end(); err != nil {
			t.Fatal(err)
		}
		wantResult(t, back, bedsql.ErrStaged)
		g.wantDone()
		g.wantEmpty()
	})
}

func TestJobDeliversAGroupWithoutUndoingIt(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		free := g.south.blockRow(1)
		m := g.group()
		m.moves(give)
		if err := m.end(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		free()
		g.finishes()
		g.wantDone()
	}, noSyncRetry, hurried)
}

func TestRefusedPartUndoesTheGroup(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.moves(short)
		err := m.end()
		var rows *bedsql.RowsError
		if g.wantCompensated(err); !errors.As(err, &rows) || rows.Want != 1 || rows.Got != 0 {
			t.Errorf("End says %v, want why", err)
		}
		if again := m.soft.End(context.Background()); again == nil || again.Error() != err.Error() {
			t.Errorf("the second End says %v", again)
		}
		g.wantUndone()
		g.wantEmpty()
	})
}

func TestJobUndoesAGroupWhosePartIsRefused(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		free := g.south.blockTable("account")
		m := g.group()
		m.moves(short)
		if err := m.end(); !errors.Is(err, bedsql.ErrPending) {
			t.Fatalf("End says %v", err)
		}
		free()
		g.finishes()
		g.wantUndone()
		if state, err := bedsql.Status(context.Background(), g.storage, m.soft.ID()); err != nil || state != bedsql.StateDiscarded {
			t.Errorf("the group is %v, %v", state, err)
		}
	}, noSyncRetry, hurried)
}

// No End is called.
func TestJobUndoesACommittedGroupByItself(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		if g.home == nil {
			return // nothing is written before End
		}
		m := g.group()
		m.moves(short)
		m.commit()
		g.finishes()
		g.wantUndone()
	})
}

func TestGroupOfAtLeastOnceWritesIsUndoneOnce(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.moves(short)
		g.wantCompensated(m.end())
		g.wantUndone()
		g.wantEmpty()
		if n := g.receipts(); n != 1 {
			t.Errorf("the north has %d receipts", n)
		}
	}, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
}

// A job with another table of receipts must not take a part recorded under AtLeastOnce: the others
// would not see the result.
func TestGroupOfAtLeastOnceWritesSaysWhereItsReceiptsWillBe(t *testing.T) {
	t.Parallel()
	eachGroupBehindProxy(t, func(t *testing.T, g *groupRig) {
		if g.home == nil {
			return // its attempts come at once, and say so themselves
		}
		m := g.group()
		m.moves(give)
		m.commit()
		units, err := g.storage.List(t.Context(), txlog.Filter{})
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
		g.finishes()
		g.wantDone()
	}, func(c *bedsql.Config) { c.Guarantee = bedsql.AtLeastOnce })
}

// A bare driver's transaction does not reveal a return to a savepoint. The job is faster than End,
// which then checks the receipts.
func TestEndBelievesTheReceiptsOfAGroupThatLostAPartToASavepoint(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		m := newGroup(t, db, bareGroup).group()
		undo := m.soft.Compensation(m.ctx)
		m.stage(m.ctx, m.rig.wrapped, give, -10)
		m.stage(undo, m.rig.wrapped, give, 10)
		m.must(m.tx, "SAVEPOINT here")
		m.stage(m.ctx, m.south.wrapped, give, 10)
		m.stage(undo, m.south.wrapped, give, -10)
		m.must(m.tx, "ROLLBACK TO SAVEPOINT here")
		m.commit()
		m.finishes()
		if err := m.soft.End(t.Context()); err != nil {
			t.Errorf("End says %v", err)
		}
		m.rig.wantBalances(90)
		m.south.wantBalances(100)
	})
}
