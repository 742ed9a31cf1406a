package besteffort

import (
	"time"

	"github.com/bedsql/bed/listener"
)

// tellAttempt tells listeners of the last attempt.
func (e *Deliverer) tellAttempt(d *Delivery, begun time.Time) {
	t := listener.ExecuteSuccess
	if d.Outcome.Err != nil {
		t = listener.ExecuteFailure
	}
	ev := d.Outcome.Event(t, d.origin(), d.Unit)
	ev.Took = ev.Time.Sub(begun)
	d.attempts = append(d.attempts, listener.Attempt{Origin: ev.Origin, Began: begun, Took: ev.Took, Err: ev.Err, Class: ev.Class})
	e.cfg.Bus.Publish(ev)
}

// answered tells listeners what the caller is told of a write that began at begun.
func (e *Deliverer) answered(d *Delivery, begun time.Time, err error) {
	u, now := d.Unit, time.Now()
	e.cfg.Bus.Publish(listener.Event{
		Type: listener.Answered, Origin: d.origin(), Time: now,
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		Took: now.Sub(begun), LogTook: d.logTook, Attempts: d.attempts,
		Err: err, Class: d.Outcome.Class, Assumed: d.Outcome.Assumed, Found: d.Outcome.Found,
	})
}
