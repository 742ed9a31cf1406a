package bedsql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bedsql/bed/txlog"
)

// State is the state of a write whose caller got ErrPending.
type State = txlog.State

const (
	// StateWaiting: it is being delivered or waits to be.
	StateWaiting = txlog.StateWaiting
	// StateParked: it waits for an operator, who retries or discards it.
	StateParked = txlog.StateParked
	// StateDelivered: the job has delivered it; of a group that can turn back, all of it is
	// delivered, which may take up to a minute after its last part. The log remembers
	// that for 7 days.
	StateDelivered = txlog.StateDelivered
	// StateDiscarded: an operator gave it up, or its group has turned back: it is never
	// delivered, unless an earlier attempt was in doubt and applied it. The log remembers that for 7 days.
	StateDiscarded = txlog.StateDiscarded
	// StateUnknown: the log does not hold it, and nothing there accounts for it. It was
	// never logged, or its own call has delivered it, or was refused, and said so; or the
	// log could not note in bed_attempt how it ended.
	StateUnknown = txlog.StateUnknown
)

// Status says what state a pending write is in. entryID is [PendingError].EntryID, or
// [UnknownOutcomeError].EntryID, whose entry may yet arrive in the log after StateUnknown;
// storage is the log that the write's database was registered with. The error is that
// of the log if it cannot be asked.
func Status(ctx context.Context, storage txlog.Storage, entryID string) (State, error) {
	states, err := storage.States(ctx, entryID)
	if err != nil {
		return "", err
	}
	return states[0], nil
}

// Await waits until a pending write is no longer StateWaiting, and gives its state
// then; the arguments are as for [Status]. All waiters of a process ask a log together,
// at most once in 200 ms. While the log cannot be asked, Await goes on waiting; a log
// that is closed ends it. When ctx ends first it gives StateWaiting and the error of
// ctx, with the log's if there was one.
func Await(ctx context.Context, storage txlog.Storage, entryID string) (State, error) {
	if !txlog.IsID(entryID) { // nothing to wait for, and no question for others to fail by
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

// asking is the one who asks a log for all who wait for it, and a pause longer: so a
// waiter that comes after the last one does not ask too soon.
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

// leave gives the error of the last question.
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

// answer asks once, and answers those who need not wait any longer.
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
