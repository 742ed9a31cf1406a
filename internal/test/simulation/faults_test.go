package simulation

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/txlog"
)

// fate is the outcome of a message.
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
	refuses   fate = "is refused"
	cutsOff   fate = "arrives, and is answered that the server is not ready"
	// It is carried out, and the transaction is rolled back behind it: the next
	// statement hears of it.
	dooms fate = "arrives, and the server rolls the transaction back behind it"
)

var faults = []fate{isLost, answerIsLost, strays, rollsBack, waits, notReady, refuses, cutsOff, dooms}

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
		return open && (writes || text == "COMMIT") || strings.HasPrefix(text, compoundStart)
	case notReady:
		return open && ends
	case refuses: // a job, before it meets the receipt
		return !open && strings.HasPrefix(text, compoundStart) && strings.HasPrefix(m.by.name, "job ")
	case cutsOff:
		return strings.HasPrefix(text, compoundStart)
	case dooms:
		return open && writes && !strings.HasPrefix(text, compoundStart)
	case waits:
		return writes && !strings.HasPrefix(text, "PREPARE ")
	}
	return false
}

// fate decides.
func (w *world) fate(m *message) fate {
	if w.calm {
		return arrives
	}
	if f := pick(w, w.faults); w.random.IntN(3) > 0 && m.may(f) {
		return f
	}
	return arrives
}

func (w *world) decide(m *message, f fate) {
	w.say("%s %s", m, f)
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
			if strings.HasPrefix(m.text, compoundStart) {
				s.rollback()
			}
			m.tell(nil, errLockTimeout)
		case notReady:
			m.tell(nil, errNotPrepared)
		case refuses:
			w.denied = true
			m.tell(nil, errDenied)
		case cutsOff:
			_, _ = m.run()
			m.tell(nil, errNotPrepared)
		case dooms:
			m.arrives()
			s.doomed = s.open
		}
	})
	w.rest()
	w.check()
	w.hurry()
}

// hurry delivers a message at the latest time in a history without faults: the log gives up a
// removal without a lease after 33 moments. A removal is three messages. It may wait for four
// messages of another transaction and be repeated.
func (w *world) hurry() {
	if m := w.oldest(); w.calm && m != nil && time.Since(m.sent) >= 3*moment {
		w.decide(m, arrives)
	}
}

// oldest is the message longest in flight; nil if there is none.
func (w *world) oldest() *message {
	all := w.ordered()
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *message) int { return a.sent.Compare(b.sent) })
}

var aRow = regexp.MustCompile(`/\* row \d+ \*/`)

func (m *message) show(label string) string {
	text := strings.TrimSpace(uncommented(m.text))
	if strings.Contains(m.text, "/* row") && !strings.HasPrefix(m.text, insertWithin) {
		text = m.text
	}
	if i := strings.Index(text, compoundStart); i >= 0 {
		text = strings.Join(append([]string{text[:i] + compoundStart}, aRow.FindAllString(text, -1)...), " … ")
	}
	for _, table := range []string{" bed_receipt ", " transaction_log ", " `shop`.transaction_log "} {
		if before, _, ok := strings.Cut(text, table); ok {
			words := strings.Fields(before)
			text = strings.Join(words[:min(2, len(words))], " ") + table + "…"
		}
	}
	if label != "" {
		text += " (" + label + ")"
	}
	return m.by.name + ": " + text + ", to " + m.conn.s.server.name
}

func (m *message) String() string {
	if m.stray {
		return m.shown + ", for which nobody waits,"
	}
	return m.shown
}

// ordered returns the messages in flight, in the same order for the same seed.
func (w *world) ordered() []*message {
	w.n.show()
	all := slices.Clone(w.n.inFlight)
	slices.SortStableFunc(all, func(a, b *message) int {
		return strings.Compare(a.shown, b.shown)
	})
	return all
}

// message decides the fate of a message in flight.
func (w *world) message() {
	if all := w.ordered(); len(all) > 0 {
		m := pick(w, all)
		w.decide(m, w.fate(m))
	}
}

// runOn lets an actor run mostly undisturbed, to its end unless another actor is in its way.
func (w *world) runOn() { w.runTo(w.anyone(), never) }

// toTheEnd lets an actor run to the end of a transaction, and decides that message.
func (w *world) toTheEnd() {
	if m := w.runTo(w.anyone(), func(m *message) bool { return m.text == "COMMIT" || m.text == "ROLLBACK" }); m != nil {
		w.decide(m, w.fate(m))
	}
}

// toAReceipt lets an actor run until it is about to read or change a receipt, and stops it there.
func (w *world) toAReceipt() {
	w.runTo(w.anyone(), func(m *message) bool {
		return strings.Contains(m.text, "bed_receipt ") && !strings.Contains(m.text, "INSERT INTO")
	})
}

// anyone chooses an actor waiting for an answer; nil if there is none.
func (w *world) anyone() *actor {
	if len(w.n.inFlight) == 0 {
		return nil
	}
	return pick(w, w.ordered()).by
}

func (w *world) runTo(by *actor, stop func(*message) bool) *message {
	if by == nil {
		return nil
	}
	for range 60 {
		i := slices.IndexFunc(w.ordered(), func(m *message) bool {
			return (m.by == by || m.by == by.process.itself) && !m.stray && !(w.slowLog && strings.HasPrefix(m.text, insertIntoLog))
		})
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

// operator retries or discards a unit.
func (w *world) operator() {
	units := w.look()
	if len(units) == 0 || w.running["operator"] != nil {
		return
	}
	u := pick(w, units)
	r := w.requestOf(u)
	if w.random.IntN(4) > 0 {
		w.say("an operator retries the log of %s", r)
		w.begin("operator", w.people, func(ctx context.Context) { _ = w.people.log.Retry(ctx, u.id) })
		return
	}
	w.say("an operator discards the log of %s", r)
	was := r.discarded
	r.discarded = true // or will be, once this arrives
	w.begin("operator", w.people, func(ctx context.Context) {
		if err := w.people.log.Discard(ctx, u.id); errors.Is(err, txlog.ErrLeased) || errors.Is(err, txlog.ErrGroup) {
			w.n.do(func() { r.discarded = was })
		}
	})
}

// crash kills a process and starts another in its place. Messages already sent by it may still
// arrive, at any time.
func (w *world) crash() {
	i := w.random.IntN(len(w.apps) + len(w.jobs))
	var p *process
	if i < len(w.apps) {
		p = w.apps[i].process
	} else {
		p = w.jobs[i-len(w.apps)].process
	}
	w.say("%s is killed", p.itself.name)
	for _, m := range w.ordered() {
		if m.conn.process == p && !m.stray {
			m.stray = true
			m.conn.lost.Store(true)
			m.tell(nil, errInvalid)
		}
	}
	w.n.do(func() { p.kill(w.n.inFlight) })
	for name, a := range w.running {
		if a.process == p {
			delete(w.running, name)
		}
	}
	w.n.do(func() {
		for _, r := range w.requests {
			for _, s := range r.sendings {
				s.lost = s.lost || s.by == p && !s.answered
			}
		}
	})
	if i < len(w.apps) {
		w.apps[i] = w.newApp(i)
	} else {
		w.jobs[i-len(w.apps)] = w.newJob(i - len(w.apps))
	}
	w.rest()
	w.check()
}

// fall kills a server, or starts it again.
func (w *world) fall() {
	all := w.servers
	if w.database != nil {
		all = append(slices.Clone(all), w.database)
	}
	if s := pick(w, all); s.down {
		w.rise(s)
	} else {
		w.kill(s)
	}
}

// kill kills a server.
func (w *world) kill(s *server) {
	w.say("%s is killed", s.name)
	w.n.do(func() { s.down = true })
	for {
		at := slices.IndexFunc(w.ordered(), func(m *message) bool { return m.conn.s.server == s })
		if at < 0 {
			break
		}
		m := w.ordered()[at]
		w.n.do(func() {
			w.n.inFlight = slices.DeleteFunc(w.n.inFlight, func(o *message) bool { return o == m })
			m.breaks()
		})
		w.rest() // one by one: who hears of it first is not by chance
	}
	w.n.do(func() {
		for _, p := range w.processes {
			for _, c := range p.conns {
				if c.s.server == s {
					c.breaks()
				}
			}
		}
	})
	w.rest()
	w.check()
}

func (w *world) down() bool {
	return w.database != nil && w.database.down || slices.ContainsFunc(w.servers, func(s *server) bool { return s.down })
}

func (w *world) rise(s *server) {
	w.say("%s is back", s.name)
	w.n.do(func() { s.down = false })
}
