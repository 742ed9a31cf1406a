package bedprom

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bedsql/bed/internal/instruments"
	"github.com/bedsql/bed/listener"
)

// Collector counts events. It is a prometheus.Collector: register it with the metrics of the
// process. Safe for concurrent use.
type Collector struct {
	sub    *listener.Subscription
	events *prometheus.Registry
}

// New returns a Collector that counts events published on bus from now on. Close it.
func New(bus *listener.Bus) *Collector {
	c := &Collector{events: prometheus.NewRegistry()}
	metrics := promauto.With(c.events)
	c.sub = bus.Subscribe(instruments.Counting(func(i *instruments.Instrument) instruments.Record {
		if i.Histogram() {
			h := metrics.NewHistogramVec(prometheus.HistogramOpts{Name: i.Prometheus(), Help: i.Help, Buckets: instruments.Bounds}, i.Labels)
			if len(i.Labels) == 0 {
				h.WithLabelValues() // it is there from the beginning
			}
			return func(v float64, labels ...string) { h.WithLabelValues(labels...).Observe(v) }
		}
		n := metrics.NewCounterVec(prometheus.CounterOpts{Name: i.Prometheus(), Help: i.Help}, i.Labels)
		return func(v float64, labels ...string) { n.WithLabelValues(labels...).Add(v) }
	}))
	metrics.NewCounterFunc(prometheus.CounterOpts{Name: instruments.Dropped.Prometheus(), Help: instruments.Dropped.Help},
		func() float64 { return float64(c.sub.Dropped()) })
	return c
}

// Close counts the earlier events and removes the Collector from the bus.
func (c *Collector) Close() { c.sub.Close() }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) { c.events.Describe(to) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) { c.events.Collect(to) }

// Handler serves what all collect, and the metrics of the Go runtime and the process, from a
// registry of their own. It does not restrict access.
func Handler(all ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(all...)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
}
