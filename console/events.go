package console

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/ops"
)

// events tells pages that something changed. While anybody listens, one goroutine
// asks the log for all, and no more often than the log can bear.
type events struct {
	store func() Store
	ctx   context.Context
	end   context.CancelFunc

	mu        sync.Mutex
	listeners map[chan struct{}]bool
	asking    bool
	nudge     chan struct{}
}

const (
	// askEvery is how often the log is asked; a slow one is asked less often, so
	// that asking takes at most a tenth of the time.
	askEvery = 2 * time.Second
	askShare = 10
	// refreshEvery is how often pages are refreshed although nothing was seen to
	// change: ages grow.
	refreshEvery = 30 * time.Second
	// maxStreams bounds the listeners, each of which holds a connection.
	maxStreams = 256
)

func newEvents(store func() Store) *events {
	e := &events{store: store, listeners: map[chan struct{}]bool{}, nudge: make(chan struct{}, 1)}
	e.ctx, e.end = context.WithCancel(context.Background())
	return e
}

func (e *events) close() { e.end() }

// changed has the log be asked at once: somebody acted.
func (e *events) changed() {
	select {
	case e.nudge <- struct{}{}:
	default:
	}
}

// listen registers a listener; ok is false when there are too many.
func (e *events) listen() (told chan struct{}, leave func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.listeners) >= maxStreams || e.ctx.Err() != nil {
		return nil, nil, false
	}
	told = make(chan struct{}, 1)
	e.listeners[told] = true
	if !e.asking {
		e.asking = true
		go e.ask()
	}
	return told, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, told)
	}, true
}

// ask runs until nobody listens any more.
func (e *events) ask() {
	var last [32]byte
	var told time.Time
	for first := true; ; first = false {
		began := time.Now()
		sum := e.sum()
		e.mu.Lock()
		if len(e.listeners) == 0 || e.ctx.Err() != nil {
			e.asking = false
			e.mu.Unlock()
			return
		}
		if !first && sum != last || time.Since(told) >= refreshEvery {
			told = time.Now()
			for l := range e.listeners {
				select {
				case l <- struct{}{}:
				default:
				}
			}
		}
		e.mu.Unlock()
		last = sum
		t := time.NewTimer(max(askEvery, askShare*time.Since(began)))
		select {
		case <-t.C:
		case <-e.nudge:
		case <-e.ctx.Done():
		}
		t.Stop()
	}
}

// sum is a checksum of all that the overview shows but the time.
func (e *events) sum() [32]byte {
	ctx, cancel := context.WithTimeout(e.ctx, answerWithin)
	defer cancel()
	store := e.store()
	if store == nil {
		return sha256.Sum256([]byte("unreachable"))
	}
	o, err := store.Overview(ctx, ops.OverviewOptions{})
	if err != nil {
		return sha256.Sum256([]byte("unreachable"))
	}
	o.At, o.Minutes = time.Time{}, nil
	for i := range o.Jobs {
		o.Jobs[i].LastSeen = time.Time{}
	}
	text, _ := json.Marshal(o)
	return sha256.Sum256(text)
}

// stream sends live updates as server-sent events. They say that something
// changed, not what: the page asks for itself, with its own rights.
func (s service) stream(w http.ResponseWriter, r *http.Request, _ person) error {
	told, leave, ok := s.events.listen()
	if !ok {
		return &failure{status: http.StatusTooManyRequests, text: "Too many pages are open."}
	}
	defer leave()
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if _, err := w.Write([]byte(text)); err != nil {
			return false
		}
		return out.Flush() == nil
	}
	alive := time.NewTicker(15 * time.Second)
	defer alive.Stop()
	for ok := send("retry: 3000\n\n"); ok; {
		select {
		case <-told:
			ok = send("event: changed\ndata: \n\n")
		case <-alive.C:
			ok = send(": alive\n\n") // or a client that went away would never be noticed
		case <-r.Context().Done():
			return nil
		case <-s.events.ctx.Done():
			return nil
		}
	}
	return nil
}

// clientGone reports whether nobody waits for the answer any more.
func clientGone(r *http.Request) bool {
	return context.Cause(r.Context()) == context.Canceled //nolint:errorlint // the server's own
}
