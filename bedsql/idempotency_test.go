package bedsql_test

import (
	"context"
	"database/sql/driver"
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
