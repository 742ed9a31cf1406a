package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file lets time pass, and has the faults that need much of it.

// time passes: leases run out, retentions end.
func (w *world) time() {
	w.pause(pick(w, []time.Duration{2 * lease, retention * 6 / 10, retention + lease}))
}

// pause lets time pass while working actors stand still, if they may.
func (w *world) pause(d time.Duration) bool {
	if w.calm && (len(w.running) > 0 || len(w.n.inFlight) > 0) {
		return false
	}
	if w.down() {
		d = time.Minute // nobody leaves it so for long
	}
	for _, r := range w.requests {
		// No actor stands still past the retention of its receipts, counted from the end of its log
		// entry: the retention promises no more. Each data source of a group has its own.
		if len(w.running) > 0 && d > 2*lease && !w.loggedWhole(r) {
			return false
		}
	}
	w.pass(d, true)
	return true
}

// pass lets time pass; actors at a message stand still. Messages without a waiting sender may take
// longer than a lease, but less than the retention of receipts.
func (w *world) pass(d time.Duration, still bool) {
	w.say("%v pass", d)
	w.n.do(func() {
		if d <= 2*lease {
			return
		}
		for _, m := range w.n.inFlight {
			if m.stray {
				m.breaks()
			}
		}
		w.n.inFlight = slices.DeleteFunc(w.n.inFlight, func(m *message) bool { return m.stray })
	})
	w.n.do(func() { w.n.passing, w.n.still = true, still })
	time.Sleep(d)
	w.n.do(func() { w.n.passing, w.n.still = false, false })
	w.rest()
}

// allJobs lets leases run out, and each job do a round mostly undisturbed.
func (w *world) allJobs() {
	if !w.pause(2 * lease) {
		return
	}
	for n := range w.jobs {
		w.round(n)
		if a := w.running[fmt.Sprintf("job %d", n)]; a != nil {
			w.runTo(a, never)
		}
	}
}

func never(*message) bool { return false }

// againBesideAPurge repeats a request at the end of its key's retention. A purge has already found
// its receipt due, and stands before deleting it.
func (w *world) againBesideAPurge() {
	var some []*request
	for _, r := range w.requests {
		if r.key != "" && !r.kind.spans() && !w.logged(r) {
			some = append(some, r)
		}
	}
	n := w.random.IntN(len(w.jobs))
	name := fmt.Sprintf("job %d", n)
	if len(some) == 0 || len(w.running) > 0 || n == w.lost {
		return
	}
	for range 2 { // its log is found gone, and its retention ends
		w.pause(retention + lease)
		w.round(n)
		a := w.running[name]
		w.runTo(a, func(m *message) bool { return strings.Contains(m.text, "DELETE FROM bed_receipt") })
	}
	r := pick(w, some)
	w.sendIt(r, pick(w, w.apps), !w.mayCome(r))
	w.runTo(w.running[r.sender()], func(m *message) bool {
		return strings.HasPrefix(m.text, "UPDATE bed_receipt SET keep_until")
	})
	if w.random.IntN(2) == 0 {
		w.runTo(w.running[name], never)
	}
}
