package truth

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// pendingWrites leaves n writes pending. Their row stays locked until free is called.
func pendingWrites(r *rig.Rig, n int) (ids []string, free func()) {
	r.T.Helper()
	impatient := r.Open(rig.Impatient(r.DB).DSN)
	free = r.BlockRow(1)
	for range n {
		_, err := impatient.Exec(r.Q("UPDATE account SET balance = balance - 1 WHERE id = ?"), 1)
		ids = append(ids, rig.WantPending(r.T, err).EntryID)
	}
	return ids, free
}

func wantState(r *rig.Rig, id string, want bedsql.State) {
	r.T.Helper()
	if got, err := bedsql.Status(r.T.Context(), r.Storage, id); got != want || err != nil {
		r.T.Errorf("the state of %s is %q, %v; want %q", id, got, err, want)
	}
}

func TestStatusFollowsAPendingWriteToItsEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		ids, free := pendingWrites(r, 1)
		wantState(r, ids[0], bedsql.StateWaiting)
		free()
		r.RunOnce()
		wantState(r, ids[0], bedsql.StateDelivered)

		ids, free = pendingWrites(r, 1)
		free()
		if err := r.Storage.Discard(t.Context(), ids[0]); err != nil {
			t.Fatal(err)
		}
		wantState(r, ids[0], bedsql.StateDiscarded)

		// The fate of an entry deleted by hand is unknown.
		ids, free = pendingWrites(r, 1)
		free()
		wantState(r, ids[0], bedsql.StateWaiting)
		if _, err := r.LogDB.Open(t).Exec("DELETE FROM transaction_log"); err != nil {
			t.Fatal(err)
		}
		wantState(r, ids[0], bedsql.StateUnknown)
		wantState(r, entry.NewID(), bedsql.StateUnknown)
	})
}

// counting counts the questions to a log.
type counting struct {
	txlog.Storage
	asked atomic.Int64
	// gate, if not nil, holds up each question until it takes a value.
	gate chan struct{}
}

func (c *counting) States(ctx context.Context, ids ...string) ([]entry.State, error) {
	c.asked.Add(1)
	if c.gate != nil {
		<-c.gate
	}
	return c.Storage.States(ctx, ids...)
}

func TestAwaitReturnsOnceThePendingWriteIsDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		ids, free := pendingWrites(r, 3)
		storage := &counting{Storage: r.Storage}
		begun := time.Now()
		var all sync.WaitGroup
		for _, id := range ids {
			for range 20 {
				all.Go(func() {
					if got, err := bedsql.Await(t.Context(), storage, id); got != bedsql.StateDelivered || err != nil {
						t.Errorf("waiting for %s: %q, %v", id, got, err)
					}
				})
			}
		}
		free()
		r.RunOnce()
		r.WantNoLog()
		all.Wait()
		// One question at the beginning, and one each 200 ms.
		if asked, most := storage.asked.Load(), 2+int64(time.Since(begun)/(200*time.Millisecond)); asked > most {
			t.Errorf("60 waiters asked the log %d times, want at most %d", asked, most)
		}
	})
}

// All waiters of a process ask a log together.
func TestMalformedIDsDisturbNoOtherWaiter(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		ids, free := pendingWrites(r, 1)
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		answer, done := make(chan error, 1), make(chan struct{})
		go func() {
			got, err := bedsql.Await(ctx, r.Storage, ids[0])
			if got != bedsql.StateDelivered {
				t.Errorf("the state is %q", got)
			}
			answer <- err
		}()
		var all sync.WaitGroup
		for _, id := range []string{"\xff", "\x00", ids[0][:35] + "\xff", "17"} {
			all.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						if _, err := bedsql.Await(ctx, r.Storage, id); err != nil {
							t.Errorf("%q: %v", id, err)
							return
						}
					}
				}
			})
		}
		free()
		r.RunOnce()
		if err := <-answer; err != nil {
			t.Error(err)
		}
		close(done)
		all.Wait()
	})
}

func TestAwaitEndsWithItsContextStillWaiting(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.New(t, testdb.DriverSQLite), rig.NoSyncRetry)
	r.Account(100)
	ids, free := pendingWrites(r, 1)
	defer free()
	storage := &counting{Storage: r.Storage, gate: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		got, err := bedsql.Await(ctx, storage, ids[0])
		if got != bedsql.StateWaiting {
			t.Errorf("the state is %q", got)
		}
		result <- err
	}()
	storage.gate <- struct{}{} // it has asked once
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	close(storage.gate)
}

func TestAwaitOfAClosedLogReportsThat(t *testing.T) {
	t.Parallel()
	storage := txlog.NewMemory()
	if err := storage.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := bedsql.Await(t.Context(), storage, entry.NewID()); !errors.Is(err, txlog.ErrClosed) {
		t.Errorf("the error is %v", err)
	}
}
