// Package bedotel shows writes and deliveries as OpenTelemetry spans. A [Tracer]
// hangs on a [listener.Bus], in an application as in the job:
//
//	bus := listener.NewBus(nil) // for bedsql.Config.Bus, or asyncjob.Config.Bus
//	defer bedotel.Trace(bus).Close()
//
// A write under a context that holds a span is a span "bed write" in that trace, each of
// its retries a child "bed retry". The caller's traceparent is kept with the entry: a
// delivery by the job is a span "bed delivery" in a trace of its own, with a link to the
// caller's span. A write under no span makes none.
//
// Spans are made when their work is done, after the call. They hold no SQL, no error's
// text and no value.
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

// Option changes a Tracer.
type Option func(*Tracer)

// WithTracerProvider says where spans go. Default: OpenTelemetry's global provider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(t *Tracer) { t.tracer = p.Tracer(scope) }
}

// Tracer makes spans of a bus's events.
type Tracer struct {
	bus    *listener.Bus
	sub    *listener.Subscription
	tracer trace.Tracer
}

// Trace makes spans of what is published on bus from now on, and has entries keep the
// traceparent of their callers. Close it.
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

// Close makes the spans of what was published before, and takes the Tracer off the bus.
// The provider is the caller's to flush and shut down.
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

// write makes the span of a write and those of its retries.
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

// delivery makes the span of a delivery by the job. It is linked to the caller's, whose
// trace is over by then.
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

// about names the entry, by what is no secret. An exporter may refuse a whole batch
// for one text that is no UTF-8.
func about(ev listener.Event) []attribute.KeyValue {
	name := func(key, text string) attribute.KeyValue {
		return attribute.String(key, strings.ToValidUTF8(text, "?"))
	}
	return []attribute.KeyValue{name("bed.data_source", ev.DataSource), name("bed.entry_id", ev.ID), name("bed.transaction_id", ev.TransactionID)}
}

// parentOf gives the traceparent of the span in ctx; empty if there is none.
func parentOf(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// spanOf reads a traceparent; from anything else it gives a span context that is
// not valid.
func spanOf(text string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: text})
	return trace.SpanContextFromContext(ctx)
}
