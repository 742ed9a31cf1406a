package groupcommit

import "time"

// limit finds the worthwhile number of writes in flight. A write takes w, including the
// round trip r. During r the database is idle for this write and can carry out others, each
// for w-r: one and r/(w-r) more keep it busy. The limit is twice as many more, because they
// do not arrive evenly. On a loopback that is one, and more would only compete for the
// processor. Pings measure r while callers have to queue. Both w and r are the quickest ones
// seen: slow ones mostly come from the load, and more writes would not relieve it. While a
// crowd waits, one more write is worthwhile even on a loopback: a commit waits for the disk,
// and the remaining group is still large. The queue's mutex guards it.
type limit struct {
	min, max int
	// most bounds the writes in flight including the stalled ones.
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

// of returns the worthwhile number of writes in flight while rows are waiting.
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

// quickest is the least duration of the recent past, at least [lately], so that it soon
// follows a general slowdown.
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
	// measureEvery is the minimum time between two measurements of the round trip.
	measureEvery = time.Second
	pingFor      = 2 * time.Second
)
