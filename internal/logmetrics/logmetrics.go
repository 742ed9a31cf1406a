// Package logmetrics reports the state of transaction logs to Prometheus.
package logmetrics

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bedsql/bed/internal/instruments"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/safetext"
)

// Log is the state of a transaction log.
type Log struct {
	// Name identifies the log, and must be the same in every process that reports it: alerts
	// take the highest value reported for a name.
	Name string
	// Overview is its state; nil if the log did not answer.
	Overview *ops.Overview
}

// AskFunc queries logs for their states, until ctx is done. Calls do not overlap.
type AskFunc func(ctx context.Context) []Log

const (
	// every is how long an answer counts.
	every = 15 * time.Second
	// logTimeout bounds a count; Prometheus allows a scrape 10 s.
	logTimeout = 8 * time.Second
)

var (
	descUp = prometheus.NewDesc("bed_log_up",
		"1 if the transaction log answered when it was asked last, else 0.", []string{"log"}, nil)
	descEntries = prometheus.NewDesc("bed_log_entries",
		"Units of delivery in the transaction log: waiting, leased (being written or delivered) or parked.", []string{"log", "data_source", "state"}, nil)
	descOldest = prometheus.NewDesc("bed_log_oldest_seconds",
		"Age of the oldest unit in the transaction log that is to be delivered (state waiting) or parked; 0 for none.", []string{"log", "data_source", "state"}, nil)
	descReachable = prometheus.NewDesc("bed_data_source_up",
		"1 if all jobs that are alive reach the data source and may write there, else 0.", []string{"log", "data_source"}, nil)
	descPaused = prometheus.NewDesc("bed_data_source_paused",
		"1 if an operator has paused deliveries to the data source, else 0.", []string{"log", "data_source"}, nil)
	descJobs = prometheus.NewDesc("bed_jobs_alive",
		"How many jobs have recently recorded in the transaction log that they are alive.", []string{"log"}, nil)
)

// Collector reports the last known state of logs. It is a prometheus.Collector, safe for
// concurrent use.
type Collector struct {
	ask   AskFunc
	names instruments.Names

	mu    sync.Mutex
	asked time.Time
	said  []Log
}

// New returns a Collector that calls ask at most once in 15 s.
func New(ask AskFunc) *Collector { return &Collector{ask: ask} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{descUp, descEntries, descOldest, descReachable, descPaused, descJobs} {
		to <- desc
	}
}

// Collect implements prometheus.Collector. A log without an answer has no state, so that an old
// one is not taken for current, and each scrape queries again.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	down := func(said Log) bool { return said.Overview == nil }
	if c.asked.IsZero() || time.Since(c.asked) >= every || slices.ContainsFunc(c.said, down) {
		ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
		c.said = c.ask(ctx)
		cancel()
		c.asked = time.Now()
	}
	since := time.Since(c.asked) // they have grown older
	for _, said := range c.said {
		log, o := safetext.Line(said.Name), said.Overview
		gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append([]string{log}, labels...)...)
		}
		gauge(descUp, truth(!down(said)))
		if down(said) {
			continue
		}
		age := func(t *time.Time) float64 {
			if t == nil {
				return 0
			}
			return (max(o.At.Sub(*t), time.Millisecond) + since).Seconds()
		}
		if len(o.Off) == 0 || len(o.Jobs) > 0 { // else nobody knows
			gauge(descJobs, float64(len(o.Jobs)))
		}
		for name, d := range merged(o.DataSources, &c.names) {
			gauge(descEntries, float64(d.Waiting), name, "waiting")
			gauge(descEntries, float64(d.Leased), name, "leased")
			gauge(descEntries, float64(d.Parked), name, "parked")
			gauge(descOldest, age(d.Oldest), name, "waiting")
			gauge(descOldest, age(d.OldestParked), name, "parked")
			gauge(descPaused, truth(d.Paused), name)
			if d.Reachable != nil {
				gauge(descReachable, truth(*d.Reachable), name)
			}
		}
	}
}

// merged adds up the data sources with the same label.
func merged(all []ops.DataSource, names *instruments.Names) map[string]*ops.DataSource {
	by := map[string]*ops.DataSource{}
	for _, d := range all {
		name := names.Of(d.Name)
		t := by[name]
		if t == nil {
			by[name] = &d
			continue
		}
		t.Waiting += d.Waiting
		t.Leased += d.Leased
		t.Parked += d.Parked
		t.Oldest = earlier(t.Oldest, d.Oldest)
		t.OldestParked = earlier(t.OldestParked, d.OldestParked)
		t.Paused = t.Paused || d.Paused
		if t.Reachable == nil || d.Reachable != nil && !*d.Reachable {
			t.Reachable = d.Reachable
		}
	}
	return by
}

// earlier returns the earlier time; nil is none.
func earlier(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.Before(*a) {
		return b
	}
	return a
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
