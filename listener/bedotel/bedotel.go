// Package bedotel exports writes and deliveries as OpenTelemetry spans. A [Tracer]
// subscribes to a [listener.Bus], in an application or in the job:
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
// and no values.
package bedotel

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

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
	return func(t *Tracer) { t.tracer = p.Tracer(scope) }
}

// Tracer makes spans from a bus's events.
type Tracer struct {
	bus    *listener.Bus
	sub    *listener.Subscription
	tracer trace.Tracer
}

// Trace makes spans from events published on bus from now on, and makes entries keep their
// caller's traceparent. Close it.
func Trace(bus *listener.Bus, opts ...Option) *Tracer {
	t := &Tracer{bus: bus}
	for _, opt := range opts {
		opt(t)
	}
	if t.tracer == nil {
		t.tracer = otel.GetTracerProvider().Tracer(scope)
	}
	bus.SetTraceParent(parentOf)
	t.sub = bus.Subscribe(t.notify)
	return t
}

// Close makes the spans of earlier events and removes the Tracer from the bus. The caller
// must flush and shut down the provider.
func (t *Tracer) Close() {
	t.bus.SetTraceParent(nil)
	t.sub.Close()
}

func (t *Tracer) notify(ev listener.Event) {
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
	ctx, span := t.start(trace.ContextWithRemoteSpanContext(context.Background(), caller), "bed write", trace.SpanKindClient,
		ev.Time.Add(-ev.Took), about(ev)...)
	for _, a := range ev.Attempts {
		if a.Origin != listener.SyncRetry {
			continue
		}
		_, retry := t.start(ctx, "bed retry", trace.SpanKindClient, a.Began, about(ev)...)
		if a.Err != nil {
			retry.SetAttributes(attribute.String("bed.class", a.Class.String()))
			retry.SetStatus(codes.Error, a.Class.String())
		}
		retry.End(trace.WithTimestamp(a.Began.Add(a.Took)))
	}
	outcome := ev.Outcome()
	span.SetAttributes(attribute.String("bed.outcome", outcome), attribute.Int("bed.attempts", len(ev.Attempts)))
	if ev.Err != nil {
		span.SetStatus(codes.Error, outcome)
	}
	span.End(trace.WithTimestamp(ev.Time))
}

// delivery makes the span of a delivery by the job. It links to the caller's trace, which
// has ended by then.
func (t *Tracer) delivery(ev listener.Event) {
	var opts []trace.SpanStartOption
	if caller := spanOf(ev.TraceParent); caller.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: caller}))
	}
	_, span := t.tracer.Start(context.Background(), "bed delivery", append(opts, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithTimestamp(ev.Time.Add(-ev.Took)), trace.WithAttributes(about(ev)...))...)
	if ev.Err != nil {
		span.SetAttributes(attribute.String("bed.class", ev.Class.String()))
		span.SetStatus(codes.Error, ev.Class.String())
	}
	span.End(trace.WithTimestamp(ev.Time))
}

func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind, at time.Time, about ...attribute.KeyValue) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithTimestamp(at), trace.WithAttributes(about...))
}

// about identifies the entry without secrets. It replaces invalid UTF-8, because an exporter
// may reject a whole batch for one such text.
func about(ev listener.Event) []attribute.KeyValue {
	name := func(key, text string) attribute.KeyValue {
		return attribute.String(key, strings.ToValidUTF8(text, "?"))
	}
	return []attribute.KeyValue{name("bed.data_source", ev.DataSource), name("bed.entry_id", ev.ID), name("bed.transaction_id", ev.TransactionID)}
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
