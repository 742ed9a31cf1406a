package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// serializable makes it the isolation of every session, the job's too.
func serializable(t testing.TB, db testdb.DB) testdb.DB {
	t.Helper()
	switch db.Driver {
	case testdb.DriverMySQL:
		return rig.WithParam(db, "tx_isolation", "'SERIALIZABLE'")
	case testdb.DriverPostgres:
		if _, err := db.Open(t).Exec("ALTER DATABASE " + db.Name + " SET default_transaction_isolation = 'serializable'"); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// A soak of seconds: 32 writers, with a quarter of their writes to one row, and the job beside
// them. Regardless of contention, each write is applied once and no entry is parked.
func TestContendedSerializableWritesAreNeverParked(t *testing.T) {
	t.Parallel()
	const writers, each = 32, 25
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, guarantee := range []bedsql.Guarantee{bedsql.AtLeastOnce, bedsql.ExactlyOnce} {
			logDB := testdb.NewLog(t, db.Driver)
			target := serializable(t, rig.FreshLike(t, db))
			r := rig.NewWithLog(t, target, logDB, func(c *bedsql.Config) {
				c.Guarantee, c.Guard = guarantee, bedsql.GuardOff
			})
			r.Account(make([]int, writers+1)...)
			if guarantee == bedsql.ExactlyOnce {
				r.ReceiptTable()
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			job := r.Job(func(c *asyncjob.Config) { c.RetryDelay = 50 * time.Millisecond })
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for ctx.Err() == nil {
					_, _ = job.RunOnce(ctx)
					time.Sleep(20 * time.Millisecond)
				}
			}()
			var all sync.WaitGroup
			for w := range writers {
				all.Go(func() {
					for n := range each {
						row := w + 2
						if n%4 == 0 {
							row = 1
						}
						_, err := r.Wrapped.ExecContext(t.Context(), fmt.Sprintf("UPDATE account SET balance = balance + 1 WHERE id = %d", row))
						if err != nil && !errors.Is(err, bedsql.ErrPending) {
							t.Errorf("%v: %v", guarantee, err)
						}
					}
				})
			}
			all.Wait()
			rig.Eventually(t, "the job has delivered what contended", func() bool {
				units := r.Logs()
				for _, u := range units {
					if u.Parked {
						t.Fatalf("%v: a write is parked: %s", guarantee, u.LastError)
					}
				}
				return len(units) == 0
			})
			stop()
			<-ended
			want := make([]int, writers+1)
			hot := (each + 3) / 4
			for i := range want {
				want[i] = each - hot
			}
			want[0] = writers * hot
			r.WantBalances(want...)
		}
	})
}
