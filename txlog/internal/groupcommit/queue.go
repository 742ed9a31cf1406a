package groupcommit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrClosed is returned for what comes after Close.
var ErrClosed = errors.New("closed")

const (
	// stalled is after how long a write without an answer no longer keeps the
	// others waiting, and mostStalled is how many such writes there may be.
	stalled     = 250 * time.Millisecond
	mostStalled = 4
)

// Options configure a [Queue].
type Options struct {
	Retry
	// MaxRows and MaxBytes bound what shares a write.
	MaxRows, MaxBytes int
	// QueueRows and QueueBytes bound what waits to be written; beyond them
	// callers wait before they queue. One that is larger queues alone.
	QueueRows, QueueBytes int
	// Mixed: writes of different kinds share a write.
	Mixed bool
	// MinInFlight and MaxInFlight bound how many writes are in flight at a time.
	// Between them the round trip decides, see Ping.
	MinInFlight, MaxInFlight int
	// Conns is how many connections there are.
	Conns int
	// Ping measures the round trip to the database a few times.
	Ping func(ctx context.Context, took func(time.Duration))
}

// Request is what one caller wants written. The caller makes it, gives it to
// [Queue.Do], and reads it again when that has told the outcome.
type Request[T any] struct {
	// Body is what is written.
	Body T
	// Kind distinguishes requests that do not share a write, unless they mix.
	Kind uint8
	// Rows and Bytes are how large it is.
	Rows, Bytes int
	// Alone: it is too large to share a write.
	Alone bool
	// For and Until say how long a write without an answer is worth repeating:
	// for For from when it left or queued, and at least until Until.
	For   time.Duration
	Until time.Time
	// End is the time that For and Until amount to, set by Do.
	End time.Time

	ctx context.Context

	// Under the queue's mutex.
	state  state
	flight *flight
	gone   time.Time // when its caller's context was seen to have ended

	// inDoubt and err are the outcome of a queued request, once done is signalled.
	inDoubt bool
	err     error
	done    chan struct{}
}

// state is where a request is.
type state uint8

const (
	queued state = iota
	// withdrawn: its caller took it back before anything was sent.
	withdrawn
	// sentAlone: its write ends with its caller's context.
	sentAlone
	// sentShared: others share its write, which ends with theirs.
	sentShared
)

// flight is a write in flight.
type flight struct {
	began time.Time
	// cut ends the attempt under way, the n-th, if that may be done.
	cut     context.CancelFunc
	attempt int
}

// Queue makes concurrent callers share writes. It is safe for concurrent use.
type Queue[T any] struct {
	Options
	// write makes one write of the whole group, or of none of it. again says that
	// an earlier attempt may have been applied.
	write func(ctx context.Context, group []*Request[T], again bool) error
	limit *limit

	// base ends when Close has waited for long enough.
	base context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	queue   []*Request[T]
	rows    int // in the queue
	bytes   int
	waiting []chan struct{} // callers for whom the queue has no room
	flights []*flight
	watched bool          // a timer looks for stalled writes
	idle    chan struct{} // not nil while Close waits; closed when nothing is left
}

// New makes a queue of what write writes.
func New[T any](o Options, write func(ctx context.Context, group []*Request[T], again bool) error) *Queue[T] {
	q := &Queue[T]{Options: o, write: write, limit: newLimit(&o)}
	q.base, q.stop = context.WithCancel(context.Background())
	return q
}

// Do writes r, alone or with others. inDoubt means that it is not known whether it was; else err
// is why it was not, and never will be.
func (q *Queue[T]) Do(ctx context.Context, r *Request[T]) (inDoubt bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r.ctx = ctx
	q.mu.Lock()
	for {
		if q.closed {
			q.mu.Unlock()
			return false, ErrClosed
		}
		now := time.Now()
		if r.End = now.Add(r.For); r.End.Before(r.Until) {
			r.End = r.Until
		}
		if len(q.queue) == 0 {
			if f := q.launch(now); f != nil {
				r.state = sentAlone
				q.mu.Unlock()
				answered := false
				defer func() { // also after a panic
					if next, group := q.land(f, answered); next != nil {
						go q.fly(next, group)
					}
				}()
				inDoubt, err := q.alone(r)
				answered = err == nil
				return inDoubt, err
			}
			break
		}
		if q.rows+r.Rows <= q.QueueRows && q.bytes+r.Bytes <= q.QueueBytes {
			break
		}
		if err := q.waitForRoom(ctx); err != nil {
			q.mu.Unlock()
			return false, err
		}
	}
	r.done = make(chan struct{}, 1)
	q.queue = append(q.queue, r)
	q.rows += r.Rows
	q.bytes += r.Bytes
	q.watch()
	if q.rows >= crowd {
		q.dispatch(time.Now())
	}
	q.mu.Unlock()
	q.limit.contended()
	return q.wait(r)
}

// alone makes a write of r only.
func (q *Queue[T]) alone(r *Request[T]) (inDoubt bool, err error) {
	group := []*Request[T]{r}
	return q.Retry.Do(r.ctx, r.End, func(ctx context.Context, again bool) error { return q.write(ctx, group, again) })
}

// waitForRoom waits until something has left the queue, in the order of arrival.
// It is called, and returns, with the mutex held.
func (q *Queue[T]) waitForRoom(ctx context.Context) error {
	woken := make(chan struct{})
	q.waiting = append(q.waiting, woken)
	q.mu.Unlock()
	var err error
	select {
	case <-woken:
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.mu.Lock()
	if err == nil {
		return nil
	}
	if i := slices.Index(q.waiting, woken); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	} else { // it was woken nevertheless: the next one may have the room
		q.wake()
	}
	return err
}

// wake lets the first caller that waits for room look again.
func (q *Queue[T]) wake() {
	if len(q.waiting) > 0 {
		close(q.waiting[0])
		q.waiting = q.waiting[1:]
	}
}

// wait gives the outcome of a queued request. A caller whose context ends takes
// it out of the queue; once it has left, the caller waits for the outcome a
// while longer, as [Retry.Do] does.
func (q *Queue[T]) wait(r *Request[T]) (inDoubt bool, err error) {
	select {
	case <-r.done:
		return r.inDoubt, r.err
	case <-r.ctx.Done():
	}
	switch q.leave(r) {
	case withdrawn:
		return false, r.ctx.Err()
	case sentAlone:
		<-r.done
		return r.inDoubt, r.err
	default:
	}
	patience := time.NewTimer(max(0, q.Grace))
	defer patience.Stop()
	select {
	case <-r.done:
		return r.inDoubt, r.err
	case <-patience.C:
		return true, r.ctx.Err()
	}
}

// leave is for a caller whose context ended. A shared write is cut short when
// half of the time that the caller still waits is over, so that a repetition can
// find out what happened to it.
func (q *Queue[T]) leave(r *Request[T]) state {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.state == queued {
		r.state = withdrawn
		q.queue = slices.DeleteFunc(q.queue, func(other *Request[T]) bool { return other == r })
		q.unqueued(r)
		q.rest()
		return withdrawn
	}
	r.gone = time.Now()
	f := r.flight
	if r.state != sentShared || f.cut == nil {
		return r.state
	}
	attempt, after := f.attempt, q.Grace/2
	if after <= 0 {
		// This caller does not wait, the others may still.
		after = attemptFor
	}
	time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if f.attempt == attempt && f.cut != nil {
			f.cut()
		}
	})
	return r.state
}

func (q *Queue[T]) unqueued(r *Request[T]) {
	q.rows -= r.Rows
	q.bytes -= r.Bytes
	q.wake()
}

// launch begins a flight; nil if one more write is not worthwhile.
func (q *Queue[T]) launch(now time.Time) *flight {
	busy := 0
	for _, f := range q.flights {
		if now.Sub(f.began) < stalled {
			busy++
		}
	}
	if busy >= q.limit.of(q.rows) || len(q.flights) >= q.limit.most {
		return nil
	}
	f := &flight{began: now}
	q.flights = append(q.flights, f)
	return f
}

// land ends a flight and gives the next one, if there is any, for the caller to
// make.
func (q *Queue[T]) land(f *flight, ok bool) (next *flight, group []*Request[T]) {
	now := time.Now()
	if ok {
		q.limit.write.saw(now.Sub(f.began), now)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flights = slices.DeleteFunc(q.flights, func(other *flight) bool { return other == f })
	if len(q.queue) > 0 {
		next, group = q.depart(now)
		q.dispatch(now)
	}
	q.rest()
	return next, group
}

// rest tells Close when nothing is left to wait for.
func (q *Queue[T]) rest() {
	if q.idle != nil && len(q.queue) == 0 && len(q.flights) == 0 {
		close(q.idle)
		q.idle = nil
	}
}

// Close refuses new writes and waits until all that was queued has been written,
// but no longer than d.
func (q *Queue[T]) Close(d time.Duration) {
	q.mu.Lock()
	q.closed = true
	for len(q.waiting) > 0 {
		q.wake()
	}
	idle := make(chan struct{})
	q.idle = idle
	q.rest()
	q.mu.Unlock()
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
	q.stop()
	q.limit.pings.close()
}

// fly writes a group, and then what has queued meanwhile.
func (q *Queue[T]) fly(f *flight, group []*Request[T]) {
	for f != nil {
		f, group = q.land(f, q.commit(f, group))
	}
}

// dispatch sends off what is queued, as far as that is worthwhile.
func (q *Queue[T]) dispatch(now time.Time) {
	for len(q.queue) > 0 {
		f, group := q.depart(now)
		if f == nil {
			return
		}
		go q.fly(f, group)
	}
}

// depart takes from the queue what is to be written next, if that is worthwhile.
func (q *Queue[T]) depart(now time.Time) (f *flight, group []*Request[T]) {
	if f = q.launch(now); f == nil {
		return nil, nil
	}
	group = q.take()
	for _, r := range group {
		r.flight, r.state = f, sentShared
		if len(group) == 1 {
			r.state = sentAlone
		}
	}
	return f, group
}

// take takes from the queue the next requests that fit into one write. If kinds do
// not mix it takes those of the first one's kind, so that neither kind waits for
// long after the other.
func (q *Queue[T]) take() []*Request[T] {
	kind := q.queue[0].Kind
	group := make([]*Request[T], 0, len(q.queue))
	rest := q.queue[:0]
	rows, bytes, full := 0, 0, false
	for _, r := range q.queue {
		switch {
		case !q.Mixed && r.Kind != kind:
			rest = append(rest, r)
			continue
		case full, len(group) > 0 && (r.Alone || rows+r.Rows > q.MaxRows || bytes+r.Bytes > q.MaxBytes):
			// What comes after it must not overtake it.
			full = true
			rest = append(rest, r)
			continue
		}
		group = append(group, r)
		rows += r.Rows
		bytes += r.Bytes
		full = r.Alone
	}
	clear(q.queue[len(rest):])
	q.queue = rest
	for _, r := range group {
		q.unqueued(r)
	}
	return group
}

// watch looks for stalled writes while something is queued: for a while nobody
// may come and nothing may be answered.
func (q *Queue[T]) watch() {
	if q.watched {
		return
	}
	q.watched = true
	time.AfterFunc(stalled, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.watched = false
		q.dispatch(time.Now())
		if len(q.queue) > 0 {
			q.watch()
		}
	})
}

// finish tells a caller that queued the outcome. If the caller waits for it, the
// request is the caller's again, and must not be looked at any more.
func (r *Request[T]) finish(inDoubt bool, err error) {
	r.inDoubt, r.err = inDoubt, err
	r.done <- struct{}{}
}

// over reports whether its caller's context has ended.
func (r *Request[T]) over() bool { return r.ctx.Err() != nil }

// commit makes one write of the group and gives each caller its outcome. A write
// that the database refused is made again in halves, so that the one at fault
// fails on its own. ok means that the first attempt was answered.
func (q *Queue[T]) commit(f *flight, group []*Request[T]) (ok bool) {
	if len(group) == 1 {
		q.lead(f, group, nil)
		inDoubt, err := q.alone(group[0])
		group[0].finish(inDoubt, err)
		return err == nil
	}
	var end time.Time
	group = slices.DeleteFunc(group, func(r *Request[T]) bool {
		if r.over() { // nobody waits for it: it is not written
			r.finish(false, r.ctx.Err())
			return true
		}
		if r.End.After(end) {
			end = r.End
		}
		return false
	})
	if len(group) == 0 {
		return false
	}
	ctx, cut := context.WithDeadline(q.base, end)
	q.lead(f, group, cut)
	err := q.Attempt(ctx, func(ctx context.Context) error { return q.write(ctx, group, false) })
	q.lead(f, group, nil)
	short := ctx.Err() != nil
	cut()
	switch {
	case err == nil:
		for _, r := range group {
			r.finish(false, nil)
		}
		return true
	case !q.Definite(err):
		q.repeat(group, err)
	case short && slices.ContainsFunc(group, (*Request[T]).over):
		// It was cut short for those who left, and nothing was written.
		q.commit(f, group)
	case len(group) > 1 && q.Refused(err):
		half := len(group) / 2
		q.commit(f, group[:half])
		q.commit(f, group[half:])
	default:
		for _, r := range group {
			r.finish(false, err)
		}
	}
	return false
}

// lead notes that an attempt is under way, and how to cut it short; nil means
// that it must not be.
func (q *Queue[T]) lead(f *flight, group []*Request[T], cut context.CancelFunc) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.cut = cut
	f.attempt++
	if len(group) == 1 {
		group[0].state = sentAlone
	}
}

// repeat repeats a shared write without an answer until its outcome is known, for
// each caller as long as its own write would be repeated.
func (q *Queue[T]) repeat(group []*Request[T], cause error) {
	begun := time.Now()
	left := slices.Clone(group)
	together := true
	for try := 0; len(left) > 0; try++ {
		lasts := Pause(q.base, try)
		size := len(left)
		if !together {
			size = 1
		}
		var open []*Request[T]
		for portion := range slices.Chunk(left, size) {
			portion, until := q.worthRepeating(portion, begun, cause, lasts)
			if len(portion) == 0 {
				continue
			}
			ctx, cancel := context.WithDeadline(q.base, until)
			err := q.write(ctx, portion, true)
			cancel()
			if err != nil {
				open = append(open, portion...)
				// If the database refuses one, it must still take the others.
				together = together && !q.Refused(err)
				continue
			}
			for _, r := range portion {
				r.finish(false, nil)
			}
		}
		left = open
	}
}

// worthRepeating gives those of the group whose write may be repeated now, and
// until when. The others' outcome stays unknown.
func (q *Queue[T]) worthRepeating(group []*Request[T], begun time.Time, cause error, lasts bool) (open []*Request[T], until time.Time) {
	now := time.Now()
	until = now.Add(attemptFor)
	for _, r := range group {
		end := q.repeatedUntil(r, begun)
		if !lasts || !now.Before(end) {
			r.finish(true, cause)
			continue
		}
		open = append(open, r)
		if end.Before(until) {
			until = end
		}
	}
	return open, until
}

// repeatedUntil is the time until which a caller's write is repeated, as in
// [Retry.Do].
func (q *Queue[T]) repeatedUntil(r *Request[T], begun time.Time) time.Time {
	end := r.End
	if _, bounded := r.ctx.Deadline(); !bounded && begun.Add(RepeatFor).Before(end) {
		end = begun.Add(RepeatFor)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.gone.IsZero() {
		return end
	}
	if late := r.gone.Add(max(0, q.Grace)); late.Before(end) {
		return late
	}
	return end
}

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
