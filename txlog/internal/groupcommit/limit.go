package groupcommit

import "time"

// limit finds out how many writes in flight are worthwhile. A write takes w, of
// which the round trip takes r. During r the database is idle for this write,
// unless others are being carried out, each for w-r: one and r/(w-r) more keep it
// busy, and twice as many more do so although they do not arrive evenly. On a
// loopback that is one, and more would only compete for the processor. r is
// measured by pings while callers have to queue. For both the quickest counts,
// because the others are mostly slow because of the load, which more writes would
// not relieve. While a crowd waits, one more is worthwhile there too: a commit
// waits for the disk, and what leaves is still large. It is under the queue's mutex.
type limit struct {
	min, max int
	// most bounds them together with those that are stalled.
	most  int
	write quickest // w
	trip  quickest // r
}

func newLimit(o *Options) *limit {
	low := max(1, min(o.MinInFlight, o.Conns))
	high := max(low, min(o.MaxInFlight, o.Conns))
	return &limit{min: low, max: high, most: min(o.Conns, high+mostStalled)}
}

// crowd is the number of waiting rows from which one more write is worthwhile.
const crowd = 32

// of is how many writes are worthwhile at a time while that many rows wait.
func (l *limit) of(rows int) int {
	n := l.max
	if l.min < l.max {
		n = l.min
		if write, trip := l.write.least, l.trip.least; write > trip && trip > 0 {
			n = int(max(time.Duration(l.min), min(time.Duration(l.max), 1+2*trip/(write-trip))))
		} else if write > 0 && trip > 0 {
			n = l.max
		}
	}
	if rows >= crowd && n < l.max {
		n++
	}
	return n
}

// quickest is the least of what was seen in the recent past, at least [lately],
// so that it follows in time when everything takes longer.
type quickest struct {
	since         time.Time
	before, after time.Duration // 0: nothing was seen
	least         time.Duration // of the two
}

const lately = 8 * time.Second

func (q *quickest) saw(d time.Duration, now time.Time) {
	d = max(d, 1)
	if now.Sub(q.since) >= lately {
		q.before, q.after, q.since = q.after, 0, now
	}
	if q.after == 0 || d < q.after {
		q.after = d
	}
	if q.least = q.after; q.before != 0 {
		q.least = min(q.before, q.after)
	}
}

const (
	// measureEvery is how often at most the round trip is measured.
	measureEvery = time.Second
	pingFor      = 2 * time.Second
)
