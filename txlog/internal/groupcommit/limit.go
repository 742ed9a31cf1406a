package groupcommit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// limit finds out how many writes in flight are worthwhile. A write takes w, of
// which the round trip takes r. During r the database is idle for this write,
// unless others are being carried out, each for w-r: one and r/(w-r) more keep it
// busy, and twice as many more do so although they do not arrive evenly. On a
// loopback that is one, and more would only compete for the processor. r is
// measured by pings while callers have to queue. For both the quickest counts,
// because the others are mostly slow because of the load, which more writes would
// not relieve. While a crowd waits, one more is worthwhile there too: a commit
// waits for the disk, and what leaves is still large.
type limit struct {
	min, max int
	// most bounds them together with those that are stalled.
	most  int
	write quickest // w
	trip  quickest // r
	pings pinger
}

func newLimit(o *Options) *limit {
	low := max(1, min(o.MinInFlight, o.Conns))
	high := max(low, min(o.MaxInFlight, o.Conns))
	l := &limit{min: low, max: high, most: min(o.Conns, high+mostStalled)}
	l.pings = pinger{ping: o.Ping, trip: &l.trip, start: time.Now()}
	return l
}

// crowd is the number of waiting rows from which one more write is worthwhile.
const crowd = 32

// of is how many writes are worthwhile at a time while that many rows wait.
func (l *limit) of(rows int) int {
	n := l.max
	if l.min < l.max {
		n = l.min
		if write, trip := l.write.least.Load(), l.trip.least.Load(); write > trip && trip > 0 {
			n = int(max(int64(l.min), min(int64(l.max), 1+2*trip/(write-trip))))
		} else if write > 0 && trip > 0 {
			n = l.max
		}
	}
	if rows >= crowd && n < l.max {
		n++
	}
	return n
}

// contended is called when a caller had to queue.
func (l *limit) contended() {
	if l.min < l.max {
		l.pings.measure()
	}
}

// quickest is the least of what was seen in the recent past, at least [lately],
// so that it follows in time when everything takes longer. It is safe for
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

const (
	// measureEvery is how often at most the round trip is measured.
	measureEvery = time.Second
	pingFor      = 2 * time.Second
)

// pinger measures the round trip to the database.
type pinger struct {
	ping  func(ctx context.Context, took func(time.Duration))
	trip  *quickest
	next  atomic.Int64 // when to measure again, in ns since start
	start time.Time

	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

// measure measures outside of calls, unless that was just done.
func (p *pinger) measure() {
	now := int64(time.Since(p.start))
	next := p.next.Load()
	if now < next || !p.next.CompareAndSwap(next, now+int64(measureEvery)) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.group.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pingFor)
		defer cancel()
		p.ping(ctx, func(d time.Duration) { p.trip.saw(d, time.Now()) })
	})
}

func (p *pinger) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.group.Wait()
}
