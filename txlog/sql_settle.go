package txlog

import (
	"context"
	"slices"
	"time"
)

// finish tells the caller the outcome. If he waits for it, the request is his
// again, and must not be looked at any more.
func (r *request) finish(inDoubt bool, err error) {
	r.inDoubt, r.err = inDoubt, err
	if r.done != nil {
		r.done <- struct{}{}
	}
}

// leaves notes the time at which an attempt leaves, before which nothing of the
// request can have been written. The log counts the lease from the moment at
// which it is.
func (r *request) leaves(now time.Time) {
	if r.isAdd() {
		r.deadline = now.Add(r.lease)
		r.end = r.deadline
		return
	}
	r.end = ownersEnd(r.holds, now)
}

// over reports whether its caller's context has ended.
func (r *request) over() bool { return r.ctx.Err() != nil }

// alone makes a write for one caller, under his context.
func (j *joiner) alone(r *request) (ok bool) {
	r.leaves(time.Now())
	joined := []*request{r}
	inDoubt, err := j.s.write(r.ctx, r.end, func(ctx context.Context, again bool) error {
		return j.write(ctx, joined, again)
	})
	r.finish(inDoubt, err)
	return err == nil
}

// settle makes one write of the requests and gives each its outcome. A write
// that the database refused is made again in halves, so that who is at fault
// fails by himself. ok means that the first attempt was answered.
func (j *joiner) settle(f *flight, joined []*request) (ok bool) {
	if len(joined) == 1 {
		j.lead(f, joined, nil)
		return j.alone(joined[0])
	}
	joined = j.present(joined)
	if len(joined) == 0 {
		return false
	}
	now, end := time.Now(), time.Time{}
	for _, r := range joined {
		r.leaves(now)
		if r.end.After(end) {
			end = r.end
		}
	}
	ctx, cut := context.WithDeadline(j.base, end)
	j.lead(f, joined, cut)
	err := j.s.attempt(ctx, func(ctx context.Context, _ bool) error { return j.write(ctx, joined, false) })
	j.lead(f, joined, nil)
	short := ctx.Err() != nil
	cut()
	switch {
	case err == nil:
		for _, r := range joined {
			r.finish(false, nil)
		}
		return true
	case !j.s.definite(err):
		j.repeat(joined, err)
	case short && slices.ContainsFunc(joined, (*request).over):
		// It was cut short for those who left, with nothing written.
		j.settle(f, joined)
	case len(joined) > 1 && j.s.refused(err):
		half := len(joined) / 2
		j.settle(f, joined[:half])
		j.settle(f, joined[half:])
	default:
		for _, r := range joined {
			r.finish(false, err)
		}
	}
	return false
}

// refused reports whether the database refused what it was given: a part of it
// might pass. It is not so when the database could not be reached, or others
// were in the way.
func (s *SQLStorage) refused(err error) bool {
	return s.backend.Answered(err) && !s.passing(err)
}

// present leaves out the requests that nobody waits for: they are not written.
func (j *joiner) present(joined []*request) []*request {
	there := make([]*request, 0, len(joined))
	for _, r := range joined {
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
func (j *joiner) lead(f *flight, joined []*request, cut context.CancelFunc) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f.cut = cut
	f.attempt++
	if len(joined) == 1 {
		joined[0].place = sentAlone
	}
}

// repeat repeats a joined write without an answer until its outcome is known,
// for each caller for as long as his own write would be.
func (j *joiner) repeat(joined []*request, cause error) {
	begun := time.Now()
	left := append([]*request(nil), joined...)
	together := true
	for try := 0; len(left) > 0; try++ {
		lasts := j.s.pause(j.base, try)
		portions := [][]*request{left}
		if !together {
			portions = nil
			for i := range left {
				portions = append(portions, left[i:i+1])
			}
		}
		var open []*request
		for _, portion := range portions {
			portion, until := j.worthRepeating(portion, begun, cause, lasts)
			if len(portion) == 0 {
				continue
			}
			ctx, cancel := context.WithDeadline(j.base, until)
			err := j.write(ctx, portion, true)
			cancel()
			if err != nil {
				open = append(open, portion...)
				// What the database refuses of one must not keep it from
				// taking the others.
				together = together && !j.s.refused(err)
				continue
			}
			for _, r := range portion {
				r.finish(false, nil)
			}
		}
		left = open
	}
}

// worthRepeating gives those of the requests whose write may be repeated now,
// and until when. The others' outcome stays unknown.
func (j *joiner) worthRepeating(joined []*request, begun time.Time, cause error, lasts bool) (open []*request, until time.Time) {
	now := time.Now()
	until = now.Add(attemptFor)
	for _, r := range joined {
		end := j.repeatedUntil(r, begun)
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

// repeatedUntil is until when a caller's write is repeated, as in
// [SQLStorage.outlive].
func (j *joiner) repeatedUntil(r *request, begun time.Time) time.Time {
	end := r.end
	if _, bounded := r.ctx.Deadline(); !bounded && begun.Add(repeatFor).Before(end) {
		end = begun.Add(repeatFor)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.gone.IsZero() {
		return end
	}
	if late := r.gone.Add(max(0, j.s.options.grace)); late.Before(end) {
		return late
	}
	return end
}
