package console

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/jitter"
)

// events tells pages about changes, and whether the log answers. While there are listeners, one
// goroutine looks for changes, at a rate that the log can bear, and another pings the log.
type events struct {
	// ping checks the log, look reads the figures on the pages.
	ping func(context.Context) error
	look func(context.Context) any
	ctx  context.Context
	end  context.CancelFunc

	mu        sync.Mutex
	listeners map[*listener]bool
	// up says whether the log answered last; nil before it was asked.
	up   *bool
	stop context.CancelFunc
	// nudge has the log be asked at once.
	nudge chan struct{}
}

// A listener is an open page.
type listener struct {
	who string
	// changed signals a change, pulse whether the log answers.
	changed chan struct{}
	pulse   chan bool
}

const (
	// askEvery is the interval for queries to the log. A slow log gets fewer, so that they take at
	// most a tenth of the time.
	askEvery = 2 * time.Second
	askShare = 10
	// refreshEvery is how often pages are refreshed although nothing was seen to
	// change: ages grow.
	refreshEvery = 30 * time.Second
	// pulseEvery is the interval of pulses to pages, pulseWithin the time limit of a ping. A page
	// shows a warning after 4 s without a pulse (app.js).
	pulseEvery, pulseWithin = time.Second, 1500 * time.Millisecond
	// maxStreams bounds the listeners, because each holds a connection, and maxStreamsEach those of
	// one user.
	maxStreams, maxStreamsEach = 256, 32
)

func newEvents(ping func(context.Context) error, look func(context.Context) any) *events {
	e := &events{ping: ping, look: look, listeners: map[*listener]bool{}, nudge: make(chan struct{}, 1)}
	e.ctx, e.end = context.WithCancel(context.Background())
	return e
}

// offer sends a value if the receiver is ready for it.
func offer[T any](to chan<- T, v T) {
	select {
	case to <- v:
	default:
	}
}

// listen registers a listener. ok is false if there are too many, in all or for this user.
func (e *events) listen(who string) (l *listener, leave func(), ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	each := 0
	for other := range e.listeners {
		if other.who == who {
			each++
		}
	}
	if len(e.listeners) >= maxStreams || each >= maxStreamsEach || e.ctx.Err() != nil {
		return nil, nil, false
	}
	if len(e.listeners) == 0 {
		var ctx context.Context
		ctx, e.stop = context.WithCancel(e.ctx)
		go e.ask(ctx)
		go e.watch(ctx)
	}
	l = &listener{who: who, changed: make(chan struct{}, 1), pulse: make(chan bool, 1)}
	if e.up != nil { // a proxy may cut a stream every few seconds
		l.pulse <- *e.up
	}
	e.listeners[l] = true
	return l, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.listeners, l); len(e.listeners) == 0 {
			e.stop()
			e.up = nil
		}
	}, true
}

func (e *events) tell(tell func(*listener)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.listeners {
		tell(l)
	}
}

// watch says whether the log answers.
func (e *events) watch(ctx context.Context) {
	for ctx.Err() == nil {
		up := reachable(ctx, e.ping, pulseWithin)
		if ctx.Err() == nil {
			e.tell(func(l *listener) { e.up = &up; offer(l.pulse, up) })
		}
		jitter.Sleep(ctx, pulseEvery)
	}
}

// ask says when something changed.
func (e *events) ask(ctx context.Context) {
	var last [32]byte
	var told time.Time
	for ctx.Err() == nil {
		began := time.Now()
		if sum := e.sum(ctx); sum != last || time.Since(told) >= refreshEvery {
			e.tell(func(l *listener) { offer(l.changed, struct{}{}) })
			last, told = sum, time.Now()
		}
		select {
		case <-time.After(max(askEvery, askShare*time.Since(began))):
		case <-e.nudge:
		case <-ctx.Done():
		}
	}
}

func (e *events) sum(ctx context.Context) [32]byte {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	text, _ := json.Marshal(e.look(ctx))
	return sha256.Sum256(text)
}

// stream sends live updates as server-sent events. They only announce a change: the page then loads
// the news itself, with its own rights.
func (s *site) stream(in *input) (any, error) {
	l, leave, ok := s.events.listen(in.Name)
	if !ok {
		return nil, &failure{status: http.StatusTooManyRequests, text: "Too many pages are open."}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer leave()
		out := http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
		// Proxies must pass each event on at once, and as it is.
		w.Header().Set("X-Accel-Buffering", "no")
		w.Header().Set("Cache-Control", "no-store, no-transform")
		send := func(text string) bool {
			_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := w.Write([]byte(text)); err != nil {
				return false
			}
			return out.Flush() == nil
		}
		for ok := send("retry: 1000\n\n"); ok; {
			select {
			case <-l.changed:
				ok = send("event: changed\ndata: \n\n")
			case up := <-l.pulse:
				ok = send("event: pulse\ndata: " + map[bool]string{true: "up", false: "down"}[up] + "\n\n")
			case <-r.Context().Done():
				return
			case <-s.events.ctx.Done():
				return
			}
		}
	}), nil
}
