package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

func wantReused(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyReused) || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("%s: %v, want ErrKeyReused", what, err)
	}
}

func wantUnusable(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("%s: %v, want ErrKeyUnusable", what, err)
	}
}

func TestKeyTransactionWithOtherStatementsIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		send := func(sets ...[2]any) error {
			t.Helper()
			ctx, tx, k := r.beginUnder("transfer")
			var all error
			for _, args := range sets {
				_, err := tx.ExecContext(ctx, r.q(setBalance), args[0], args[1])
				all = errors.Join(all, err)
			}
			if all == nil {
				all = tx.Commit()
			} else {
				_ = tx.Rollback()
			}
			if all != nil {
				wantReplayed(t, k.Replayed(), false)
			}
			return all
		}
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Fatal(err)
		}
		wantReused(t, "other parameters", send([2]any{1, 1}, [2]any{3, 2}))
		wantReused(t, "fewer statements", send([2]any{1, 1}))
		wantReused(t, "none", send())
		wantReused(t, "more statements", send([2]any{1, 1}, [2]any{2, 2}, [2]any{3, 2}))
		wantReused(t, "another order", send([2]any{2, 2}, [2]any{1, 1}))
		_, _, err := r.sendUnder("transfer", setBalance, 9, 1)
		wantReused(t, "a single statement", err)
		r.wantBalances(1, 2)
		if err := send([2]any{1, 1}, [2]any{2, 2}); err != nil {
			t.Errorf("the same again: %v", err)
		}
		r.wantReceipts(1)
		r.wantNoLog()
	})
}

func TestKeyAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		r.mustSendUnder("k", setBalance, 1, 1)
		for what, send := range map[string]func(ctx context.Context) error{
			"other parameters": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), 2, 1)
				return err
			},
			"parameters that only read the same": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), "1", 1)
				return err
			},
			"other SQL": func(ctx context.Context) error {
				_, err := r.wrapped.ExecContext(ctx, r.q("UPDATE account SET balance = 0 + ? WHERE id = ?"), 1, 1)
				return err
			},
			"RETURNING": func(ctx context.Context) error {
				rows, err := r.wrapped.QueryContext(ctx, r.q("INSERT INTO account VALUES (?, ?) RETURNING id"), 3, 3)
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
				_, err = r.wrapped.ExecContext(ctx, r.q(setBalance), 2, 1)
				return errors.Join(err, st.End(context.Background()))
			},
		} {
			ctx, k := keyed("k")
			wantReused(t, what, send(ctx))
			wantReplayed(t, k.Replayed(), false)
		}
		r.wantBalances(1, 100)
		r.wantNoLog()
		if _, replayed := r.mustSendUnder("k", setBalance, 1, 1); !replayed {
			t.Error("the first request is not known any more")
		}
		r.wantReceipts(1)
	})
}

func TestKeySetFingerprintIdentifiesTheRequest(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100, 100)
		single := func(fingerprint string, balance int) (bool, error) {
			ctx, k := keyed("single")
			k.SetFingerprint(fingerprint)
			_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), balance, 1)
			return k.Replayed(), err
		}
		tx := func(fingerprint string, balance int) (bool, error) {
			ctx, k := keyed("tx")
			k.SetFingerprint(fingerprint)
			tx, err := r.wrapped.BeginTx(ctx, nil)
			if err != nil {
				return false, err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(ctx, r.q(setBalance), balance, 2)
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
			wantReused(t, "another fingerprint", err)
		}
		r.wantBalances(1, 1)
		r.wantNoLog()
	})
}

func TestKeysDifferingInCaseOrBlanksDiffer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		keys := []string{"k", "K", "k ", " k", "\x00", "k\x00", "ä", "a\u0308", strings.Repeat("k", 10000)}
		for range 2 {
			for _, key := range keys {
				r.mustSendUnder(key, increment, 1, 1)
			}
		}
		r.wantBalances(len(keys))
	})
}

func TestKeyRefusedRequestLeavesNoReceipt(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		_, _, err := r.sendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
		if !isDriversOwn(db, err) {
			t.Fatalf("a duplicate: %v, want the driver's own error", err)
		}
		r.wantReceipts(0)
		r.wantNoLog()
		r.exec("DELETE FROM account")
		for i := range 2 {
			_, replayed := r.mustSendUnder("k", "INSERT INTO account VALUES (?, ?)", 1, 5)
			wantReplayed(t, replayed, i > 0)
		}
		r.wantBalances(5)
		// The same holds for a staged soft transaction. It is removed if all of it is refused.
		group := func() error {
			ctx, _ := keyed("group")
			ctx, st, err := bedsql.Begin(ctx, bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 2, 5)
			r.stage(ctx, r.wrapped, "INSERT INTO account VALUES (?, ?)", 1, 5)
			return st.End(context.Background())
		}
		var refused *bedsql.RefusedError
		if err := group(); !errors.As(err, &refused) {
			t.Errorf("End: %v, want the refusal", err)
		}
		r.wantNoLog()
		r.exec("DELETE FROM account")
		if err := group(); err != nil {
			t.Errorf("sent again: %v", err)
		}
		r.wantBalances(5, 5)
		r.wantNoLog()
	})
}

func TestKeyWriteWithoutReceiptIsRefusedUnsent(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		exec := func(ctx context.Context, on executor, query string) error {
			_, err := on.ExecContext(ctx, query)
			return err
		}
		key := func() context.Context {
			ctx, _ := keyed("k")
			return ctx
		}
		ctx, _ := keyed("")
		wantUnusable(t, "an empty key", exec(ctx, r.wrapped, addOne))
		_, err := r.wrapped.BeginTx(ctx, nil)
		wantUnusable(t, "a transaction under an empty key", err)
		staging, st, err := bedsql.Begin(ctx, bedsql.Staged())
		if err != nil {
			t.Fatal(err)
		}
		res := r.stage(staging, r.wrapped, addOne)
		wantUnusable(t, "End under an empty key", st.End(context.Background()))
		wantResult(t, res, bedsql.ErrKeyUnusable)

		pinned := r.conn()
		rawExec(r, pinned, "SELECT 1")
		wantUnusable(t, "a pinned connection", exec(key(), pinned, addOne))
		_, err = pinned.BeginTx(key(), nil)
		wantUnusable(t, "a transaction on a pinned connection", err)

		tx := r.begin()
		wantUnusable(t, "a transaction begun without it", exec(key(), tx, addOne))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		ctx, tx, _ = r.beginUnder("one")
		wantUnusable(t, "a transaction begun under another one", exec(key(), tx, addOne))
		wantUnusable(t, "several statements in a transaction", exec(ctx, tx, addOne+"; "+addOne))
		wantUnusable(t, "COMMIT as text", exec(ctx, tx, "COMMIT"))
		wantUnusable(t, "ROLLBACK as text", exec(ctx, tx, "ROLLBACK"))
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
		begin := "BEGIN"
		if db.Driver == testdb.DriverMySQL {
			begin = "START TRANSACTION"
		}
		conn := r.conn()
		wantUnusable(t, "several statements in one text", exec(key(), conn, addOne+"; "+addOne))
		if err := exec(context.Background(), conn, begin); err != nil {
			t.Fatal(err)
		}
		wantUnusable(t, "a transaction begun by a statement", exec(key(), conn, addOne))
		if err := exec(context.Background(), conn, "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		staging, st = staged(t)
		staging, _ = bedsql.WithIdempotencyKey(staging, "k")
		wantUnusable(t, "a staged soft transaction begun without it", exec(staging, r.wrapped, addOne))
		if err := st.End(context.Background()); err != nil {
			t.Error(err)
		}
		r.wantBalances(100)
		r.wantNoLog()
		r.wantReceipts(0)
		// Skip wins over the key.
		if err := exec(bedsql.Unlogged(key()), r.wrapped, addOne); err != nil {
			t.Error(err)
		}
		r.wantBalances(101)
		r.wantReceipts(0)
	})
}

func TestKeyReadOnlyTransactionDoesNotUseIt(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		r.receiptTable()
		for i := range 2 {
			ctx, k := keyed("k")
			tx, err := r.wrapped.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&n); err != nil || n != 100+i {
				t.Errorf("the query gives %d, %v", n, err)
			}
			_, err = tx.ExecContext(ctx, addOne)
			wantUnusable(t, "a write in a read-only transaction", err)
			_ = tx.Rollback()
			r.stage(ctx, r.wrapped, addOne)
			wantReplayed(t, k.Replayed(), i > 0)
			if i == 0 {
				r.wantReceipts(1)
			}
			n = r.balance(1)
			if n != 101 {
				t.Errorf("the balance is %d, want 101", n)
			}
		}
	})
}

// Order has what differs at each resend: gorm's created_at.
type Order struct {
	ID        string `gorm:"primaryKey;size:40"`
	Amount    int
	CreatedAt time.Time
}

func TestKeyGormUnderItsOwnFingerprint(t *testing.T) {
	t.Parallel()
	eachGorm(t, []any{&Order{}, &Author{}, &Book{}}, func(t *testing.T, r *rig, g *gorm.DB) {
		sent := 0
		send := func(fingerprint string) (replayed bool, author uint, err error) {
			sent++
			now := time.Date(2024, 1, sent, 0, 0, 0, 0, time.UTC)
			ctx, k := keyed("order 1")
			if fingerprint != "" {
				k.SetFingerprint(fingerprint)
			}
			g := g.Session(&gorm.Session{Context: ctx, NowFunc: func() time.Time { return now }})
			a := Author{Name: "a"}
			err = errors.Join(
				g.Create(&Order{ID: "o-1", Amount: 5}).Error,
				g.WithContext(bedsql.WithKeyPart(ctx, "amount")).Model(&Order{}).Where("id = ?", "o-1").Update("amount", gorm.Expr("amount + ?", 1)).Error,
				g.WithContext(bedsql.WithKeyPart(ctx, "author")).Create(&a).Error, // whose id the database makes
			)
			return k.Replayed(), a.ID, err
		}
		for i := range 3 {
			replayed, author, err := send("order 1: 5")
			if err != nil || replayed != (i > 0) || author != 1 {
				t.Errorf("sent %d times: replayed %v, author %d, %v", i+1, replayed, author, err)
			}
		}
		_, _, err := send("")
		wantReused(t, "without the fingerprint", err)
		var all []Order
		if err := g.Find(&all).Error; err != nil || len(all) != 1 || all[0].Amount != 6 || all[0].CreatedAt.UTC().Day() != 1 {
			t.Errorf("there are %v, %v", all, err)
		}
		if n := r.count("SELECT COUNT(*) FROM authors"); n != 1 {
			t.Errorf("there are %d authors, want 1", n)
		}
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
	})
}
