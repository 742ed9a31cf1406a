package txlog

import (
	"context"
	"sync"
	"time"
)

const (
	// queueRows and queueBytes bound what waits to be written; beyond them
	// callers wait before they queue. One that is larger queues alone.
	queueRows  = 16 * maxRows
	queueBytes = 32 << 20
	// stalled is after how long a write without an answer does not keep the
	// others waiting any more, and mostStalled how many of them there may be.
	stalled     = 250 * time.Millisecond
	mostStalled = 4
	// maxShared is how many rows a transaction of SQLite writes and removes for
	// several callers.
	maxShared = 2 * maxRows
	// closeFor bounds how long Close waits for what was begun before it.
	closeFor = repeatFor
	// keptRows is how large a request is kept for the next caller.
	keptRows = 4
)

// request is what one caller wants written, all or none of it.
type request struct {
	ctx  context.Context
	rows int
	size int
	// alone: it is too large to share a statement.
	alone bool
	adds  []row
	holds []held

	// lease is that of what is added; deadline its end, from the moment at
	// which the attempt left that may have written it.
	lease    time.Duration
	deadline time.Time
	// end is until when a write without an answer is worth repeating.
	end time.Time
	// repeated: an attempt without an answer was repeated.
	repeated bool

	// Under the joiner's mutex.
	place  place
	flight *flight
	gone   time.Time // when its caller's context was seen to have ended

	// inDoubt and err are the outcome, once done, which is nil if nobody waits,
	// says so. ended is what done is made of.
	inDoubt     bool
	err         error
	done, ended chan struct{}
	// left: its caller did not wait for the outcome.
	left bool
}

// isAdd tells what is to be added from what is to be removed.
func (r *request) isAdd() bool { return len(r.adds) > 0 }

var requests = sync.Pool{New: func() any { return &request{ended: make(chan struct{}, 1)} }}

func newRequest(ctx context.Context) *request {
	r := requests.Get().(*request)
	r.ctx = ctx
	return r
}

// free gives the request back, unless it may still be under way.
func (r *request) free() {
	if r.left {
		return
	}
	adds, holds := r.adds, r.holds
	if cap(adds)+cap(holds) > keptRows {
		adds, holds = nil, nil
	}
	clear(adds)
	clear(holds)
	*r = request{adds: adds[:0], holds: holds[:0], ended: r.ended}
	requests.Put(r)
}

// place is where a request is.
type place uint8

const (
	queued place = iota
	// withdrawn: its caller took it back before anything was sent.
	withdrawn
	// sentAlone: its write ends by the rules of its caller's context.
	sentAlone
	// sentJoined: its write is also others', and ends by theirs.
	sentJoined
)

// joiner makes concurrent callers share a write. A caller who finds nothing
// under way writes at once, by itself; whoever comes while the writes that are
// worthwhile are under way queues, and all that are queued leave together when
// one of these is answered. There is no goroutine while nothing is queued.
type joiner struct {
	s *SQLStorage
	// write makes one write of all that is in the requests, or of none of it.
	// again: an earlier attempt may have been applied.
	write func(ctx context.Context, joined []*request, again bool) error
	pace  *pace
	// most is how many rows those that share a write may have together.
	most int
	// mixes: adds and removals share a write.
	mixes bool

	// base ends when Close has waited for long enough.
	base context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	queue   []*request
	rows    int // in the queue
	size    int
	waiting []chan struct{} // callers for whom the queue has no room
	flights []*flight
	watched bool          // a timer looks for stalled writes
	idle    chan struct{} // not nil while Close waits; closed when nothing is left
}

// flight is a write under way.
type flight struct {
	began time.Time
	// cut ends the attempt under way, if it may be, which is the n-th.
	cut     context.CancelFunc
	attempt int
}

func newJoiner(s *SQLStorage, p *pace, write func(context.Context, []*request, bool) error) *joiner {
	j := &joiner{s: s, write: write, pace: p, most: maxRows}
	j.base, j.stop = context.WithCancel(context.Background())
	return j
}

// do has r written. inDoubt means that it is not known whether it was; else err
// is why it was not, and never will be.
func (j *joiner) do(r *request) (inDoubt bool, err error) {
	if err := r.ctx.Err(); err != nil {
		return false, err
	}
	j.mu.Lock()
	for {
		if j.closed {
			j.mu.Unlock()
			return false, ErrClosed
		}
		if len(j.queue) == 0 {
			if now := time.Now(); j.free(now) {
				f := j.launch(now)
				r.place = sentAlone
				j.mu.Unlock()
				j.landed(f, j.alone(r))
				return r.inDoubt, r.err
			}
		}
		if len(j.queue) == 0 || j.rows+r.rows <= queueRows && j.size+r.size <= queueBytes {
			break
		}
		if err := j.waitForRoom(r.ctx); err != nil {
			j.mu.Unlock()
			return false, err
		}
	}
	r.done = r.ended
	j.queue = append(j.queue, r)
	j.rows += r.rows
	j.size += r.size
	j.watch()
	if j.rows >= crowd {
		j.dispatch(time.Now())
	}
	j.mu.Unlock()
	j.pace.contended()
	return j.wait(r)
}

// waitForRoom waits until something left the queue, in the order of arrival. It
// is called, and returns, with the mutex held.
func (j *joiner) waitForRoom(ctx context.Context) error {
	woken := make(chan struct{})
	j.waiting = append(j.waiting, woken)
	j.mu.Unlock()
	var err error
	select {
	case <-woken:
	case <-ctx.Done():
		err = ctx.Err()
	}
	j.mu.Lock()
	if err == nil {
		return nil
	}
	for i, w := range j.waiting {
		if w == woken {
			j.waiting = append(j.waiting[:i], j.waiting[i+1:]...)
			return err
		}
	}
	// It was woken all the same: the next one may have the room.
	j.wake()
	return err
}

// wake lets the first of those who wait for room look again.
func (j *joiner) wake() {
	if len(j.waiting) > 0 {
		close(j.waiting[0])
		j.waiting = j.waiting[1:]
	}
}

// wait gives the outcome of a queued request. A caller whose context ends takes
// it out of the queue; once it has left, he waits for the outcome a while
// longer, as [SQLStorage.write] does.
func (j *joiner) wait(r *request) (inDoubt bool, err error) {
	select {
	case <-r.done:
		return r.inDoubt, r.err
	case <-r.ctx.Done():
	}
	switch j.leave(r) {
	case withdrawn:
		return false, r.ctx.Err()
	case sentAlone:
		<-r.done
		return r.inDoubt, r.err
	default:
	}
	patience := time.NewTimer(max(0, j.s.options.grace))
	defer patience.Stop()
	select {
	case <-r.done:
		return r.inDoubt, r.err
	case <-patience.C:
		r.left = true
		return true, r.ctx.Err()
	}
}

// leave is for a caller whose context ended. A joined write is cut short when
// half of the time is over for which he still waits, to find out by a repetition
// what became of it.
func (j *joiner) leave(r *request) place {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.place == queued {
		r.place = withdrawn
		for i, q := range j.queue {
			if q == r {
				j.queue = append(j.queue[:i], j.queue[i+1:]...)
				j.unqueued(r)
				break
			}
		}
		j.rest()
		return withdrawn
	}
	r.gone = time.Now()
	f := r.flight
	if r.place != sentJoined || f.cut == nil {
		return r.place
	}
	attempt, after := f.attempt, j.s.options.grace/2
	if after <= 0 {
		// He does not wait, the others may still.
		after = attemptFor
	}
	time.AfterFunc(after, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if f.attempt == attempt && f.cut != nil {
			f.cut()
		}
	})
	return r.place
}

func (j *joiner) unqueued(r *request) {
	j.rows -= r.rows
	j.size -= r.size
	j.wake()
}

// free reports whether one more write is worthwhile.
func (j *joiner) free(now time.Time) bool {
	limit, busy := j.pace.limit(j.rows), 0
	for _, f := range j.flights {
		if now.Sub(f.began) < stalled {
			busy++
		}
	}
	return busy < limit && len(j.flights) < j.pace.most
}

func (j *joiner) launch(now time.Time) *flight {
	f := &flight{began: now}
	j.flights = append(j.flights, f)
	return f
}

// landed ends a flight, and lets those that are queued follow.
func (j *joiner) landed(f *flight, ok bool) {
	if next, joined := j.land(f, ok); next != nil {
		go j.fly(next, joined)
	}
}

// fly makes a joined write, and then what queued meanwhile.
func (j *joiner) fly(f *flight, joined []*request) {
	for f != nil {
		f, joined = j.land(f, j.settle(f, joined))
	}
}

// land ends a flight and gives the next one, if there is any: to make it is the
// caller's.
func (j *joiner) land(f *flight, ok bool) (next *flight, joined []*request) {
	now := time.Now()
	if ok {
		j.pace.took(now.Sub(f.began))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, other := range j.flights {
		if other == f {
			j.flights = append(j.flights[:i], j.flights[i+1:]...)
			break
		}
	}
	next, joined = j.depart(now)
	j.dispatch(now)
	j.rest()
	return next, joined
}

// dispatch sends what is queued on its way, as far as that is worthwhile.
func (j *joiner) dispatch(now time.Time) {
	for {
		f, joined := j.depart(now)
		if f == nil {
			return
		}
		go j.fly(f, joined)
	}
}

// depart takes from the queue what is to be written next, if that is worthwhile.
func (j *joiner) depart(now time.Time) (f *flight, joined []*request) {
	if len(j.queue) == 0 || !j.free(now) {
		return nil, nil
	}
	f, joined = j.launch(now), j.take()
	for _, r := range joined {
		r.flight, r.place = f, sentJoined
		if len(joined) == 1 {
			r.place = sentAlone
		}
	}
	return f, joined
}

// take takes from the queue the next requests that fit into one write: with
// the first those of its kind, if kinds do not mix, so that neither waits for
// long behind the other.
func (j *joiner) take() []*request {
	adds := j.queue[0].isAdd()
	joined := make([]*request, 0, len(j.queue))
	rest := j.queue[:0]
	rows, size, limit, full := 0, 0, j.s.insertBytes(), false
	for _, r := range j.queue {
		switch {
		case !j.mixes && r.isAdd() != adds:
			rest = append(rest, r)
			continue
		case full, len(joined) > 0 && (r.alone || rows+r.rows > j.most || size+r.size > limit):
			// What is behind it must not overtake it.
			full = true
			rest = append(rest, r)
			continue
		}
		joined = append(joined, r)
		rows += r.rows
		size += r.size
		full = r.alone
	}
	clear(j.queue[len(rest):])
	j.queue = rest
	for _, r := range joined {
		j.unqueued(r)
	}
	return joined
}

// watch looks, while something is queued, for writes that are stalled: nobody
// may come and nothing be answered for a while.
func (j *joiner) watch() {
	if j.watched {
		return
	}
	j.watched = true
	time.AfterFunc(stalled, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.watched = false
		j.dispatch(time.Now())
		if len(j.queue) > 0 {
			j.watch()
		}
	})
}

// rest tells Close when there is nothing left to wait for.
func (j *joiner) rest() {
	if j.idle != nil && len(j.queue) == 0 && len(j.flights) == 0 {
		close(j.idle)
		j.idle = nil
	}
}

// close refuses what comes from now on and gives back what closes when all
// that was queued has been written.
func (j *joiner) close() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	for len(j.waiting) > 0 {
		j.wake()
	}
	if j.idle == nil {
		j.idle = make(chan struct{})
	}
	idle := j.idle
	j.rest()
	return idle
}
