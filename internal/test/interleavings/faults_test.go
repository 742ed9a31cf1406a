package interleavings

import (
	"context"
	"slices"
	"strings"
	"time"
)

// fate is what becomes of a message.
type fate string

const (
	arrives fate = "arrives"
	// The connection breaks.
	isLost       fate = "is lost" // it never arrives
	answerIsLost fate = "has its answer lost"
	strays       fate = "strays" // nobody waits for it, it arrives or not, some time
	// The server answers with an error.
	rollsBack fate = "is answered that the transaction was rolled back"
	waits     fate = "is answered that it waited for a lock"
	notReady  fate = "is answered that the server is not ready, and leaves the transaction open"
	// It is carried out, and the transaction is rolled back behind it: the next
	// statement hears of it.
	dooms fate = "arrives, and the server rolls the transaction back behind it"
)

var faults = []fate{isLost, answerIsLost, strays, rollsBack, waits, notReady, dooms}

// may reports whether a fate makes sense for a message.
func (m *message) may(f fate) bool {
	if m.stray {
		return f == isLost // or arrives; its session ends with it
	}
	text, open := m.text, m.conn.s.open
	ends := text == "COMMIT" || text == "ROLLBACK"
	writes := !ends && text != begin && !strings.HasPrefix(text, "SELECT")
	switch f {
	case isLost, answerIsLost, strays:
		return true
	case rollsBack:
		return open && (writes || text == "COMMIT")
	case notReady:
		return open && ends
	case dooms:
		return open && writes
	case waits:
		return writes && !strings.HasPrefix(text, "PREPARE ")
	}
	return false
}

// fate decides.
func (w *world) fate(m *message) fate {
	if f := pick(w, w.faults); w.random.IntN(3) > 0 && m.may(f) {
		return f
	}
	return arrives
}

func (w *world) decide(m *message, f fate) {
	text := m.text
	if before, _, ok := strings.Cut(text, " bed_receipt "); ok {
		text = before + " bed_receipt …"
	}
	w.say("%s: %s on session %d of %s %s", w.name(m), text, m.conn.s.id, m.conn.s.server.name, f)
	w.n.do(func() {
		w.n.inFlight = slices.DeleteFunc(w.n.inFlight, func(o *message) bool { return o == m })
		s := m.conn.s
		switch f {
		case arrives:
			m.arrives()
			if m.stray {
				m.breaks()
			}
		case isLost:
			m.breaks()
		case answerIsLost:
			_, _ = m.run()
			m.breaks()
		case strays:
			m.stray = true
			m.conn.lost.Store(true)
			m.tell(nil, errInvalid)
			w.n.inFlight = append(w.n.inFlight, m)
		case rollsBack:
			s.rollback()
			m.tell(nil, errDeadlock)
		case waits:
			m.tell(nil, errLockTimeout)
		case notReady:
			m.tell(nil, errNotPrepared)
		case dooms:
			m.arrives()
			s.doomed = s.open
		}
	})
	w.rest()
	w.check()
}

func (w *world) name(m *message) string {
	if m.stray {
		return m.by.name + " (gone)"
	}
	return m.by.name
}

func (w *world) ordered() []*message {
	all := slices.Clone(w.n.inFlight)
	slices.SortStableFunc(all, func(a, b *message) int {
		return strings.Compare(a.by.name+a.conn.s.server.name, b.by.name+b.conn.s.server.name)
	})
	return all
}

// message decides what becomes of one that is in flight.
func (w *world) message() {
	if all := w.ordered(); len(all) > 0 {
		m := pick(w, all)
		w.decide(m, w.fate(m))
	}
}

// runOn lets an actor go on mostly undisturbed, to its end if nobody is in its way.
func (w *world) runOn() { w.runTo(func(*message) bool { return false }) }

// toTheEnd lets an actor go on to where it ends a transaction, and decides that.
func (w *world) toTheEnd() {
	if m := w.runTo(func(m *message) bool { return m.text == "COMMIT" || m.text == "ROLLBACK" }); m != nil {
		w.decide(m, w.fate(m))
	}
}

func (w *world) runTo(stop func(*message) bool) *message {
	if len(w.n.inFlight) == 0 {
		return nil
	}
	by := pick(w, w.ordered()).by
	for range 40 {
		i := slices.IndexFunc(w.ordered(), func(m *message) bool { return m.by == by && !m.stray })
		if i < 0 {
			return nil
		}
		m := w.ordered()[i]
		if stop(m) {
			return m
		}
		f := arrives
		if w.random.IntN(8) == 0 {
			f = w.fate(m)
		}
		w.decide(m, f)
	}
	return nil
}

// time passes: leases run out, retentions end.
func (w *world) time() {
	d := pick(w, []time.Duration{2 * lease, retention * 6 / 10, retention + lease})
	for _, r := range w.requests {
		// Nobody stands still for longer than receipts are kept after the log of
		// what he is doing is gone: that is what retention means.
		if len(w.running) > 0 && d > 2*lease && !w.logged(r) && r.sent() {
			return
		}
	}
	w.pass(d, true)
}

// pass lets time pass, in which who stands at a message stands still.
func (w *world) pass(d time.Duration, still bool) {
	w.say("%v pass", d)
	w.n.do(func() {
		for _, m := range w.n.inFlight {
			if m.stray {
				m.breaks()
			}
		}
		w.n.inFlight = slices.DeleteFunc(w.n.inFlight, func(m *message) bool { return m.stray })
	})
	w.log.still.Store(still)
	time.Sleep(d)
	w.log.still.Store(false)
	w.rest()
}

// operator retries or discards a unit.
func (w *world) operator() {
	units := w.look()
	if len(units) == 0 {
		return
	}
	u := pick(w, units)
	r := w.requestOf(u)
	if w.random.IntN(4) > 0 {
		if w.log.Retry(context.Background(), u.ID) == nil {
			w.say("an operator retries the log of %s", r)
			delete(w.parked, u.ID)
		}
		return
	}
	if w.log.Discard(context.Background(), u.ID) == nil {
		w.say("an operator discards the log of %s", r)
		r.discarded = true
	}
}
