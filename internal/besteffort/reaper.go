package besteffort

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/txlog"
)

// Bounds of what is removed behind the callers.
const (
	// reapMost is how many delivered units may wait for their removal. Beyond
	// it a caller removes its own before it returns.
	reapMost = 4096
	// reapBatch is how many are removed together.
	reapBatch = 256
	// reapWithin is how long a unit waits for others at the most. A database
	// pays for a removal by the transaction more than by the row: InnoDB needs
	// half as much for each of 128 rows as for each of 32.
	reapWithin = 25 * time.Millisecond
	// eraseWithin is how long a receipt waits for others, and eraseMost how
	// many may wait. What cannot be erased stays for its retention.
	eraseWithin = 200 * time.Millisecond
	eraseMost   = 1 << 14
)

// reaper removes the entries of delivered units, and then erases the receipts that
// no attempt can need any more. Behind the callers it removes together what was
// delivered within reapWithin. It has a goroutine only while there is something
// to do.
type reaper struct {
	e      *Deliverer
	ctx    context.Context
	cancel context.CancelFunc
	// full is told when a batch is complete; closing is closed by close.
	full, closing chan struct{}
	work          sync.WaitGroup

	mu              sync.Mutex
	queue           []*Delivery
	running, closed bool
	receipts        []string
	erasing         *time.Timer // set while receipts wait
}

func (r *reaper) open(e *Deliverer) {
	r.e, r.full, r.closing = e, make(chan struct{}, 1), make(chan struct{})
	r.ctx, r.cancel = context.WithCancel(context.Background())
}

// close does what is left to be done, until ctx ends.
func (r *reaper) close(ctx context.Context) {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.closing)
		if r.erasing != nil && r.erasing.Stop() {
			r.work.Done()
		}
	}
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		r.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	r.cancel()
	<-done
	r.erase(ctx)
}

// reap ends a delivered unit.
func (r *reaper) reap(ctx context.Context, d *Delivery) {
	if d.Outcome.Found {
		r.found(d)
	}
	if !d.Behind || !r.add(d) {
		r.remove(ctx, d)
	}
}

// unlogged ends a delivered unit that has no log.
func (r *reaper) unlogged(d *Delivery) {
	if d.Outcome.Found {
		r.found(d)
	}
	r.removed(d, true)
}

func (r *reaper) found(d *Delivery) {
	r.e.logger(d).Info("bed: the receipt shows that the write was applied by an earlier attempt")
}

// behind runs f behind the caller, and close waits for it. false: it is closed.
func (r *reaper) behind(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.later(f)
}

// later is behind for who holds r.mu.
func (r *reaper) later(f func()) bool {
	if !r.closed {
		r.work.Go(f)
	}
	return !r.closed
}

// add takes a delivered unit, unless too many wait or the reaper is closed.
func (r *reaper) add(d *Delivery) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) >= reapMost || !r.running && !r.later(r.run) {
		return false
	}
	r.running = true
	r.queue = append(r.queue, d)
	if len(r.queue) == reapBatch {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
	return true
}

// run removes batch after batch until nothing waits.
func (r *reaper) run() {
	for {
		batch := r.take()
		if batch == nil {
			return
		}
		if len(batch) == 1 || !r.removeAll(batch) {
			for _, d := range batch {
				r.remove(r.ctx, d)
			}
		}
	}
}

// take waits until a batch is complete, its first unit has waited for long
// enough, or the reaper is being closed.
func (r *reaper) take() []*Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.queue); n > 0 && n < reapBatch {
		r.mu.Unlock()
		patience := time.NewTimer(reapWithin)
		select {
		case <-r.full:
		case <-patience.C:
		case <-r.closing:
		}
		patience.Stop()
		r.mu.Lock()
	}
	n := min(len(r.queue), reapBatch)
	if n == 0 {
		r.running, r.queue = false, nil
		return nil
	}
	batch := r.queue[:n:n]
	r.queue = r.queue[n:]
	if len(r.queue) < reapBatch {
		select { // what it was told of is taken
		case <-r.full:
		default:
		}
	}
	return batch
}

// removeAll removes units together; false if they have to be by themselves.
func (r *reaper) removeAll(batch []*Delivery) bool {
	units := make([]*txlog.Unit, len(batch))
	for i, d := range batch {
		d.lease.Refresh()
		units[i] = d.Unit
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.e.cfg.LogTimeout)
	defer cancel()
	err := r.e.cfg.Storage.Remove(ctx, units...)
	var lost *txlog.LeaseLostError
	if err != nil && !errors.As(err, &lost) {
		return false
	}
	for _, d := range batch {
		r.removed(d, lost == nil || !slices.Contains(lost.IDs, d.Unit.ID))
	}
	return true
}

// remove removes one log, or has that repeated behind the caller.
func (r *reaper) remove(ctx context.Context, d *Delivery) {
	err := r.e.remove(ctx, d)
	if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
		r.removed(d, err == nil)
		return
	}
	r.e.warn(d, err, "bed: the write is delivered, its entry could not be removed yet; the removal is repeated")
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.later(func() { r.repeat(d) }) {
		d.lease.Release()
	}
}

// remove erases the log on the caller's context, and on one of its own when
// that one has ended. A log that does not answer must not hold the caller up
// whose write is done.
func (e *Deliverer) remove(ctx context.Context, d *Delivery) error {
	d.lease.Refresh()
	if ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, e.cfg.LogTimeout)
		err := e.cfg.Storage.Remove(bounded, d.Unit)
		cancel()
		if err == nil || ctx.Err() == nil {
			return err
		}
	}
	ctx, cancel := e.own(ctx)
	defer cancel()
	return e.cfg.Storage.Remove(ctx, d.Unit)
}

// repeat repeats a removal for as long as the entry is surely still ours.
func (r *reaper) repeat(d *Delivery) {
	pause := r.e.pause(time.Second)
	for sleep(r.ctx, pause.NextBackOff()) == nil && !d.lease.Lost() {
		err := r.e.remove(r.ctx, d)
		if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
			r.removed(d, err == nil)
			return
		}
	}
	d.lease.Release()
	r.e.warn(d, nil, "bed: the write is delivered, its entry could not be removed; the job will find it and "+d.next())
}

// next is what the job will do with a delivered unit that it finds.
func (d *Delivery) next() string {
	if d.Unit.Receipt != "" {
		return "see by its receipt that nothing is left to do"
	}
	return "may deliver it again"
}

// chase removes the entry of a delivered unit of which it is not known whether it
// was written: it may be there, or come late. It goes on until one was removed
// or the lease is over under which it would have come. The receipt stays.
func (r *reaper) chase(d *Delivery) {
	r.behind(func() {
		pause := r.e.pause(time.Second)
		for open := true; open && !passed(d.Unit.Lease.Deadline); {
			if r.e.remove(r.ctx, d) == nil {
				return
			}
			select {
			case <-time.After(pause.NextBackOff()):
			case <-r.closing:
				open = false
			}
		}
		r.e.warn(d, nil, "bed: the write is delivered, and it is not known whether its entry was written; if it was, the job will find it and "+d.next())
	})
}

func passed(deadline time.Time) bool { return !time.Now().Before(deadline) }

// removed lets go of a unit whose entry is gone, and of its receipt if every
// attempt ended with a definite answer to us, who owned the log all the time.
// Any other receipt stays for its retention: an attempt may still come, or the
// log come back.
func (r *reaper) removed(d *Delivery, owned bool) {
	d.lease.Release()
	if u := d.Unit; !owned || u.Receipt == "" || u.Fingerprint != "" || u.AddRepeated || d.inDoubt || d.Outcome.Found {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.receipts) >= eraseMost {
		return
	}
	r.receipts = append(r.receipts, d.Unit.Receipt)
	if r.erasing == nil && !r.e.cfg.EraseInTurn && !r.closed {
		r.work.Add(1)
		r.erasing = time.AfterFunc(eraseWithin, func() {
			defer r.work.Done()
			ctx, cancel := context.WithTimeout(context.Background(), r.e.cfg.LogTimeout)
			defer cancel()
			r.erase(ctx)
		})
	}
}

// erase erases what waits.
func (r *reaper) erase(ctx context.Context) {
	if receipts := r.takeReceipts(1); receipts != nil && r.e.cfg.Erase != nil {
		r.e.cfg.Erase(ctx, receipts)
	}
}

func (r *reaper) takeReceipts(least int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.receipts) < least {
		return nil
	}
	receipts := r.receipts
	r.receipts, r.erasing = nil, nil
	return receipts
}

// Receipts takes the receipts that are to be erased, if they are at least so
// many: for a database where that is done between the callers' own writes.
func (e *Deliverer) Receipts(least int) []string { return e.reaper.takeReceipts(least) }
