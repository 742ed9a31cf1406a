package listener

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/slogger"
)

// Bus sends events to listeners. Each listener runs in a goroutine of its own, so that a
// slow or panicking one neither delays nor breaks a write. When its buffer is full, further
// events are dropped and counted. The zero value is not usable; a nil *Bus has no listeners.
// It is safe for concurrent use.
type Bus struct {
	// Buffer is the maximum number of waiting events for each listener that subscribes from now
	// on; values below 1 mean 1024. Set it before the first use of the bus.
	Buffer int
	// Slog, a *slog.Logger, takes the bus's log lines instead of NewBus's logger. Set it before
	// the first use of the bus. nil means that logger.
	Slog slogger.Logger

	log  logrus.FieldLogger
	mu   sync.Mutex
	subs atomic.Pointer[[]*Subscription]

	traceParent atomic.Pointer[func(context.Context) string]
}

// NewBus returns a bus. It logs to logger when listeners panic or fall behind; nil means
// logrus's standard logger.
func NewBus(logger logrus.FieldLogger) *Bus {
	return &Bus{log: logger}
}

func (b *Bus) logger() logrus.FieldLogger { return slogger.Of(b.log, b.Slog) }

// Subscription is one listener's place on a bus.
type Subscription struct {
	bus      *Bus
	notify   func(Event)
	events   chan Event
	quit     chan struct{}
	done     chan struct{}
	close    sync.Once
	dropped  atomic.Uint64
	panicked atomic.Uint64
}

// Subscribe adds a listener: until the subscription is closed, one goroutine calls notify
// with each event published from now on, in the order of publication.
func (b *Bus) Subscribe(notify func(Event)) *Subscription {
	buffer := b.Buffer
	if buffer < 1 {
		buffer = 1024
	}
	s := &Subscription{
		bus: b, notify: notify,
		events: make(chan Event, buffer),
		quit:   make(chan struct{}), done: make(chan struct{}),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	subs := slices.Concat(b.listeners(), []*Subscription{s})
	b.subs.Store(&subs)
	go s.run()
	return s
}

// Listening reports whether there is a listener, so that a writer need not make unwanted
// events.
func (b *Bus) Listening() bool { return len(b.listeners()) > 0 }

func (b *Bus) listeners() []*Subscription {
	if b == nil || b.subs.Load() == nil {
		return nil
	}
	return *b.subs.Load()
}

// SetTraceParent sets the function that names a caller's trace: parent returns the W3C
// traceparent of the span in ctx, empty without a span. The entry in the log keeps it, so
// that the job's delivery can link to the span. The writing goroutine calls parent for each
// write; nil, the default, keeps no traceparent. A text is not kept if its length or letters
// rule out a traceparent.
func (b *Bus) SetTraceParent(parent func(ctx context.Context) string) {
	if parent == nil {
		b.traceParent.Store(nil)
		return
	}
	b.traceParent.Store(&parent)
}

// maxTraceParent is the maximum length of a traceparent: later versions of the format may be
// longer than the 55 characters of the first.
const maxTraceParent = 256

// TraceParent returns the traceparent of the span in ctx, as set by SetTraceParent.
func (b *Bus) TraceParent(ctx context.Context) string {
	if b == nil {
		return ""
	}
	parent := b.traceParent.Load()
	if parent == nil {
		return ""
	}
	text := (*parent)(ctx)
	if len(text) > maxTraceParent || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return text
}

// Publish passes ev to every listener and returns at once.
func (b *Bus) Publish(ev Event) {
	for _, s := range b.listeners() {
		select {
		case s.events <- ev:
		default:
			if s.dropped.Add(1) == 1 {
				b.logger().WithField("entry", ev.ID).Warn("bed: a listener does not keep up, events are dropped for it")
			}
		}
	}
}

// Close removes the listener from the bus and waits until it has processed the earlier
// events. A call from inside the listener would wait for itself; make it in another
// goroutine.
func (s *Subscription) Close() {
	s.close.Do(func() {
		b := s.bus
		b.mu.Lock()
		subs := slices.DeleteFunc(slices.Clone(b.listeners()), func(other *Subscription) bool { return other == s })
		b.subs.Store(&subs)
		b.mu.Unlock()
		close(s.quit)
	})
	<-s.done
}

// Dropped counts the events that met a full buffer.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Panics counts the events that made the listener panic.
func (s *Subscription) Panics() uint64 { return s.panicked.Load() }

func (s *Subscription) run() {
	defer close(s.done)
	for {
		select {
		case ev := <-s.events:
			s.tell(ev)
		case <-s.quit:
			for len(s.events) > 0 { // only this goroutine reads them
				s.tell(<-s.events)
			}
			return
		}
	}
}

func (s *Subscription) tell(ev Event) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked.Add(1)
			s.bus.logger().WithFields(logrus.Fields{"entry": ev.ID, "panic": p}).Error("bed: a listener panicked")
		}
	}()
	s.notify(ev)
}
