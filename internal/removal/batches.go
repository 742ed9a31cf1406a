package removal

import (
	"context"
	"errors"
	"time"
)

// Batches removes units while their owner delivers more, and makes the owner wait if a batch
// is complete before the last one is gone. It repeats a failed batch as a whole, except
// units under order keys. It erases the receipts after the removal.
type Batches struct {
	line
	within time.Duration
	guard  func(func())
}

// NewBatches returns Batches of n units, at most Batch, that work until ctx ends. Close
// them. A batch is repeated for at most within; guard calls functions that may panic.
func NewBatches(ctx context.Context, cfg Config, n int, within time.Duration, guard func(func())) *Batches {
	b := &Batches{within: within, guard: guard}
	b.init(ctx, cfg, min(Batch, n))
	return b
}

// Add ends a delivered unit: its entry is removed with others. It waits while a whole batch
// is waiting.
func (b *Batches) Add(u *Unit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.units) >= b.batch {
		b.room.Wait()
	}
	b.join(u, b.removeBatches)
}

// Close removes the waiting units, until ctx ends.
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

// removeOrdered removes units under order keys together, or else each alone. The next batch
// does not wait for these: a COMMIT of WithTx may hold one of their keys.
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
