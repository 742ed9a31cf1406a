package bedotel_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedotel"
	"github.com/bedsql/bed/txlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// A write is in its caller's trace, regardless of its outcome. The job's later delivery has its own
// trace with a link back.
func TestJobDeliveryLinksToTheCallersSpan(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	bus := listener.NewBus(quiet)
	tracer := bedotel.Trace(bus, bedotel.WithTracerProvider(provider))

	storage, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(dir, "log.db"))
	must(t, err)
	defer storage.Close()
	dsn := "file:" + filepath.Join(dir, "orders.db") + "?_pragma=busy_timeout(1)"
	target, err := sqlite.Target(dsn + "&bedDataSource=orders")
	must(t, err)
	connector, err := sqlite.NewConnector(target, bedsql.Config{
		Storage: storage, Bus: bus, Logger: quiet,
		SyncMaxDeliveryTryTimes: 2, RetryInitial: time.Millisecond, RetryMax: time.Millisecond,
	})
	must(t, err)
	db := sql.OpenDB(connector)
	defer db.Close()
	_, err = db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	must(t, err)

	inSpan := func(name, id string) (trace.SpanContext, error) {
		ctx, span := provider.Tracer("test").Start(ctx, name)
		defer span.End()
		_, err := db.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, id)
		return span.SpanContext(), err
	}
	atOnce, err := inSpan("goes well", "1")
	must(t, err)
	// Somebody holds the lock: neither the write nor its retries get through.
	other, err := sql.Open("sqlite", dsn)
	must(t, err)
	defer other.Close()
	lock, err := other.Conn(ctx)
	must(t, err)
	_, err = lock.ExecContext(ctx, "BEGIN IMMEDIATE")
	must(t, err)
	pending, err := inSpan("is locked out", "2")
	if !errors.Is(err, bedsql.ErrPending) {
		t.Fatalf("the write that was locked out ended with %v", err)
	}
	_, err = lock.ExecContext(ctx, "ROLLBACK")
	must(t, err)
	must(t, lock.Close())
	_, err = db.ExecContext(ctx, `INSERT INTO orders VALUES (?)`, "under no span")
	must(t, err)

	job, err := asyncjob.New(storage, asyncjob.Targets{"orders": target}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, Bus: bus, Logger: quiet})
	must(t, err)
	report, err := job.RunOnce(ctx)
	if must(t, err); report.Delivered != 1 {
		t.Fatalf("the job's round was %v", report)
	}
	must(t, job.Close())
	tracer.Close()

	spans := exporter.GetSpans()
	writes := named(spans, "bed write")
	if len(writes) != 2 {
		t.Fatalf("there are %d spans of writes, want those of the two under a span", len(writes))
	}
	for i, caller := range []trace.SpanContext{atOnce, pending} {
		if w := writes[i]; w.Parent.SpanID() != caller.SpanID() || w.SpanContext.TraceID() != caller.TraceID() || w.EndTime.Before(w.StartTime) {
			t.Errorf("the write %+v is not in the span of its caller %+v", w, caller)
		}
	}
	retries := named(spans, "bed retry")
	if len(retries) != 2 {
		t.Fatalf("there are %d spans of retries, want 2", len(retries))
	}
	for _, r := range retries {
		if r.Parent.SpanID() != writes[1].SpanContext.SpanID() || r.StartTime.Before(writes[1].StartTime) || r.EndTime.After(writes[1].EndTime) {
			t.Errorf("the retry %+v is not within the write %+v", r, writes[1])
		}
	}
	deliveries := named(spans, "bed delivery")
	if len(deliveries) != 1 {
		t.Fatalf("there are %d spans of deliveries, want 1", len(deliveries))
	}
	d := deliveries[0]
	if d.Parent.IsValid() || d.SpanContext.TraceID() == pending.TraceID() {
		t.Errorf("the delivery is in the trace of its caller, which is over: %+v", d)
	}
	if len(d.Links) != 1 || d.Links[0].SpanContext.SpanID() != pending.SpanID() || d.Links[0].SpanContext.TraceID() != pending.TraceID() {
		t.Errorf("the delivery links to %+v, want %v", d.Links, pending)
	}
}

func named(spans tracetest.SpanStubs, name string) (some tracetest.SpanStubs) {
	for _, s := range spans {
		if s.Name == name {
			some = append(some, s)
		}
	}
	return some
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An entry without a trace, from an older version, or with an arbitrary text in its place, has no
// link.
func TestWithoutATraceparentADeliveryLinksToNothing(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	bus := listener.NewBus(nil)
	tracer := bedotel.Trace(bus, bedotel.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))))
	for _, parent := range []string{"", "nonsense", "00-00000000000000000000000000000000-0000000000000000-01"} {
		bus.Publish(listener.Event{Type: listener.ExecuteFailure, Origin: listener.AsyncJob, Time: time.Now(), TraceParent: parent, Err: context.Canceled})
		bus.Publish(listener.Event{Type: listener.Answered, Time: time.Now(), TraceParent: parent})
	}
	tracer.Close()
	spans := exporter.GetSpans()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want those of the three deliveries", len(spans))
	}
	for _, s := range spans {
		if len(s.Links) != 0 || s.Status.Description != "unknown" {
			t.Errorf("the span is %+v", s)
		}
	}
}
