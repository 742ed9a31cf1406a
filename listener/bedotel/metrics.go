package bedotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/bedsql/bed/internal/instruments"
	"github.com/bedsql/bed/listener"
)

// counting makes the instruments. An unusable one goes to OpenTelemetry's error handler, and
// counts nothing.
func (t *Tracer) counting() func(listener.Event) {
	return instruments.Counting(func(i *instruments.Instrument) instruments.Record {
		ctx := context.Background()
		about := func(labels []string) metric.MeasurementOption {
			set := make([]attribute.KeyValue, len(labels))
			for n, label := range labels {
				set[n] = attribute.String(i.Labels[n], label)
			}
			return metric.WithAttributes(set...)
		}
		if i.Histogram() {
			h, err := t.meter.Float64Histogram(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help), metric.WithExplicitBucketBoundaries(instruments.Bounds...))
			handle(err)
			return func(v float64, labels ...string) { h.Record(ctx, v, about(labels)) }
		}
		n, err := t.meter.Int64Counter(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help))
		handle(err)
		return func(v float64, labels ...string) { n.Add(ctx, int64(v), about(labels)) }
	})
}

func (t *Tracer) countDropped() {
	i := instruments.Dropped
	_, err := t.meter.Int64ObservableCounter(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(t.sub.Dropped()))
			return nil
		}))
	handle(err)
}

func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}
