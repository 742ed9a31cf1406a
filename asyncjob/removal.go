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
	visit *visit
	most  int

	mu      sync.Mutex
	room    sync.Cond
	pending []*removal
	// some: there is one pending; full: there are as many as may be.
	some, full, closing chan struct{}
	closed              chan struct{}
}

// removal is a unit that was delivered and is to be removed.
type removal struct {
	unit *txlog.Unit
	end  result
	// erase: no attempt can need its receipt once it is removed.
	erase bool
}

func newRemovals(v *visit, workers int) *removals {
	r := &removals{
		visit: v, most: min(removeMost, removePerWorker*workers),
		some: make(chan struct{}, 1), full: make(chan struct{}, 1),
		closing: make(chan struct{}), closed: make(chan struct{}),
	}
	r.room.L = &r.mu
	go r.run()
	return r
}

// add waits while there are too many already.
func (r *removals) add(d *removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pending) >= r.most {
		r.room.Wait()
	}
	r.pending = append(r.pending, d)
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

func (r *removals) take() []*removal {
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
			r.visit.round.job.guard(func() { r.visit.removeAll(batch) })
			continue
		}
		select {
		case <-r.closing:
			return
		default:
		}
	}
}

// removeAll removes delivered units and ends them.
func (v *visit) removeAll(batch []*removal) {
	defer func() {
		for _, d := range batch {
			v.end(d.unit, d.end)
		}
	}()
	var receipts []string
	for _, portion := range byOwner(batch) {
		gone, err := v.erased(portion)
		for _, d := range portion {
			if slices.Contains(gone, d.unit.ID) {
				d.end, d.erase = v.leaseLost(d.unit), false
			}
		}
		if err != nil {
			log := v.logger()
			if len(portion) == 1 {
				log = v.unitLog(portion[0].unit)
			}
			next := "their receipts will show that nothing is left to do"
			if slices.ContainsFunc(portion, func(d *removal) bool { return d.unit.Receipt == "" }) {
				next = "they may be delivered again"
			}
			log.WithError(err).WithField("units", len(portion)).
				Warn("delivered, but not all of these logs could be removed; " + next)
			continue
		}
		for _, d := range portion {
			if d.erase {
				receipts = append(receipts, d.unit.Receipt)
			}
		}
	}
	if v.src != nil {
		v.src.erase(v.round.flight, v.round.job.cfg.ProbeTimeout, receipts)
	}
}

// byOwner parts what was claimed at different times: units of one owner are
// removed by a cheaper statement.
func byOwner(batch []*removal) [][]*removal {
	slices.SortStableFunc(batch, func(a, b *removal) int {
		return cmp.Compare(a.unit.Lease.Token, b.unit.Lease.Token)
	})
	var portions [][]*removal
	for begin, i := 0, 1; i <= len(batch); i++ {
		if i == len(batch) || batch[i].unit.Lease.Token != batch[begin].unit.Lease.Token {
			portions = append(portions, batch[begin:i])
			begin = i
		}
	}
	return portions
}

// erased removes units from the log, again and again while their leases are
// kept, and gives those that were not held any more: who lost a lease knows
// nothing of the unit. After an error some of the others may be there.
func (v *visit) erased(portion []*removal) (gone []string, err error) {
	job := v.round.job
	units := make([]*txlog.Unit, len(portion))
	for i, d := range portion {
		units[i] = d.unit
	}
	_, err = backoff.Retry(v.round.writes, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(v.round.writes, job.cfg.Lease)
		defer cancel()
		for _, u := range units {
			job.keeper.Refresh(u)
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
		units = slices.DeleteFunc(units, func(u *txlog.Unit) bool {
			if !job.keeper.Lost(u) {
				return false
			}
			gone = append(gone, u.ID)
			return true
		})
		if len(units) == 0 {
			err = nil
		}
		return struct{}{}, err
	}, backoff.WithBackOff(storeBackOff()), backoff.WithMaxElapsedTime(0))
	return gone, err
}
