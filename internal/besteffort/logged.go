package besteffort

import (
	"context"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// The functions of this file deliver units whose entries are written before their delivery
// begins: with other units in one step, or by another client's transaction. Decorators of
// Deliverer call them too.

// Accept writes the entry of a unit. Keep must follow. An error is the caller's answer, and is
// reported.
func (d *Deliverer) Accept(ctx context.Context, w *InFlight) error {
	if d.Bus != nil {
		d.follow(ctx, w)
	}
	if errs := d.log(ctx, w); errs != nil {
		return d.Answer(w, errs[0])
	}
	return nil
}

// Log writes the entries of several units in one durable step; Keep must follow for each. Before
// that step no unit is delivered. After it each unit is delivered or, if the database refuses it,
// parked. If the step fails, errs holds the error of each unit.
func (d *Deliverer) Log(ctx context.Context, ws ...*InFlight) []error {
	if d.Bus != nil {
		for _, w := range ws {
			d.follow(ctx, w)
		}
	}
	errs := d.log(ctx, ws...)
	for i, err := range errs {
		if ws[i].heard != nil {
			d.answered(ws[i], err)
		}
	}
	return errs
}

// Adopt prepares a unit for DeliverLogged if its entry was written together with another client's
// rows. w owns the entry by its token.
func (d *Deliverer) Adopt(w *InFlight) {
	if d.Bus != nil {
		d.listen(w)
	}
	w.take(accept)
}

// Keep keeps the lease of a logged unit until its end.
func (d *Deliverer) Keep(w *InFlight) {
	if w.state == logged { // else it runs unlogged
		w.lease = d.leases.Keep(w.Unit)
	}
}

// KeepUntaken is Keep for a unit that has no lease and must be sent before the time until. Only a
// unit with a receipt may go without a lease.
func (d *Deliverer) KeepUntaken(w *InFlight, until time.Time) {
	w.lease = d.leases.KeepUntaken(w.Unit, until)
}

// Resume makes a unit of an entry that is in the log and leased, for Release or Remove.
func (d *Deliverer) Resume(u *entry.Unit) *InFlight {
	return &InFlight{Unit: u, lease: d.leases.Keep(u), course: course{state: logged}}
}

// DeliverLogged is Deliver for a unit with an entry. While others were delivered, or the process
// stood still, its lease may have run out. A unit that is Held has no answer yet, if it was
// refused to be HoldRefused.
func (d *Deliverer) DeliverLogged(ctx context.Context, w *InFlight) error {
	if w.lease.Lost() {
		w.lease.Release()
		return d.Answer(w, w.Leave(txlog.ErrLeaseLost))
	}
	err := d.logTryRemove(ctx, w)
	if w.Held() && w.Ending == HoldRefused {
		return err
	}
	return d.Answer(w, err)
}

// Leave ends a unit that the job delivers, because of cause.
func (w *InFlight) Leave(cause error) error {
	w.take(leave)
	return w.Pending(cause)
}
