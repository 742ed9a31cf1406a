package removal

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Batches removes units while their owner delivers more, and makes it wait when a batch
// is complete before the last one is gone. A batch that fails is repeated as one, and
// its receipts are erased when it is gone.
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
		for _, units := range byOwner(batch) {
			b.guard(func() { b.repeat(units, nil, b.within) })
		}
		b.guard(func() { b.erase(b.ctx) })
	}
}

// byOwner parts what was claimed at different times: units of one owner are
// removed by a cheaper statement.
func byOwner(batch []*Unit) (portions [][]*Unit) {
	token := func(u *Unit) string { return u.Entry.Lease.Token }
	slices.SortStableFunc(batch, func(a, b *Unit) int { return cmp.Compare(token(a), token(b)) })
	for begin, i := 0, 1; i <= len(batch); i++ {
		if i == len(batch) || token(batch[i]) != token(batch[begin]) {
			portions = append(portions, batch[begin:i])
			begin = i
		}
	}
	return portions
}
