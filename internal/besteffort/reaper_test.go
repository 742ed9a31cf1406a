package besteffort

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// watched is a log that notes its removals. They wait while the gate is shut.
type watched struct {
	*txlog.Memory
	begun time.Time
	gate  chan struct{}

	mu       sync.Mutex
	removals []removal
}

// removal is when, since the beginning, how many units were removed together.
type removal struct {
	at time.Duration
	n  int
}

func (w *watched) Remove(ctx context.Context, units ...*txlog.Unit) error {
	w.mu.Lock()
	w.removals = append(w.removals, removal{time.Since(w.begun), len(units)})
	w.mu.Unlock()
	<-w.gate
	return w.Memory.Remove(ctx, units...)
}

func (w *watched) wantRemovals(t *testing.T, want ...removal) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.removals, want) {
		t.Errorf("removals are %v, want %v", w.removals, want)
	}
}

// removesBehind runs a test on a listener, in time that stands still while
// somebody works. At its end the listener is closed and the log is to be empty.
func removesBehind(t *testing.T, lease time.Duration, test func(t *testing.T, e *Deliverer, w *watched)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		w := &watched{Memory: txlog.NewMemory(), begun: time.Now(), gate: make(chan struct{})}
		e := New(Config{Dialect: &delivery.Dialect{}, Storage: w, Lease: lease, LogTimeout: time.Minute, RetryInitial: time.Millisecond, Logger: quiet})
		test(t, e, w)
		e.Close(context.Background())
		if logs, err := w.List(context.Background(), txlog.Filter{}); err != nil || len(logs) != 0 {
			t.Errorf("the log holds %d units, %v; want none", len(logs), err)
		}
		_ = w.Close()
	})
}

// deliverBehind delivers n units whose logs are removed behind the caller.
func deliverBehind(t *testing.T, e *Deliverer, n int) {
	t.Helper()
	for range n {
		id := txlog.NewID()
		d := &Delivery{
			Behind: true, Attempts: funcs{},
			Unit: &txlog.Unit{ID: id, TransactionID: id, DataSource: "orders", Statements: []txlog.Statement{{SQL: "UPDATE t SET n = 1"}}},
		}
		if err := e.Deliver(context.Background(), d); err != nil {
			t.Error(err)
		}
	}
}

func TestARemovalBehindItsCallerWaitsForOthersNoLongerThanItsBound(t *testing.T) {
	removesBehind(t, time.Minute, func(t *testing.T, e *Deliverer, w *watched) {
		close(w.gate)
		deliverBehind(t, e, 1)
		time.Sleep(reapWithin - time.Millisecond)
		deliverBehind(t, e, 2)
		w.wantRemovals(t)
		time.Sleep(time.Millisecond)
		w.wantRemovals(t, removal{reapWithin, 3})
		deliverBehind(t, e, 1) // the queue had ended
		time.Sleep(reapWithin)
		w.wantRemovals(t, removal{reapWithin, 3}, removal{2 * reapWithin, 1})
	})
}

func TestACompleteBatchOfRemovalsLeavesAtOnceAndTheNextWaitsForItsOwnOthers(t *testing.T) {
	removesBehind(t, time.Minute, func(t *testing.T, e *Deliverer, w *watched) {
		deliverBehind(t, e, reapBatch)
		w.wantRemovals(t, removal{0, reapBatch})
		deliverBehind(t, e, reapBatch+7) // while that is under way
		close(w.gate)
		w.wantRemovals(t, removal{0, reapBatch}, removal{0, reapBatch})
		time.Sleep(reapWithin)
		w.wantRemovals(t, removal{0, reapBatch}, removal{0, reapBatch}, removal{reapWithin, 7})
	})
}

func TestCloseRemovesAtOnceWhatWaitsForOthers(t *testing.T) {
	removesBehind(t, time.Minute, func(t *testing.T, e *Deliverer, w *watched) {
		close(w.gate)
		deliverBehind(t, e, 3)
		time.Sleep(time.Millisecond)
		e.Close(context.Background())
		w.wantRemovals(t, removal{time.Millisecond, 3})
	})
}

func TestALeaseThatIsShorterThanTheWaitForOthersIsKept(t *testing.T) {
	const lease = reapWithin / 2
	removesBehind(t, lease, func(t *testing.T, e *Deliverer, w *watched) {
		close(w.gate)
		deliverBehind(t, e, 1)
		time.Sleep(reapWithin - time.Millisecond)
		logs, err := w.List(context.Background(), txlog.Filter{})
		if err != nil || len(logs) != 1 || !logs[0].Leased {
			t.Errorf("after two leases the log holds %+v, %v", logs, err)
		}
		time.Sleep(time.Millisecond)
		w.wantRemovals(t, removal{reapWithin, 1})
	})
}

func TestACallerRemovesItsOwnLogWhenTooManyWait(t *testing.T) {
	removesBehind(t, time.Minute, func(t *testing.T, e *Deliverer, w *watched) {
		deliverBehind(t, e, reapBatch)
		w.wantRemovals(t, removal{0, reapBatch})
		deliverBehind(t, e, reapMost)
		go deliverBehind(t, e, 1)
		w.wantRemovals(t, removal{0, reapBatch}, removal{0, 1})
		close(w.gate)
	})
}
