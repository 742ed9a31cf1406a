package asyncjob

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestWithoutApplicationsThatWriteThereIsNoBound(t *testing.T) {
	p := &pace{most: 16}
	if n := p.inFlight(); n != 16 {
		t.Errorf("%d may be in flight, not all 16", n)
	}
	p.share(false, 3)
	if rest := p.delivered(time.Second); p.inFlight() != 16 || rest != 0 {
		t.Errorf("%d may be in flight, with rests of %v, although nobody else writes", p.inFlight(), rest)
	}
	p.share(true, 1)
	if n := p.inFlight(); n != 2 {
		t.Errorf("%d may be in flight while applications write, not an eighth of 16", n)
	}
	p.share(false, 1)
	if n := p.inFlight(); n != 16 {
		t.Errorf("%d may be in flight when nobody writes any more, not all 16", n)
	}
}

func TestSeveralJobsTogetherTakeNoMoreThanOne(t *testing.T) {
	p := &pace{most: 16}
	p.share(true, 4)
	if rest := p.delivered(10 * time.Millisecond); p.inFlight() != 1 || rest != 10*time.Millisecond {
		t.Errorf("%d are in flight, with rests of %v behind 10ms, want one of four that do the work of two", p.inFlight(), rest)
	}
	p.most = 32
	p.share(true, 3)
	if rest := p.delivered(10 * time.Millisecond); p.inFlight() != 2 || rest.Round(time.Millisecond) != 5*time.Millisecond {
		t.Errorf("%d are in flight, with rests of %v behind 10ms, want two of six that do the work of four", p.inFlight(), rest)
	}
	p.share(true, 100)
	if rest := p.delivered(time.Hour); rest != restMost {
		t.Errorf("a worker rests for %v", rest)
	}
}

func TestATargetIsApproachedAfterAnOutage(t *testing.T) {
	p := &pace{most: 16}
	p.broke()
	if n, most := p.inFlight(), p.claim(100); n != 1 || most != firstPerWorker {
		t.Errorf("%d may be in flight and %d claimed after an outage", n, most)
	}
	for range 14 {
		p.delivered(time.Millisecond)
	}
	if n := p.inFlight(); n != 15 {
		t.Errorf("%d may be in flight behind 14 deliveries", n)
	}
	p.share(true, 1)
	if n := p.inFlight(); n != 2 {
		t.Errorf("%d may be in flight behind an outage while applications write", n)
	}
	p.share(false, 1)
	p.delivered(time.Millisecond)
	if n, most := p.inFlight(), p.claim(100); n != 16 || most != 100 {
		t.Errorf("%d may be in flight and %d claimed once all went well", n, most)
	}
}

func TestSurplusWorkerEndsAndHandsOverItsTransaction(t *testing.T) {
	t.Parallel()
	const workers, transactions, each = 4, 8, 20
	var q *queue
	var mu sync.Mutex
	var busy, most, begun, done int
	var first sync.WaitGroup
	first.Add(workers)
	q = newQueue(workers, 1, func([]*claimed) {
		mu.Lock()
		busy++
		begun++
		wide := begun <= workers
		if !wide {
			most = max(most, busy)
		}
		mu.Unlock()
		if wide {
			first.Done()
			first.Wait() // all of them are at work
			q.widen(1)
		}
		mu.Lock()
		busy--
		done++
		mu.Unlock()
	})
	var units []*claimed
	for i := range transactions * each {
		units = append(units, &claimed{Unit: &entry.Unit{ID: fmt.Sprintf("%03d", i), TransactionID: fmt.Sprint(i % transactions)}})
	}
	q.add(units)
	q.idle()
	if done != transactions*each {
		t.Errorf("%d units were worked on, not all %d", done, transactions*each)
	}
	if q.workers != 0 || len(q.lanes) != 0 || most != 1 {
		t.Errorf("%d workers and %d transactions are left; %d were at work at a time, not 1", q.workers, len(q.lanes), most)
	}
}

// told has applications report n writes.
func told(t *testing.T, j *journal.Journal, dataSource string, n int) {
	t.Helper()
	j.Tally(dataSource).Count(journal.AtOnce, n)
	must(t, j.Flush(t.Context()))
}

func TestJobSeesOtherWritersOfADataSource(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		store := sqlLog(t, db)
		newControl := func() *control { return newJob(t, store, Targets{}, brittle()).control }
		asked := func(c *control) (bool, int) {
			p := &pace{most: 16}
			c.others(t.Context(), "orders", p)
			return p.writing, p.jobs
		}
		c := newControl()
		if writing, jobs := asked(c); writing || jobs != 1 {
			t.Errorf("nobody writes, and it is said %t, %d jobs", writing, jobs)
		}
		told(t, logdb.Journal(store), "stock", 500)
		told(t, logdb.Journal(store), "orders", 1)
		logdb.Journal(store).Tally("orders").Count(journal.AsyncJob, 500)
		must(t, logdb.Journal(store).Flush(t.Context()))
		if writing, _ := asked(c); writing {
			t.Error("a write now and then, and what jobs deliver, count as applications that write")
		}
		told(t, logdb.Journal(store), "orders", busyWrites)
		if writing, _ := asked(c); !writing {
			t.Error("applications write, and it is not noticed")
		}

		// Another job comes to it in the middle, and one more is gone.
		other, gone := newControl(), newControl()
		for _, c := range []*control{c, other, gone} {
			c.alive(t.Context(), time.Now())
			c.see(t.Context(), "orders", nil)
		}
		told(t, logdb.Journal(store), "orders", 60)
		gone.leave()
		if writing, jobs := asked(other); !writing || jobs != 2 {
			t.Errorf("a job that has just come learns %t, %d jobs, want that applications write, and 2", writing, jobs)
		}
	})
}

func TestAJobYieldsToApplicationsThatWrite(t *testing.T) {
	t.Parallel()
	const concurrency, units = 8, 24
	for _, writing := range []bool{false, true} {
		t.Run(fmt.Sprintf("they write: %t", writing), func(t *testing.T) {
			t.Parallel()
			store := sqlLog(t, testdb.SQLite(t))
			if writing {
				told(t, logdb.Journal(store), "orders", 100)
			}
			addMany(t, store, "orders", units)
			var busy, most, begun atomic.Int64
			all := make(chan struct{})
			db := &fakeDB{onExec: func(context.Context, string) error {
				n := busy.Add(1)
				defer busy.Add(-1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				nth := begun.Add(1)
				if nth == 2*concurrency {
					close(all)
				}
				if !writing && nth > concurrency { // until as many are delivered, their kind has half of the workers
					wait(t, "as many deliveries as may be", all)
				}
				return nil
			}}
			cfg := brittle()
			cfg.Concurrency = concurrency
			if r := runOnce(t, newJob(t, store, Targets{"orders": db.target()}, cfg)); r.Delivered != units {
				t.Errorf("report: %v", r)
			}
			switch n := most.Load(); {
			case !writing && n != concurrency:
				t.Errorf("%d were in flight at a time, not all %d although nobody else writes", n, concurrency)
			case writing && n > concurrency/yieldedPart:
				t.Errorf("%d were in flight at a time while applications write", n)
			}
		})
	}
}
