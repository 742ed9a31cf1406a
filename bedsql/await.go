package bedsql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	w := &awaiting{id: entryID, done: make(chan error, 1)}
	a := awaits.join(storage, w)
	select {
	case err := <-w.done:
		return w.state, err
	case <-ctx.Done():
		return StateWaiting, fmt.Errorf("bed: waiting for entry %s: %w", entryID, errors.Join(ctx.Err(), awaits.leave(a, w)))
	}
}

const (
	// awaitPause is the time between two questions to a log.
	awaitPause = 200 * time.Millisecond
	// askFor bounds a question.
	askFor = 10 * time.Second
)

// awaits are the waiters of this process, by their logs.
var awaits = awaiters{of: map[txlog.Storage]*asking{}}

type awaiters struct {
	mu sync.Mutex
	of map[txlog.Storage]*asking
}

// asking is the goroutine that queries a log for all waiters. It stays for one pause longer, so
// that a new waiter does not query too soon.
type asking struct {
	waiters map[*awaiting]bool
	failed  error
}

// awaiting is a waiter.
type awaiting struct {
	id    string
	state State
	done  chan error
}

func (a *awaiters) join(storage txlog.Storage, w *awaiting) *asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.of[storage]
	if s == nil {
		s = &asking{waiters: map[*awaiting]bool{}}
		a.of[storage] = s
		go a.ask(storage, s)
	}
	s.waiters[w] = true
	return s
}

// leave returns the error of the last query.
func (a *awaiters) leave(s *asking, w *awaiting) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(s.waiters, w)
	return s.failed
}

func (a *awaiters) ask(storage txlog.Storage, s *asking) {
	for {
		a.mu.Lock()
		if len(s.waiters) == 0 {
			delete(a.of, storage)
			a.mu.Unlock()
			return
		}
		waiters := slices.Collect(maps.Keys(s.waiters))
		a.mu.Unlock()
		a.answer(storage, s, waiters)
		time.Sleep(awaitPause)
	}
}

// answer queries the log once, and answers the waiters with a final state.
func (a *awaiters) answer(storage txlog.Storage, s *asking, waiters []*awaiting) {
	ids := make([]string, len(waiters))
	for i, w := range waiters {
		ids[i] = w.id
	}
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	states, err := storage.States(ctx, ids...)
	a.mu.Lock()
	defer a.mu.Unlock()
	s.failed = err
	for i, w := range waiters {
		switch {
		case errors.Is(err, txlog.ErrClosed):
		case err != nil || states[i] == StateWaiting:
			continue
		default:
			w.state = states[i]
		}
		w.done <- err
		delete(s.waiters, w)
	}
}
