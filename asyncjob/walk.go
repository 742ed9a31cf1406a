package asyncjob

import (
	"time"

	"github.com/bedsql/bed/internal/entry"
)

// walk is a drain's way through the due units of its data source, claim by claim. While
// enough slow units wait in memory, the claims leave further ones in the log and continue
// behind them, in search of healthy units. Slow units that were left come first in the log:
// a claim from its beginning finds them once there is room. A new walk begins from time to
// time, and the drain ends after a walk that left no units.
type walk struct {
	// took is the duration of its claims.
	took time.Duration
	// after is the last unit seen, once a unit was left. Until then claims begin at the front.
	after *entry.Unit
	// left is set once slow units were left.
	left bool
	// next is the start of the next walk. It is zero while this one goes on.
	next time.Time
	// stuck is set once deliveries have been slow in this drain; see queue.isSlow.
	stuck bool
}

// page is the result of a claim.
type page struct {
	// full means that more units may be due. left means that slow units were left. none means an
	// empty claim.
	full, left, none bool
	// last is the last unit, if any unit was left.
	last *entry.Unit
	took time.Duration
}

// from returns the unit before the next claim; back means that it begins at the front.
func (w *walk) from(back bool) *entry.Unit {
	if back {
		return nil
	}
	return w.after
}

// saw records the page of a claim. If a claim at the front finds no unit, another job has
// them.
func (w *walk) saw(p page, back bool) {
	switch w.took += p.took; {
	case back && p.none:
		w.again()
	case !back:
		w.left = w.left || p.left
		if p.last != nil {
			w.after = p.last
		}
		if !p.full {
			w.next = time.Now().Add(max(lookEvery, walkRest*w.took))
		}
	}
}

// again begins a new walk.
func (w *walk) again() { *w = walk{stuck: w.stuck} }

// ended waits at the end of a walk until there is work. It reports whether the drain has
// tried all units.
func (w *walk) ended(q *queue) bool {
	if w.next.IsZero() {
		return false
	}
	idle := false
	switch timely := q.until(max(time.Until(w.next), 1), func() bool {
		idle = q.workers == 0
		return idle || w.left && q.room(w.stuck) >= slowKept/2
	}); {
	case !timely:
		w.stuck = true
		w.again()
	case idle && !w.left:
		return true
	}
	return false
}
