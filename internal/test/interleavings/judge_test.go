package interleavings

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/txlog"
)

var errInvalid = driver.ErrInvalidConn

// applied is how many times a part was.
func (w *world) applied(p *part) int64 { return w.servers[p.source].effect(p.id) }

func (w *world) requestOf(u *txlog.Unit) *request {
	return w.byRow[u.Statements[0].SQL].request
}

// look reads the log.
func (w *world) look() []*txlog.Unit {
	units, err := w.log.List(context.Background(), txlog.Filter{})
	must(err)
	for _, u := range units {
		w.requestOf(u).units[u.ID] = true
	}
	return units
}

// logged reports whether the log holds a unit of a request.
func (w *world) logged(r *request) bool {
	for _, u := range w.look() {
		if w.requestOf(u) == r {
			return true
		}
	}
	return false
}

// sent reports whether a request was sent and answered.
func (r *request) sent() bool {
	for _, s := range r.sendings {
		if s.answered {
			return true
		}
	}
	return false
}

// told reports whether a sending was answered so that is(err).
func (r *request) told(is func(error) bool) bool {
	for _, s := range r.sendings {
		if s.answered && !s.undone && is(s.err) {
			return true
		}
	}
	return false
}

func (r *request) toldDone() bool { return r.told(func(err error) bool { return err == nil }) }

// refused reports whether the application knows of every sending that it was
// not applied.
func (r *request) refused() bool {
	for _, s := range r.sendings {
		if !s.answered || !s.undone && (s.err == nil || errors.Is(s.err, bedsql.ErrPending)) {
			return false
		}
	}
	return len(r.sendings) > 0
}

// fail ends the history. What is claimed stands before the colon.
func (w *world) fail(claim, format string, args ...any) {
	panic(&failure{claim: claim, detail: fmt.Sprintf(format, args...), history: w.history})
}

// check holds at every moment.
func (w *world) check() {
	for _, r := range w.requests {
		w.once(r)
		w.answers(r)
	}
	for _, u := range w.look() {
		if _, delivered := w.byJob.Load(u.ID); delivered {
			w.delivered(u)
		}
		if !u.Parked || w.parked[u.ID] {
			continue
		}
		w.parked[u.ID] = true
		w.say("a log of %s is parked: %s", w.requestOf(u), u.LastError)
		for _, s := range u.Statements {
			if p := w.byRow[s.SQL]; w.applied(p) > 0 {
				w.fail("an applied unit is parked", "%s, row %d: %s", p.request, p.id, u.LastError)
			}
		}
	}
}

func (w *world) delivered(u *txlog.Unit) {
	for _, s := range u.Statements {
		if p := w.byRow[s.SQL]; w.applied(p) != 1 {
			w.fail("reported delivered and not applied", "%s, row %d, by the job", p.request, p.id)
		}
	}
}

// once: nothing is applied twice, and what belongs together on a data source is
// applied together.
func (w *world) once(r *request) {
	for _, p := range r.parts {
		if n := w.applied(p); n > 1 {
			w.fail("applied twice", "%s, row %d: %d times", r, p.id, n)
		}
	}
	if r.kind.name == goesOn {
		return // see answers
	}
	for _, p := range r.parts[1:] {
		for _, q := range r.parts {
			if p.source == q.source && w.applied(p) != w.applied(q) {
				w.fail("a torn transaction", "%s: row %d is applied %d times and row %d %d times", r, q.id, w.applied(q), p.id, w.applied(p))
			}
		}
	}
}

const goesOn = "local transaction that goes on after errors"

// answers: what the application was told is so.
func (w *world) answers(r *request) {
	for _, s := range r.sendings {
		if s.err != nil && s.answered && strings.Contains(s.err.Error(), "for key 'bed_receipt") {
			w.fail("told refused by its own receipt", "%s: %v", r, s.err)
		}
	}
	if r.toldDone() {
		for _, s := range r.sendings {
			if !s.answered || s.err != nil {
				continue
			}
			for _, p := range r.parts {
				switch {
				case s.said[p] && w.applied(p) == 0:
					w.fail("told applied and is not", "%s, row %d", r, p.id)
				case !s.said[p] && len(r.sendings) == 1 && w.applied(p) == 1:
					w.fail("a torn transaction", "%s: row %d is applied whose statement failed", r, p.id)
				}
			}
		}
	}
	if r.refused() {
		for _, p := range r.parts {
			if w.applied(p) != 0 {
				w.fail("told not applied and is", "%s, row %d: %v", r, p.id, r.sendings[len(r.sendings)-1].err)
			}
		}
	}
}

// mayCome reports whether a request may be sent again: its key is kept for the
// retention, and for as long as a log under it is there.
func (w *world) mayCome(r *request) bool {
	return r.key != "" && (time.Since(r.first) < retention*9/10 || w.logged(r))
}

// settle lets everything come to its end: all faults are over.
func (w *world) settle() {
	w.say("all faults are over")
	w.end()
	w.check()
	for _, r := range w.requests {
		if w.mayCome(r) && !r.discarded {
			w.sendIt(r, w.apps[0])
			w.end()
			w.check()
			if s := r.sendings[len(r.sendings)-1]; s.err != nil {
				w.fail("told nothing certain although all is well", "%s: %v", r, s.err)
			}
		}
	}
	for range 4 {
		w.rounds(2 * lease)
	}
	// What is parked stays so for longer than receipts are kept. Then an operator retries it.
	for range 3 {
		w.rounds(retention + lease)
	}
	for range 2 {
		for _, u := range w.look() {
			if u.Parked && w.log.Retry(context.Background(), u.ID) == nil {
				delete(w.parked, u.ID)
			}
		}
		w.rounds(2 * lease)
		w.rounds(2 * lease)
	}
	for _, u := range w.look() {
		r := w.requestOf(u)
		if !u.Parked {
			w.fail("still in the log", "%s: %s", r, u.LastError)
		}
		if u.NotReplayable == "" {
			w.fail("parked although all is well", "%s: %s", r, u.LastError)
		}
	}
	for _, r := range w.requests {
		w.settled(r)
	}
}

func (w *world) rounds(d time.Duration) {
	w.pass(d, false)
	for n := range w.jobs {
		if n != w.lost {
			w.round(n)
			w.end()
			w.check()
		}
	}
}

// settled: what was left to the job is applied, and what belongs together is,
// on all data sources.
func (w *world) settled(r *request) {
	if r.discarded || w.logged(r) {
		return
	}
	last := r.sendings[len(r.sendings)-1]
	for _, p := range r.parts {
		switch {
		case !r.refused() && !r.toldDone() && last.said[p] && w.applied(p) != 1:
			w.fail("pending, its log gone and not applied", "%s, row %d: %v", r, p.id, last.err)
		case r.kind.name != goesOn && w.applied(p) != w.applied(r.parts[0]):
			w.fail("a group half applied", "%s: rows %d and %d are not the same", r, p.id, r.parts[0].id)
		}
	}
}
