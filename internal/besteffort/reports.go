package besteffort

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// reports inform listeners and operators about the units.
type reports struct {
	cfg      *Config
	warnings warnings
}

// follow begins to follow a unit for the current listeners, from the start of its logging.
func (r *reports) follow(ctx context.Context, d *InFlight) {
	d.Unit.TraceParent = r.cfg.Bus.TraceParent(ctx)
	d.begun, d.listening = time.Now(), r.cfg.Bus.Listening()
}

// tried publishes the last attempt.
func (r *reports) tried(d *InFlight, begun time.Time) {
	t := listener.ExecuteSuccess
	if d.Outcome.Err != nil {
		t = listener.ExecuteFailure
	}
	ev := d.Outcome.Event(t, d.origin(), d.Unit)
	ev.Took = ev.Time.Sub(begun)
	d.attempts = append(d.attempts, listener.Attempt{Origin: ev.Origin, Began: begun, Took: ev.Took, Err: ev.Err, Class: ev.Class})
	r.cfg.Bus.Publish(ev)
}

// answered publishes the caller's answer to a write.
func (r *reports) answered(d *InFlight, err error) {
	u, now := d.Unit, time.Now()
	r.cfg.Bus.Publish(listener.Event{
		Type: listener.Answered, Origin: d.origin(), Time: now,
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		Took: now.Sub(d.begun), LogTook: d.logTook, Attempts: d.attempts,
		Err: err, Class: d.Outcome.Class, Assumed: d.Outcome.Assumed, Found: d.Outcome.Found,
	})
}

// unclassified reports an error on none of the dialect's lists.
func (r *reports) unclassified(d *InFlight) {
	if r.cfg.Unclassified != nil {
		r.cfg.Unclassified.Add(1)
	}
	r.warn(d.Unit, r.cfg.Dialect.Describe(d.Outcome.Err), "bed: the database gave an error that bed does not know; the write is tried again. Please report its number")
}

func (r *reports) parked(d *InFlight) {
	r.logger(d.Unit).WithField("error", r.cfg.Dialect.Describe(d.Outcome.Err)).Warn("bed: the write is parked")
	if d.listening {
		r.cfg.Bus.Publish(d.Outcome.Event(listener.Parked, d.origin(), d.Unit))
	}
}

func (r *reports) logger(u *txlog.Unit) *logrus.Entry {
	return r.cfg.Logger.WithFields(logrus.Fields{"entry": u.ID, "data_source": u.DataSource})
}

// warn logs a warning that may concern very many writes. Such warnings are summed up.
func (r *reports) warn(u *txlog.Unit, err any, message string) {
	entry := r.logger(u)
	if err != nil {
		entry = entry.WithField("error", err)
	}
	r.warnings.warn(u.DataSource, entry, message)
}

// notRemoved warns of delivered units that still have their entries.
func (r *reports) notRemoved(units []*removal.Unit, err error, repeated bool) {
	for _, u := range units {
		if repeated {
			r.warn(u.Entry, err, "bed: the write is delivered, its entry could not be removed yet; the removal is repeated")
		} else {
			r.warn(u.Entry, nil, "bed: the write is delivered, its entry could not be removed; the job will find it and "+jobWill(u.Entry))
		}
	}
}

// jobWill describes the job's action on a delivered unit with an entry.
func jobWill(u *txlog.Unit) string {
	if u.Receipt != "" {
		return "see by its receipt that nothing is left to do"
	}
	return "may deliver it again"
}
