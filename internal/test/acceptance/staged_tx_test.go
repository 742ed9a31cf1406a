package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestStagedQueryDoesNotSeeStagedWrites(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		see := func(on interface {
			QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		}, want int,
		) {
			t.Helper()
			var n int
			if err := on.QueryRowContext(ctx, r.q("SELECT balance FROM account WHERE id = ?"), 1).Scan(&n); err != nil || n != want {
				t.Errorf("the query gives %d, %v; want %d", n, err, want)
			}
		}
		r.stage(ctx, r.wrapped, setBalance, 7, 1)
		see(r.wrapped, 100)
		tx, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, tx, setBalance, 8, 1)
		see(tx, 100)
		r.exec("UPDATE account SET balance = 55 WHERE id = 1")
		see(tx, 55)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		see(r.wrapped, 55)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		see(r.wrapped, 8)
	})
}

func TestStagedALocalTransactionRecordsUntilItsCommit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0, 0, 0, 0)
		ctx, st := staged(t)
		begin := func() *sql.Tx {
			t.Helper()
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			return tx
		}
		committed := begin()
		kept := []sql.Result{r.stage(ctx, committed, increment, 1, 1)}
		r.must(committed, "SAVEPOINT a")
		dropped := []sql.Result{r.stage(ctx, committed, increment, 10, 1)}
		r.must(committed, "SAVEPOINT b")
		dropped = append(dropped, r.stage(ctx, committed, increment, 100, 1))
		r.must(committed, "ROLLBACK TO SAVEPOINT a")
		r.must(committed, "SAVEPOINT c")
		kept = append(kept, r.stage(ctx, committed, increment, 1000, 1))
		r.must(committed, "RELEASE SAVEPOINT c")
		// It belongs to the group without its context too.
		r.must(committed, increment, 10000, 1)

		rolledBack := begin()
		dropped = append(dropped, r.stage(ctx, rolledBack, increment, 1, 2))
		if err := rolledBack.Rollback(); err != nil {
			t.Fatal(err)
		}
		// Between BeginTx and Commit others are staged before it.
		kept = append(kept, r.stage(ctx, r.wrapped, increment, 1, 3))
		if err := committed.Commit(); err != nil {
			t.Fatal(err)
		}
		left := begin() // is still open at End
		dropped = append(dropped, r.stage(ctx, left, increment, 1, 4))
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := left.Commit(); !errors.Is(err, bedsql.ErrEnded) {
			t.Errorf("Commit after End: %v, want ErrEnded", err)
		}
		r.wantBalances(11001, 0, 1, 0)
		for _, res := range kept {
			wantRows(t, res, 1)
		}
		for _, res := range dropped {
			wantResult(t, res, bedsql.ErrStaged)
			if _, err := res.RowsAffected(); strings.Contains(err.Error(), "after End") {
				t.Errorf("of a write that was dropped RowsAffected says: %v", err)
			}
		}
		r.wantNoLog()
		// The connection is as good as before.
		r.must(r.wrapped, increment, 1, 2)
		r.wantBalances(11001, 1, 1, 0)
	})
}

func TestStagedLocalTransactionKeepsItsBeginTxGuarantee(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		var receipts []bool
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func(units []*txlog.Unit) error {
				for _, u := range units {
					receipts = append(receipts, u.Receipt != "")
				}
				return nil
			}}
		})
		r.account(100)
		ctx, st := staged(t)
		tx, err := r.wrapped.BeginTx(bedsql.WithGuarantee(ctx, bedsql.ExactlyOnce), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, increment, 1, 1)
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Fatal(err)
		}
		if len(receipts) != 1 || !receipts[0] {
			t.Errorf("units with a receipt: %v, want one", receipts)
		}
		r.wantBalances(101)
	})
}

func TestStagedSkippedAndNonDMLRunAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		ctx, st := staged(t)
		r.stage(ctx, r.wrapped, increment, 1, 1)
		wantRows(t, r.stage(bedsql.Unlogged(ctx), r.wrapped, increment, 1, 2), 1)
		tx, err := r.wrapped.BeginTx(bedsql.Unlogged(ctx), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.must(tx, increment, 1, 2)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100, 102)
		r.stage(ctx, r.wrapped, "CREATE TABLE made (id INT PRIMARY KEY)")
		r.exec("INSERT INTO made VALUES (1)")
		recording, err := r.wrapped.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.stage(ctx, recording, increment, 1, 1)
		r.stage(ctx, recording, "CREATE TABLE made_inside (id INT PRIMARY KEY)")
		r.exec("INSERT INTO made_inside VALUES (1)")
		if err := recording.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(102, 102)
	})
}

func TestStagedPreparedStatementsRecord(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		x := openSqlx(t, db, r.register())
		ctx, st := staged(t)
		stmt, err := x.PreparexContext(ctx, r.q(increment))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stmt.Close() }()
		named, err := x.PrepareNamedContext(ctx, "UPDATE account SET balance = balance + :by WHERE id = :id")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = named.Close() }()
		first, err := stmt.ExecContext(ctx, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		second, err := named.ExecContext(ctx, map[string]any{"by": 10, "id": 1})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := x.BeginTxx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		third, err := tx.StmtxContext(ctx, stmt).ExecContext(ctx, 100, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(100)
		if err := st.End(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(211)
		for _, res := range []sql.Result{first, second, third} {
			wantRows(t, res, 1)
		}
		// Outside of it the same statement runs at once.
		if _, err := stmt.Exec(1, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(212)
	})
}

func TestStagedAReadOnlyTransactionIsBegun(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		ctx, st := staged(t)
		tx, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // it has a snapshot
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100 {
				t.Errorf("the query gives %d, %v; want 100", n, err)
			}
			r.exec("UPDATE account SET balance = 7")
		}
		if _, err := tx.ExecContext(ctx, addOne); !errors.Is(err, bedsql.ErrStaged) {
			t.Errorf("a write in it: %v, want ErrStaged", err)
		}
		if err := errors.Join(tx.Commit(), st.End(context.Background())); err != nil {
			t.Error(err)
		}
		r.wantBalances(7)
	})
}
