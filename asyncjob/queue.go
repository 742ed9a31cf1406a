package asyncjob

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/claim"
)

// queue runs units on a limited number of workers, side by side. Units of one transaction
// run one after the other, and so do units that met contention. A worker exists while it has
// work. Units that failed before have at least one worker and at most half of them. So has a
// kind of unit before its first deliveries in a row. Units that wait for a lock thus hold up
// no others.
type queue struct {
	// work processes up to most units at a time, each of another transaction.
	work func([]*claimed)
	// limit is the maximum number of workers; now, up to limit, is the current maximum (see
	// widen).
	limit, now int
	// most is the maximum number of units in one call of work.
	most int

	mu sync.Mutex
	// changed signals fewer waiting units or the end of a worker.
	changed sync.Cond
	workers int
	// waiting counts the units that have not begun, and by traits.
	waiting  int
	byTraits map[traits]int
	// failing counts the workers on units that failed before, atOnce those on units that an
	// operator retried. last is set if the last unit begun had failed before.
	failing, atOnce int
	last            bool
	// ready holds the lanes without a worker.
	ready []*lane
	// lanes maps transactions with unfinished units to their lanes.
	lanes map[string]*lane
}

// lane holds the waiting units of a transaction.
type lane struct {
	transaction string
	units       []*claimed
}

// contendedLane is the lane of units that met contention.
const contendedLane = "\x00contended"

func newQueue(workers, most int, work func([]*claimed)) *queue {
	q := &queue{work: work, limit: workers, now: workers, most: most, lanes: map[string]*lane{}, byTraits: map[traits]int{}}
	q.changed.L = &q.mu
	return q
}

// add queues units: transactions in the order of their claims, but retried by an operator
// first, and the units of each by age.
func (q *queue) add(units []*claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	contended := map[string]bool{}
	for _, u := range units {
		if u.ContendedFrom > 0 && u.TransactionID != "" {
			contended[u.TransactionID] = true
		}
	}
	for _, u := range units {
		name := u.TransactionID
		if contended[name] && q.lanes[name] == nil {
			name = contendedLane
		}
		l := q.lanes[name]
		if l == nil {
			l = &lane{transaction: name}
			at := len(q.ready)
			if u.AtOnce {
				at = max(0, slices.IndexFunc(q.ready, func(l *lane) bool { return !l.units[0].AtOnce }))
			}
			q.ready = slices.Insert(q.ready, at, l)
			if name != "" { // an unreadable unit may have none
				q.lanes[name] = l
			}
		}
		i, _ := slices.BinarySearchFunc(l.units, u, func(a, b *claimed) int { return cmp.Compare(a.ID, b.ID) })
		l.units = slices.Insert(l.units, i, u)
		q.byTraits[u.traits()]++
	}
	q.waiting += len(units)
	q.start()
}

// choose returns the units to claim. left means that it left slow units because enough of
// them wait here. For stuck see isSlow.
func (q *queue) choose(units []*claimed, stuck bool) (chosen []*claimed, left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := q.room(stuck)
	for _, u := range units {
		if !u.AtOnce && q.isSlow(u.traits(), stuck) {
			if room--; room < 0 {
				left = true
				continue
			}
		}
		chosen = append(chosen, u)
	}
	return chosen, left
}

// start starts workers for the ready lanes, up to the current maximum.
func (q *queue) start() {
	for q.workers < q.now && len(q.ready) > 0 {
		on, units := q.take(nil, nil, q.share())
		if len(units) == 0 {
			return
		}
		q.workers++
		go q.run(on, units)
	}
}

// widen sets the current maximum to n workers, up to limit. Excess workers end after their
// current units.
func (q *queue) widen(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n = min(n, q.limit); n != q.now {
		q.now = n
		q.start()
	}
}

func (q *queue) run(on []*lane, units []*claimed) {
	for len(units) > 0 {
		q.work(units)
		on, units = q.next(on, units)
	}
}

// share is the number of units for a worker. With too few units for all workers, each takes
// only its share.
func (q *queue) share() int {
	if q.now < q.limit {
		return 1
	}
	return max(1, min(q.most, q.waiting/q.limit))
}

// half is the maximum number of workers on units that may have to wait.
func (q *queue) half() int { return max(1, q.now/2) }

// proof is the number of deliveries in a row that show a kind without waits. It equals the
// number that leads to the present workers when a data source is approached after an outage.
func (q *queue) proof() int {
	if q.now < q.limit {
		return q.now - 1
	}
	return max(q.now-1, 2)
}

// may reports whether a worker may begin with a unit of these traits now; alone means that
// the worker has no other unit.
func (q *queue) may(t traits, alone bool) bool {
	switch {
	case t.atOnce && q.atOnce < max(1, q.half()/2):
		return true
	case t.failedBefore():
		return q.failing < q.half() && (t.kind == nil || t.kind.busy < q.half())
	}
	return !alone || t.kind == nil || t.kind.busy < q.half() || t.kind.trusted(q.proof())
}

// pick takes a lane without a worker; nil if no lane may begin. Units that failed before
// come after others, except on one worker. It reads no more lanes than it needs: a claim may
// make thousands ready.
func (q *queue) pick(alone bool) *lane {
	var some, failedSome bool // may begin
	for t := range q.byTraits {
		slow := t.failedBefore() && !t.atOnce
		may := (alone || !slow) && q.may(t, alone)
		some, failedSome = some || may && !slow, failedSome || may && slow
	}
	at, failed := -1, -1
	for i, l := range q.ready {
		if (at >= 0 || !some) && (failed >= 0 || !failedSome || at >= 0 && q.failing > 0) {
			break
		}
		t := l.units[0].traits()
		slow := t.failedBefore() && !t.atOnce
		if slow && failed < 0 && alone && q.may(t, alone) {
			failed = i
		} else if !slow && at < 0 && q.may(t, alone) {
			at = i
		}
	}
	if failed >= 0 && (at < 0 || q.failing == 0 && (q.now > 1 || !q.last)) {
		at = failed
	}
	if at < 0 {
		return nil
	}
	l := q.ready[at]
	copy(q.ready[1:], q.ready[:at])
	q.ready[0] = nil
	q.ready = q.ready[1:]
	return l
}

// begin takes the next unit of l for a worker; alone is set for the worker's first unit.
func (q *queue) begin(l *lane, alone bool) *claimed {
	u := l.units[0]
	l.units[0] = nil
	l.units = l.units[1:]
	q.waiting--
	if t := u.traits(); q.byTraits[t] > 1 {
		q.byTraits[t]--
	} else {
		delete(q.byTraits, t)
	}
	if q.last = false; u.AtOnce {
		u.counted = &q.atOnce
	} else if q.last = u.failedBefore(); q.last {
		u.counted = &q.failing
	}
	if u.counted != nil {
		*u.counted++
	}
	if u.first = alone && u.kind != nil; u.first {
		u.kind.busy++
	}
	return u
}

// ended records the end of the work on u.
func (q *queue) ended(u *claimed) {
	if u.counted != nil {
		*u.counted--
	}
	if u.first {
		u.kind.busy--
	}
	if u.kind != nil {
		u.kind.ended(u.was, u.tried)
	}
}

// next returns the next units of a worker, in the slice units, and their lanes; on are its
// previous lanes. Without units the worker ends.
func (q *queue) next(on []*lane, units []*claimed) ([]*lane, []*claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, u := range units {
		q.ended(u)
	}
	units = units[:0]
	share := q.share()
	if q.workers > q.now {
		share = 0
	}
	still := on[:0]
	for _, l := range on {
		switch {
		case len(l.units) == 0:
			delete(q.lanes, l.transaction)
		case len(still) < share && !l.units[0].failedBefore() && q.may(l.units[0].traits(), len(still) == 0):
			units = append(units, q.begin(l, len(still) == 0))
			still = append(still, l)
		default:
			q.ready = append(q.ready, l)
		}
	}
	if still, units = q.take(still, units, share); len(units) == 0 {
		q.workers--
	}
	q.start() // what ended may have kept others waiting
	q.changed.Broadcast()
	return still, units
}

// take takes up to share lanes, and the next unit of each.
func (q *queue) take(on []*lane, units []*claimed, share int) ([]*lane, []*claimed) {
	for len(on) < share {
		l := q.pick(len(on) == 0)
		if l == nil {
			break
		}
		units = append(units, q.begin(l, len(on) == 0))
		on = append(on, l)
		if q.last {
			break // no other is to wait with it
		}
	}
	return on, units
}

// isSlow reports whether units of these traits failed before. While the queue is stuck,
// units that may not begin now are slow too.
func (q *queue) isSlow(t traits, stuck bool) bool {
	return t.failedBefore() || stuck && !q.may(t, true)
}

// slow counts the slow units that wait. The caller holds mu.
func (q *queue) slow(stuck bool) (n int) {
	for t, waiting := range q.byTraits {
		if q.isSlow(t, stuck) {
			n += waiting
		}
	}
	return n
}

// room is how many more slow units may wait. The caller holds mu.
func (q *queue) room(stuck bool) int { return slowKept - q.slow(stuck) }

// hasRoom reports whether claiming more slow units is worthwhile.
func (q *queue) hasRoom(stuck bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.room(stuck) >= slowKept/2
}

// until waits for reached, which it calls with mu held. It returns false after most, if most
// is positive.
func (q *queue) until(most time.Duration, reached func() bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	over := false
	if most > 0 {
		timer := time.AfterFunc(most, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			over = true
			q.changed.Broadcast()
		})
		defer timer.Stop()
	}
	for !reached() {
		if over {
			return false
		}
		q.changed.Wait()
	}
	return true
}

// idle waits until all workers have ended.
func (q *queue) idle() { q.until(0, func() bool { return q.workers == 0 }) }

const (
	// failsAt is the number of failures in a row from which a kind of unit counts as failing.
	failsAt = 3
	// trustedFor is how long deliveries in a row let a kind have all workers.
	trustedFor = 5 * time.Second
	// maxKinds bounds the number of texts that a source remembers.
	maxKinds = 1000
)

// kindOfUnit is the record of units with the same text but for values. A queue's lock guards
// it.
type kindOfUnit struct {
	// busy counts its workers, failed its failures in a row, and row its deliveries or parkings
	// in a row. delivered is the time of the last of these.
	busy, failed, row int
	delivered         time.Time
}

func (k *kindOfUnit) trusted(row int) bool {
	return k.row >= row && time.Since(k.delivered) < trustedFor
}

// ended records the end of a unit; tried means after an attempt.
func (k *kindOfUnit) ended(was claim.Kind, tried bool) {
	switch {
	case was == claim.Delivered, was == claim.Parked: // which is answered as fast, and does not come again
		if !k.trusted(0) {
			k.row = 0
		}
		k.row++
		k.failed, k.delivered = 0, time.Now()
	case tried:
		k.failed++
		k.row = 0
	}
}
