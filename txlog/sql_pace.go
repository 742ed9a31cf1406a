package txlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// pace finds out how many writes are worthwhile at a time. While one is on its
// way, for a round trip r of the w that it takes, the database is idle, unless
// others are being carried out there, each for w-r: one and r/(w-r) more keep it
// busy, and twice as many more do so although they do not arrive evenly. On a
// loopback that is one, and more would only take the processor from each
// other. r is measured by pings while callers have to queue; of both the
// quickest count, because what makes the others slower is mostly the load, which
// more writes would not take away. While a crowd waits, one more is worthwhile
// also there: a commit waits for the disk, and what leaves is still large.
type pace struct {
	min, max int
	// most bounds them together with those that are stalled.
	most  int
	trips *roundTrips

	write quickest // w
}

func newPace(o *options, conns int, trips *roundTrips) *pace {
	low := max(1, min(o.minWrites, conns))
	high := max(low, min(o.maxWrites, conns))
	return &pace{min: low, max: high, most: min(conns, high+mostStalled), trips: trips}
}

func (p *pace) took(d time.Duration) { p.write.saw(d, time.Now()) }

// quickest is the least of what was seen lately: for at least [lately], so that
// it is found out in time when everything takes longer. It is safe for
// concurrent use.
type quickest struct {
	mu            sync.Mutex
	since         time.Time
	before, after time.Duration // 0: nothing was seen
	least         atomic.Int64  // of the two, in ns
}

const lately = 8 * time.Second

func (q *quickest) saw(d time.Duration, now time.Time) {
	d = max(d, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.since) >= lately {
		q.before, q.after, q.since = q.after, 0, now
	}
	if q.after == 0 || d < q.after {
		q.after = d
	}
	least := q.after
	if q.before != 0 {
		least = min(least, q.before)
	}
	q.least.Store(int64(least))
}

// contended is called when a caller had to queue.
func (p *pace) contended() {
	if p.min < p.max {
		p.trips.measure()
	}
}

// crowd is from how many rows that wait one more write is worthwhile.
const crowd = 32

// limit is how many writes are worthwhile at a time while so many rows wait.
func (p *pace) limit(rows int) int {
	n := p.evenly()
	if rows >= crowd && n < p.max {
		n++
	}
	return n
}

// evenly is the limit where nobody has to wait for long.
func (p *pace) evenly() int {
	if p.min == p.max {
		return p.max
	}
	write, trip := p.write.least.Load(), p.trips.quick.least.Load()
	if write == 0 || trip == 0 {
		return p.min
	}
	carried := write - trip
	if carried <= 0 {
		return p.max
	}
	return int(max(int64(p.min), min(int64(p.max), 1+2*trip/carried)))
}

const (
	// measureEvery is how often the round trip is measured at the most.
	measureEvery = time.Second
	// pings are made at each measurement.
	pings   = 5
	pingFor = 2 * time.Second
)

// roundTrips measures the round trip to the database.
type roundTrips struct {
	s     *SQLStorage
	quick quickest
	next  atomic.Int64 // when to measure again, in ns since start
	start time.Time

	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

// measure measures behind the caller, unless that was done just before.
func (t *roundTrips) measure() {
	now := int64(time.Since(t.start))
	next := t.next.Load()
	if now < next || !t.next.CompareAndSwap(next, now+int64(measureEvery)) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.group.Go(t.ping)
	}
}

func (t *roundTrips) ping() {
	ctx, cancel := context.WithTimeout(context.Background(), pingFor)
	defer cancel()
	conn, err := t.s.db.Conn(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	for range pings {
		start := time.Now()
		if conn.PingContext(ctx) != nil {
			return
		}
		end := time.Now()
		t.quick.saw(end.Sub(start), end)
	}
}

func (t *roundTrips) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.group.Wait()
}
