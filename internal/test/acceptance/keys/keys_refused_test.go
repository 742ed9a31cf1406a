package keys

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestKeyTransactionWithOtherStatementsIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		send := func(sets ...[2]any) error {
			t.Helper()
			ctx, tx, k := r.BeginUnder("transfer")
			var all error
			for _, args := range sets {
				_, err := tx.ExecContext(ctx, r.Q(rig.SetBalance), args[0], args[1])
				all = errors.Join(all, err)
			}
			if all == nil {
				all = tx.Commit()
			} else {
				_ = tx.Rollback()
			}
			if all != nil {
				rig.WantReplayed(t, k.Replayed(), false)
			}
			return all
		}
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Fatal(err)
		}
		rig.WantReused(t, "other parameters", send([2]any{1, 1}, [2]any{3, 2}))
		rig.WantReused(t, "fewer statements", send([2]any{1, 1}))
		rig.WantReused(t, "none", send())
		rig.WantReused(t, "more statements", send([2]any{1, 1}, [2]any{2, 2}, [2]any{3, 2}))
		rig.WantReused(t, "another order", send([2]any{2, 2}, [2]any{1, 1}))
		_, _, err := r.SendUnder("transfer", rig.SetBalance, 9, 1)
		rig.WantReused(t, "a single statement", err)
		r.WantBalances(1, 2)
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Errorf("the same again: %v", err)
		}
		r.WantReceipts(1)
		r.WantNoLog()
	})
}

func TestKeyAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		r.MustSendUnder("k", rig.SetBalance, 1, 1)
		for what, send := range map[string]func(ctx context.Context) error{
			"other parameters": func(ctx context.Context) error {
				_, err := r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), 2, 1)
				return err
			},
			"parameters that only read the same": func(ctx context.Context) error {
				_, err := r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), "1", 1)
				return err
			},
			"other SQL": func(ctx context.Context) error {
				_, err := r.Wrapped.ExecContext(ctx, r.Q("UPDATE account SET balance = 0 + ? WHERE id = ?"), 1, 1)
				return err
			},
			"RETURNING": func(ctx context.Context) error {
				rows, err := r.Wrapped.QueryContext(ctx, r.Q("INSERT INTO account VALUES (?, ?) RETURNING id"), 3, 3)
				if err == nil {
					_ = rows.Close()
				}
				return err
			},
			"in a soft transaction": func(ctx context.Context) error {
				ctx, st, err := bedsql.Begin(ctx)
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), 2, 1)
				return errors.Join(err, st.End(context.Background()))
			},
		} {
			ctx, k := rig.Keyed("k")
			rig.WantReused(t, what, send(ctx))
			rig.WantReplayed(t, k.Replayed(), false)
		}
		r.WantBalances(1, 100)
		r.WantNoLog()
		if _, replayed := r.MustSendUnder("k", rig.SetBalance, 1, 1); !replayed {
			t.Error("the first request is not known any more")
		}
		r.WantReceipts(1)
	})
}

func TestKeySetFingerprintIdentifiesTheRequest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100, 100)
		single := func(fingerprint string, balance int) (bool, error) {
			ctx, k := rig.Keyed("single")
			k.SetFingerprint(fingerprint)
			_, err := r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), balance, 1)
			return k.Replayed(), err
		}
		tx := func(fingerprint string, balance int) (bool, error) {
			ctx, k := rig.Keyed("tx")
			k.SetFingerprint(fingerprint)
			tx, err := r.Wrapped.BeginTx(ctx, nil)
			if err != nil {
				return false, err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.Q(rig.SetBalance), balance, 2)
			return k.Replayed(), errors.Join(err, tx.Commit())
		}
		for _, send := range []func(string, int) (bool, error){single, tx} {
			if _, err := send("order 1", 1); err != nil {
				t.Fatal(err)
			}
			if _, err := send("order 1", 2); err != nil {
				t.Errorf("with other parameters but the same fingerprint: %v", err)
			}
			_, err := send("order 2", 1)
			rig.WantReused(t, "another fingerprint", err)
		}
		r.WantBalances(1, 1)
		r.WantNoLog()
	})
}

func TestKeysDifferingInCaseOrBlanksDiffer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		keys := []string{"k", "K", "k ", " k", "\x00", "k\x00", "ä", "a\u0308", strings.Repeat("k", 10000)}
		for range 2 {
			for _, key := range keys {
				r.MustSendUnder(key, rig.Increment, 1, 1)
			}
		}
		r.WantBalances(len(keys))
	})
}

func TestKeyRefusedRequestLeavesNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		_, _, err := r.SendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
		if !rig.IsDriversOwn(db, err) {
			t.Fatalf("a duplicate: %v, want the driver's own error", err)
		}
		r.WantReceipts(0)
		r.WantNoLog()
		r.Exec("DELETE FROM account")
		for i := range 2 {
			_, replayed := r.MustSendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
			rig.WantReplayed(t, replayed, i > 0)
		}
		r.WantBalances(5)
		// The same holds for a staged soft transaction. It is removed if all of it is refused.
		group := func() error {
			ctx, _ := rig.Keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (?, ?)", 2, 5)
			r.Stage(ctx, r.Wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			return st.End(context.Background())
		}
		var refused *bedsql.RefusedError
		if err := group(); !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.WantNoLog()
		r.Exec("DELETE FROM account")
		if err := group(); err != nil {
			t.Errorf("sent again: %v", err)
		}
		r.WantBalances(5, 5)
		r.WantNoLog()
	})
}

func TestKeyWriteWithoutReceiptIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		exec := func(ctx context.Context, on rig.Executor, query string) error {
			_, err := on.ExecContext(ctx, query)
			return err
		}
		key := func() context.Context {
			ctx, _ := rig.Keyed("k")
			return ctx
		}
		ctx, _ := rig.Keyed("")
		rig.WantUnusable(t, "an empty key", exec(ctx, r.Wrapped, rig.AddOne))
		_, err := r.Wrapped.BeginTx(ctx, nil)
		rig.WantUnusable(t, "a transaction under an empty key", err)
		staging, st, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.Stage(staging, r.Wrapped, rig.AddOne)
		rig.WantUnusable(t, "End under an empty key", st.End(context.Background()))
		rig.WantResult(t, res, bedsql.ErrKeyUnusable)

		pinned := r.Conn()
		rig.RawExec(r, pinned, "SELECT 1")
		rig.WantUnusable(t, "a pinned connection", exec(key(), pinned, rig.AddOne))
		_, err = pinned.BeginTx(key(), nil)
		rig.WantUnusable(t, "a transaction on a pinned connection", err)

		tx := r.Begin()
		rig.WantUnusable(t, "a transaction begun without it", exec(key(), tx, rig.AddOne))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		ctx, tx, _ = r.BeginUnder("one")
		rig.WantUnusable(t, "a transaction begun under another one", exec(key(), tx, rig.AddOne))
		rig.WantUnusable(t, "several statements in a transaction", exec(ctx, tx, rig.AddOne+"; "+rig.AddOne))
		rig.WantUnusable(t, "COMMIT as text", exec(ctx, tx, "COMMIT"))
		rig.WantUnusable(t, "ROLLBACK as text", exec(ctx, tx, "ROLLBACK"))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		begin := "BEGIN"
		if db.Driver == testdb.DriverMySQL {
			begin = "START TRANSACTION"
		}
		conn := r.Conn()
		rig.WantUnusable(t, "several statements in one text", exec(key(), conn, rig.AddOne+"; "+rig.AddOne))
		if err := exec(context.Background(), conn, begin); err != nil {
			t.Fatal(err)
		}
		rig.WantUnusable(t, "a transaction begun by a statement", exec(key(), conn, rig.AddOne))
		if err := exec(context.Background(), conn, "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		staging, st = rig.Staged(t)
		staging, _ = bedsql.WithIdempotencyKey(staging, "k")
		rig.WantUnusable(t, "a staged soft transaction begun without it", exec(staging, r.Wrapped, rig.AddOne))
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		r.WantBalances(100)
		r.WantNoLog()
		r.WantReceipts(0)
		// Skip wins over the key.
		if err := exec(bedsql.Unlogged(key()), r.Wrapped, rig.AddOne); err != nil {
			t.Error(err)
		}
		r.WantBalances(101)
		r.WantReceipts(0)
	})
}

func TestKeyReadOnlyTransactionDoesNotUseIt(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(100)
		r.ReceiptTable()
		for i := range 2 {
			ctx, k := rig.Keyed("k")
			tx, err := r.Wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100+i {
				t.Errorf("the query gives %d, %v", n, err)
			}
			_, err = tx.ExecContext(ctx, rig.AddOne)
			rig.WantUnusable(t, "a write in a read-only transaction", err)
			_ = tx.Rollback()
			r.Stage(ctx, r.Wrapped, rig.AddOne)
			rig.WantReplayed(t, k.Replayed(), i > 0)
			if i == 0 {
				r.WantReceipts(1)
			}
			n = r.Balance(1)
			if n != 101 {
				t.Errorf("the balance is %d, want 101", n)
			}
		}
	})
}
