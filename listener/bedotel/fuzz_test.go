package bedotel_test

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedotel"
)

// Regardless of the entry's content, a delivery is an exportable span. It links to a span in W3C's
// format, or to none: OTLP would refuse a whole batch for one attribute with invalid UTF-8.
func FuzzNoEntryMakesASpanThatCannotBeExported(f *testing.F) {
	for _, parent := range []string{
		"", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-brings", "00-", "----", "\xff",
	} {
		f.Add("orders", "0192f3a0-7b1c-7def-8000-0123456789ab", parent)
	}
	f.Add("\xff", "\x00\xc3", "")
	f.Add("\xff", "PUBLISH \xff", "")
	f.Add("DELETE FROM t", "INSERT INTO t VALUES ('\xff')", "")
	f.Fuzz(func(t *testing.T, source, id, parent string) {
		exporter := tracetest.NewInMemoryExporter()
		bus := listener.NewBus(logrus.StandardLogger())
		tracer := bedotel.Trace(bus, bedotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))))
		ev := listener.Event{
			Type: listener.ExecuteSuccess, Origin: listener.AsyncJob, Time: time.Now(), DataSource: source, ID: id, TransactionID: id, TraceParent: parent,
			Namespace: source, Statements: []listener.Statement{{SQL: id}, {SQL: source}},
		}
		bus.Publish(ev)
		ev.Type, ev.Origin = listener.Answered, listener.Caller
		bus.Publish(ev)
		tracer.Close()
		spans := exporter.GetSpans()
		if len(spans) == 0 {
			t.Fatal("a delivery is no span")
		}
		var linked, written trace.SpanContext
		for _, s := range spans {
			for _, a := range s.Attributes {
				if !utf8.ValidString(a.Value.String()) {
					t.Errorf("%s is %q", a.Key, a.Value.String())
				}
			}
			if len(s.Links) > 0 {
				linked = s.Links[0].SpanContext
			}
			if s.Name == "bed write" {
				written = s.Parent
			}
		}
		if !linked.Equal(written) || linked.IsValid() != (len(spans) == 2) {
			t.Errorf("the traceparent %q is that of %v for the job and %v for its caller, of %d spans", parent, linked, written, len(spans))
		}
	})
}
