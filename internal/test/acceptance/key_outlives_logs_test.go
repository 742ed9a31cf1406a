package acceptance

import (
	"context"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// The receipt is the resend's, whose own log is long gone.
func TestKeyReceiptOutlivesEveryEntryUnderTheKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, state := range []string{"pending", "parked"} {
			t.Run(state, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db), exactlyOnce, noSyncRetry)
				r.receiptTable()
				r.account(0)
				free := r.blockRow(1)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				under, _ := keyed("order 4711")
				done := make(chan error, 1)
				go func() {
					_, err := r.wrapped.ExecContext(merged{ctx, under}, addOne)
					done <- err
				}()
				eventually(t, "the request is in the log", func() bool { return len(r.logs()) == 1 })
				leave()
				first := wantPending(t, <-done)
				free()
				r.mustSendUnder("order 4711", addOne)
				r.wantBalances(1)
				eventually(t, "only the first request is in the log", func() bool { return len(r.logs()) == 1 })
				if u := r.wantOneLog(); u.ID != first.EntryID {
					t.Fatalf("the log holds %s, want %s", u.ID, first.EntryID)
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
				if err := r.storage.Retry(t.Context(), first.EntryID); err != nil {
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

// purgedAt takes the receipt of every key away, as a purge does, just before the
// next message with text reaches the server.
func (r *rig) purgedAt(p *testproxy.Proxy, text string) (purged <-chan struct{}) {
	reached, release := p.Hold(testproxy.Text(text))
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-reached
		defer release()
		if _, err := r.bare.Exec("DELETE FROM bed_receipt"); err != nil {
			r.t.Error(err)
		}
	}()
	return done
}

// A resend that gets the first one's answer is not applied, so its own entry
// must never find the receipt gone, however late it comes.
func TestRequestThatMeetsAPurgedReceiptIsNew(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"SELECT void", "UPDATE bed_receipt SET keep_until"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db)
				r.receiptTable()
				r.account(0)
				r.mustSendUnder("k", addOne)
				r.wantNoLog()
				r.receiptsAge(attempt.DefaultRetention + time.Hour)
				purged := r.purgedAt(p, at)
				if _, replayed := r.mustSendUnder("k", addOne); replayed {
					t.Error("it is answered by a receipt that is there no more")
				}
				<-purged
				r.wantNoLog()
				r.wantBalances(2)
				if _, replayed := r.mustSendUnder("k", addOne); !replayed {
					t.Error("it left no receipt of its own")
				}
				r.wantBalances(2)
			})
		})
	}
}

func TestTransactionThatMeetsAPurgedReceiptIsNew(t *testing.T) {
	t.Parallel()
	for name, noTime := range map[string]bool{"within RetryTimeout": false, "and has no time to begin again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := newRigBehindProxy(t, db, func(c *bedsql.Config) {
					if noTime {
						c.RetryInitial, c.RetryMax, c.RetryTimeout = time.Hour, time.Hour, time.Millisecond
					}
				})
				r.receiptTable()
				r.account(0)
				send := func() (replayed bool, err error) {
					ctx, k := keyed("k")
					tx, err := r.wrapped.BeginTx(ctx, nil)
					if err != nil {
						return false, err
					}
					r.must(tx, addOne)
					err = tx.Commit()
					return k.Replayed(), err
				}
				if _, err := send(); err != nil {
					t.Fatal(err)
				}
				purged := r.purgedAt(p, "SELECT void")
				replayed, err := send()
				<-purged
				switch {
				case noTime && (err == nil || isDriversOwn(db, err)):
					t.Errorf("BeginTx gives %v, which is not to be the duplicate key of its own receipt", err)
				case !noTime && (err != nil || replayed):
					t.Errorf("the new request gets %v, replayed %t", err, replayed)
				case noTime:
					r.wantBalances(1)
				default:
					r.wantBalances(2)
				}
			})
		})
	}
}
