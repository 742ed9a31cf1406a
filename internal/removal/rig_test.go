package removal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/txlog"
)

var errDown = errors.New("the log is down")

// watched is a log that records its removals. They wait while the gate is shut, and then fail as
// long as fails returns an error.
type watched struct {
	*txlog.Memory
	begun time.Time
	gate  chan struct{}
	fails func(units []*entry.Unit) error
	// mute: it renews no lease. silent: it answers no removal.
	mute, silent bool

	mu       sync.Mutex
	removals []removal
}

// removal is when, since the beginning, how many units were removed together.
type removal struct {
	at time.Duration
	n  int
}

func (w *watched) Remove(ctx context.Context, units ...*entry.Unit) error {
	w.mu.Lock()
	w.removals = append(w.removals, removal{time.Since(w.begun), len(units)})
	w.mu.Unlock()
	<-w.gate
	if w.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	if w.fails != nil {
		if err := w.fails(units); err != nil {
			return err
		}
	}
	return w.Memory.Remove(ctx, units...)
}

func (w *watched) Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) ([]*entry.Unit, error) {
	if w.mute {
		return nil, errDown
	}
	return w.Memory.Renew(ctx, lease, units...)
}

// delivered is a unit that records its end.
type delivered struct {
	Unit
	ended []string
}

func deliver(unit *entry.Unit) *delivered {
	d := &delivered{Unit: Unit{Entry: unit, Certain: true}}
	d.Ended = func(lost bool) { d.ended = append(d.ended, map[bool]string{true: "lost", false: "ended"}[lost]) }
	return d
}

// rig is a queue over a log, with a record of its reports.
type rig struct {
	*Queue           // nil in a test of Batches
	batches *Batches // nil in a test of a Queue
	log     *watched
	keep    time.Duration
	leases  *lease.Renewer
	all     []*delivered

	mu     sync.Mutex
	failed []string // of how many units a removal failed, and what follows
	erased map[Session][]string
}

// removes runs a test on a queue. Time stands still while a goroutine works. At the end the queue
// is closed, and each unit must have ended once.
func removes(t *testing.T, keep time.Duration, kind func(*rig, Config), test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{keep: keep, log: &watched{Memory: txlog.NewMemory(), begun: time.Now(), gate: make(chan struct{})}, erased: map[Session][]string{}}
		r.leases = lease.NewRenewer(r.log.Renew, keep)
		cfg := Config{
			Remove: r.log.Remove, Timeout: 5 * time.Second,
			Pause: func() *backoff.ExponentialBackOff {
				b := jitter.BackOff(time.Second, time.Second)
				b.RandomizationFactor = 0
				return b
			},
			Failed: func(units []*Unit, _ error, repeated bool) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.failed = append(r.failed, fmt.Sprint(len(units), map[bool]string{true: " repeated", false: " left"}[repeated]))
			},
			Erase: func(_ context.Context, in Session, ids []string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.erased[in] = append(r.erased[in], ids...)
			},
		}
		kind(r, cfg)
		test(t, r)
		if r.batches != nil {
			r.batches.Close(context.Background())
		} else {
			r.Close(context.Background())
		}
		synctest.Wait() // for the callers that remove their own
		for i, d := range r.all {
			if len(d.ended) != 1 {
				t.Errorf("unit %d has ended as %q", i, d.ended)
			}
		}
		if n := r.left(t); n != 0 && r.log.fails == nil && !r.log.silent {
			t.Errorf("%d entries of delivered units are left", n)
		}
		_ = r.log.Close()
	})
}

// queued tests a Queue, inTurn one that leaves receipts to be taken, held Batches of ten.
func queued(r *rig, cfg Config) { r.Queue = NewQueue(context.Background(), cfg, false) }
func inTurn(r *rig, cfg Config) { r.Queue = NewQueue(context.Background(), cfg, true) }
func held(r *rig, cfg Config) {
	r.batches = NewBatches(context.Background(), cfg, 10, time.Minute, func(f func()) {
		defer func() { _ = recover() }()
		f()
	})
}

// add delivers n units.
func (r *rig) add(t *testing.T, n int, change ...func(*delivered)) {
	t.Helper()
	for range n {
		id := entry.NewID()
		d := deliver(&entry.Unit{ID: id, TransactionID: id, DataSource: "orders", Receipt: "r" + id, Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1"}}})
		for _, f := range change {
			f(d)
		}
		repeated := d.Entry.AddRepeated
		if err := r.log.Add(t.Context(), r.keep, d.Entry); err != nil {
			t.Error(err)
		}
		d.Entry.AddRepeated = repeated
		d.Lease = r.leases.Keep(d.Entry)
		r.mu.Lock()
		r.all = append(r.all, d)
		r.mu.Unlock()
		if r.batches != nil {
			r.batches.Add(&d.Unit)
		} else {
			r.Later(t.Context(), &d.Unit)
		}
	}
}

// left is how many entries the log holds.
func (r *rig) left(t *testing.T) int {
	t.Helper()
	units, err := r.log.List(t.Context(), txlog.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return len(units)
}

func (r *rig) wantErased(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := 0
	for _, ids := range r.erased {
		sum += len(ids)
	}
	if sum != n {
		t.Errorf("%d receipts are erased, want %d", sum, n)
	}
}

func (r *rig) wantFailed(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.failed, want) {
		t.Errorf("what failed is %q, want %q", r.failed, want)
	}
}

func (r *rig) wantRemovals(t *testing.T, want ...removal) {
	t.Helper()
	synctest.Wait()
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if !slices.Equal(r.log.removals, want) {
		t.Errorf("removals are %v, want %v", r.log.removals, want)
	}
}
