package bedprom

import (
	"cmp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/listener"
)

// Collector counts events. It is a prometheus.Collector: register it with the metrics of the
// process. Safe for concurrent use.
type Collector struct {
	sub   *listener.Subscription
	names logmetrics.Names
	// events holds the metrics below.
	events *prometheus.Registry

	writes      *prometheus.CounterVec
	writeTime   *prometheus.HistogramVec
	attempts    *prometheus.CounterVec
	attemptTime *prometheus.HistogramVec
	logTime     prometheus.Histogram
	deliveries  *prometheus.CounterVec
	parked      *prometheus.CounterVec
	replayed    *prometheus.CounterVec
	purged      *prometheus.CounterVec
}

var _ prometheus.Collector = (*Collector)(nil)

// durations are the upper bounds of the histograms, in seconds.
var durations = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// New returns a Collector that counts events published on bus from now on. Close it.
func New(bus *listener.Bus) *Collector {
	c := &Collector{events: prometheus.NewRegistry()}
	metrics := promauto.With(c.events)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return metrics.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return metrics.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: durations}, labels)
	}
	c.writes = counter("bed_writes_total", "Writes of this application by outcome.", "data_source", "outcome")
	c.writeTime = histogram("bed_write_duration_seconds", "How long callers waited for a write, its entry and its retries included.", "data_source")
	c.attempts = counter("bed_attempts_total", "Attempts to deliver by who made them and what the database said.", "data_source", "origin", "class")
	c.attemptTime = histogram("bed_attempt_duration_seconds", "How long an attempt to deliver took.", "data_source", "origin")
	c.logTime = metrics.NewHistogram(prometheus.HistogramOpts{
		Name: "bed_log_write_duration_seconds", Help: "How long the log took to keep a write.", Buckets: durations,
	})
	c.deliveries = counter("bed_job_deliveries_total", "Entries that this job delivered, or failed to deliver in one try.", "data_source", "outcome")
	c.parked = counter("bed_parked_total", "Entries that this process left for an operator.", "data_source", "origin")
	c.replayed = counter("bed_receipts_replayed_total", "Deliveries known from a receipt: an earlier attempt had applied the write.", "data_source")
	c.purged = counter("bed_receipts_purged_total", "Receipts that this job erased because their retention was over.", "data_source")
	c.sub = bus.Subscribe(c.count)
	metrics.NewCounterFunc(prometheus.CounterOpts{
		Name: "bed_events_dropped_total", Help: "Events that were not counted because this process had no time for them.",
	}, func() float64 { return float64(c.sub.Dropped()) })
	return c
}

// Close counts the earlier events and removes the Collector from the bus.
func (c *Collector) Close() { c.sub.Close() }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) { c.events.Describe(to) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) { c.events.Collect(to) }

// count counts an event.
func (c *Collector) count(ev listener.Event) {
	source := c.names.Of(ev.DataSource)
	switch ev.Type {
	case listener.ExecuteSuccess, listener.ExecuteFailure:
		origin, class, outcome := originOf(ev.Origin), "ok", "delivered"
		if ev.Type == listener.ExecuteFailure {
			class, _, _ = strings.Cut(ev.Class.String(), " ")
			outcome = "failed"
		}
		c.attempts.WithLabelValues(source, origin, class).Inc()
		c.attemptTime.WithLabelValues(source, origin).Observe(ev.Took.Seconds())
		if ev.Found {
			c.replayed.WithLabelValues(source).Inc()
		}
		if ev.Origin == listener.AsyncJob {
			c.deliveries.WithLabelValues(source, outcome).Inc()
		}
	case listener.Parked:
		c.parked.WithLabelValues(source, originOf(ev.Origin)).Inc()
	case listener.Answered:
		c.writes.WithLabelValues(source, outcomeOf(ev)).Inc()
		c.writeTime.WithLabelValues(source).Observe(ev.Took.Seconds())
		if ev.LogTook > 0 {
			c.logTime.Observe(ev.LogTook.Seconds())
		}
	case listener.ReceiptsPurged:
		c.purged.WithLabelValues(source).Add(float64(ev.Receipts))
	case listener.BeforeExecute, listener.Removed:
	}
}

var origins = map[listener.Origin]string{listener.SyncRetry: "sync_retry", listener.AsyncJob: "job"}

func originOf(o listener.Origin) string { return cmp.Or(origins[o], "caller") }

// outcomeOf returns the outcome for the caller.
func outcomeOf(ev listener.Event) string {
	switch {
	case ev.Err == nil && len(ev.Attempts) > 1:
		return "sync_retry"
	case ev.Err == nil:
		return "at_once"
	default:
		return ev.Outcome()
	}
}
