package capacity

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/entry"
)

func TestHumpOnMariaDB(t *testing.T) {
	turn(t, "BED_TEST_HUMP")
	hump(t, onMariaDB(t, "256M"))
}

func TestHumpOnPostgreSQL(t *testing.T) {
	turn(t, "BED_TEST_HUMP")
	hump(t, onPostgreSQL(t, "256MB"))
}

// humped is for how long new writes are made in each turn, how many turns there
// are, and how many units wait.
func humped(t *testing.T) (lasts time.Duration, turns, units int) {
	t.Helper()
	text := os.Getenv("BED_TEST_HUMP")
	if text == "" {
		return 200 * time.Millisecond, 1, 500
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d, 3, 60_000
}

// hump makes new writes in turns: while nothing is delivered, and while a backlog
// is. The jobs have a log's handle of their own, as in a process of their own.
func hump(t *testing.T, on kind) {
	t.Helper()
	ctx, workers := t.Context(), on.storage(t)
	bare := on.table(t)
	to, app := on.open(t, on.storage(t))
	lasts, turns, units := humped(t)
	var written atomic.Int64
	for _, jobs := range []int{1, 4} {
		before := entry.NewID()
		fill(t, workers, to, int(written.Load()), units)
		leave(t, workers, before)
		var delivered atomic.Int64
		crew := make([]*asyncjob.Job, jobs)
		for i := range crew {
			crew[i] = worker(t, workers, to, asyncjob.Config{Cron: everySecond}, func(n int64) { delivered.Add(n) })
		}
		var quietly, meanwhile times
		var drained int64
		var took time.Duration
		write(t, app, &written, lasts) // so that the jobs know that there are writes
		for range turns {
			quietly = append(quietly, write(t, app, &written, lasts)...)
			turn, stop := context.WithCancel(ctx)
			var all sync.WaitGroup
			for _, job := range crew {
				all.Go(func() {
					for turn.Err() == nil {
						_, _ = job.RunOnce(turn)
					}
				})
			}
			start, before := time.Now(), delivered.Load()
			meanwhile = append(meanwhile, write(t, app, &written, 2*lasts)...)
			drained += delivered.Load() - before
			took += time.Since(start)
			stop()
			all.Wait()
		}
		t.Logf("%d jobs: a write takes %v, and %v while a backlog is delivered at %.0f/s", jobs, quietly, meanwhile, float64(drained)/took.Seconds())
		for start := time.Now(); delivered.Load() < int64(units); {
			if _, err := crew[0].RunOnce(ctx); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) > 5*time.Minute {
				t.Fatalf("%d of %d units are delivered", delivered.Load(), units)
			}
		}
		written.Add(int64(units))
		for _, job := range crew {
			if err := job.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if rows, want := scan(t, bare, "SELECT COUNT(*) FROM line"), fmt.Sprint(written.Load()); rows != want {
		t.Errorf("%s rows were applied, not %s", rows, want)
	}
}

// write has two callers write for a while, each now and then.
func write(t *testing.T, app *sql.DB, written *atomic.Int64, d time.Duration) (took times) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	start := time.Now()
	for range 2 {
		all.Go(func() {
			for time.Since(start) < d {
				began := time.Now()
				if _, err := app.Exec(fmt.Sprintf("INSERT INTO line (id, n) VALUES (%d, 1)", 1<<40+written.Add(1))); err != nil {
					t.Error(err)
					return
				}
				lasted := time.Since(began)
				mu.Lock()
				took = append(took, lasted)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return took
}
