// Package instruments is the table of the metrics of events. listener/bedprom and
// listener/bedotel both make theirs from it. It also bounds the label data_source.
package instruments

import (
	"cmp"
	"strings"
	"sync"

	"github.com/bedsql/bed/internal/safetext"
	"github.com/bedsql/bed/listener"
)

// Instrument is a counter or, with the unit s, a histogram.
type Instrument struct {
	// Name and Unit are in OpenTelemetry's form.
	Name, Unit, Help string
	Labels           []string
}

// Histogram reports whether it is a histogram of seconds.
func (i *Instrument) Histogram() bool { return i.Unit == "s" }

// Prometheus is the name in Prometheus, as OpenTelemetry's exporters translate it.
func (i *Instrument) Prometheus() string {
	suffix := "_total"
	if i.Histogram() {
		suffix = "_seconds"
	}
	return strings.ReplaceAll(i.Name, ".", "_") + suffix
}

// Bounds are the upper bounds of the histograms, in seconds.
var Bounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// Dropped counts what a full buffer keeps from the other instruments.
var Dropped = &Instrument{"bed.events.dropped", "{event}", "Events that were not counted because this process had no time for them.", nil}

// Record adds a value, with a value for each of the labels.
type Record func(value float64, labels ...string)

// Counting makes all instruments but [Dropped], and returns a listener that records in them.
func Counting(instrument func(*Instrument) Record) (count func(listener.Event)) {
	add := func(name, unit, help string, labels ...string) Record {
		return instrument(&Instrument{name, unit, help, labels})
	}
	var (
		writes      = add("bed.writes", "{write}", "Writes of this application by outcome.", "data_source", "outcome")
		writeTime   = add("bed.write.duration", "s", "How long callers waited for a write, its entry and its retries included.", "data_source")
		attempts    = add("bed.attempts", "{attempt}", "Attempts to deliver by who made them and what the database said.", "data_source", "origin", "class")
		attemptTime = add("bed.attempt.duration", "s", "How long an attempt to deliver took.", "data_source", "origin")
		logTime     = add("bed.log.write.duration", "s", "How long the log took to keep a write.")
		deliveries  = add("bed.job.deliveries", "{delivery}", "Entries that this job delivered, or failed to deliver in one try.", "data_source", "outcome")
		parked      = add("bed.parked", "{entry}", "Entries that this process left for an operator.", "data_source", "origin")
		replayed    = add("bed.receipts.replayed", "{receipt}", "Deliveries known from a receipt: an earlier attempt had applied the write.", "data_source")
		purged      = add("bed.receipts.purged", "{receipt}", "Receipts that this job erased because their retention was over.", "data_source")
		names       Names
	)
	return func(ev listener.Event) {
		source := names.Of(ev.DataSource)
		switch ev.Type {
		case listener.ExecuteSuccess, listener.ExecuteFailure:
			origin, class, outcome := originOf(ev.Origin), "ok", "delivered"
			if ev.Type == listener.ExecuteFailure {
				class, _, _ = strings.Cut(ev.Class.String(), " ")
				outcome = "failed"
			}
			attempts(1, source, origin, class)
			attemptTime(ev.Took.Seconds(), source, origin)
			if ev.Found {
				replayed(1, source)
			}
			if ev.Origin == listener.AsyncJob {
				deliveries(1, source, outcome)
			}
		case listener.Parked:
			parked(1, source, originOf(ev.Origin))
		case listener.Answered:
			outcome := ev.Outcome()
			if ev.Err == nil {
				outcome = map[bool]string{false: "at_once", true: "sync_retry"}[len(ev.Attempts) > 1]
			}
			writes(1, source, outcome)
			writeTime(ev.Took.Seconds(), source)
			if ev.LogTook > 0 {
				logTime(ev.LogTook.Seconds())
			}
		case listener.ReceiptsPurged:
			purged(float64(ev.Receipts), source)
		case listener.BeforeExecute, listener.Removed:
		}
	}
}

var origins = map[listener.Origin]string{listener.SyncRetry: "sync_retry", listener.AsyncJob: "job"}

func originOf(o listener.Origin) string { return cmp.Or(origins[o], "caller") }

// most is the maximum number of data sources with metrics of their own. A log may name any
// number.
const most = 200

// others is the label of all further data sources.
const others = "(others)"

// Names bounds the values of the label data_source. Safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	known map[string]bool
}

// Of returns the label of a data source.
func (n *Names) Of(dataSource string) string {
	dataSource = safetext.Line(dataSource) // what shows metrics in a terminal obeys it
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[dataSource]:
		return dataSource
	case len(n.known) >= most:
		return others
	case n.known == nil:
		n.known = map[string]bool{}
	}
	n.known[dataSource] = true
	return dataSource
}
