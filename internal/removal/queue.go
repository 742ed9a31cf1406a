// Package removal removes the entries of delivered units from the log, in batches, and then
// erases the receipts that no attempt can need any more. The callers of a wrapper do not
// wait for its Queue; the deliveries of a job wait for its Batches.
package removal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/txlog"
)

const (
	// Batch is the maximum number of units in one removal.
	Batch = 256
	// Most is the maximum number of waiting units in a Queue. Beyond it a caller removes its
	// own.
	Most = 4096
	// EraseWithin is how long a receipt waits for others.
	EraseWithin = 200 * time.Millisecond
	// eraseMost is the maximum number of waiting receipts. Other receipts stay for their
	// retention.
	eraseMost = 1 << 14
)

// Config configures both kinds of queue. There are no defaults.
type Config struct {
	// Remove is the log's: txlog.Storage.Remove.
	Remove func(ctx context.Context, units ...*entry.Unit) error
	// Timeout bounds each write to the log and to the target.
	Timeout time.Duration
	// Pause returns the pauses between the repetitions of a removal.
	Pause func() *backoff.ExponentialBackOff
	// Failed reports units after a failed removal. Without repeated, their entries are left to
	// the end of their leases.
	Failed func(units []*Unit, err error, repeated bool)
	// Erase erases the receipts of units with the settings; may be nil.
	Erase func(ctx context.Context, in Session, receipts []string)
}

// Session is the session of a unit's receipt, in the words of its entry.
type Session struct{ Settings, Session string }

// Unit is a delivered unit. It belongs to its queue until it is Ended.
type Unit struct {
	// Entry is the unit in the log, and Lease its lease; nil without an entry.
	Entry *entry.Unit
	Lease *lease.Kept
	// Certain is set if every attempt ended with a definite answer, and none met its receipt.
	Certain bool
	// Ended is called once, when the entry is gone, left to the end of its lease, or lost to
	// another owner; may be nil.
	Ended func(lost bool)
	// inDoubt is set after a removal without an answer.
	inDoubt bool
}

// fate is the outcome for the entry of a delivered unit.
type fate uint8

const (
	// removed means that it is gone.
	removed fate = iota
	// left means that it stays until its lease is over.
	left
	// lost means that it has another owner.
	lost
)

// missing returns the fate of an entry that was missing on removal: usually another owner
// took it. But after an unanswered removal, until the end of the lease, only that removal
// can have taken it.
func (u *Unit) missing() fate {
	if u.inDoubt && !u.Entry.Lease.Over() {
		return removed
	}
	return lost
}

// Queue removes units after the return of the calls that delivered them. It repeats a failed
// removal for as long as the unit's lease is kept. Safe for concurrent use.
type Queue struct {
	line
	erasing *time.Timer // set while receipts wait
}

// NewQueue returns a Queue that works until ctx ends. Close it. With eraseInTurn, receipts
// wait for Receipts until Close.
func NewQueue(ctx context.Context, cfg Config, eraseInTurn bool) *Queue {
	q := new(Queue)
	q.init(ctx, cfg, Batch)
	if !eraseInTurn {
		q.receiptAdded = q.scheduleErase
	}
	return q
}

// Now ends a delivered unit: it removes the entry on ctx. If that fails, it repeats the
// removal asynchronously.
func (q *Queue) Now(ctx context.Context, u *Unit) {
	err := q.Once(ctx, u)
	switch {
	case err == nil:
		q.finish(u, removed)
		return
	case errors.Is(err, txlog.ErrLeaseLost):
		q.finish(u, u.missing())
		return
	}
	q.again(u, err)
}

// again repeats the removal of a unit asynchronously after err.
func (q *Queue) again(u *Unit, err error) {
	u.inDoubt = u.inDoubt || errors.Is(err, txlog.ErrInDoubt)
	q.cfg.Failed([]*Unit{u}, err, true)
	if !q.Go(func() { q.repeat([]*Unit{u}, err, 0) }) {
		q.finish(u, left)
	}
}

// Later ends a delivered unit: its entry is removed asynchronously, or on ctx if too many
// are waiting or the queue is closed.
func (q *Queue) Later(ctx context.Context, u *Unit) {
	q.mu.Lock()
	if len(q.units) >= Most || !q.running && q.open.Err() != nil {
		q.mu.Unlock()
		q.Now(ctx, u)
		return
	}
	defer q.mu.Unlock()
	q.join(u, q.removeBatches)
}

// removeBatches removes batch after batch until the queue is empty.
func (q *Queue) removeBatches() {
	for batch := q.take(); batch != nil; batch = q.take() {
		switch err := q.together(batch); {
		case err == nil:
			continue
		case len(batch) == 1 && q.ctx.Err() == nil:
			q.again(batch[0], err)
			continue
		}
		for _, u := range batch { // one of them may prevent the removal of the others
			if q.ctx.Err() == nil {
				q.Now(q.ctx, u)
				continue
			}
			q.cfg.Failed([]*Unit{u}, q.ctx.Err(), false) // it was closed, and that may take no longer
			q.finish(u, left)
		}
	}
}

// End ends a delivered unit that has no entry, and never will.
func (q *Queue) End(u *Unit) { q.finish(u, removed) }

// Once removes the entry of a unit on ctx, or on a context of its own after the end of ctx,
// and does not end the unit. A silent log must not hold up a caller whose write is done.
func (q *Queue) Once(ctx context.Context, u *Unit) error {
	u.Lease.Refresh()
	var first error
	if ctx.Err() == nil {
		bounded, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
		first = q.cfg.Remove(bounded, u.Entry)
		cancel()
		if first == nil || ctx.Err() == nil {
			return first
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.cfg.Timeout)
	defer cancel()
	err := q.cfg.Remove(ctx, u.Entry)
	if err == nil || !errors.Is(first, txlog.ErrInDoubt) {
		return err
	}
	if errors.Is(err, txlog.ErrLeaseLost) && !u.Entry.Lease.Over() {
		return nil // the first attempt removed it: no other owner could
	}
	return fmt.Errorf("%w; and then: %w", first, err)
}

// Chase looks asynchronously for the entry of a delivered unit after an unanswered write to
// the log: the entry may be there, may come late, or may never come. It tries to remove the
// entry until that succeeds, the lease of the write is over, or the queue is closed, but at
// least once. Without success it calls missed. The receipt stays either way.
func (q *Queue) Chase(u *Unit, missed func()) {
	lease := u.Entry.Lease
	// With a deadline, the log would treat a lost answer as a removal if the repetition finds
	// no entry (Storage.Remove). Here the entry may be missing because it is still to come.
	u.Entry.Lease.Deadline = time.Time{}
	search := func() {
		pause := q.cfg.Pause()
		for open := true; open && !lease.Over(); {
			if q.Once(context.WithoutCancel(q.ctx), u) == nil {
				return
			}
			open = jitter.Sleep(q.open, pause.NextBackOff())
		}
		missed()
	}
	if !q.Go(search) {
		search()
	}
}

// Go runs f asynchronously, and Close waits for it. It returns false after Close.
func (q *Queue) Go(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.Err() != nil {
		return false
	}
	q.work.Go(f)
	return true
}

// scheduleErase schedules the erasing of all waiting receipts. The caller holds mu.
func (q *Queue) scheduleErase() {
	if q.erasing != nil || q.open.Err() != nil {
		return
	}
	q.work.Add(1)
	q.erasing = time.AfterFunc(EraseWithin, func() {
		defer q.work.Done()
		q.mu.Lock()
		q.erasing = nil
		q.mu.Unlock()
		ctx, cancel := context.WithTimeout(q.ctx, q.cfg.Timeout)
		defer cancel()
		q.erase(ctx)
	})
}

// Receipts takes receipts to erase, if there are at least least of them: for a database with
// erasing between the callers' own writes.
func (q *Queue) Receipts(least int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	for settings, ids := range q.receipts {
		if len(ids) >= least {
			delete(q.receipts, settings)
			return ids
		}
	}
	return nil
}

// Close finishes the remaining work, until ctx ends.
func (q *Queue) Close(ctx context.Context) {
	q.mu.Lock()
	q.close()
	if q.erasing != nil && q.erasing.Stop() {
		q.erasing = nil
		q.work.Done()
	}
	q.mu.Unlock()
	q.wait(ctx)
}

// Within is the maximum time that a unit waits for others. A database's cost of a removal
// grows with the transactions more than with the rows: InnoDB needs half as much for each of
// 128 rows as for each of 32.
const Within = 25 * time.Millisecond

// A line holds the units that wait for removal in batches, and the receipts to erase
// afterwards. Its one goroutine exists only while units wait.
type line struct {
	cfg        Config
	batch      int             // how many units make a batch
	ctx, open  context.Context // open ends when the line is being closed
	end, close context.CancelFunc
	full       chan struct{} // signalled when a batch is complete
	work       sync.WaitGroup

	mu       sync.Mutex
	room     sync.Cond // signalled when units are taken
	units    []*Unit
	running  bool
	receipts map[Session][]string // by where they are found
	// receiptAdded is called under mu; may be nil.
	receiptAdded func()
}

func (l *line) init(ctx context.Context, cfg Config, batch int) {
	l.cfg, l.batch, l.full, l.receipts = cfg, batch, make(chan struct{}, 1), map[Session][]string{}
	l.room.L = &l.mu
	l.ctx, l.end = context.WithCancel(ctx)
	l.open, l.close = context.WithCancel(context.WithoutCancel(ctx))
}

// join appends a unit and makes sure that work is running. The caller holds mu.
func (l *line) join(u *Unit, work func()) {
	if !l.running {
		l.running = true
		l.work.Go(work)
	}
	if l.units = append(l.units, u); len(l.units) == l.batch {
		select {
		case l.full <- struct{}{}:
		default:
		}
	}
}

// take waits until a batch is complete, its first unit has waited for long enough, or the
// line is being closed. It returns nil if no unit waits; the caller must then end.
func (l *line) take() []*Unit {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.units); n > 0 && n < l.batch {
		l.mu.Unlock()
		patience := time.NewTimer(Within)
		select {
		case <-l.full:
		case <-patience.C:
		case <-l.open.Done():
		}
		patience.Stop()
		l.mu.Lock()
	}
	n := min(len(l.units), l.batch)
	if n == 0 {
		l.running, l.units = false, nil
		return nil
	}
	batch := l.units[:n:n]
	if l.units = l.units[n:]; len(l.units) < l.batch {
		select { // the signal was for what has been taken
		case <-l.full:
		default:
		}
	}
	l.room.Broadcast()
	return batch
}

// erase erases the waiting receipts.
func (l *line) erase(ctx context.Context) {
	l.mu.Lock()
	receipts := l.receipts
	l.receipts = map[Session][]string{}
	l.mu.Unlock()
	for in, ids := range receipts {
		if l.cfg.Erase != nil {
			l.cfg.Erase(ctx, in, ids)
		}
	}
}

// wait finishes the remaining work, until ctx ends.
func (l *line) wait(ctx context.Context) {
	defer context.AfterFunc(ctx, l.end)()
	l.work.Wait()
	l.end()
	l.erase(ctx)
}

// finish ends a unit. Its receipt is erased with others if the entry is gone and every
// attempt ended with a definite answer to its owner, who owned the entry all the time. Any
// other receipt stays for its retention: an attempt may still come, or the entry come back.
func (l *line) finish(u *Unit, how fate) {
	u.Lease.Release()
	if u.Ended != nil {
		u.Ended(how == lost)
	}
	if e := u.Entry; how == removed && e.Receipt != "" && e.Fingerprint == "" && !e.AddRepeated && u.Certain && !e.Group() && e.Undo == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		in := Session{e.Settings, e.Session}
		if len(l.receipts[in]) >= eraseMost {
			return
		}
		l.receipts[in] = append(l.receipts[in], e.Receipt)
		if l.receiptAdded != nil {
			l.receiptAdded()
		}
	}
}

// repeat removes units together, repeatedly while their leases are surely kept. within
// limits the time unless it is 0. failed is the error of an earlier removal.
func (l *line) repeat(units []*Unit, failed error, within time.Duration) {
	defer func() { // also after a panic
		for _, u := range units {
			l.finish(u, left)
		}
	}()
	for begun, pause := time.Now(), l.cfg.Pause(); len(units) > 0; {
		if failed == nil {
			if failed = l.together(units); failed == nil {
				units = nil
			}
			continue
		}
		rest := pause.NextBackOff()
		over := errors.Is(failed, txlog.ErrLeaseLost) || // of a storage that does not say whose
			within > 0 && time.Since(begun)+rest > within || !jitter.Sleep(l.ctx, rest)
		if units = l.kept(units, failed); over && len(units) > 0 {
			l.cfg.Failed(units, failed, false)
			return
		}
		failed = nil
	}
}

// kept returns the units whose leases are kept. It ends the others, whose removal has
// failed.
func (l *line) kept(units []*Unit, failed error) (kept []*Unit) {
	for _, u := range units {
		if !u.Lease.Lost() {
			kept = append(kept, u)
			continue
		}
		l.cfg.Failed([]*Unit{u}, failed, false)
		l.finish(u, lost)
	}
	return kept
}

// together removes units in one write, and ends them. After an error it ends no unit, and
// some may be removed.
func (l *line) together(units []*Unit) error {
	entries := make([]*entry.Unit, len(units))
	for i, u := range units {
		u.Lease.Refresh()
		entries[i] = u.Entry
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.Timeout)
	defer cancel()
	err := l.cfg.Remove(ctx, entries...)
	var some *entry.LeaseLostError
	all := len(units) == 1 && errors.Is(err, txlog.ErrLeaseLost)
	if err != nil && !all && !errors.As(err, &some) {
		for _, u := range units {
			u.inDoubt = u.inDoubt || errors.Is(err, txlog.ErrInDoubt)
		}
		return err
	}
	for i, u := range units {
		if all || some != nil && slices.Contains(some.IDs, entries[i].ID) {
			l.finish(u, u.missing())
		} else {
			l.finish(u, removed)
		}
	}
	return nil
}
