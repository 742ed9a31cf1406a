package groups

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestStagedQueryDoesNotSeeStagedWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, st := rig.Staged(t)
		see := func(on interface {
			QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		}, want int,
		) {
			t.Helper()
			var n int
			if err := on.QueryRowContext(ctx, r.Q("SELECT balance FROM account WHERE id = ?"), 1).Scan(&n); err != nil || n != want {
				t.Errorf("the query gives %d, %v; want %d", n, err, want)
			}
		}
		r.Stage(ctx, r.Wrapped, rig.SetBalance, 7, 1)
		see(r.Wrapped, 100)
		tx, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Stage(ctx, tx, rig.SetBalance, 8, 1)
		see(tx, 100)
		r.Exec("UPDATE account SET balance = 55 WHERE id = 1")
		see(tx, 55)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		see(r.Wrapped, 55)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		see(r.Wrapped, 8)
	})
}

func TestStagedALocalTransactionRecordsUntilItsCommit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0, 0, 0, 0)
		ctx, st := rig.Staged(t)
		begin := func() *sql.Tx {
			t.Helper()
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			return tx
		}
		committed := begin()
		kept := []sql.Result{r.Stage(ctx, committed, rig.Increment, 1, 1)}
		r.Must(committed, "SAVEPOINT a")
		dropped := []sql.Result{r.Stage(ctx, committed, rig.Increment, 10, 1)}
		r.Must(committed, "SAVEPOINT b")
		dropped = append(dropped, r.Stage(ctx, committed, rig.Increment, 100, 1))
		r.Must(committed, "ROLLBACK TO SAVEPOINT a")
		r.Must(committed, "SAVEPOINT c")
		kept = append(kept, r.Stage(ctx, committed, rig.Increment, 1000, 1))
		r.Must(committed, "RELEASE SAVEPOINT c")
		// It belongs to the group without its context too.
		r.Must(committed, rig.Increment, 10000, 1)

		rolledBack := begin()
		dropped = append(dropped, r.Stage(ctx, rolledBack, rig.Increment, 1, 2))
		if err := rolledBack.Rollback(); err != nil {
			t.Fatal(err)
		}
		// Between BeginTx and Commit others are staged before it.
		kept = append(kept, r.Stage(ctx, r.Wrapped, rig.Increment, 1, 3))
		if err := committed.Commit(); err != nil {
			t.Fatal(err)
		}
		left := begin() // is still open at End
		dropped = append(dropped, r.Stage(ctx, left, rig.Increment, 1, 4))
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := left.Commit(); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Commit after End: %v, want ErrEnded", err)
		}
		r.WantBalances(11001, 0, 1, 0)
		for _, res := range kept {
			rig.WantRows(t, res, 1)
		}
		for _, res := range dropped {
			rig.WantResult(t, res, bedsql.ErrStaged)
			if _, err := res.RowsAffected(); strings.Contains(err.Error(), "after End") {
				t.Errorf("of a write that was dropped RowsAffected says: %v", err)
			}
		}
		r.WantNoLog()
		// The connection is as good as before.
		r.Must(r.Wrapped, rig.Increment, 1, 2)
		r.WantBalances(11001, 1, 1, 0)
	})
}

func TestStagedLocalTransactionKeepsItsBeginTxGuarantee(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var receipts []bool
		r := rig.New(t, db, func(c *bedsql.Config) {
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func(units []*entry.Unit) error {
				for _, u := range units {
					receipts = append(receipts, u.Receipt != "")
				}
				return nil
			}}
		})
		r.Account(100)
		ctx, st := rig.Staged(t)
		tx, err := r.Wrapped.BeginTx(bedsql.WithGuarantee(ctx, bedsql.ExactlyOnce), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, rig.Increment, 1, 1)
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Fatal(err)
		}
		if len(receipts) != 1 || !receipts[0] {
			t.Errorf("units with a receipt: %v, want one", receipts)
		}
		r.WantBalances(101)
	})
}

func TestStagedSkippedAndNonDMLRunAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		ctx, st := rig.Staged(t)
		r.Stage(ctx, r.Wrapped, rig.Increment, 1, 1)
		rig.WantRows(t, r.Stage(bedsql.Unlogged(ctx), r.Wrapped, rig.Increment, 1, 2), 1)
		tx, err := r.Wrapped.BeginTx(bedsql.Unlogged(ctx), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Must(tx, rig.Increment, 1, 2)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(100, 102)
		r.Stage(ctx, r.Wrapped, "CREATE TABLE made (id INT PRIMARY KEY)")
		r.Exec("INSERT INTO made VALUES (1)")
		recording, err := r.Wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Stage(ctx, recording, rig.Increment, 1, 1)
		r.Stage(ctx, recording, "CREATE TABLE made_inside (id INT PRIMARY KEY)")
		r.Exec("INSERT INTO made_inside VALUES (1)")
		if err := recording.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.WantBalances(102, 102)
	})
}

func TestStagedAReadOnlyTransactionIsBegun(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		ctx, st := rig.Staged(t)
		tx, err := r.Wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it has a snapshot
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100 {
				t.Errorf("the query gives %d, %v; want 100", n, err)
			}
			r.Exec("UPDATE account SET balance = 7")
		}
		if _, err := tx.ExecContext(ctx, rig.AddOne); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("a write in it: %v, want ErrStaged", err)
		}
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Error(err)
		}
		r.WantBalances(7)
	})
}
