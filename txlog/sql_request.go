package txlog

import (
	"context"
	"fmt"
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
	return ownersEnd(r.holds, now)
}

// newQueue makes ready for the writes of concurrent callers.
func (s *SQLStorage) newQueue(conns int) *groupcommit.Queue[*request] {
	o := groupcommit.Options{
		Retry:   s.retry,
		MaxRows: maxRows, MaxBytes: s.insertBytes(), QueueRows: queueRows, QueueBytes: queueBytes,
		MinInFlight: s.options.minWrites, MaxInFlight: s.options.maxWrites, Conns: conns, Ping: s.pingSome,
	}
	if o.MinInFlight < 1 {
		o.MinInFlight = defaultMinWrites
	}
	if o.MaxInFlight < 1 {
		o.MaxInFlight = defaultMaxWrites
	}
	if s.backend.Flavor != FlavorSQLite {
		return groupcommit.New(o, s.writeAlike)
	}
	o.MinInFlight, o.MaxInFlight, o.Mixed, o.MaxRows = 1, 1, true, maxShared
	return groupcommit.New(o, s.writeShared)
}

// writeAlike makes one write of requests of the same kind.
func (s *SQLStorage) writeAlike(ctx context.Context, group []*request, again bool) error {
	if group[0].Kind == adding {
		return s.insertGroup(ctx, group, again)
	}
	return s.deleteGroup(ctx, group, again)
}

// pingSome measures the round trip to the database.
func (s *SQLStorage) pingSome(ctx context.Context, took func(time.Duration)) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	for range pings {
		start := time.Now()
		if conn.PingContext(ctx) != nil {
			return
		}
		took(time.Since(start))
	}
}

// unknown makes the error of a write whose outcome stayed unknown.
func (s *SQLStorage) unknown(what string, sentinel, cause error) error {
	if sentinel == nil {
		return s.failed(what, fmt.Errorf("its outcome is not known: %w", cause))
	}
	return s.failed(what, fmt.Errorf("%w: %w", sentinel, cause))
}
