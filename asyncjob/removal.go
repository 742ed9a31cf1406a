package asyncjob

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/txlog"
)

const (
	// removeMost is how many delivered units are removed together at the most.
	removeMost = 256
	// removePerWorker bounds it for few workers, so that what would be
	// delivered again after a crash stays in proportion to what is in flight.
	removePerWorker = 16
	// removeWithin is how long a delivered unit waits for others.
	removeWithin = 20 * time.Millisecond
)

// removals erases delivered units from the log in batches, while others are
// being delivered. Up to two batches are not removed yet: one on its way and one
// that gathers; then deliveries wait.
type removals struct {
	drain *drain
	most  int

	mu      sync.Mutex
	room    sync.Cond
	pending []*claimed
	// some: there is one pending; full: there are as many as may be.
	some, full, closing chan struct{}
	closed              chan struct{}
}

func newRemovals(d *drain, workers int) *removals {
	r := &removals{
		drain: d, most: min(removeMost, removePerWorker*workers),
		some: make(chan struct{}, 1), full: make(chan struct{}, 1),
		closing: make(chan struct{}), closed: make(chan struct{}),
	}
	r.room.L = &r.mu
	go r.run()
	return r
}

// add waits while there are too many already.
func (r *removals) add(u *claimed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending) >= r.most {
		r.room.Wait()
	}
	r.pending = append(r.pending, u)
	if len(r.pending) == 1 {
		signal(r.some)
	}
	if len(r.pending) == r.most {
		signal(r.full)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (r *removals) take() []*claimed {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.pending
	r.pending = nil
	r.room.Broadcast()
	return batch
}

// close removes what is pending; nothing may be added any more.
func (r *removals) close() {
	close(r.closing)
	<-r.closed
}

func (r *removals) run() {
	defer close(r.closed)
	wait := time.NewTimer(removeWithin)
	defer wait.Stop()
	for {
		select {
		case <-r.some:
		case <-r.closing:
		}
		wait.Reset(removeWithin)
		select {
		case <-r.full: // or it was before; then the batch is a small one
		case <-wait.C:
		case <-r.closing:
		}
		batch := r.take()
		if len(batch) > 0 {
			r.drain.job.guard(func() { r.remove(batch) })
			continue
		}
		select {
		case <-r.closing:
			return
		default:
		}
	}
}

// remove removes delivered units from the log, ends them, and erases their
// receipts.
func (r *removals) remove(delivered []*claimed) {
	defer func() {
		for _, u := range delivered {
			u.end()
		}
	}()
	d := r.drain
	var receipts []*txlog.Unit
	for _, portion := range byOwner(delivered) {
		gone, err := r.erased(portion)
		for _, u := range portion {
			switch {
			case slices.Contains(gone, u.ID):
				u.result = u.leaseLost()
			case err == nil && erasable(u.Unit, u.result.found):
				receipts = append(receipts, u.Unit)
			}
		}
		if err != nil {
			log := d.logger()
			if len(portion) == 1 {
				log = portion[0].logger()
			}
			next := "their receipts will show that nothing is left to do"
			if slices.ContainsFunc(portion, func(u *claimed) bool { return u.Receipt == "" }) {
				next = "they may be delivered again"
			}
			log.WithError(err).WithField("units", len(portion)).
				Warn("delivered, but not all of these entries could be removed; " + next)
		}
	}
	d.erase(receipts)
}

// byOwner parts what was claimed at different times: units of one owner are
// removed by a cheaper statement.
func byOwner(batch []*claimed) [][]*claimed {
	slices.SortStableFunc(batch, func(a, b *claimed) int {
		return cmp.Compare(a.Lease.Token, b.Lease.Token)
	})
	var portions [][]*claimed
	for begin, i := 0, 1; i <= len(batch); i++ {
		if i == len(batch) || batch[i].Lease.Token != batch[begin].Lease.Token {
			portions = append(portions, batch[begin:i])
			begin = i
		}
	}
	return portions
}

// erased removes units from the log, again and again for the length of a lease
// while theirs are kept, and gives those that were not held any more: who lost a lease knows
// nothing of the unit. After an error some of the others may be there.
func (r *removals) erased(portion []*claimed) (gone []string, err error) {
	job := r.drain.job
	left := slices.Clone(portion)
	_, err = backoff.Retry(r.drain.writes, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(r.drain.writes, job.cfg.Lease)
		defer cancel()
		units := make([]*txlog.Unit, len(left))
		for i, u := range left {
			u.lease.Refresh()
			units[i] = u.Unit
		}
		err := job.storage.Remove(ctx, units...)
		var lost *txlog.LeaseLostError
		switch {
		case errors.As(err, &lost):
			gone = append(gone, lost.IDs...)
			return struct{}{}, nil
		case errors.Is(err, txlog.ErrLeaseLost): // of a storage that does not say whose
			return struct{}{}, backoff.Permanent(err)
		case err == nil:
			return struct{}{}, nil
		}
		left = slices.DeleteFunc(left, func(u *claimed) bool {
			if !u.lease.Lost() {
				return false
			}
			gone = append(gone, u.ID)
			return true
		})
		if len(left) == 0 {
			err = nil
		}
		return struct{}{}, err
	}, backoff.WithBackOff(storeBackOff()), backoff.WithMaxElapsedTime(job.cfg.Lease))
	if err != nil {
		r.drain.notWritten("the removal of what is delivered", err)
	}
	return gone, err
}
