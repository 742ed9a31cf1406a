package listener

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/txlog"
)

// Bounds of the removals behind the callers.
const (
	// maxBehind is how many delivered units may wait for their removal. Beyond
	// it a caller removes its own before it returns.
	maxBehind = 4096
	// behindBatch is how many are removed together.
	behindBatch = 256
	// behindFor is how long a unit waits for others at the most. A database
	// pays for a removal by the transaction more than by the row: InnoDB needs
	// half as much for each of 128 rows as for each of 32.
	behindFor = 25 * time.Millisecond
)

// behind removes the logs of delivered units behind their callers, together
// with those that are delivered within behindFor. It has a goroutine only while
// there is something to remove.
type behind struct {
	b *BestEfforts
	// full is told when a batch is complete.
	full chan struct{}

	mu      sync.Mutex
	queue   []*Execution
	running bool
}

// add takes a delivered unit, unless too many wait or the listener is closed.
func (q *behind) add(x *Execution) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) >= maxBehind {
		return false
	}
	if !q.running {
		if !q.b.later(q.run) {
			return false
		}
		q.running = true
	}
	q.queue = append(q.queue, x)
	if len(q.queue) == behindBatch {
		select {
		case q.full <- struct{}{}:
		default:
		}
	}
	return true
}

// gather waits until a batch is complete, its first unit has waited for long
// enough, or the listener is being closed.
func (q *behind) gather() {
	q.mu.Lock()
	n := len(q.queue)
	q.mu.Unlock()
	if n == 0 || n >= behindBatch {
		return
	}
	patience := time.NewTimer(behindFor)
	defer patience.Stop()
	select {
	case <-q.full:
	case <-patience.C:
	case <-q.b.closing:
	}
}

func (q *behind) take() []*Execution {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.queue), behindBatch)
	if n == 0 {
		q.running = false
		q.queue = nil
		return nil
	}
	batch := q.queue[:n:n]
	q.queue = q.queue[n:]
	if len(q.queue) < behindBatch {
		select { // what it was told of is taken
		case <-q.full:
		default:
		}
	}
	return batch
}

func (q *behind) run() {
	for {
		q.gather()
		batch := q.take()
		if batch == nil {
			return
		}
		if len(batch) > 1 && q.removeAll(batch) {
			continue
		}
		for _, x := range batch {
			err := q.b.remove(q.b.ctx, x.Unit)
			if err == nil || errors.Is(err, txlog.ErrLeaseLost) {
				q.b.removed(x, err)
			} else {
				q.b.removeAgain(x, err)
			}
		}
	}
}

// removeAll removes units together; false if they have to be by themselves.
func (q *behind) removeAll(batch []*Execution) bool {
	units := make([]*txlog.Unit, len(batch))
	for i, x := range batch {
		q.b.keeper.Refresh(x.Unit)
		units[i] = x.Unit
	}
	ctx, cancel := context.WithTimeout(q.b.ctx, q.b.cfg.LogTimeout)
	defer cancel()
	err := q.b.cfg.Storage.Remove(ctx, units...)
	var lost *txlog.LeaseLostError
	if err != nil && !errors.As(err, &lost) {
		return false
	}
	for _, x := range batch {
		if lost != nil && slices.Contains(lost.IDs, x.Unit.ID) {
			q.b.removed(x, err)
		} else {
			q.b.removed(x, nil)
		}
	}
	return true
}
