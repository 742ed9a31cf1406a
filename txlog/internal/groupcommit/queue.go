package groupcommit

import (
	"context"
	"errors"
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
	// for For from when it left, and at least until Until.
	For   time.Duration
	Until time.Time
	// End is the time that For and Until amount to, counted from the last attempt
	// before which nothing can have been written.
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

// leaves sets End for an attempt that leaves now.
func (r *Request[T]) leaves(now time.Time) {
	if r.End = now.Add(r.For); r.End.Before(r.Until) {
		r.End = r.Until
	}
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

// New makes a queue. write makes one write of the whole group, or of none of it;
// again says that an earlier attempt may have been applied.
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
		if len(q.queue) == 0 {
			if f := q.launch(time.Now()); f != nil {
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

// alone makes a write for one caller, under its context.
func (q *Queue[T]) alone(r *Request[T]) (inDoubt bool, err error) {
	r.leaves(time.Now())
	group := []*Request[T]{r}
	return q.Retry.Do(r.ctx, r.End, func(ctx context.Context, again bool) error {
		return q.write(ctx, group, again)
	})
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
	for i, other := range q.waiting {
		if other == woken {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			return err
		}
	}
	// It was woken nevertheless: the next one may have the room.
	q.wake()
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
// find out what became of it.
func (q *Queue[T]) leave(r *Request[T]) state {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.state == queued {
		r.state = withdrawn
		for i, other := range q.queue {
			if other == r {
				q.queue = append(q.queue[:i], q.queue[i+1:]...)
				q.unqueued(r)
				break
			}
		}
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
	for i, other := range q.flights {
		if other == f {
			q.flights = append(q.flights[:i], q.flights[i+1:]...)
			break
		}
	}
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
