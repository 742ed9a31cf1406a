package besteffort

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener"
)

// The functions of this file inform listeners and operators about the units.

// follow begins to follow a unit for the current listeners, from the start of its logging.
func (d *Deliverer) follow(ctx context.Context, w *InFlight) {
	w.Unit.TraceParent = d.Bus.TraceParent(ctx)
	d.listen(w)
}

// listen has the current listeners hear of the unit from now on.
func (d *Deliverer) listen(w *InFlight) {
	if d.Bus.Listening() {
		w.heard = &heard{begun: time.Now()}
	}
}

// tried publishes the last attempt.
func (d *Deliverer) tried(w *InFlight, begun time.Time) {
	t := listener.ExecuteSuccess
	if w.Outcome.Err != nil {
		t = listener.ExecuteFailure
	}
	ev := w.Outcome.Event(t, w.origin(), w.Unit, d.Dialect)
	ev.Took = ev.Time.Sub(begun)
	w.heard.attempts = append(w.heard.attempts, listener.Attempt{Origin: ev.Origin, Began: begun, Took: ev.Took, Err: ev.Err, Class: ev.Class})
	d.Bus.Publish(ev)
}

// answered publishes the caller's answer to a write.
func (d *Deliverer) answered(w *InFlight, err error) {
	u, now := w.Unit, time.Now()
	statements := make([]listener.Statement, len(u.Statements))
	for i, s := range u.Statements {
		statements[i].SQL = s.SQL
	}
	d.Bus.Publish(listener.Event{
		Type: listener.Answered, Origin: w.origin(), Time: now, System: d.Dialect.System, Namespace: d.Dialect.Namespace, Statements: statements,
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		Took: now.Sub(w.heard.begun), LogTook: w.heard.logTook, Attempts: w.heard.attempts,
		Err: err, Class: w.Outcome.Class, Assumed: w.Outcome.Assumed, Found: w.Outcome.Found,
	})
}

// unclassified reports an error on none of the dialect's lists.
func (d *Deliverer) unclassified(w *InFlight) {
	if d.Unclassified != nil {
		d.Unclassified.Add(1)
	}
	d.warn(w.Unit, d.Dialect.Describe(w.Outcome.Err), "bed: the database gave an error that bed does not know; the write is tried again. Please report its number")
}

// Parked reports that a unit was left for an operator.
func (d *Deliverer) Parked(w *InFlight) {
	d.logger(w.Unit).WithField("error", d.Dialect.Describe(w.Outcome.Err)).Warn("bed: the write is parked")
	if w.heard != nil {
		d.Bus.Publish(w.Outcome.Event(listener.Parked, w.origin(), w.Unit, d.Dialect))
	}
}

func (d *Deliverer) logger(u *entry.Unit) *logrus.Entry {
	return d.Logger.WithFields(logrus.Fields{"entry": u.ID, "data_source": u.DataSource})
}

// warn logs a warning that may concern very many writes. Such warnings are summed up.
func (d *Deliverer) warn(u *entry.Unit, err any, message string) {
	entry := d.logger(u)
	if err != nil {
		entry = entry.WithField("error", err)
	}
	d.warnings.warn(u.DataSource, entry, message)
}

// notRemoved warns of delivered units that still have their entries.
func (d *Deliverer) notRemoved(units []*removal.Unit, err error, repeated bool) {
	for _, u := range units {
		if repeated {
			d.warn(u.Entry, err, "bed: the write is delivered, its entry could not be removed yet; the removal is repeated")
		} else {
			d.warn(u.Entry, nil, "bed: the write is delivered, its entry could not be removed; the job will find it and "+jobWill(u.Entry))
		}
	}
}

// jobWill describes the job's action on a delivered unit with an entry.
func jobWill(u *entry.Unit) string {
	if u.Receipt != "" {
		return "see by its receipt that nothing is left to do"
	}
	return "may deliver it again"
}

// summaryEvery is how often warnings of one kind are summed up.
const summaryEvery = time.Minute

// warnings sums up the warnings about single writes in an outage. It logs the first warning of a
// kind about a data source at once. At the end of the minute it logs the number of further ones. A
// timer runs only while there is something to log. Each single warning is logged at debug level.
type warnings struct {
	mu     sync.Mutex
	kinds  map[kindOfWarning]*summary
	closed bool
}

type kindOfWarning struct{ dataSource, message string }

// summary counts the warnings of one kind in one minute.
type summary struct {
	begun time.Time
	more  int
	// last is the log entry of the last of them.
	last  *logrus.Entry
	timer *time.Timer
}

func (w *warnings) warn(dataSource string, entry *logrus.Entry, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := kindOfWarning{dataSource, message}
	t := w.kinds[k]
	if w.closed || t == nil || t.more == 0 && time.Since(t.begun) >= summaryEvery {
		entry.Warn(message)
		if w.kinds == nil {
			w.kinds = map[kindOfWarning]*summary{}
		}
		w.kinds[k] = &summary{begun: time.Now()}
		return
	}
	entry.Debug(message)
	t.more++
	t.last = entry
	if t.timer == nil {
		t.timer = time.AfterFunc(time.Until(t.begun.Add(summaryEvery)), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if t.timer != nil {
				t.summarize(message)
			}
		})
	}
}

// summarize logs the summary and begins the next minute.
func (t *summary) summarize(message string) {
	t.timer.Stop()
	t.last.WithFields(logrus.Fields{"more": t.more, "within": time.Since(t.begun).Round(time.Second).String()}).
		Warn(fmt.Sprintf("%s: %d more, this is the last of them", message, t.more))
	*t = summary{begun: time.Now()}
}

// close logs the remaining summaries. Later warnings are logged at once.
func (w *warnings) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for k, t := range w.kinds {
		if t.timer != nil {
			t.summarize(k.message)
		}
	}
}
