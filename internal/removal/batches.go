package removal

import (
	"context"
	"errors"
	"time"
)

// Batches removes units while their owner delivers more, and makes it wait when a batch
// is complete before the last one is gone. A batch that fails is repeated as one, but for
// units under order keys, and its receipts are erased when it is gone.
type Batches struct {
	line
	within time.Duration
	guard  func(func())
}

// NewBatches makes Batches of n units, Batch at most, that work until ctx ends. Close
// them. A batch is repeated for within at most; guard calls what may panic.
func NewBatches(ctx context.Context, cfg Config, n int, within time.Duration, guard func(func())) *Batches {
	b := &Batches{within: within, guard: guard}
	b.init(ctx, cfg, min(Batch, n))
	return b
}

// Add ends a delivered unit: its entry is removed with others. It waits while a
// batch of them waits.
func (b *Batches) Add(u *Unit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.units) >= b.batch {
		b.room.Wait()
	}
	b.join(u, b.removeBatches)
}

// Close removes what waits, until ctx ends.
func (b *Batches) Close(ctx context.Context) {
	b.close()
	b.wait(ctx)
}

func (b *Batches) removeBatches() {
	for batch := b.take(); batch != nil; batch = b.take() {
		var free, ordered []*Unit
		for _, u := range batch {
			if len(u.Entry.Order) > 0 {
				ordered = append(ordered, u)
			} else {
				free = append(free, u)
			}
		}
		b.guard(func() { b.repeat(free, nil, b.within) })
		b.guard(func() { b.removeOrdered(ordered) })
		b.guard(func() { b.erase(b.ctx) })
	}
}

// removeOrdered removes units under order keys together, or else each alone, for which the next
// batch does not wait: an open transaction of WithTx may hold the key of one.
func (b *Batches) removeOrdered(units []*Unit) {
	err := errPanicked
	defer func() {
		for _, u := range units {
			b.work.Go(func() { b.guard(func() { b.repeat([]*Unit{u}, err, b.within) }) })
		}
	}()
	if len(units) > 0 {
		err = b.together(units)
	}
	if err == nil {
		units = nil
	}
}

var errPanicked = errors.New("the log panicked")
