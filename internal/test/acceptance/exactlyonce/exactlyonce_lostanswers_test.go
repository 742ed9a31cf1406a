package exactlyonce

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
)

// lostAnswers is how many answers to COMMIT are lost on each database.
const lostAnswers = 1000

// everyLogging are all times for logging.
var everyLogging = []bedsql.Logging{bedsql.LogBefore, bedsql.LogAlongside, bedsql.LogOnFailure}

// lossWriters write in parallel, each to its own row and to a shared one. For each time of logging
// there are two: one retries, and the other leaves unanswered writes to the job.
var lossWriters = 2 * len(everyLogging)

// lossWriter adds 1 at a time, so that repeated and missing writes show.
type lossWriter struct {
	r    *rig.Rig
	id   int // of its own row
	pool *sql.DB
	rnd  *rand.Rand
	// own and shared are the expected growth of the rows.
	own, shared int
}

// kinds are the ways to write. Each returns the increments to the writer's own row and to the
// shared one, unless it fails.
func (w *lossWriter) kinds() []func(ctx context.Context) (own, shared int, err error) {
	add := func(ctx context.Context, on rig.Executor, id int) error {
		_, err := on.ExecContext(ctx, w.r.Q(rig.Increment), 1, id)
		return err
	}
	several := func(ctx context.Context, read string) (own, shared int, err error) {
		tx, err := w.pool.BeginTx(ctx, nil)
		if err != nil {
			return 0, 0, err
		}
		defer func() { _ = tx.Rollback() }()
		if read == "" {
			err = errors.Join(add(ctx, tx, w.id), add(ctx, tx, w.id))
			own = 2
		} else {
			var balance int
			if err = tx.QueryRowContext(ctx, w.r.Q(read), w.id).Scan(&balance); err == nil {
				_, err = tx.ExecContext(ctx, w.r.Q("UPDATE account SET balance = ? WHERE id = ?"), balance+1, w.id)
			}
			own = 1
		}
		return own, 1, errors.Join(err, add(ctx, tx, 1), tx.Commit())
	}
	soft := func(ctx context.Context, opts ...bedsql.TxOption) (own, shared int, err error) {
		ctx, soft, err := bedsql.Begin(ctx, opts...)
		if err != nil {
			return 0, 0, err
		}
		err = errors.Join(add(ctx, w.pool, w.id), add(ctx, w.pool, 1), add(ctx, w.pool, w.id))
		return 2, 1, errors.Join(err, soft.End(ctx))
	}
	return []func(context.Context) (int, int, error){
		func(ctx context.Context) (int, int, error) { return 1, 0, add(ctx, w.pool, w.id) },
		func(ctx context.Context) (int, int, error) {
			_, err := w.pool.ExecContext(ctx, fmt.Sprintf("UPDATE account SET balance = balance + 1 WHERE id = %d", w.id))
			return 1, 0, err
		},
		func(ctx context.Context) (int, int, error) { return several(ctx, "") },
		func(ctx context.Context) (int, int, error) {
			return several(ctx, "SELECT balance FROM account WHERE id = ? FOR UPDATE")
		},
		func(ctx context.Context) (int, int, error) { return soft(ctx) },
		func(ctx context.Context) (int, int, error) { return soft(ctx, bedsql.Staged()) },
	}
}

// write makes one write of a random kind. A pending write counts as delivered, because the job
// delivers it.
func (w *lossWriter) write(ctx context.Context) {
	kinds := w.kinds()
	kind := w.rnd.IntN(len(kinds))
	own, shared, err := kinds[kind](ctx)
	if err != nil && !errors.Is(err, bedsql.ErrPending) {
		w.r.T.Errorf("a write of kind %d failed, although only answers to COMMIT are lost: %v", kind, err)
		return
	}
	w.own += own
	w.shared += shared
}

func TestExactlyOnceIncrementsSurviveThousandsOfLostCommits(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		bus := listener.NewBus(rig.Quiet())
		bus.Buffer = 1 << 16
		var lost, found atomic.Int64
		sub := bus.Subscribe(func(ev listener.Event) {
			switch {
			case ev.Type == listener.ExecuteFailure && ev.Class == dialect.Unknown:
				lost.Add(1)
			case ev.Found:
				found.Add(1)
			}
		})
		t.Cleanup(sub.Close)
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce, func(c *bedsql.Config) { c.Bus = bus })
		committing := rig.CommitsOf(p)
		r.Account(make([]int, 1+lossWriters)...)
		// On a Galera cluster a CREATE TABLE rolls back conflicting transactions, and we would lose
		// an answer without a commit.
		r.ReceiptTable()

		writers := make([]*lossWriter, lossWriters)
		for i := range writers {
			cfg := r.Cfg
			cfg.Logging, cfg.NoSyncRetry = everyLogging[i/2], i%2 == 1
			writers[i] = &lossWriter{r: r, id: 2 + i, pool: openWith(r, cfg), rnd: rand.New(rand.NewPCG(1, uint64(i)))}
		}
		job := r.Job(func(c *asyncjob.Config) {
			c.Bus = bus
			c.MaxDeliveryTryTimes = 1000 // its own answers are lost too
		})
		writing, stop := context.WithCancel(context.Background())
		var jobs, all sync.WaitGroup
		jobs.Go(func() {
			for writing.Err() == nil {
				if _, err := job.RunOnce(context.Background()); err != nil {
					t.Error(err)
				}
				sleepUntil(writing, 20*time.Millisecond)
			}
		})
		begin := time.Now()
		for _, w := range writers {
			all.Go(func() {
				for lost.Load() < lostAnswers && !t.Failed() {
					p.CutAfter(committing.Match)
					w.write(context.Background())
				}
			})
		}
		all.Wait()
		stop()
		jobs.Wait()
		took := time.Since(begin)
		p.Forget() // or a unit that rests longer after each of them is not delivered in time
		r.Drain(job)

		shared := 0
		for _, w := range writers {
			shared += w.shared
			if got := r.Balance(w.id); got != w.own {
				t.Errorf("a writer's row stands at %d after %d increments", got, w.own)
			}
		}
		if got := r.Balance(1); got != shared {
			t.Errorf("the shared row stands at %d after %d increments", got, shared)
		}
		r.WantNoLog()
		if dropped := sub.Dropped(); dropped > 0 {
			t.Errorf("%d events were not counted", dropped)
		}
		t.Logf("%d answers lost in %v, of which %d units were found by their receipts by an attempt; %d receipts stay",
			lost.Load(), took, found.Load(), r.Receipts())
	})
}

// openWith is open with another configuration.
func openWith(r *rig.Rig, cfg bedsql.Config) *sql.DB {
	r.T.Helper()
	own := *r
	own.Cfg = cfg
	return own.Open(r.DB.DSN)
}

// sleepUntil waits for d, or for the end of ctx.
func sleepUntil(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
