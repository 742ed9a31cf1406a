package groupcommit

import (
	"context"
	"slices"
	"time"
)

// finish tells the caller the outcome. If it waits for it, the ticket is its own
// again, and must not be looked at any more.
func (t *Ticket) finish(inDoubt bool, err error) {
	t.inDoubt, t.err = inDoubt, err
	if t.done != nil {
		t.done <- struct{}{}
	}
}

// over reports whether its caller's context has ended.
func over[W Write](w W) bool { return w.ticket().ctx.Err() != nil }

// alone makes a write for one caller, under its context.
func (q *Queue[W]) alone(w W) (ok bool) {
	t := w.ticket()
	t.end = w.Leaves(time.Now())
	group := []W{w}
	inDoubt, err := q.Retry.Do(t.ctx, t.end, func(ctx context.Context, again bool) error {
		return q.write(ctx, group, again)
	})
	t.finish(inDoubt, err)
	return err == nil
}

// commit makes one write of the group and gives each caller its outcome. A write
// that the database refused is made again in halves, so that who is at fault
// fails by itself. ok means that the first attempt was answered.
func (q *Queue[W]) commit(f *flight, group []W) (ok bool) {
	if len(group) == 1 {
		q.lead(f, group, nil)
		return q.alone(group[0])
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
		// It was cut short for those who left, with nothing written.
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

// present leaves out the tickets that nobody waits for: they are not written.
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

// repeat repeats a shared write without an answer until its outcome is known,
// for each caller for as long as its own write would be.
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
				// What the database refuses of one must not keep it from
				// taking the others.
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

// repeatedUntil is until when a caller's write is repeated, as in [Retry.Do].
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
