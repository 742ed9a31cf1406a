package besteffort

import (
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// reports are what listeners, operators and counts are told of the units that
// are delivered.
type reports struct {
	cfg      *Config
	tally    *journal.Tally
	warnings warnings
}

// before tells listeners that the first attempt begins.
func (r *reports) before(d *Delivery) {
	r.cfg.Bus.Publish(attempt.Outcome{}.Event(listener.BeforeExecute, listener.Caller, d.Unit))
}

// attempt tells listeners of the last attempt.
func (r *reports) attempt(d *Delivery, begun time.Time) {
	t := listener.ExecuteSuccess
	if d.Outcome.Err != nil {
		t = listener.ExecuteFailure
	}
	ev := d.Outcome.Event(t, d.origin(), d.Unit)
	ev.Took = ev.Time.Sub(begun)
	d.attempts = append(d.attempts, listener.Attempt{Origin: ev.Origin, Began: begun, Took: ev.Took, Err: ev.Err, Class: ev.Class})
	r.cfg.Bus.Publish(ev)
}

// answered tells listeners what the caller is told of a write that began at begun.
func (r *reports) answered(d *Delivery, begun time.Time, err error) {
	u, now := d.Unit, time.Now()
	r.cfg.Bus.Publish(listener.Event{
		Type: listener.Answered, Origin: d.origin(), Time: now,
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		Took: now.Sub(begun), LogTook: d.logTook, Attempts: d.attempts,
		Err: err, Class: d.Outcome.Class, Assumed: d.Outcome.Assumed, Found: d.Outcome.Found,
	})
}

func (r *reports) parked(d *Delivery) {
	r.logger(d.Unit).WithField("error", r.cfg.Dialect.Describe(d.Outcome.Err)).Warn("bed: the write is parked")
	if r.cfg.Bus.Listening() {
		r.cfg.Bus.Publish(d.Outcome.Event(listener.Parked, d.origin(), d.Unit))
	}
}

// count counts what became of a write for the console's activity, also of one that
// was delivered or refused without an entry, as LogOnFailure has it. Left out are
// ErrNotLogged, ErrUnknownOutcome and what ran under RunUnlogged.
func (r *reports) count(d *Delivery, err error) {
	if r.tally == nil || d.unlogged {
		return
	}
	if err == nil && d.Tries == 1 { // as nearly always
		r.tally.Count(journal.AtOnce, 1)
		return
	}
	if errors.Is(err, listener.ErrNotLogged) || errors.Is(err, listener.ErrUnknownOutcome) {
		return
	}
	r.tally.Count(outcomeOf(err), 1)
}

func outcomeOf(err error) journal.Outcome {
	if err == nil {
		return journal.SyncRetry
	}
	var pending *listener.PendingError
	var kept *listener.RefusedError
	switch {
	case errors.As(err, &pending) && pending.Parked, errors.As(err, &kept):
		return journal.Parked
	case pending != nil:
		return journal.Pending
	default:
		return journal.Refused
	}
}

func (r *reports) found(d *Delivery) {
	r.logger(d.Unit).Info("bed: the receipt shows that the write was applied by an earlier attempt")
}

func (r *reports) logger(u *txlog.Unit) *logrus.Entry {
	return r.cfg.Logger.WithFields(logrus.Fields{"entry": u.ID, "data_source": u.DataSource})
}

// warn says of a write what may be to be said of very many: they are summed up.
func (r *reports) warn(u *txlog.Unit, err any, message string) {
	entry := r.logger(u)
	if err != nil {
		entry = entry.WithField("error", err)
	}
	r.warnings.warn(u.DataSource, entry, message)
}
