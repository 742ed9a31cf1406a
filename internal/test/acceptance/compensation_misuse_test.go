package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
)

// A compensation that cannot be recorded is an error of use: it is neither recorded nor sent.
func TestCompensationThatCannotBeRecordedIsRefused(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		undo := m.soft.Compensation(m.ctx)
		refused := func(what, want string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), want) || bedsql.OutcomeOf(err) != bedsql.OutcomeRefused {
				t.Errorf("%s: %v (%v), want %q", what, err, bedsql.OutcomeOf(err), want)
			}
		}
		exec := func(ctx context.Context, on executor, query string, args ...any) error {
			_, err := on.ExecContext(ctx, g.q(query), args...)
			return err
		}
		m.stage(m.ctx, g.rig.wrapped, give, -10)
		if g.home == nil { // a bare transaction's own data source is not known
			refused("no write to undo", "record the write first", exec(undo, g.south.wrapped, give, 10))
		}
		refused("unlogged", "unlogged", exec(bedsql.Unlogged(undo), g.rig.wrapped, give, 10))
		keyed, _ := bedsql.WithIdempotencyKey(undo, "k")
		if err := exec(keyed, g.rig.wrapped, give, 10); !errors.Is(err, bedsql.ErrKeyUnusable) {
			t.Errorf("under a key: %v", err)
		}
		refused("DDL", "plain DML", exec(undo, g.rig.wrapped, "CREATE TABLE other (id INT PRIMARY KEY)"))
		refused("several", "plain DML", exec(undo, g.rig.wrapped, "UPDATE account SET balance = 1; UPDATE account SET balance = 2"))
		local := g.begin()
		refused("in a local transaction", "begun outside", exec(undo, local, give, 10))
		_ = local.Rollback()
		recording, err := g.rig.wrapped.BeginTx(m.ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		refused("in a transaction of the group", "begun outside", exec(undo, recording, give, 10))
		_ = recording.Rollback()
		if g.home != nil && g.home == g.homePool {
			refused("through the transaction of WithTx", "bed pool", exec(undo, m.tx, give, 10))
		}
		var n int
		if err := g.rig.wrapped.QueryRowContext(undo, "SELECT balance FROM account").Scan(&n); err != nil || n != 100 {
			t.Errorf("a query says %d, %v", n, err)
		}

		immediate, soft, err := bedsql.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		undo = soft.Compensation(immediate)
		refused("immediate", "immediate", exec(undo, g.rig.wrapped, give, 10))
		_, err = g.rig.wrapped.BeginTx(undo, nil)
		refused("a transaction in an immediate one", "immediate", err)
		if err := soft.End(context.Background()); err != nil {
			t.Error(err)
		}
		if err := m.end(); err != nil {
			t.Error(err)
		}
		if err := exec(m.soft.Compensation(m.ctx), g.rig.wrapped, give, 10); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("after End: %v", err)
		}
		g.rig.wantBalances(90)
		g.wantEmpty()
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
	r := newRig(t, testdb.SQLite(t))
	r.account(100)
	ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "k")
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		t.Fatal(err)
	}
	r.stage(ctx, r.wrapped, give, 1)
	if _, err := r.wrapped.ExecContext(soft.Compensation(ctx), give, -1); !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("it says %v", err)
	}
	soft.Discard()
}

// Savepoints act on a group's compensations as they act on its writes.
func TestRollbackToDropsTheWayBackToo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, how := range []string{bareGroup, wrappedGroup} {
			if how == wrappedGroup && db.Driver == testdb.DriverSQLite {
				continue
			}
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				g := newGroup(t, freshLike(t, db), how)
				m := g.group()
				undo := m.soft.Compensation(m.ctx)
				south := bedsql.RequireRows(m.ctx, 1)
				m.must(m.tx, give, -1)
				m.stage(m.ctx, g.rig.wrapped, give, -10)
				m.must(m.tx, "SAVEPOINT a")
				m.stage(undo, g.rig.wrapped, give, 1000) // wrong
				m.stage(south, g.south.wrapped, give, 1)
				if g.homePool != nil {
					m.stage(undo, g.homePool, give, 1000)
				}
				m.must(m.tx, "ROLLBACK TO SAVEPOINT a")
				m.stage(south, g.south.wrapped, give, 5) // before there is a compensation again
				m.must(m.tx, "SAVEPOINT b")
				m.stage(undo, g.rig.wrapped, give, 10)
				m.stage(undo, g.south.wrapped, give, -5)
				m.must(m.tx, "SAVEPOINT c")
				m.stage(undo, g.south.wrapped, give, 1000)
				m.must(m.tx, "ROLLBACK TO SAVEPOINT c")
				if g.homePool != nil {
					m.stage(undo, g.homePool, give, 1)
				}
				m.stage(south, g.south.wrapped, short, 5)
				g.wantCompensated(m.end())
				g.wantUndone()
				g.wantEmpty()
			})
		}
	})
}

// All writes to compensate are rolled back, so the group becomes an ordinary one.
func TestGroupWhoseWayBackIsRolledBackIsOrdinary(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		eachGuarantee(t, func(t *testing.T, guarantee func(*bedsql.Config)) {
			for _, how := range []string{bareGroup, wrappedGroup} {
				if how == wrappedGroup && db.Driver == testdb.DriverSQLite {
					continue
				}
				g := newGroup(t, freshLike(t, db), how, guarantee)
				m := g.group()
				m.must(m.tx, give, -1)
				m.stage(m.ctx, g.rig.wrapped, give, -10)
				m.must(m.tx, "SAVEPOINT a")
				m.stage(m.soft.Compensation(m.ctx), g.rig.wrapped, give, 10)
				m.must(m.tx, "ROLLBACK TO SAVEPOINT a")
				m.stage(bedsql.RequireRows(m.ctx, 1), g.south.wrapped, short, 10)
				err := m.end()
				var end *bedsql.EndError
				if !errors.As(err, &end) || len(end.Refused()) != 1 || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused {
					t.Errorf("%s: End says %v", how, err)
				}
				g.want(90, 100, false)
				eventually(t, "the delivered write is removed", func() bool { return g.left() == 1 })
				if u := g.wantOneLog(); !u.Parked || u.Group() {
					t.Errorf("the log holds %+v", u)
				}
			}
		})
	})
}

// A part without a compensation stays, and End says so.
func TestPartWithoutCompensationStays(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		m.stage(m.ctx, g.rig.wrapped, give, -10)
		m.stage(bedsql.RequireRows(m.ctx, 1), g.south.wrapped, short, 10)
		m.stage(m.soft.Compensation(m.ctx), g.south.wrapped, give, -10)
		err := m.end()
		var c *bedsql.CompensatedError
		var end *bedsql.EndError
		if !errors.As(err, &c) || !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused || len(end.Delivered) == 0 {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		g.rig.wantBalances(90)
		g.south.wantBalances(100)
		g.wantEmpty()
	})
}

// The job has turned the group back before End looks.
func TestPartWithoutCompensationIsNamedThoughTheJobWasFaster(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		if g.home == nil {
			return // nothing is written before End
		}
		for _, pool := range []*sql.DB{g.rig.wrapped, g.south.wrapped} { // its session is known then
			g.must(pool, "UPDATE account SET balance = 100 WHERE id = 1")
		}
		m := g.group()
		m.must(m.tx, give, -1)
		north := m.stage(m.ctx, g.rig.wrapped, give, -10)
		south := m.stage(bedsql.RequireRows(m.ctx, 1), g.south.wrapped, short, 10)
		m.stage(m.soft.Compensation(m.ctx), g.south.wrapped, give, -10)
		if m.homePool != nil {
			m.stage(m.soft.Compensation(m.ctx), m.homePool, give, 1)
		}
		m.commit()
		tgt := targetOf(t, g.rig.db)
		inNorth := g.jobFor(asyncjob.Targets{tgt.DataSource: tgt})
		eventually(t, "the north is written", func() bool {
			g.logAge(time.Minute)
			if _, err := inNorth.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
			return g.rig.balance(1) == 90
		})
		g.finishes()
		err := m.soft.End(context.Background())
		var c *bedsql.CompensatedError
		var end *bedsql.EndError
		if !errors.As(err, &c) || !errors.As(err, &end) || bedsql.OutcomeOf(err) != bedsql.OutcomePartlyRefused || !slices.Contains(end.Delivered, dataSourceOf(t, g.rig.db)) {
			t.Errorf("End says %v (%v)", err, bedsql.OutcomeOf(err))
		}
		if end != nil && m.homePool != nil && len(end.Delivered) != 1 {
			t.Errorf("delivered is %v", end.Delivered)
		}
		for _, r := range []sql.Result{north, south} {
			if _, err := r.RowsAffected(); !errors.As(err, &c) {
				t.Errorf("the result says %v", err)
			}
		}
		g.want(90, 100, true)
	})
}

// A local transaction can record compensations as well.
func TestLocalTransactionRecordsCompensations(t *testing.T) {
	t.Parallel()
	eachGroup(t, func(t *testing.T, g *groupRig) {
		m := g.group()
		local := func(ctx context.Context, n int) {
			tx, err := g.rig.wrapped.BeginTx(ctx, &sql.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.stage(context.Background(), tx, give, n)
			m.stage(context.Background(), tx, give, n)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		local(m.ctx, -5)
		local(m.soft.Compensation(m.ctx), 5)
		m.stage(bedsql.RequireRows(m.ctx, 1), g.south.wrapped, short, 10)
		var c *bedsql.CompensatedError
		if err := m.end(); !errors.As(err, &c) {
			t.Errorf("End says %v", err)
		}
		g.rig.wantBalances(100)
		g.wantEmpty()
	})
}
