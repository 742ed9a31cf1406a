package groupcommit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrClosed is returned for requests after Close.
var ErrClosed = errors.New("closed")

const (
	// stalled is the age at which an unanswered write no longer holds up the others, and
	// mostStalled the maximum number of such writes.
	stalled     = 250 * time.Millisecond
	mostStalled = 4
)

// Options configure a [Queue].
type Options struct {
	Retry
	// MaxRows and MaxBytes bound a shared write.
	MaxRows, MaxBytes int
	// Mixed lets writes of different kinds share a write.
	Mixed bool
	// MinInFlight and MaxInFlight bound the number of writes in flight. Between them the round
	// trip decides, see Ping.
	MinInFlight, MaxInFlight int
	// Conns is the number of connections.
	Conns int
	// Ping measures the round trip to the database a few times.
	Ping func(ctx context.Context, took func(time.Duration))
}

// Request is the write of one caller. The caller makes it, passes it to [Queue.Do], and may
// read it again after Do has returned the outcome.
type Request[T any] struct {
	// Body is the content of the write.
	Body T
	// Kind separates requests that must not share a write, unless Mixed is set.
	Kind uint8
	// Rows and Bytes are its size.
	Rows, Bytes int
	// Alone is set if it is too large to share a write.
	Alone bool
	// For and Until bound the repetitions of an unanswered write: for For from the call of Do,
	// and at least until Until.
	For   time.Duration
	Until time.Time
	// End is the resulting time, set by Do.
	End time.Time

	ctx context.Context

	// The queue's mutex guards these:
	state  state
	flight *flight

	// inDoubt and err are the outcome of a queued request once done is signalled. With alone,
	// its caller continues with a write of its own.
	inDoubt, alone bool
	err            error
	done           chan struct{}
}

// state is the progress of a request.
type state uint8

const (
	queued state = iota
	// withdrawn means that its caller took it back before it was sent.
	withdrawn
	// sentAlone means that its write ends with its caller's context.
	sentAlone
	// sentShared means that others share its write, which ends with theirs.
	sentShared
)

// flight is a write in flight.
type flight struct {
	began time.Time
	// ctx is the context of a shared write, and cut ends it.
	ctx context.Context
	cut context.CancelFunc
}

// Queue makes concurrent callers share writes. It is safe for concurrent use.
type Queue[T any] struct {
	Options
	// write makes one write of the whole group, or of none of it. again means that an earlier
	// attempt may have been applied.
	write func(ctx context.Context, group []*Request[T], again bool) error
	limit *limit

	// base ends after Close has waited for long enough.
	base context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	queue   []*Request[T]
	rows    int // in the queue
	flights []*flight
	watched bool      // a timer looks for stalled writes
	measure time.Time // when to measure the round trip again

	work, pings sync.WaitGroup // work counts callers and flights
}

// New returns a queue in front of write.
func New[T any](o Options, write func(ctx context.Context, group []*Request[T], again bool) error) *Queue[T] {
	q := &Queue[T]{Options: o, write: write, limit: newLimit(&o)}
	q.base, q.stop = context.WithCancel(context.Background())
	return q
}

// Do writes r, alone or with others. inDoubt means that the outcome is unknown. Otherwise a
// non-nil err means that r was not written, and never will be.
func (q *Queue[T]) Do(ctx context.Context, r *Request[T]) (inDoubt bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	r.ctx = ctx
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false, ErrClosed
	}
	q.work.Add(1)
	defer q.work.Done()
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
					q.work.Go(func() { q.fly(next, group) })
				}
			}()
			inDoubt, err := q.alone(r)
			answered = err == nil
			return inDoubt, err
		}
	}
	r.done = make(chan struct{}, 1)
	q.queue = append(q.queue, r)
	q.rows += r.Rows
	q.watch()
	if q.rows >= crowd {
		q.dispatch(now)
	}
	q.measureTrip(now)
	q.mu.Unlock()
	return q.wait(r)
}

// measureTrip measures the round trip outside of calls after a caller had to queue. It skips
// the measurement if the last one is recent, or if the result would decide nothing.
func (q *Queue[T]) measureTrip(now time.Time) {
	if q.limit.min == q.limit.max || now.Before(q.measure) {
		return
	}
	q.measure = now.Add(measureEvery)
	q.pings.Go(func() {
		ctx, cancel := context.WithTimeout(q.base, pingFor)
		defer cancel()
		q.Ping(ctx, func(d time.Duration) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.limit.trip.saw(d, time.Now())
		})
	})
}

// alone makes a write of r only.
func (q *Queue[T]) alone(r *Request[T]) (inDoubt bool, err error) {
	group := []*Request[T]{r}
	return q.Retry.Do(r.ctx, r.End, func(ctx context.Context, again bool) error { return q.write(ctx, group, again) })
}

// wait returns the outcome of a queued request. A caller whose context ends takes it out of
// the queue. If the request has already left, the caller waits for the outcome a while
// longer, as [Retry.Do] does. After a failed or unanswered shared write, each caller
// continues alone.
func (q *Queue[T]) wait(r *Request[T]) (inDoubt bool, err error) {
	grace := q.Grace
	select {
	case <-r.done:
	case <-r.ctx.Done():
		ended := time.Now()
		switch q.leave(r) {
		case withdrawn:
			return false, r.ctx.Err()
		case sentAlone:
			<-r.done
		default:
			patience := time.NewTimer(max(0, grace))
			defer patience.Stop()
			select {
			case <-r.done:
			case <-patience.C:
				return true, r.ctx.Err()
			}
		}
		grace -= time.Since(ended)
	}
	switch {
	case !r.alone:
		return r.inDoubt, r.err
	case r.inDoubt:
		group := []*Request[T]{r}
		return q.untilKnown(r.ctx, r.End, grace, r.err, func(ctx context.Context, again bool) error { return q.write(ctx, group, again) })
	default:
		return q.alone(r)
	}
}

// leave handles the end of a caller's context. It cuts a shared write short after half of
// the time that the caller still waits, so that a repetition can find out the outcome.
func (q *Queue[T]) leave(r *Request[T]) state {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch r.state {
	case queued:
		r.state = withdrawn
		q.queue = slices.DeleteFunc(q.queue, func(other *Request[T]) bool { return other == r })
		q.rows -= r.Rows
	case sentShared:
		after := q.Grace / 2
		if after <= 0 {
			// This caller does not wait, but the others may.
			after = attemptFor
		}
		time.AfterFunc(after, r.flight.cut)
	default:
	}
	return r.state
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

// land ends a flight and returns the next one, if any, for the caller to make.
func (q *Queue[T]) land(f *flight, ok bool) (next *flight, group []*Request[T]) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if ok && q.limit.min < q.limit.max {
		q.limit.write.saw(now.Sub(f.began), now)
	}
	q.flights = slices.DeleteFunc(q.flights, func(other *flight) bool { return other == f })
	if len(q.queue) > 0 {
		next, group = q.depart(now)
		q.dispatch(now)
	}
	return next, group
}

// Close rejects new writes and waits at most d for the queued ones.
func (q *Queue[T]) Close(d time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		q.work.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-time.After(d):
	}
	q.stop()
	q.pings.Wait()
}

// fly writes a group, and then the requests that have queued in the meantime.
func (q *Queue[T]) fly(f *flight, group []*Request[T]) {
	for f != nil {
		f, group = q.land(f, q.commit(f, group))
	}
}

// dispatch sends off the queued requests, as far as worthwhile.
func (q *Queue[T]) dispatch(now time.Time) {
	for len(q.queue) > 0 {
		f, group := q.depart(now)
		if f == nil {
			return
		}
		q.work.Go(func() { q.fly(f, group) })
	}
}

// depart takes the next group from the queue, if another write is worthwhile.
func (q *Queue[T]) depart(now time.Time) (f *flight, group []*Request[T]) {
	if f = q.launch(now); f == nil {
		return nil, nil
	}
	group = q.take()
	if len(group) == 1 {
		group[0].state = sentAlone
		return f, group
	}
	f.ctx, f.cut = context.WithCancel(q.base)
	for _, r := range group {
		r.flight, r.state = f, sentShared
	}
	return f, group
}

// take removes the next requests that fit into one write from the queue. If kinds do not
// mix, it takes only the first request's kind, so that neither kind waits for long.
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
			// Later requests must not overtake it.
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
		q.rows -= r.Rows
	}
	return group
}

// watch looks for stalled writes while requests are queued: for a while there may be no new
// caller and no answer.
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

// finish reports the outcome to a queued caller. The request then belongs to the caller
// again; do not use it any more.
func (r *Request[T]) finish(inDoubt, alone bool, err error) {
	r.inDoubt, r.alone, r.err = inDoubt, alone, err
	r.done <- struct{}{}
}

// over reports whether its caller's context has ended.
func (r *Request[T]) over() bool { return r.ctx.Err() != nil }

// commit makes one write of the group and reports the outcome to each caller. If the
// database rejects the write, the callers continue alone, so that the request at fault fails
// on its own. ok means that the first attempt was answered.
func (q *Queue[T]) commit(f *flight, group []*Request[T]) (ok bool) {
	if len(group) == 1 {
		inDoubt, err := q.alone(group[0])
		group[0].finish(inDoubt, false, err)
		return err == nil
	}
	defer f.cut()
	var end time.Time
	group = slices.DeleteFunc(group, func(r *Request[T]) bool {
		if r.over() { // its caller has left: do not write it
			r.finish(false, false, r.ctx.Err())
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
	ctx, cancel := context.WithDeadline(f.ctx, end)
	defer cancel()
	err := q.Attempt(ctx, func(ctx context.Context) error { return q.write(ctx, group, false) })
	inDoubt := err != nil && !q.Definite(err)
	// It may have been cut short for callers that left.
	short := ctx.Err() != nil && slices.ContainsFunc(group, (*Request[T]).over)
	alone := err != nil && (inDoubt || short || q.Refused(err))
	for _, r := range group {
		r.finish(inDoubt, alone, err)
	}
	return err == nil
}

// State is a snapshot of a queue.
type State struct {
	// Queued counts the queued writes by kind. Limit is the worthwhile number of writes in
	// flight.
	Queued map[uint8]int
	Limit  int
	// RoundTrip is the measured round trip; 0 while unknown.
	RoundTrip time.Duration
	Closed    bool
}

// State returns a snapshot of the queue.
func (q *Queue[T]) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	queued := map[uint8]int{}
	for _, r := range q.queue {
		queued[r.Kind]++
	}
	return State{queued, q.limit.of(0), q.limit.trip.least, q.closed}
}

// Hold takes the place of a write in flight until release is called. With one write at a
// time, everything then queues and leaves together. It is for tests.
func (q *Queue[T]) Hold() (release func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &flight{began: time.Now().Add(time.Hour)}
	q.flights = append(q.flights, f)
	q.work.Add(1)
	return func() {
		defer q.work.Done()
		if next, group := q.land(f, false); next != nil {
			q.work.Go(func() { q.fly(next, group) })
		}
	}
}
