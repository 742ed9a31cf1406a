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

// The place of a transaction among the writes under its key, by which it is
// known again, must not depend on how many connections database/sql tried.
func TestBeginRepeatedByDatabaseSQLKeepsItsKeyPlace(t *testing.T) {
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
	bad.Store(2)
	if again := receipt(); again != first {
		t.Errorf("after connections that were bad the receipt is %v, want %v", again, first)
	}
}

// database/sql says of a transaction whose context has ended that it is done before it has
// rolled it back.
func TestTransactionThatIsStillBeingRolledBackHasNoPlaceUnderItsKey(t *testing.T) {
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
	if next, third := begin(ctx); third == first {
		t.Error("the place of what was committed was given to the next transaction")
	} else if err := next.Rollback(); err != nil {
		t.Fatal(err)
	}
}
