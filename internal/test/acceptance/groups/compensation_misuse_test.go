package groups

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A compensation that cannot be recorded is an error of use: it is neither recorded nor sent.
func TestCompensationThatCannotBeRecordedIsRefused(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		undo := m.Soft.Compensation(m.Ctx)
		refused := func(what, want string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
				t.Errorf("%s: %v (%v), want %q", what, err, bedsql.OutcomeOf(err), want)
			}
		}
		exec := func(ctx context.Context, on rig.Executor, query string, args ...any) error {
			_, err := on.ExecContext(ctx, g.Q(query), args...)
			return err
		}
		m.Stage(m.Ctx, g.Rig.Wrapped, rig.Give, -10)
		refused("no write to undo", "record the write first", exec(undo, g.South.Wrapped, rig.Give, 10))
		refused("unlogged", "unlogged", exec(bedsql.Unlogged(undo), g.Rig.Wrapped, rig.Give, 10))
		keyed, _ := bedsql.WithIdempotencyKey(undo, "k")
		if err := exec(keyed, g.Rig.Wrapped, rig.Give, 10); !errors.Is(err, bedsql.ErrKeyUnusable) {
			t.Errorf("under a key: %v", err)
		}
		refused("DDL", "plain DML", exec(undo, g.Rig.Wrapped, "CREATE TABLE other (id INT PRIMARY KEY)"))
		refused("several", "plain DML", exec(undo, g.Rig.Wrapped, "UPDATE account SET balance = 1; UPDATE account SET balance = 2"))
		local := g.Begin()
		refused("in a local transaction", "begun outside", exec(undo, local, rig.Give, 10))
		_ = local.Rollback()
		recording, err := g.Rig.Wrapped.BeginTx(m.Ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		refused("in a transaction of the group", "begun outside", exec(undo, recording, rig.Give, 10))
		_ = recording.Rollback()
		if g.Home != nil && g.Home == g.HomePool {
			refused("through the transaction of WithTx", "bed pool", exec(undo, m.Tx, rig.Give, 10))
		}
		var n int
		if err := g.Rig.Wrapped.QueryRowContext(undo, "SELECT balance FROM account").Scan(&n); err != nil || n != 100 {
			t.Errorf("a query says %d, %v", n, err)
		}

		immediate, soft, err := bedsql.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		undo = soft.Compensation(immediate)
		refused("immediate", "immediate", exec(undo, g.Rig.Wrapped, rig.Give, 10))
		_, err = g.Rig.Wrapped.BeginTx(undo, nil)
		refused("a transaction in an immediate one", "immediate", err)
		if err := soft.End(context.Background()); err != nil {
			t.Error(err)
		}
		if err := m.End(); err != nil {
			t.Error(err)
		}
		if err := exec(m.Soft.Compensation(m.Ctx), g.Rig.Wrapped, rig.Give, 10); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("after End: %v", err)
		}
		g.Rig.WantBalances(90)
		g.WantEmpty()
	})
}

func TestCompensateAfterNeedsAGroup(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]bedsql.TxOption{
		"an immediate one": {bedsql.CompensateAfter(time.Hour)},
		"no time":          {bedsql.Staged(), bedsql.CompensateAfter(0)},
	} {
		if _, _, err := bedsql.Begin(context.Background(), opts...); bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
			t.Errorf("%s: Begin says %v", what, err)
		}
	}
	if _, _, err := bedsql.Begin(context.Background(), bedsql.CompensateAfter(time.Millisecond), bedsql.Staged()); err != nil {
		t.Error(err)
	}
}

// A group under a key cannot be undone: the request, sent again, would not know of it.
func TestKeyedGroupTakesNoCompensation(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(100)
	ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	r.Stage(ctx, r.Wrapped, rig.Give, 1)
	if _, err := r.Wrapped.ExecContext(soft.Compensation(ctx), rig.Give, -1); !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("it says %v", err)
	}
	soft.Discard()
}

// Savepoints act on a group's compensations as they act on its writes.
func TestRollbackToDropsTheWayBackToo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		g := rig.NewGroup(t, testdb.NewLog(t, db.Driver), rig.WithGroup)
		m := group(g)
		undo := m.Soft.Compensation(m.Ctx)
		south := bedsql.RequireRows(m.Ctx, 1)
		m.Must(m.Tx, rig.Give, -1)
		m.Stage(m.Ctx, g.Rig.Wrapped, rig.Give, -10)
		m.Must(m.Tx, "SAVEPOINT a")
		m.Stage(undo, g.Rig.Wrapped, rig.Give, 1000) // wrong
		m.Stage(south, g.South.Wrapped, rig.Give, 1)
		if g.HomePool != nil {
			m.Stage(undo, g.HomePool, rig.Give, 1000)
		}
		m.Must(m.Tx, "ROLLBACK TO SAVEPOINT a")
		m.Stage(south, g.South.Wrapped, rig.Give, 5) // before there is a compensation again
		m.Must(m.Tx, "SAVEPOINT b")
		m.Stage(undo, g.Rig.Wrapped, rig.Give, 10)
		m.Stage(undo, g.South.Wrapped, rig.Give, -5)
		m.Must(m.Tx, "SAVEPOINT c")
		m.Stage(undo, g.South.Wrapped, rig.Give, 1000)
		m.Must(m.Tx, "ROLLBACK TO SAVEPOINT c")
		if g.HomePool != nil {
			m.Stage(undo, g.HomePool, rig.Give, 1)
		}
		m.Stage(south, g.South.Wrapped, rig.Short, 5)
		wantCompensated(g, m.End())
		g.WantUndone()
		g.WantEmpty()
	})
}

// All writes to compensate are rolled back, so the group becomes an ordinary one.
func TestGroupWhoseWayBackIsRolledBackIsOrdinary(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		rig.EachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			g := rig.NewGroup(t, testdb.NewLog(t, db.Driver), rig.WithGroup, guarantee)
			m := group(g)
			m.Must(m.Tx, rig.Give, -1)
			m.Stage(m.Ctx, g.Rig.Wrapped, rig.Give, -10)
			m.Must(m.Tx, "SAVEPOINT a")
			m.Stage(m.Soft.Compensation(m.Ctx), g.Rig.Wrapped, rig.Give, 10)
			m.Must(m.Tx, "ROLLBACK TO SAVEPOINT a")
			m.Stage(bedsql.RequireRows(m.Ctx, 1), g.South.Wrapped, rig.Short, 10)
			err := m.End()
			var end *bedsql.EndError
			if !errors.As(err, &end) || len(end.Refused()) != 1 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
				t.Errorf("End says %v", err)
			}
			g.Want(90, 100, false)
			rig.Eventually(t, "the delivered write is removed", func() bool { return g.Left() == 1 })
			if u := g.WantOneLog(); !u.Parked || u.Group() {
				t.Errorf("the log holds %+v", u)
			}
		})
	})
}

// A part without a compensation stays, and End says so.
func TestPartWithoutCompensationStays(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		m.Stage(m.Ctx, g.Rig.Wrapped, rig.Give, -10)
		m.Stage(bedsql.RequireRows(m.Ctx, 1), g.South.Wrapped, rig.Short, 10)
		m.Stage(m.Soft.Compensation(m.Ctx), g.South.Wrapped, rig.Give, -10)
		err := m.End()
		var c *bedsql.CompensatedError
		var end *bedsql.EndError
		if !errors.As(err, &c) || !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused || len(end.Delivered) == 0 {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		g.Rig.WantBalances(90)
		g.South.WantBalances(100)
		g.WantEmpty()
	})
}

// The job has turned the group back before End looks.
func TestPartWithoutCompensationIsNamedThoughTheJobWasFaster(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		if g.Home == nil {
			return // nothing is written before End
		}
		for _, pool := range []*sql.DB{g.Rig.Wrapped, g.South.Wrapped} { // its session is known then
			g.Must(pool, "UPDATE account SET balance = 100 WHERE id = 1")
		}
		m := group(g)
		m.Must(m.Tx, rig.Give, -1)
		north := m.Stage(m.Ctx, g.Rig.Wrapped, rig.Give, -10)
		south := m.Stage(bedsql.RequireRows(m.Ctx, 1), g.South.Wrapped, rig.Short, 10)
		m.Stage(m.Soft.Compensation(m.Ctx), g.South.Wrapped, rig.Give, -10)
		if m.HomePool != nil {
			m.Stage(m.Soft.Compensation(m.Ctx), m.HomePool, rig.Give, 1)
		}
		m.Commit()
		tgt := rig.TargetOf(t, g.Rig.DB)
		inNorth := g.JobFor(asyncjob.Targets{tgt.DataSource: tgt})
		rig.Eventually(t, "the north is written", func() bool {
			g.LogAge(time.Minute)
			if _, err := inNorth.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.Rig.Balance(1) == 90
		})
		finishes(g)
		err := m.Soft.End(context.Background())
		var c *bedsql.CompensatedError
		var end *bedsql.EndError
		if !errors.As(err, &c) || !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused || !slices.Contains(end.Delivered, rig.DataSourceOf(t, g.Rig.DB)) {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		if end != nil && m.HomePool != nil && len(end.Delivered) != 1 {
			t.Errorf("delivered is %v", end.Delivered)
		}
		for _, r := range []sql.Result{north, south} {
			if _, err := r.RowsAffected(); !errors.As(err, &c) {
				t.Errorf("the result says %v", err)
			}
		}
		g.Want(90, 100, true)
	})
}

// A local transaction can record compensations as well.
func TestLocalTransactionRecordsCompensations(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *rig.GroupRig) {
		m := group(g)
		local := func(ctx context.Context, n int) {
			tx, err := g.Rig.Wrapped.BeginTx(ctx, &sql.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.Stage(context.Background(), tx, rig.Give, n)
			m.Stage(context.Background(), tx, rig.Give, n)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		local(m.Ctx, -5)
		local(m.Soft.Compensation(m.Ctx), 5)
		m.Stage(bedsql.RequireRows(m.Ctx, 1), g.South.Wrapped, rig.Short, 10)
		var c *bedsql.CompensatedError
		if err := m.End(); !errors.As(err, &c) {
			t.Errorf("End says %v", err)
		}
		g.Rig.WantBalances(100)
		g.WantEmpty()
	})
}
