package asyncjob

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// paced lets deliveries take what the target gives while n are in flight, for
// as long, and gives how many were at the end of each epoch.
func paced(p *pace, now *time.Time, lasts time.Duration, took func(inFlight int) time.Duration) (inFlight []int) {
	for end := now.Add(lasts); now.Before(end); {
		for began := p.began; p.began.Equal(began); {
			n := p.inFlight()
			d := took(n)
			rest := p.delivered(d, *now)
			*now = now.Add((d + rest) / time.Duration(n))
		}
		inFlight = append(inFlight, p.inFlight())
	}
	return inFlight
}

func mean(all []int) float64 {
	sum := 0
	for _, n := range all {
		sum += n
	}
	return float64(sum) / float64(len(all))
}

func TestWithoutApplicationsThatWriteThereIsNoBound(t *testing.T) {
	p, now := &pace{most: 16}, time.Now()
	if n := p.inFlight(); n != 16 {
		t.Errorf("%d may be in flight, not all 16", n)
	}
	p.share(false, 3, now)
	if rest := p.delivered(time.Second, now); p.inFlight() != 16 || rest != 0 {
		t.Errorf("%d may be in flight, with rests of %v, although nobody else writes", p.inFlight(), rest)
	}
	p.share(true, 1, now)
	if n := p.inFlight(); n != 1 {
		t.Errorf("%d may be in flight at first, not 1", n)
	}
	p.share(false, 1, now)
	if n := p.inFlight(); n != 16 {
		t.Errorf("%d may be in flight when nobody writes any more, not all 16", n)
	}
}

func TestTargetWithRoomIsDrainedAtFullSpeed(t *testing.T) {
	p, now := &pace{most: 16}, time.Now()
	p.share(true, 1, now)
	paced(p, &now, 10*time.Second, func(int) time.Duration { return 5 * time.Millisecond })
	if n := mean(paced(p, &now, time.Minute, func(int) time.Duration { return 5 * time.Millisecond })); n < 13 {
		t.Errorf("%.1f are in flight on average although they take no longer, not nearly 15", n)
	}
}

func TestSlowingTargetIsLeftToOtherWriters(t *testing.T) {
	p, now := &pace{most: 16}, time.Now()
	p.share(true, 1, now)
	if n := mean(paced(p, &now, time.Minute, func(n int) time.Duration { return time.Duration(n) * time.Millisecond })); n > 2 {
		t.Errorf("%.1f are in flight on average although two take twice as long as one", n)
	}
}

// What is slow from a moment on, for whatever reason, is no reason to deliver
// one by one for ever.
func TestTheQuickestIsForgotten(t *testing.T) {
	p, now := &pace{most: 8}, time.Now()
	p.share(true, 1, now)
	paced(p, &now, time.Minute, func(int) time.Duration { return 2 * time.Millisecond })
	slow := func(int) time.Duration { return 20 * time.Millisecond }
	paced(p, &now, 3*quickestFor, slow)
	if n := mean(paced(p, &now, time.Minute, slow)); n < 5 {
		t.Errorf("%.1f are in flight on average a while after all got slower, not nearly 7", n)
	}
}

func TestSeveralJobsTogetherBeginAsOne(t *testing.T) {
	p, now := &pace{most: 16}, time.Now()
	p.share(true, 4, now)
	if rest := p.delivered(10*time.Millisecond, now); p.inFlight() != 1 || rest != 30*time.Millisecond {
		t.Errorf("%d are in flight, with rests of %v behind 10ms, want one of four that take turns", p.inFlight(), rest)
	}
	p.parts = 6
	if rest := p.delivered(9*time.Millisecond, now); p.inFlight() != 2 || rest.Round(time.Millisecond) != 3*time.Millisecond {
		t.Errorf("%d are in flight, with rests of %v behind 9ms, want two that do the work of one and a half", p.inFlight(), rest)
	}
	if rest := p.delivered(time.Hour, now); rest != restMost {
		t.Errorf("a worker rests for %v", rest)
	}
}

// crew are jobs that deliver to one target at the same time.
type crew struct {
	now   time.Time
	paces []*pace
	took  func(busy int) time.Duration
	// workers are how many each job has, busy how many of all are delivering.
	workers []int
	busy    int
	coming  []event
}

// event is the end of a delivery that took so long, or of a rest: 0.
type event struct {
	at   time.Time
	job  int
	took time.Duration
}

func newCrew(took func(busy int) time.Duration) *crew {
	return &crew{now: time.Unix(1_800_000_000, 0), took: took}
}

// join adds a job, which knows of itself alone until all know.
func (c *crew) join() {
	p := &pace{most: 16}
	p.share(true, 1, c.now)
	c.paces, c.workers = append(c.paces, p), append(c.workers, 0)
	c.widen(len(c.paces) - 1)
}

func (c *crew) widen(job int) {
	for ; c.workers[job] < c.paces[job].inFlight(); c.workers[job]++ {
		c.coming = append(c.coming, event{c.now, job, 0})
	}
}

// deliver lets all jobs deliver for a while, and gives how many deliveries were in
// flight on average. Every two seconds each asks how many jobs there are.
func (c *crew) deliver(lasts time.Duration) float64 {
	var busy time.Duration
	asked, end := c.now, c.now.Add(lasts)
	for c.now.Before(end) {
		next := 0
		for i, e := range c.coming {
			if e.at.Before(c.coming[next].at) {
				next = i
			}
		}
		e := c.coming[next]
		c.coming = slices.Delete(c.coming, next, next+1)
		busy += time.Duration(c.busy) * e.at.Sub(c.now)
		c.now = e.at
		if c.now.Sub(asked) >= othersEvery {
			asked = c.now
			for _, p := range c.paces {
				p.share(true, len(c.paces), c.now)
			}
		}
		p := c.paces[e.job]
		switch {
		case e.took > 0:
			c.busy--
			c.coming = append(c.coming, event{c.now.Add(p.delivered(e.took, c.now)), e.job, 0})
		case c.workers[e.job] > p.inFlight():
			c.workers[e.job]--
		default:
			c.busy++
			took := c.took(c.busy)
			c.coming = append(c.coming, event{c.now.Add(took), e.job, took})
		}
		c.widen(e.job)
	}
	return float64(busy) / float64(lasts)
}

// What one job finds out by slowing down, each of several can only find out if all
// do so at the same time.
func TestSeveralJobsTogetherTakeNoMoreThanOne(t *testing.T) {
	for name, between := range map[string]time.Duration{"that come together": 0, "that come one by one": 13 * time.Second} {
		t.Run(name, func(t *testing.T) {
			mean := func(jobs int) float64 {
				chance := rand.New(rand.NewPCG(1, 2))
				c := newCrew(func(busy int) time.Duration {
					// One more in flight takes a tenth longer, and all differ by a tenth.
					return time.Duration(float64(2*time.Millisecond) * (0.9 + 0.1*float64(busy)) * (0.95 + 0.1*chance.Float64()))
				})
				for range jobs {
					c.join()
					c.deliver(between)
				}
				c.deliver(2 * time.Minute)
				return c.deliver(5 * time.Minute)
			}
			one, four := mean(1), mean(4)
			t.Logf("one job has %.2f deliveries in flight on average, four have %.2f", one, four)
			if four > 1.25*one {
				t.Errorf("one job has %.2f deliveries in flight on average, four have %.2f together", one, four)
			}
		})
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
		units = append(units, &claimed{Unit: &txlog.Unit{ID: fmt.Sprintf("%03d", i), TransactionID: fmt.Sprint(i % transactions)}})
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
			if o := c.writes["orders"]; o != nil {
				o.asked = time.Time{} // the time to ask again has come
			}
			return c.others(t.Context(), "orders")
		}
		c := newControl()
		if writing, jobs := asked(c); writing || jobs != 1 {
			t.Errorf("nobody writes, and it is said %t, %d jobs", writing, jobs)
		}
		told(t, store.Journal(), "stock", 500)
		told(t, store.Journal(), "orders", 1)
		store.Journal().Tally("orders").Count(journal.AsyncJob, 500)
		must(t, store.Journal().Flush(t.Context()))
		if writing, _ := asked(c); writing {
			t.Error("a write now and then, and what jobs deliver, count as applications that write")
		}
		told(t, store.Journal(), "orders", 40)
		if writing, _ := asked(c); !writing {
			t.Error("applications write, and it is not noticed")
		}
		if writing, _ := asked(c); !writing {
			t.Error("applications that did not tell in this moment count as gone")
		}
		c.writes["orders"].until = time.Now()
		if writing, _ := asked(c); writing {
			t.Error("applications that write no more count as if they did")
		}

		// Another job comes to it in the middle, and one more is gone.
		other, gone := newControl(), newControl()
		for _, c := range []*control{c, other, gone} {
			c.alive(t.Context(), time.Now())
			c.see(t.Context(), "orders", nil)
		}
		told(t, store.Journal(), "orders", 60)
		gone.leave()
		if writing, jobs := asked(other); !writing || jobs != 2 {
			t.Errorf("a job that has just come learns %t, %d jobs, want that applications write, and 2", writing, jobs)
		}
	})
}

func TestAJobYieldsToApplicationsThatWrite(t *testing.T) {
	t.Parallel()
	const concurrency, units = 8, 3 * epochOf
	for _, writing := range []bool{false, true} {
		t.Run(fmt.Sprintf("they write: %t", writing), func(t *testing.T) {
			t.Parallel()
			store := sqlLog(t, testdb.SQLite(t))
			if writing {
				told(t, store.Journal(), "orders", 100)
			}
			addMany(t, store, "orders", units)
			var busy, most, begun atomic.Int64
			all := make(chan struct{})
			db := &fakeDB{onExec: func(context.Context, string) error {
				n := busy.Add(1)
				defer busy.Add(-1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				if begun.Add(1) == concurrency {
					close(all)
				}
				if !writing {
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
			case writing && n > 1+units/epochOf:
				t.Errorf("%d were in flight at a time while applications write", n)
			}
		})
	}
}
