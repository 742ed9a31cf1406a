package acceptance

import (
	"context"
	"database/sql/driver"
	"slices"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

// The receipt is the resend's, whose own log is long gone.
func TestAKeysReceiptOutlivesEveryLogUnderTheKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, state := range []string{"pending", "parked"} {
			t.Run(state, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db), exactlyOnce, noSyncRetry)
				r.receiptTable()
				r.account(0)
				free := r.blockRow(1)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				under, _ := keyed("order 4711")
				_, err := r.wrapped.ExecContext(merged{ctx, under}, addOne)
				first := wantPending(t, err)
				free()
				r.mustSendUnder("order 4711", addOne)
				r.wantBalances(1)
				eventually(t, "only the first request is in the log", func() bool { return len(r.logs()) == 1 })
				if u := r.wantOneLog(); u.ID != first.LogID {
					t.Fatalf("the log holds %s, want %s", u.ID, first.LogID)
				}
				if state == "parked" {
					r.execLog("UPDATE transaction_log SET parked = 1")
				}
				// The job that purges does not get to it.
				young := func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = 24 * time.Hour }
				for range 3 {
					r.receiptsAge(attempt.DefaultRetention + time.Hour)
					r.runOnce(young)
					r.wantReceipts(1)
				}
				if n := r.count("SELECT COUNT(*) FROM bed_receipt WHERE log_gone = 1"); n != 0 {
					t.Error("the retention began although the first request is in the log")
				}
				if err := r.storage.Retry(t.Context(), first.LogID); err != nil {
					t.Fatal(err)
				}
				r.drain(r.job())
				r.wantBalances(1)
				// From here on the retention counts.
				r.runOnce()
				r.wantReceipts(1)
				r.receiptsAge(attempt.DefaultRetention + time.Hour)
				r.runOnce()
				r.wantReceipts(0)
			})
		}
	})
}

// merged is a context that ends with one and holds the values of another.
type merged struct {
	context.Context
	values context.Context
}

func (m merged) Value(key any) any { return m.values.Value(key) }

// A resend may be logged after the purge has asked the log. What it meets once
// it must not find gone later.
func TestAKeysReceiptStaysIfItsRequestIsLoggedAgainWhileItIsPurged(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.receiptTable()
		for _, id := range []string{"key-back", "key-gone"} {
			r.must(r.bare, "INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint, log_gone) VALUES (?, ?, ?, 0, 1, 1, 'f', 1)",
				id, "unit of "+id, r.storage.Identity())
		}
		purge := func(logged ...string) (erased int) {
			t.Helper()
			asked := 0
			r.onTarget(func(d *delivery.Dialect, conn driver.Conn) attempt.Outcome {
				_, n, err := attempt.PurgeReceipts(t.Context(), d, conn, receiptsOf(r), "", func(_ context.Context, ids []string) ([]string, error) {
					if asked++; asked == 1 {
						return ids, nil
					}
					return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(logged, id) }), nil
				})
				if err != nil {
					t.Fatal(err)
				}
				erased = n
				return attempt.Outcome{}
			})
			return erased
		}
		if n := purge("key-back"); n != 0 {
			t.Errorf("%d receipts were erased", n)
		}
		r.wantReceipts(2)
		if n := purge(); n != 2 {
			t.Errorf("%d receipts were erased, want both", n)
		}
		r.wantReceipts(0)
	})
}
