// Package removal removes the entries of delivered units from the log, in batches
// behind who delivered them, and then erases the receipts that no attempt can need
// any more.
package removal

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/txlog"
)

const (
	// Batch is how many units are removed together at the most.
	Batch = 256
	// Most is how many may wait. Beyond it a caller removes its own.
	Most = 4096
	// Within is how long a unit waits for others at the most. A database pays for
	// a removal by the transaction more than by the row: InnoDB needs half as much
	// for each of 128 rows as for each of 32.
	Within = 25 * time.Millisecond
	// EraseWithin is how long a receipt waits for others.
	EraseWithin = 200 * time.Millisecond
	// eraseMost is how many receipts may wait. What cannot be erased stays for its
	// retention.
	eraseMost = 1 << 14
)

// Config configures a Queue. Every field is used as it is.
type Config struct {
	// Storage keeps the log.
	Storage txlog.Storage
	// Timeout bounds each write to the log and to the target.
	Timeout time.Duration
	// Pause begins the pauses between the repetitions of a removal.
	Pause func() *backoff.ExponentialBackOff
	// Failed is told of units whose removal failed, and whether it is repeated;
	// if not, their entries are left to the end of their leases.
	Failed func(units []*Unit, err error, repeated bool)
	// Erase erases the receipts of units with the settings; may be nil.
	Erase func(ctx context.Context, in Settings, receipts []string)
	// EraseInTurn leaves receipts to be taken by Receipts until Close.
	EraseInTurn bool
	// HoldAt, if not 0, is how many units may wait, a batch: who delivers then waits
	// for the removals. One that fails is repeated together for HoldFor at the
	// most, and receipts are erased with their batch. Otherwise each unit is
	// repeated by itself for as long as its lease is kept.
	HoldAt  int
	HoldFor time.Duration
	// Guard, if HoldAt is not 0, calls what may panic.
	Guard func(func())
}

// Queue removes units for one owner. It has a goroutine only while there is
// something to do. Safe for concurrent use.
type Queue struct {
	cfg         Config
	batch, most int
	ctx, open   context.Context // open ends when the queue is being closed
	end, close  context.CancelFunc
	full        chan struct{} // told when a batch is complete
	work        sync.WaitGroup

	mu       sync.Mutex
	room     sync.Cond // told when units are taken
	units    []*Unit
	running  bool
	receipts map[Settings][]string
	erasing  *time.Timer // set while receipts wait
}

// New makes a Queue that works until ctx ends. Close it.
func New(ctx context.Context, cfg Config) *Queue {
	q := &Queue{
		cfg: cfg, batch: Batch, most: Most, full: make(chan struct{}, 1), receipts: map[Settings][]string{},
	}
	if cfg.HoldAt > 0 {
		q.batch, q.most = min(Batch, cfg.HoldAt), min(Batch, cfg.HoldAt)
	}
	q.room.L = &q.mu
	q.ctx, q.end = context.WithCancel(ctx)
	q.open, q.close = context.WithCancel(context.WithoutCancel(ctx))
	return q
}

// Close does what is left to be done, until ctx ends.
func (q *Queue) Close(ctx context.Context) {
	q.mu.Lock()
	q.close()
	if q.erasing != nil && q.erasing.Stop() {
		q.erasing = nil
		q.work.Done()
	}
	q.mu.Unlock()
	defer context.AfterFunc(ctx, q.end)()
	q.work.Wait()
	q.end()
	q.erase(ctx)
}

// Go runs f behind the caller, and Close waits for it. false: it is closed.
func (q *Queue) Go(f func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open.Err() != nil {
		return false
	}
	q.work.Go(f)
	return true
}

// Behind ends a delivered unit: its entry is removed behind the caller, or on
// ctx if too many wait or the queue is closed.
func (q *Queue) Behind(ctx context.Context, u *Unit) {
	q.mu.Lock()
	for q.cfg.HoldAt > 0 && len(q.units) >= q.most {
		q.room.Wait()
	}
	if len(q.units) >= q.most || !q.running && q.open.Err() != nil {
		q.mu.Unlock()
		q.Now(ctx, u)
		return
	}
	defer q.mu.Unlock()
	if !q.running {
		q.running = true
		q.work.Go(q.run)
	}
	if q.units = append(q.units, u); len(q.units) == q.batch {
		select {
		case q.full <- struct{}{}:
		default:
		}
	}
}

// run removes batch after batch until nothing waits.
func (q *Queue) run() {
	for batch := q.take(); batch != nil; batch = q.take() {
		if q.cfg.HoldAt > 0 {
			for _, units := range byOwner(batch) {
				q.cfg.Guard(func() { q.repeat(units, nil) })
			}
			q.cfg.Guard(func() { q.erase(q.ctx) })
			continue
		}
		if len(batch) > 1 && q.together(batch) == nil {
			continue
		}
		for _, u := range batch { // one of them may be what keeps the others from being removed
			if q.ctx.Err() == nil {
				q.Now(q.ctx, u)
				continue
			}
			q.cfg.Failed([]*Unit{u}, q.ctx.Err(), false) // it was closed, and that may take no longer
			q.letGo(u, left)
		}
	}
}

// take waits until a batch is complete, its first unit has waited for long
// enough, or the queue is being closed.
func (q *Queue) take() []*Unit {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.units); n > 0 && n < q.batch {
		q.mu.Unlock()
		patience := time.NewTimer(Within)
		select {
		case <-q.full:
		case <-patience.C:
		case <-q.open.Done():
		}
		patience.Stop()
		q.mu.Lock()
	}
	n := min(len(q.units), q.batch)
	if n == 0 {
		q.running, q.units = false, nil
		return nil
	}
	batch := q.units[:n:n]
	if q.units = q.units[n:]; len(q.units) < q.batch {
		select { // what it was told of is taken
		case <-q.full:
		default:
		}
	}
	q.room.Broadcast()
	return batch
}

// Settings are those under which receipts are found, as their units have them.
type Settings struct {
	Text  string
	Older bool
}

// spent has a receipt erased together with others.
func (q *Queue) spent(in Settings, receipt string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.receipts[in]) >= eraseMost {
		return
	}
	q.receipts[in] = append(q.receipts[in], receipt)
	if q.erasing == nil && q.cfg.HoldAt == 0 && !q.cfg.EraseInTurn && q.open.Err() == nil {
		q.work.Add(1)
		q.erasing = time.AfterFunc(EraseWithin, func() {
			defer q.work.Done()
			ctx, cancel := context.WithTimeout(q.ctx, q.cfg.Timeout)
			defer cancel()
			q.erase(ctx)
		})
	}
}

// erase erases what waits.
func (q *Queue) erase(ctx context.Context) {
	q.mu.Lock()
	receipts := q.receipts
	q.receipts, q.erasing = map[Settings][]string{}, nil
	q.mu.Unlock()
	for in, ids := range receipts {
		if q.cfg.Erase != nil {
			q.cfg.Erase(ctx, in, ids)
		}
	}
}

// Receipts takes receipts that are to be erased, if they are at least so many:
// for a database where that is done between the callers' own writes.
func (q *Queue) Receipts(least int) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	for in, ids := range q.receipts {
		if len(ids) >= least {
			delete(q.receipts, in)
			return ids
		}
	}
	return nil
}
