package bedsql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// State is the state of a write after its caller got ErrPending.
type State = entry.State

const (
	// StateWaiting means that it is being delivered, or waits for delivery.
	StateWaiting = entry.StateWaiting
	// StateParked means that it waits for an operator to retry or discard it.
	StateParked = entry.StateParked
	// StateDelivered means that the job has delivered it. For a compensable group it means that
	// all of it is delivered, up to a minute after its last part. The log remembers this for 7
	// days.
	StateDelivered = entry.StateDelivered
	// StateDiscarded means that an operator discarded it, or its group was compensated. It is
	// never delivered, unless an earlier attempt in doubt applied it. The log remembers this for 7
	// days.
	StateDiscarded = entry.StateDiscarded
	// StateUnknown means that the log does not hold it, nor a record of its end. It was never
	// logged; or its own call has delivered it, or was refused, and said so; or the log could not
	// note its end in bed_attempt.
	StateUnknown = entry.StateUnknown
)

// Status returns the state of a pending write. entryID is [PendingError].EntryID, or
// [UnknownOutcomeError].EntryID; an entry of the latter may yet arrive in the log after
// StateUnknown. storage is the log of the write's database. The error comes from the log if it
// does not answer.
func Status(ctx context.Context, storage txlog.Storage, entryID string) (State, error) {
	states, err := storage.States(ctx, entryID)
	if err != nil {
		return "", err
	}
	return states[0], nil
}

// Await waits until a pending write is no longer StateWaiting, and returns its state; the
// arguments are the same as for [Status]. All waiters of a process query a log together, at most
// once in 200 ms. Await goes on waiting while the log does not answer; a closed log ends it. When
// ctx ends first, Await returns StateWaiting and the error of ctx, joined with the log's error if
// any.
func Await(ctx context.Context, storage txlog.Storage, entryID string) (State, error) {
	if !entry.IsID(entryID) { // nothing to wait for, and no question for others to fail by
		return Status(ctx, storage, entryID)
	}
	w := make(chan awaited, 1)
	a := join(storage, entryID, w)
	select {
	case got := <-w:
		return got.state, got.err
	case <-ctx.Done():
		awaits.mu.Lock()
		defer awaits.mu.Unlock()
		delete(a.waiters, w)
		return StateWaiting, fmt.Errorf("bed: waiting for entry %s: %w", entryID, errors.Join(ctx.Err(), a.failed))
	}
}

const (
	// awaitPause is the time between two questions to a log.
	awaitPause = 200 * time.Millisecond
	// askFor bounds a question.
	askFor = 10 * time.Second
)

// awaits has the goroutines that query logs for the waiters of this process.
var awaits = struct {
	mu sync.Mutex
	of map[txlog.Storage]*asking
}{of: map[txlog.Storage]*asking{}}

// asking is the goroutine that queries a log for all waiters. It stays for one pause longer, so
// that a new waiter does not query too soon. awaits.mu guards it.
type asking struct {
	// waiters are the ids of their entries, by the channels of their answers.
	waiters map[chan awaited]string
	// failed is the error of the last query.
	failed error
}

type awaited struct {
	state State
	err   error
}

func join(storage txlog.Storage, entryID string, w chan awaited) *asking {
	awaits.mu.Lock()
	defer awaits.mu.Unlock()
	a := awaits.of[storage]
	if a == nil {
		a = &asking{waiters: map[chan awaited]string{}}
		awaits.of[storage] = a
		go a.run(storage)
	}
	a.waiters[w] = entryID
	return a
}

func (a *asking) run(storage txlog.Storage) {
	for {
		var waiters []chan awaited
		var ids []string
		awaits.mu.Lock()
		for w, id := range a.waiters {
			waiters, ids = append(waiters, w), append(ids, id)
		}
		if len(ids) == 0 {
			delete(awaits.of, storage)
			awaits.mu.Unlock()
			return
		}
		awaits.mu.Unlock()
		a.ask(storage, waiters, ids)
		time.Sleep(awaitPause)
	}
}

// ask queries the log once, and answers the waiters with a final state.
func (a *asking) ask(storage txlog.Storage, waiters []chan awaited, ids []string) {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	states, err := storage.States(ctx, ids...)
	awaits.mu.Lock()
	defer awaits.mu.Unlock()
	a.failed = err
	for i, w := range waiters {
		switch {
		case errors.Is(err, txlog.ErrClosed):
			w <- awaited{err: err}
		case err != nil || states[i] == StateWaiting:
			continue
		default:
			w <- awaited{state: states[i]}
		}
		delete(a.waiters, w)
	}
}
