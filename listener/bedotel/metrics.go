package bedotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bedsql/bed/internal/instruments"
	"github.com/bedsql/bed/listener"
)

// counting makes the instruments.
func (t *Tracer) counting() func(listener.Event) {
	return instruments.Counting(func(i *instruments.Instrument) instruments.Record {
		about := func(labels []string) metric.MeasurementOption {
			set := make([]attribute.KeyValue, len(labels))
			for n, label := range labels {
				set[n] = attribute.String(i.Labels[n], label)
			}
			return metric.WithAttributes(set...)
		}
		if i.Histogram() {
			h := made(t.meter.Float64Histogram(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help), metric.WithExplicitBucketBoundaries(instruments.Bounds...)))
			return func(v float64, labels ...string) { h.Record(context.Background(), v, about(labels)) }
		}
		n := made(t.meter.Int64Counter(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help)))
		return func(v float64, labels ...string) { n.Add(context.Background(), int64(v), about(labels)) }
	})
}

func (t *Tracer) countDropped() {
	i := instruments.Dropped
	made(t.meter.Int64ObservableCounter(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(t.sub.Dropped()))
			return nil
		})))
}

// made returns an instrument, and tells OpenTelemetry's error handler of an unusable one.
func made[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}
