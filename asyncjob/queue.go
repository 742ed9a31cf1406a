package asyncjob

import (
	"cmp"
	"slices"
	"sync"
)

// queue has units worked on by up to a number of workers: side by side, but
// those of one transaction one after the other. A worker exists while there is
// something to do.
type queue struct {
	// work is done on up to most units at a time, each of another transaction.
	work func([]*claimed)
	// limit is the most workers that there may ever be; now, up to limit, is the
	// most at present (see widen).
	limit, now int
	// most is how many units work is given at a time.
	most int

	mu sync.Mutex
	// changed: fewer units wait, or a worker has ended.
	changed sync.Cond
	workers int
	// waiting units are not begun yet.
	waiting int
	// ready are the lanes that no worker is on.
	ready []*lane
	// lanes are by transaction, as long as it has units that are not ended.
	lanes map[string]*lane
}

// lane is what waits of a transaction.
type lane struct {
	transaction string
	units       []*claimed
}

func newQueue(workers, most int, work func([]*claimed)) *queue {
	q := &queue{work: work, limit: workers, now: workers, most: most, lanes: map[string]*lane{}}
	q.changed.L = &q.mu
	return q
}

// add queues units: transactions in the order in which they were claimed, the units
// of each by age.
func (q *queue) add(units []*claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, u := range units {
		l := q.lanes[u.TransactionID]
		if l == nil {
			l = &lane{transaction: u.TransactionID}
			q.ready = append(q.ready, l)
			if u.TransactionID != "" { // an unreadable unit may have none
				q.lanes[u.TransactionID] = l
			}
		}
		i, _ := slices.BinarySearchFunc(l.units, u, func(a, b *claimed) int { return cmp.Compare(a.ID, b.ID) })
		l.units = slices.Insert(l.units, i, u)
	}
	q.waiting += len(units)
	q.start()
}

// start begins as many workers as there may be and have something to do.
func (q *queue) start() {
	for range min(q.now-q.workers, len(q.ready)) {
		q.workers++
		go q.run()
	}
}

// widen lets up to n workers be. Those that are too many end after what they are
// at.
func (q *queue) widen(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n = min(n, q.limit); n != q.now {
		q.now = n
		q.start()
	}
}

func (q *queue) run() {
	var on []*lane
	var units []*claimed
	for {
		if on, units = q.next(on, units[:0]); len(units) == 0 {
			return
		}
		q.work(units)
	}
}

// next gives the next units of a worker, appended to units, and the lanes that
// they are of; on are the lanes that it was on. None end the worker.
func (q *queue) next(on []*lane, units []*claimed) ([]*lane, []*claimed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// While there is not enough for all workers, nobody takes more than its share.
	share := max(1, min(q.most, q.waiting/q.limit))
	switch {
	case q.workers > q.now:
		share = 0
	case q.now < q.limit:
		share = 1
	}
	still := on[:0]
	for _, l := range on {
		switch {
		case len(l.units) == 0:
			delete(q.lanes, l.transaction)
		case len(still) < share:
			still = append(still, l)
		default:
			q.ready = append(q.ready, l)
		}
	}
	for len(still) < share && len(q.ready) > 0 {
		still = append(still, q.ready[0])
		q.ready[0] = nil
		q.ready = q.ready[1:]
	}
	for _, l := range still {
		units = append(units, l.units[0])
		l.units[0] = nil
		l.units = l.units[1:]
	}
	q.waiting -= len(units)
	if len(units) == 0 {
		q.workers--
	}
	q.changed.Broadcast()
	return still, units
}

// until returns when reached says so, which is asked with mu held.
func (q *queue) until(reached func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !reached() {
		q.changed.Wait()
	}
}

// idle returns when everything has ended.
func (q *queue) idle() { q.until(func() bool { return q.workers == 0 }) }
