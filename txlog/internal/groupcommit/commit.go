package groupcommit

import (
	"context"
	"slices"
	"time"
)

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
	group = present(group)
	if len(group) == 0 {
		return false
	}
	now, end := time.Now(), time.Time{}
	for _, r := range group {
		if r.leaves(now); r.End.After(end) {
			end = r.End
		}
	}
	ctx, cut := context.WithDeadline(q.base, end)
	q.lead(f, group, cut)
	err := q.Attempt(ctx, func(ctx context.Context, _ bool) error { return q.write(ctx, group, false) })
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

// present leaves out requests that nobody waits for: they are not written.
func present[T any](group []*Request[T]) []*Request[T] {
	there := make([]*Request[T], 0, len(group))
	for _, r := range group {
		if r.over() {
			r.finish(false, r.ctx.Err())
			continue
		}
		there = append(there, r)
	}
	return there
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
