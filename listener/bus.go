package listener

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// Bus spreads events to listeners. A listener runs in a goroutine of its own, so
// that one that blocks or panics neither delays nor breaks a write. When its buffer
// is full, further events are dropped and counted. The zero value is not usable; a
// nil *Bus has no listeners. It is safe for concurrent use.
type Bus struct {
	// Buffer is how many events may wait for each listener that subscribes from
	// now on; values below 1 mean 1024. Set it before the bus is used.
	Buffer int

	log  logrus.FieldLogger
	mu   sync.Mutex
	subs atomic.Pointer[[]*Subscription]

	traceParent atomic.Pointer[func(context.Context) string]
}

// NewBus makes a bus. It logs to logger when listeners panic or fall behind; nil
// means logrus's standard logger.
func NewBus(logger logrus.FieldLogger) *Bus {
	if logger == nil {
		logger = logrus.StandardLogger()
	}
	return &Bus{log: logger}
}

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

// Subscribe adds a listener: notify is called with each event published from now
// on until the subscription is closed, from one goroutine, in the order of
// publication.
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
	subs := []*Subscription{s}
	if old := b.subs.Load(); old != nil {
		subs = slices.Concat(*old, subs)
	}
	b.subs.Store(&subs)
	go s.run()
	return s
}

// Listening reports whether anybody listens, so that an event nobody wants
// need not be made.
func (b *Bus) Listening() bool {
	if b == nil {
		return false
	}
	subs := b.subs.Load()
	return subs != nil && len(*subs) > 0
}

// SetTraceParent says how the trace in which a caller writes is named: parent
// gives the W3C traceparent of the span in ctx, empty for none. It is kept with the
// entry in the log, so that the job's delivery can be linked to it. It is called
// by the writing goroutine, for each write; nil, the default, keeps none. What is
// no traceparent by its length and letters is not kept.
func (b *Bus) SetTraceParent(parent func(ctx context.Context) string) {
	if parent == nil {
		b.traceParent.Store(nil)
		return
	}
	b.traceParent.Store(&parent)
}

// maxTraceParent is the greatest length of a traceparent: later versions of the
// format may be longer than the 55 characters of the first.
const maxTraceParent = 256

// TraceParent gives the traceparent of the span in ctx, as SetTraceParent has it.
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

// Publish hands ev to every listener and returns at once.
func (b *Bus) Publish(ev Event) {
	if !b.Listening() {
		return
	}
	for _, s := range *b.subs.Load() {
		select {
		case s.events <- ev:
		default:
			if s.dropped.Add(1) == 1 {
				b.log.WithField("entry", ev.ID).Warn("bed: a listener does not keep up, events are dropped for it")
			}
		}
	}
}

// Close takes the listener off the bus, lets it finish what was published
// before, and waits for that. Calling it from inside the listener would wait for
// itself; do that in another goroutine.
func (s *Subscription) Close() {
	s.close.Do(func() {
		b := s.bus
		b.mu.Lock()
		subs := slices.DeleteFunc(slices.Clone(*b.subs.Load()), func(other *Subscription) bool { return other == s })
		b.subs.Store(&subs)
		b.mu.Unlock()
		close(s.quit)
	})
	<-s.done
}

// Dropped counts the events that found the buffer full.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Panics counts the events on which the listener panicked.
func (s *Subscription) Panics() uint64 { return s.panicked.Load() }

func (s *Subscription) run() {
	defer close(s.done)
	for {
		select {
		case ev := <-s.events:
			s.tell(ev)
		case <-s.quit:
			for len(s.events) > 0 { // nobody else reads them
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
			s.bus.log.WithFields(logrus.Fields{"entry": ev.ID, "panic": p}).Error("bed: a listener panicked")
		}
	}()
	s.notify(ev)
}
