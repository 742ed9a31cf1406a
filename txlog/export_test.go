package txlog

import (
	"testing"
	"time"
)

// Joining is what a test sees and holds of the writes that callers share.
type Joining struct {
	j *joiner
	// adds: it is about the adds of a queue that may hold both.
	adds bool
}

// Adding gives the joined Adds, Removing the joined removals.
func (s *SQLStorage) Adding() Joining { return Joining{s.writing, true} }

// Removing gives the joined removals.
func (s *SQLStorage) Removing() Joining { return Joining{s.writing, false} }

func (g Joining) queued() (n int) {
	for _, r := range g.j.queue {
		if g.adds == r.isAdd() {
			n++
		}
	}
	return n
}

// Hold takes the place of a write under way until release is called: with one
// write at a time everything queues, and leaves together then.
func (g Joining) Hold() (release func()) {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	f := &flight{began: time.Now().Add(time.Hour)}
	g.j.flights = append(g.j.flights, f)
	return func() { g.j.landed(f, false) }
}

// Await waits until so many requests are queued and so many callers wait for room.
func (g Joining) Await(t testing.TB, queued, waiting int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		g.j.mu.Lock()
		q, w := g.queued(), len(g.j.waiting)
		g.j.mu.Unlock()
		if q == queued && w == waiting {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are queued and %d callers wait for room, want %d and %d", q, w, queued, waiting)
		}
	}
}

// Closed reports whether no more is taken.
func (g Joining) Closed() bool {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	return g.j.closed
}

// Limit is how many writes are worthwhile now.
func (g Joining) Limit() int { return g.j.pace.limit(0) }

// RoundTrip is the measured one; 0 while it is not known.
func (s *SQLStorage) RoundTrip() time.Duration { return time.Duration(s.trips.quick.least.Load()) }

// Untold makes the log find out what it removed as on MySQL, whose DELETE
// cannot tell.
func (s *SQLStorage) Untold() { s.tells = false }

// What a test of the limits has to know.
const (
	QueueRows = queueRows
	MaxRows   = maxRows
)

// LimitOf is how many writes are worthwhile at a time when they take so long,
// and the round trip so much of it.
func LimitOf(least, most int, trip time.Duration, writes ...time.Duration) int {
	trips := &roundTrips{}
	if trip > 0 {
		trips.quick.saw(trip, time.Now())
	}
	p := newPace(&options{minWrites: least, maxWrites: most}, 32, trips)
	for _, w := range writes {
		p.took(w)
	}
	return p.limit(0)
}

// Departures tells in which writes what is queued leaves, oldest first: 'a' is
// an add, 'r' a removal, 'A' and 'R' are too large to share a write.
func Departures(queue string, mixes bool, most int) (writes []string) {
	j := newJoiner(&SQLStorage{}, nil, nil)
	j.mixes, j.most = mixes, most
	names := map[*request]string{}
	for _, kind := range queue {
		r := &request{rows: 1, alone: kind == 'A' || kind == 'R'}
		if kind == 'a' || kind == 'A' {
			r.adds = make([]row, 1)
		} else {
			r.holds = make([]held, 1)
		}
		names[r] = string(kind)
		j.queue = append(j.queue, r)
		j.rows++
	}
	for len(j.queue) > 0 {
		var write string
		for _, r := range j.take() {
			write += names[r]
		}
		writes = append(writes, write)
	}
	if j.rows != 0 {
		writes = append(writes, "rows are left")
	}
	return writes
}
