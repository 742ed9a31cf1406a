package txlog

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pace finds out how many writes are worthwhile at a time. While one is on its
// way, for a round trip r of the w that it takes, the database is idle, unless
// others are being carried out there, each for w-r: one and r/(w-r) more keep it
// busy, and twice as many more do so although they do not arrive evenly. On a
// loopback that is one, and more would only take the processor from each
// other. r is measured by pings while callers have to queue. While a crowd
// waits, one more is worthwhile also there: a commit waits for the disk, and
// what leaves is still large.
type pace struct {
	min, max int
	// most bounds them together with those that are stalled.
	most  int
	trips *roundTrips

	write atomic.Int64 // w in ns; 0 while it is not known
}

// w follows a quicker write soon and a slower one late: what makes it slower is
// mostly that others were in its way.
const (
	quicker = 4
	slower  = 32
)

func newPace(o *options, conns int, trips *roundTrips) *pace {
	low := max(1, min(o.minWrites, conns))
	high := max(low, min(o.maxWrites, conns))
	return &pace{min: low, max: high, most: min(conns, high+mostStalled), trips: trips}
}

func (p *pace) took(d time.Duration) {
	before := p.write.Load()
	change := int64(d) - before
	switch {
	case before == 0:
	case change < 0:
		change /= quicker
	default:
		change /= slower
	}
	p.write.Store(before + change)
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
	write, trip := p.write.Load(), p.trips.usual.Load()
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
	// pings are made at each measurement; their median counts, and the mean of
	// the last measurements.
	pings        = 5
	measurements = 4
	pingFor      = 2 * time.Second
)

// roundTrips measures the round trip to the database.
type roundTrips struct {
	s     *SQLStorage
	usual atomic.Int64 // in ns; 0 while it is not known
	next  atomic.Int64 // when to measure again, in ns since start
	start time.Time

	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
	last   [measurements]int64
	n      int
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
	var took [pings]int64
	for n := range took {
		start := time.Now()
		if conn.PingContext(ctx) != nil {
			return
		}
		took[n] = int64(time.Since(start))
	}
	slices.Sort(took[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last[t.n%measurements] = took[pings/2]
	t.n++
	known, sum := min(t.n, measurements), int64(0)
	for _, d := range t.last[:known] {
		sum += d
	}
	t.usual.Store(sum / int64(known))
}

func (t *roundTrips) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.group.Wait()
}
