package groupcommit

import (
	"context"
	"slices"
	"time"
)

// fly writes a group, and then what has queued meanwhile.
func (q *Queue[W]) fly(f *flight, group []W) {
	for f != nil {
		f, group = q.land(f, q.commit(f, group))
	}
}

// dispatch sends off what is queued, as far as that is worthwhile.
func (q *Queue[W]) dispatch(now time.Time) {
	for len(q.queue) > 0 {
		f, group := q.depart(now)
		if f == nil {
			return
		}
		go q.fly(f, group)
	}
}

// depart takes from the queue what is to be written next, if that is worthwhile.
func (q *Queue[W]) depart(now time.Time) (f *flight, group []W) {
	if !q.free(now) {
		return nil, nil
	}
	f, group = q.launch(now), q.take()
	for _, w := range group {
		t := w.ticket()
		t.flight, t.state = f, sentShared
		if len(group) == 1 {
			t.state = sentAlone
		}
	}
	return f, group
}

// take takes from the queue the next tickets that fit into one write. If kinds do
// not mix it takes those of the first one's kind, so that neither kind waits for
// long behind the other.
func (q *Queue[W]) take() []W {
	kind := q.queue[0].ticket().Kind
	group := make([]W, 0, len(q.queue))
	rest := q.queue[:0]
	rows, bytes, full := 0, 0, false
	for _, w := range q.queue {
		t := w.ticket()
		switch {
		case !q.Mixed && t.Kind != kind:
			rest = append(rest, w)
			continue
		case full, len(group) > 0 && (t.Alone || rows+t.Rows > q.MaxRows || bytes+t.Bytes > q.MaxBytes):
			// What is behind it must not overtake it.
			full = true
			rest = append(rest, w)
			continue
		}
		group = append(group, w)
		rows += t.Rows
		bytes += t.Bytes
		full = t.Alone
	}
	clear(q.queue[len(rest):])
	q.queue = rest
	for _, w := range group {
		q.unqueued(w.ticket())
	}
	return group
}

// watch looks for stalled writes while something is queued: for a while nobody
// may come and nothing may be answered.
func (q *Queue[W]) watch() {
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
// ticket is the caller's again, and must not be looked at any more.
func (t *Ticket) finish(inDoubt bool, err error) {
	t.inDoubt, t.err = inDoubt, err
	t.done <- struct{}{}
}

// over reports whether its caller's context has ended.
func over[W Write](w W) bool { return w.ticket().ctx.Err() != nil }

// commit makes one write of the group and gives each caller its outcome. A write
// that the database refused is made again in halves, so that the one at fault
// fails by itself. ok means that the first attempt was answered.
func (q *Queue[W]) commit(f *flight, group []W) (ok bool) {
	if len(group) == 1 {
		q.lead(f, group, nil)
		inDoubt, err := q.alone(group[0])
		group[0].ticket().finish(inDoubt, err)
		return err == nil
	}
	group = present(group)
	if len(group) == 0 {
		return false
	}
	now, end := time.Now(), time.Time{}
	for _, w := range group {
		t := w.ticket()
		if t.end = w.Leaves(now); t.end.After(end) {
			end = t.end
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
		for _, w := range group {
			w.ticket().finish(false, nil)
		}
		return true
	case !q.Definite(err):
		q.repeat(group, err)
	case short && slices.ContainsFunc(group, over[W]):
		// It was cut short for those who left, and nothing was written.
		q.commit(f, group)
	case len(group) > 1 && q.Refused(err):
		half := len(group) / 2
		q.commit(f, group[:half])
		q.commit(f, group[half:])
	default:
		for _, w := range group {
			w.ticket().finish(false, err)
		}
	}
	return false
}

// present leaves out tickets that nobody waits for: they are not written.
func present[W Write](group []W) []W {
	there := make([]W, 0, len(group))
	for _, w := range group {
		if t := w.ticket(); over(w) {
			t.finish(false, t.ctx.Err())
			continue
		}
		there = append(there, w)
	}
	return there
}

// lead notes that an attempt is under way, and how to cut it short; nil means
// that it must not be.
func (q *Queue[W]) lead(f *flight, group []W, cut context.CancelFunc) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f.cut = cut
	f.attempt++
	if len(group) == 1 {
		group[0].ticket().state = sentAlone
	}
}

// repeat repeats a shared write without an answer until its outcome is known, for
// each caller as long as its own write would be repeated.
func (q *Queue[W]) repeat(group []W, cause error) {
	begun := time.Now()
	left := slices.Clone(group)
	together := true
	for try := 0; len(left) > 0; try++ {
		lasts := Pause(q.base, try)
		size := len(left)
		if !together {
			size = 1
		}
		var open []W
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
			for _, w := range portion {
				w.ticket().finish(false, nil)
			}
		}
		left = open
	}
}

// worthRepeating gives those of the group whose write may be repeated now, and
// until when. The others' outcome stays unknown.
func (q *Queue[W]) worthRepeating(group []W, begun time.Time, cause error, lasts bool) (open []W, until time.Time) {
	now := time.Now()
	until = now.Add(attemptFor)
	for _, w := range group {
		end := q.repeatedUntil(w.ticket(), begun)
		if !lasts || !now.Before(end) {
			w.ticket().finish(true, cause)
			continue
		}
		open = append(open, w)
		if end.Before(until) {
			until = end
		}
	}
	return open, until
}

// repeatedUntil is the time until which a caller's write is repeated, as in
// [Retry.Do].
func (q *Queue[W]) repeatedUntil(t *Ticket, begun time.Time) time.Time {
	end := t.end
	if _, bounded := t.ctx.Deadline(); !bounded && begun.Add(RepeatFor).Before(end) {
		end = begun.Add(RepeatFor)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.gone.IsZero() {
		return end
	}
	if late := t.gone.Add(max(0, q.Grace)); late.Before(end) {
		return late
	}
	return end
}
