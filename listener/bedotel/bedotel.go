// Package bedotel exports writes and deliveries as OpenTelemetry spans, and counts them as
// package bedprom does. A [Tracer] subscribes to a [listener.Bus], in an application or in the
// job:
//
//	bus := listener.NewBus(nil) // for bedsql.Config.Bus, or asyncjob.Config.Bus
//	defer bedotel.Trace(bus).Close()
//
// A write under a context with a span is a span "bed write" in that trace, with a child "bed
// retry" for each of its retries. The entry keeps the caller's traceparent: a delivery by
// the job is a span "bed delivery" in a trace of its own, with a link to the caller's span.
// A write outside of any span makes no span.
//
// Spans are made after the call, when their work is done. They contain no SQL, no error text
// and no values. Their attributes are bed's own and, for databases, messaging and calls of HTTP
// services, those of OpenTelemetry's semantic conventions, but url.full, which holds values.
//
// A metric has bedprom's name in OpenTelemetry's form, bed.writes for bed_writes_total, and
// bedprom's labels.
package bedotel

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/instruments"
	"github.com/bedsql/bed/internal/service"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener"
)

const (
	scope       = "github.com/bedsql/bed/listener/bedotel"
	traceparent = "traceparent"
)

// Option configures a Tracer.
type Option func(*Tracer)

// WithTracerProvider sets the destination of the spans. Default: OpenTelemetry's global
// provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(t *Tracer) { t.tracer = p.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)) }
}

// WithMeterProvider sets the destination of the metrics. Default: OpenTelemetry's global
// provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(t *Tracer) { t.meter = p.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)) }
}

// Tracer makes spans and metrics from a bus's events.
type Tracer struct {
	bus    *listener.Bus
	sub    *listener.Subscription
	tracer trace.Tracer
	meter  metric.Meter
	count  func(listener.Event)
}

// Trace makes spans and metrics from events published on bus from now on, and makes entries
// keep their caller's traceparent. Close it.
func Trace(bus *listener.Bus, opts ...Option) *Tracer {
	t := &Tracer{bus: bus}
	for _, opt := range append([]Option{WithTracerProvider(otel.GetTracerProvider()), WithMeterProvider(otel.GetMeterProvider())}, opts...) {
		opt(t)
	}
	t.count = t.counting()
	bus.SetTraceParent(parentOf)
	t.sub = bus.Subscribe(t.notify)
	t.countDropped()
	return t
}

// Close makes the spans and metrics of earlier events and removes the Tracer from the bus. The
// caller must flush and shut down the providers.
func (t *Tracer) Close() {
	t.bus.SetTraceParent(nil)
	t.sub.Close()
}

func (t *Tracer) notify(ev listener.Event) {
	t.count(ev)
	switch {
	case ev.Type == listener.Answered:
		t.write(ev)
	case ev.Origin == listener.AsyncJob && (ev.Type == listener.ExecuteSuccess || ev.Type == listener.ExecuteFailure):
		t.delivery(ev)
	}
}

// write makes the span of a write and the spans of its retries.
func (t *Tracer) write(ev listener.Event) {
	caller := spanOf(ev.TraceParent)
	if !caller.IsValid() {
		return
	}
	ctx, span := t.start(trace.ContextWithRemoteSpanContext(context.Background(), caller), "bed write", ev, ev.Time.Add(-ev.Took))
	var last error // ev.Err may be the log's
	for _, a := range ev.Attempts {
		if last = a.Err; a.Origin != listener.SyncRetry {
			continue
		}
		_, retry := t.start(ctx, "bed retry", ev, a.Began)
		if a.Err != nil {
			failed(retry, a.Err, a.Class.String(), attribute.String("bed.class", a.Class.String()))
		}
		retry.End(trace.WithTimestamp(a.Began.Add(a.Took)))
	}
	outcome := ev.Outcome()
	span.SetAttributes(attribute.String("bed.outcome", outcome), attribute.Int("bed.attempts", len(ev.Attempts)))
	if ev.Err != nil {
		failed(span, last, outcome)
	}
	span.End(trace.WithTimestamp(ev.Time))
}

// delivery makes the span of a delivery by the job. It links to the caller's trace, which
// has ended by then.
func (t *Tracer) delivery(ev listener.Event) {
	opts := []trace.SpanStartOption{trace.WithNewRoot()}
	if caller := spanOf(ev.TraceParent); caller.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: caller}))
	}
	_, span := t.start(context.Background(), "bed delivery", ev, ev.Time.Add(-ev.Took), opts...)
	if ev.Err != nil {
		failed(span, ev.Err, ev.Class.String(), attribute.String("bed.class", ev.Class.String()))
	}
	span.End(trace.WithTimestamp(ev.Time))
}

func (t *Tracer) start(ctx context.Context, name string, ev listener.Event, at time.Time, more ...trace.SpanStartOption) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, name, append(more, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at), trace.WithAttributes(about(ev)...))...)
}

// failed ends a span with a database's code or an HTTP status for err, or else with word.
func failed(span trace.Span, err error, word string, more ...attribute.KeyValue) {
	kind := word
	if code := dberr.Of(err); code.Known() {
		if kind = code.State; code.Number != 0 {
			kind = strconv.FormatInt(code.Number, 10)
		}
		more = append(more, semconv.DBResponseStatusCode(kind))
	}
	var answer *service.StatusError
	if errors.As(err, &answer) {
		kind = strconv.Itoa(answer.Status)
		more = append(more, semconv.HTTPResponseStatusCode(answer.Status))
	}
	span.SetAttributes(append(more, semconv.ErrorTypeKey.String(kind))...)
	span.SetStatus(codes.Error, word)
}

// about describes the entry without secrets. It replaces invalid UTF-8, because an exporter
// may reject a whole batch for one such text.
func about(ev listener.Event) []attribute.KeyValue {
	text := func(key attribute.Key, text string) attribute.KeyValue {
		return key.String(strings.ToValidUTF8(text, "?"))
	}
	all := []attribute.KeyValue{text("bed.data_source", ev.DataSource), text("bed.entry_id", ev.ID), text("bed.transaction_id", ev.TransactionID)}
	if len(ev.Statements) == 0 {
		return all
	}
	if topic, ok := strings.CutPrefix(ev.Statements[0].SQL, sqltext.Publish); ok {
		return append(all, semconv.MessagingSystemKey.String(cmp.Or(ev.System, "watermill")), semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("publish"),
			text(semconv.MessagingDestinationNameKey, topic))
	}
	if request, ok := strings.CutPrefix(sqltext.Mask(sqltext.Calls, ev.Statements[0].SQL), sqltext.Call); ok && ev.System == service.System {
		method, path, _ := strings.Cut(request, " ")
		all = append(all, text(semconv.HTTPRequestMethodKey, method), text(semconv.URLTemplateKey, path))
		if host, port, err := net.SplitHostPort(ev.Namespace); err == nil {
			n, _ := strconv.Atoi(port)
			all = append(all, text(semconv.ServerAddressKey, host), semconv.ServerPort(n))
		}
		return all
	}
	all = append(all, semconv.DBSystemNameKey.String(cmp.Or(ev.System, "other_sql")))
	if ev.Namespace != "" {
		all = append(all, text(semconv.DBNamespaceKey, ev.Namespace))
	}
	var verbs []string
	for _, s := range ev.Statements {
		verbs = append(verbs, sqltext.Verb(sqltext.FlavorOf(ev.System), s.SQL))
	}
	if n := len(verbs); n > 1 {
		all = append(all, semconv.DBOperationBatchSize(n))
		if verbs = append([]string{"BATCH"}, slices.Compact(verbs)...); len(verbs) > 2 {
			verbs = verbs[:1]
		}
	}
	if verb := strings.TrimSpace(strings.Join(verbs, " ")); verb != "" {
		all = append(all, semconv.DBOperationName(verb))
	}
	return all
}

// parentOf returns the traceparent of the span in ctx; empty without a span.
func parentOf(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// spanOf reads a traceparent; it returns an invalid span context for any other text.
func spanOf(text string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: text})
	return trace.SpanContextFromContext(ctx)
}

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
