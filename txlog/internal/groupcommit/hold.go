package groupcommit

import "time"

// State is what a queue holds at a moment.
type State struct {
	// Queued is how many writes of a kind are queued, Waiting how many callers
	// wait for room, Limit how many writes in flight are worthwhile.
	Queued         map[uint8]int
	Waiting, Limit int
	// RoundTrip is the measured one; 0 while it is not known.
	RoundTrip time.Duration
	Closed    bool
}

// State tells what the queue holds now.
func (q *Queue[T]) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	queued := map[uint8]int{}
	for _, r := range q.queue {
		queued[r.Kind]++
	}
	return State{queued, len(q.waiting), q.limit.of(0), time.Duration(q.limit.trip.least.Load()), q.closed}
}

// Hold takes the place of a write in flight until release is called: with one
// write at a time everything queues, and then leaves together. It is for tests.
func (q *Queue[T]) Hold() (release func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &flight{began: time.Now().Add(time.Hour)}
	q.flights = append(q.flights, f)
	return func() {
		if next, group := q.land(f, false); next != nil {
			go q.fly(next, group)
		}
	}
}
