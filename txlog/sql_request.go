package txlog

import (
	"sync"
	"time"

	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

const (
	// maxShared is how many rows a transaction of SQLite writes and removes for
	// several callers.
	maxShared = 2 * maxRows
	// queueRows and queueBytes bound what waits to be written.
	queueRows  = 16 * maxRows
	queueBytes = 32 << 20
	// closeFor bounds how long Close waits for what was begun before it.
	closeFor = groupcommit.RepeatFor
	// keptRows is how large a request is kept for the next caller.
	keptRows = 4
	// pings are made at each measurement of the round trip.
	pings = 5
)

// The kinds of requests.
const (
	adding uint8 = iota
	removing
)

// request is what one caller wants added or removed, all or none of it.
type request struct {
	groupcommit.Ticket
	adds  []row
	holds []held

	// lease is that of what is added; deadline its end, from the moment at
	// which the attempt left that may have written it.
	lease    time.Duration
	deadline time.Time
	// repeated: an attempt without an answer was repeated.
	repeated bool
}

var requests = sync.Pool{New: func() any { return new(request) }}

func newRequest(kind uint8) *request {
	r := requests.Get().(*request)
	r.Kind = kind
	return r
}

// free gives the request back, unless it may still be in flight.
func (r *request) free() {
	if !r.Reset() {
		return
	}
	adds, holds := r.adds, r.holds
	if cap(adds)+cap(holds) > keptRows {
		adds, holds = nil, nil
	}
	clear(adds)
	clear(holds)
	*r = request{Ticket: r.Ticket, adds: adds[:0], holds: holds[:0]}
	requests.Put(r)
}

// Leaves implements [groupcommit.Write]. The log counts the lease from the
// moment at which an attempt arrives, so that it lasts at least from when it
// left.
func (r *request) Leaves(now time.Time) (end time.Time) {
	if r.Kind == adding {
		r.deadline = now.Add(r.lease)
		return r.deadline
	}
	earliest := r.holds[0].deadline
	for i := range r.holds {
		if r.holds[i].deadline.Before(earliest) {
			earliest = r.holds[i].deadline
		}
	}
	return ownerEnd(earliest, now)
}
