package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

func TestKeyHasTheSameReceiptOnEachConnection(t *testing.T) {
	t.Parallel()
	var bad atomic.Int64
	f := &fakeDriver{fail: func(call string) error {
		if call == "exec" && bad.Add(-1) >= 0 {
			return driver.ErrBadConn
		}
		return nil
	}}
	s := newSet(t, f)
	receipt := func() driver.Value {
		t.Helper()
		ctx, _ := bedsql.WithIdempotencyKey(context.Background(), "order 7")
		tx, err := s.pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		id := f.lastArg(t)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := receipt()
	// Earlier versions wrote this one too: a resend after an upgrade must find it.
	if want := "key-6634bd46616af346bf1e3d76ecdaf4b5556fbc8e151dd6541f815430907ebdef"; first != want {
		t.Errorf("the receipt is %v, want %v", first, want)
	}
	bad.Store(2)
	if again := receipt(); again != first {
		t.Errorf("after connections that were bad the receipt is %v, want %v", again, first)
	}
}

// After the end of its context, database/sql reports a transaction as done before it has rolled it
// back.
func TestKeyIsFreeWhileItsTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	var holds atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	f := &fakeDriver{fail: func(call string) error {
		if call == "exec" && holds.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
		return nil
	}}
	s := newSet(t, f)
	ctx, _ := bedsql.WithIdempotencyKey(t.Context(), "order 7")
	begin := func(ctx context.Context) (*sql.Tx, driver.Value) {
		t.Helper()
		tx, err := s.pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tx, f.lastArg(t)
	}
	ends, cancel := context.WithCancel(ctx)
	tx, first := begin(ends)
	holds.Store(true)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_, _ = tx.ExecContext(t.Context(), "INSERT INTO t VALUES (1)")
	}()
	<-held
	cancel()
	if err := tx.Commit(); !errors.Is(err, context.Canceled) && !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("Commit says %v", err)
	}
	again, second := begin(ctx)
	if second != first {
		t.Errorf("tried again, the transaction has another receipt: %v, not %v", second, first)
	}
	close(release)
	<-ran
	if err := again.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.BeginTx(ctx, nil); !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("after the COMMIT BeginTx says %v", err)
	}
}

func TestKeyPartWithoutAKeyIsNone(t *testing.T) {
	t.Parallel()
	if ctx := bedsql.WithKeyPart(t.Context(), "stock"); ctx != t.Context() {
		t.Error("a context without a key was changed")
	}
}

func TestKeyPartsHaveReceiptsOfTheirOwn(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	s := newSet(t, f)
	root, _ := bedsql.WithIdempotencyKey(t.Context(), "order 7")
	part := bedsql.WithKeyPart
	seen := map[driver.Value]bool{}
	for _, ctx := range []context.Context{root, part(root, ""), part(root, "a"), part(root, "ab"), part(root, "1:a"), part(part(root, "a"), "b"), part(part(root, "ab"), "")} {
		tx, err := s.pool.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		seen[f.lastArg(t)] = true
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 7 {
		t.Errorf("7 parts have %d receipts", len(seen))
	}
	if _, err := s.pool.BeginTx(part(root, "a"), nil); err != nil {
		t.Errorf("a part is taken after its ROLLBACK: %v", err)
	}
}
