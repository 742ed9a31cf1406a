package keys

import (
	"context"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
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
				r := rig.New(t, rig.FreshLike(t, db), rig.ExactlyOnce, rig.NoSyncRetry)
				r.ReceiptTable()
				r.Account(0)
				free := r.BlockRow(1)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				under, _ := rig.Keyed("order 4711")
				done := make(chan error, 1)
				go func() {
					_, err := r.Wrapped.ExecContext(merged{ctx, under}, rig.AddOne)
					done <- err
				}()
				rig.Eventually(t, "the request is in the log", func() bool { return len(r.Logs()) == 1 })
				leave()
				first := rig.WantPending(t, <-done)
				free()
				r.MustSendUnder("order 4711", rig.AddOne)
				r.WantBalances(1)
				rig.Eventually(t, "only the first request is in the log", func() bool { return len(r.Logs()) == 1 })
				if u := r.WantOneLog(); u.ID != first.EntryID {
					t.Fatalf("the log holds %s, want %s", u.ID, first.EntryID)
				}
				if state == "parked" {
					r.ExecLog("UPDATE transaction_log SET parked = 1")
				}
				// The job that purges does not get to it.
				young := func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = 24 * time.Hour }
				for range 3 {
					r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
					r.RunOnce(young)
					r.WantReceipts(1)
				}
				if n := r.Count("SELECT COUNT(*) FROM bed_receipt WHERE log_gone = 1"); n != 0 {
					t.Error("the retention began although the first request is in the log")
				}
				if err := r.Storage.Retry(t.Context(), first.EntryID); err != nil {
					t.Fatal(err)
				}
				r.Drain(r.Job())
				r.WantBalances(1)
				// From here on the retention counts.
				r.RunOnce()
				r.WantReceipts(1)
				r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
				r.RunOnce()
				r.WantReceipts(0)
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
func purgedAt(r *rig.Rig, p *testproxy.Proxy, text string) (purged <-chan struct{}) {
	reached, release := p.Hold(testproxy.Text(text))
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-reached
		defer release()
		if _, err := r.Bare.Exec("DELETE FROM bed_receipt"); err != nil {
			r.T.Error(err)
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
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db)
				r.ReceiptTable()
				r.Account(0)
				r.MustSendUnder("k", rig.AddOne)
				r.WantNoLog()
				r.ReceiptsAge(attempt.DefaultRetention + time.Hour)
				purged := purgedAt(r, p, at)
				if _, replayed := r.MustSendUnder("k", rig.AddOne); replayed {
					t.Error("it is answered by a receipt that is there no more")
				}
				<-purged
				r.WantNoLog()
				r.WantBalances(2)
				if _, replayed := r.MustSendUnder("k", rig.AddOne); !replayed {
					t.Error("it left no receipt of its own")
				}
				r.WantBalances(2)
			})
		})
	}
}

func TestTransactionThatMeetsAPurgedReceiptIsNew(t *testing.T) {
	t.Parallel()
	for name, noTime := range map[string]bool{"within RetryTimeout": false, "and has no time to begin again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachServer(t, func(t *testing.T, db testdb.DB) {
				r, p := rig.NewBehindProxy(t, db, func(c *bedsql.Config) {
					if noTime {
						c.RetryInitial, c.RetryMax, c.RetryTimeout = time.Hour, time.Hour, time.Millisecond
					}
				})
				r.ReceiptTable()
				r.Account(0)
				send := func() (replayed bool, err error) {
					ctx, k := rig.Keyed("k")
					tx, err := r.Wrapped.BeginTx(ctx, nil)
					if err != nil {
						return false, err
					}
					r.Must(tx, rig.AddOne)
					err = tx.Commit()
					return k.Replayed(), err
				}
				if _, err := send(); err != nil {
					t.Fatal(err)
				}
				purged := purgedAt(r, p, "SELECT void")
				replayed, err := send()
				<-purged
				switch {
				case noTime && (err == nil || rig.IsDriversOwn(db, err)):
					t.Errorf("BeginTx gives %v, which is not to be the duplicate key of its own receipt", err)
				case !noTime && (err != nil || replayed):
					t.Errorf("the new request gets %v, replayed %t", err, replayed)
				case noTime:
					r.WantBalances(1)
				default:
					r.WantBalances(2)
				}
			})
		})
	}
}
