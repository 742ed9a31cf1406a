package tracers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/XSAM/otelsql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/call"
	bedmessage "github.com/bedsql/bed/bedsql/message"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedotel"
	"github.com/bedsql/bed/listener/bedprom"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// A world has an application with otelsql in front of bed, a job, and both exporters of their
// metrics.
type world struct {
	t         *testing.T
	storage   *txlog.SQLStorage
	target    delivery.Target
	bus       *listener.Bus
	provider  *sdktrace.TracerProvider
	spans     *tracetest.InMemoryExporter
	metrics   *sdkmetric.ManualReader
	tracer    *bedotel.Tracer
	collector *bedprom.Collector
	db        *sql.DB
}

func newWorld(t *testing.T, on testdb.DB) *world {
	t.Helper()
	quiet, _ := test.NewNullLogger()
	w := &world{t: t, bus: listener.NewBus(quiet), spans: tracetest.NewInMemoryExporter(), metrics: sdkmetric.NewManualReader()}
	w.provider = sdktrace.NewTracerProvider(sdktrace.WithSyncer(w.spans))
	w.tracer = bedotel.Trace(w.bus, bedotel.WithTracerProvider(w.provider), bedotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(w.metrics))))
	t.Cleanup(w.tracer.Close)
	w.collector = bedprom.New(w.bus)
	t.Cleanup(w.collector.Close)
	var err error
	w.storage, err = txlog.Open(t.Context(), "sqlite", "file:"+filepath.Join(t.TempDir(), "log.db"))
	must(t, err)
	t.Cleanup(func() { _ = w.storage.Close() })
	w.target, err = testdb.By[func(string) (delivery.Target, error)]{MySQL: mysql.Target, Postgres: postgres.Target, SQLite: sqlite.Target}.For(on.Driver)(on.DSN)
	must(t, err)
	w.target.DataSource = "orders"
	connector, err := bedsql.NewConnector(w.target, bedsql.Config{Storage: w.storage, Bus: w.bus, Logger: quiet, Guard: bedsql.GuardOff})
	must(t, err)
	w.db = otelsql.OpenDB(connector, otelsql.WithTracerProvider(w.provider))
	t.Cleanup(func() { _ = w.db.Close(); _ = connector.(io.Closer).Close() }) // otelsql hides the second
	for _, table := range []string{"CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO orders VALUES (1, 0)"} {
		_, err := on.Open(t).ExecContext(t.Context(), table)
		must(t, err)
	}
	return w
}

// within runs f in a span of this name.
func (w *world) within(name string, f func(ctx context.Context) error) error {
	ctx, span := w.provider.Tracer("test").Start(w.t.Context(), name)
	defer span.End()
	return f(ctx)
}

// job delivers what is due.
func (w *world) job(targets asyncjob.Targets) asyncjob.Report {
	w.t.Helper()
	quiet, _ := test.NewNullLogger()
	job, err := asyncjob.New(w.storage, targets, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay, ProbeTimeout: time.Minute, Bus: w.bus, Logger: quiet})
	must(w.t, err)
	defer func() { must(w.t, job.Close()) }()
	report, err := job.RunOnce(w.t.Context())
	must(w.t, err)
	return report
}

// promise logs a statement that no call has tried.
func (w *world) promise(dataSource, settings, query string) {
	w.t.Helper()
	u := &entry.Unit{ID: entry.NewID(), DataSource: dataSource, Settings: settings, Statements: []entry.Statement{{SQL: query}}, Lease: entry.Lease{Token: "t"}}
	u.TransactionID = u.ID
	must(w.t, w.storage.Add(w.t.Context(), time.Minute, u))
	must(w.t, w.storage.Release(w.t.Context(), u, entry.Verdict{}))
}

// about are the attributes of a span, but bed's.
func about(s tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		if !strings.HasPrefix(string(a.Key), "bed.") {
			all[string(a.Key)] = a.Value.String()
		}
	}
	return all
}

func bedOf(s tracetest.SpanStub, key attribute.Key) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

func TestSpansFollowTheConventionsForDatabases(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, on testdb.DB) {
		w := newWorld(t, on)
		exec := func(query string) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := w.db.ExecContext(ctx, query)
				return err
			}
		}
		inTx := func(queries ...string) func(context.Context) error {
			return func(ctx context.Context) error {
				tx, err := w.db.BeginTx(ctx, nil)
				for _, q := range queries {
					if err == nil {
						_, err = tx.ExecContext(ctx, q)
					}
				}
				return errors.Join(err, tx.Commit())
			}
		}
		system := testdb.By[string]{MySQL: "mysql", Postgres: "postgresql", SQLite: "sqlite"}.For(on.Driver)
		duplicate := testdb.By[string]{MySQL: "1062", Postgres: "23505", SQLite: "1555"}.For(on.Driver)
		missing := testdb.By[string]{MySQL: "1146", Postgres: "42P01", SQLite: "1"}.For(on.Driver)
		with := func(more ...string) map[string]string {
			all := map[string]string{"db.system.name": system}
			if on.Driver != testdb.DriverSQLite {
				all["db.namespace"] = on.Name
			}
			for i := 0; i < len(more); i += 2 {
				all[more[i]] = more[i+1]
			}
			return all
		}
		writes := []struct {
			name    string
			do      func(context.Context) error
			refused bool
			want    map[string]string
		}{
			{"insert", exec("INSERT INTO orders VALUES (2, 0)"), false, with("db.operation.name", "INSERT")},
			{"update", exec("/* a comment */ update orders SET n = 1 WHERE id = 2"), false, with("db.operation.name", "UPDATE")},
			{"delete", exec("DELETE FROM orders WHERE id = 7"), false, with("db.operation.name", "DELETE")},
			{"duplicate", exec("INSERT INTO orders VALUES (1, 0)"), true, with("db.operation.name", "INSERT", "error.type", duplicate, "db.response.status_code", duplicate)},
			{"a batch", inTx("INSERT INTO orders VALUES (3, 0)", "INSERT INTO orders VALUES (4, 0)"), false, with("db.operation.name", "BATCH INSERT", "db.operation.batch.size", "2")},
			{"a mixed batch", inTx("INSERT INTO orders VALUES (5, 0)", "UPDATE orders SET n = 1 WHERE id = 5", "DELETE FROM orders WHERE id = 5"), false,
				with("db.operation.name", "BATCH", "db.operation.batch.size", "3")},
		}
		for _, one := range writes {
			if err := w.within(one.name, one.do); (err != nil) != one.refused {
				t.Fatalf("%s: %v", one.name, err)
			}
		}
		w.promise("orders", w.target.Settings, "UPDATE orders SET n = 9 WHERE id = 1")
		w.promise("orders", w.target.Settings, "DELETE FROM nowhere WHERE id = 1")
		if report := w.job(asyncjob.Targets{"orders": w.target}); report.Delivered != 1 || report.Parked != 1 {
			t.Fatalf("the job's round was %v", report)
		}
		w.tracer.Close()

		spans := w.spans.GetSpans()
		byID := map[trace.SpanID]tracetest.SpanStub{}
		for _, s := range spans {
			byID[s.SpanContext.SpanID()] = s
		}
		for _, one := range writes {
			caller := named(spans, one.name)[0]
			// otelsql's span of the call, or of the COMMIT, is between them.
			mine := slices.DeleteFunc(slices.Clone(spans), func(s tracetest.SpanStub) bool {
				return s.Name != "bed write" || s.SpanContext.TraceID() != caller.SpanContext.TraceID()
			})
			if len(mine) != 1 {
				t.Errorf("%s has %d spans of writes", one.name, len(mine))
				continue
			}
			s := mine[0]
			if above := byID[s.Parent.SpanID()]; !strings.HasPrefix(above.Name, "sql.") || s.SpanKind != trace.SpanKindClient {
				t.Errorf("%s: the span is below %q, of the kind %v", one.name, above.Name, s.SpanKind)
			}
			if got := about(s); !maps.Equal(got, one.want) {
				t.Errorf("%s has %v, want %v", one.name, got, one.want)
			}
			if bedOf(s, "bed.data_source") != "orders" || bedOf(s, "bed.entry_id") == "" || (s.Status.Code == codes.Error) != one.refused {
				t.Errorf("%s is %v, %v", one.name, s.Attributes, s.Status)
			}
		}
		deliveries := named(spans, "bed delivery")
		if len(deliveries) != 2 {
			t.Fatalf("there are %d spans of deliveries", len(deliveries))
		}
		for _, d := range deliveries {
			want := with("db.operation.name", "UPDATE")
			if d.Status.Code == codes.Error {
				want = with("db.operation.name", "DELETE", "error.type", missing, "db.response.status_code", missing)
			}
			if got := about(d); !maps.Equal(got, want) || d.SpanKind != trace.SpanKindClient {
				t.Errorf("the delivery has %v, want %v; it is of the kind %v", got, want, d.SpanKind)
			}
		}
	})
}

// publisher counts messages, or fails.
type publisher struct{ err error }

func (p publisher) Publish(string, ...*message.Message) error { return p.err }
func (p publisher) Close() error                              { return nil }

func TestSpansFollowTheConventionsForHTTPClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.SQLite(t))
	quiet, _ := test.NewNullLogger()
	status := http.StatusCreated
	peer := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			return
		}
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, `{"title": "s3cr3t"}`)
	}))
	t.Cleanup(peer.Close)
	s, err := call.New(peer.Client(), "payments", peer.URL+"/v1", bedsql.Config{Storage: w.storage, Bus: w.bus, Logger: quiet, NoSyncRetry: true})
	must(t, err)
	for name, code := range map[string]int{"sent": http.StatusCreated, "refused": http.StatusPaymentRequired, "kept": http.StatusBadGateway} {
		status = code
		err := w.within(name, func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/orders/4711/charges?card=s3cr3t", strings.NewReader("s3cr3t body"))
			must(t, err)
			_, err = s.Send(ctx, r)
			return err
		})
		if (err == nil) != (name == "sent") {
			t.Fatalf("%s: %v", name, err)
		}
	}
	must(t, s.Close())
	status = http.StatusNoContent
	to, err := call.Target(peer.Client(), "payments", peer.URL+"/v1")
	must(t, err)
	if report := w.job(asyncjob.Targets{"payments": to}); report.Delivered != 1 {
		t.Fatalf("the job's round was %v", report)
	}
	w.tracer.Close()
	host, port, err := net.SplitHostPort(peer.Listener.Addr().String())
	must(t, err)
	spans := w.spans.GetSpans()
	all := append(named(spans, "bed write"), named(spans, "bed delivery")...)
	if len(all) != 4 {
		t.Fatalf("there are %d spans", len(all))
	}
	answers := map[string]int{}
	for _, s := range all {
		got := about(s)
		expected := map[string]string{"http.request.method": "POST", "url.template": "/orders/?/charges", "server.address": host, "server.port": port}
		if code, failed := got["http.response.status_code"]; failed {
			expected["http.response.status_code"], expected["error.type"] = code, code
			answers[code]++
		}
		if !maps.Equal(got, expected) || s.SpanKind != trace.SpanKindClient {
			t.Errorf("%s has %v, want %v", s.Name, got, expected)
		}
		if text := fmt.Sprint(s.Attributes, s.Status, s.Events); strings.Contains(text, "s3cr3t") || strings.Contains(text, "4711") {
			t.Errorf("%s holds a value or an error's text: %s", s.Name, text)
		}
	}
	if want := map[string]int{"402": 1, "502": 1}; !maps.Equal(answers, want) {
		t.Errorf("the failures are %v, want %v", answers, want)
	}
}

func TestSpansFollowTheConventionsForMessaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testdb.SQLite(t))
	quiet, _ := test.NewNullLogger()
	failing := publisher{errors.New("the broker is down, and my password is s3cr3t")}
	for name, p := range map[string]publisher{"sent": {}, "kept": failing} {
		pub, err := bedmessage.NewPublisher(p, "events", bedsql.Config{Storage: w.storage, Bus: w.bus, Logger: quiet, NoSyncRetry: true}, bedmessage.Confirms())
		must(t, err)
		err = w.within(name, func(ctx context.Context) error {
			return pub.Publish(ctx, "orders.paid", message.NewMessage("", []byte("s3cr3t payload")))
		})
		if errors.Is(err, bedsql.ErrPending) != (name == "kept") {
			t.Fatalf("%s: %v", name, err)
		}
		must(t, pub.Close())
	}
	to, err := bedmessage.Target(publisher{}, "events", bedmessage.Confirms())
	must(t, err)
	if report := w.job(asyncjob.Targets{"events": to}); report.Delivered != 1 {
		t.Fatalf("the job's round was %v", report)
	}
	w.tracer.Close()
	want := map[string]string{"messaging.system": "watermill", "messaging.operation.type": "send", "messaging.operation.name": "publish", "messaging.destination.name": "orders.paid"}
	spans := w.spans.GetSpans()
	all := append(named(spans, "bed write"), named(spans, "bed delivery")...)
	if len(all) != 3 {
		t.Fatalf("there are %d spans", len(all))
	}
	for _, s := range all {
		expected := maps.Clone(want)
		if s.Status.Code == codes.Error {
			expected["error.type"] = "pending"
		}
		if got := about(s); !maps.Equal(got, expected) {
			t.Errorf("%s has %v, want %v", s.Name, got, expected)
		}
		if text := fmt.Sprint(s.Attributes, s.Status, s.Events); strings.Contains(text, "s3cr3t") {
			t.Errorf("%s holds a value or an error's text: %s", s.Name, text)
		}
	}
}

// series are measurements by name, unit, help and labels.
type series map[string]string

func (s series) add(name, unit, help string, labels map[string]string, value string) {
	key := name + " in " + unit + ": " + help
	for _, l := range slices.Sorted(maps.Keys(labels)) {
		key += fmt.Sprintf(" %s=%q", l, labels[l])
	}
	s[key] = value
}

// fromPrometheus reads a Collector. Prometheus has the unit in the name.
func fromPrometheus(t *testing.T, c prometheus.Collector) series {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	must(t, err)
	all := series{}
	for _, f := range families {
		name, seconds := strings.CutSuffix(f.GetName(), "_seconds")
		unit := map[bool]string{true: "s", false: "1"}[seconds]
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if h := m.GetHistogram(); h != nil {
				value, before := fmt.Sprintf("%d, %.9f", h.GetSampleCount(), h.GetSampleSum()), uint64(0)
				for _, b := range h.GetBucket() {
					value += fmt.Sprintf(" %v:%d", b.GetUpperBound(), b.GetCumulativeCount()-before)
					before = b.GetCumulativeCount()
				}
				all.add(name, unit, f.GetHelp(), labels, value)
				continue
			}
			if name, seconds = strings.CutSuffix(f.GetName(), "_total"); !seconds {
				t.Errorf("the counter %s has no _total", f.GetName())
			}
			all.add(name, "1", f.GetHelp(), labels, fmt.Sprint(m.GetCounter().GetValue()))
		}
	}
	return all
}

// fromOpenTelemetry reads the metrics of a Tracer. A unit in braces is a word for 1.
func fromOpenTelemetry(t *testing.T, reader *sdkmetric.ManualReader) series {
	t.Helper()
	var got metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &got))
	all := series{}
	labelsOf := func(set attribute.Set) map[string]string {
		labels := map[string]string{}
		for _, kv := range set.ToSlice() {
			labels[string(kv.Key)] = kv.Value.String()
		}
		return labels
	}
	for _, s := range got.ScopeMetrics {
		for _, m := range s.Metrics {
			name, unit := strings.ReplaceAll(m.Name, ".", "_"), m.Unit
			if strings.HasPrefix(unit, "{") {
				unit = "1"
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				if !data.IsMonotonic {
					t.Errorf("%s is no counter", m.Name)
				}
				for _, p := range data.DataPoints {
					all.add(name, unit, m.Description, labelsOf(p.Attributes), fmt.Sprint(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					value := fmt.Sprintf("%d, %.9f", p.Count, p.Sum)
					for i, bound := range p.Bounds {
						value += fmt.Sprintf(" %v:%d", bound, p.BucketCounts[i])
					}
					all.add(name, unit, m.Description, labelsOf(p.Attributes), value)
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return all
}

// After the same writes, both exporters report the same, by name, unit, labels and value.
func TestPrometheusAndOpenTelemetryReportTheSame(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, on testdb.DB) {
		w := newWorld(t, on)
		for _, query := range []string{"INSERT INTO orders VALUES (2, 0)", "INSERT INTO orders VALUES (2, 0)", "UPDATE orders SET n = 1", "DELETE FROM nowhere"} {
			_, _ = w.db.ExecContext(t.Context(), query)
		}
		group, soft, err := bedsql.Begin(t.Context())
		must(t, err)
		_, _ = w.db.ExecContext(group, "DELETE FROM nowhere WHERE id = 2") // is parked
		_ = soft.End(t.Context())
		for _, query := range []string{"UPDATE orders SET n = 9 WHERE id = 1", "DELETE FROM nowhere WHERE id = 1"} {
			w.promise("orders", w.target.Settings, query)
		}
		w.job(asyncjob.Targets{"orders": w.target})
		found := listener.Event{Type: listener.ExecuteSuccess, Origin: listener.SyncRetry, DataSource: "\xffodd\n", Took: 3 * time.Second, Found: true}
		w.bus.Publish(found)
		w.bus.Publish(listener.Event{Type: listener.ReceiptsPurged, DataSource: "orders", Receipts: 40})
		for i := range 300 { // more than have a label of their own
			w.bus.Publish(listener.Event{Type: listener.Parked, DataSource: fmt.Sprint("source ", i)})
		}
		w.tracer.Close()
		w.collector.Close()
		prom, otel := fromPrometheus(t, w.collector), fromOpenTelemetry(t, w.metrics)
		if !maps.Equal(prom, otel) {
			for _, key := range slices.Sorted(maps.Keys(prom)) {
				if prom[key] != otel[key] {
					t.Errorf("%s: Prometheus has %q, OpenTelemetry %q", key, prom[key], otel[key])
				}
			}
			for _, key := range slices.Sorted(maps.Keys(otel)) {
				if _, ok := prom[key]; !ok {
					t.Errorf("%s: only OpenTelemetry has it, %q", key, otel[key])
				}
			}
		}
		names := map[string]bool{}
		for key := range prom {
			name, _, _ := strings.Cut(key, " ")
			names[name] = true
		}
		for _, name := range []string{"bed_writes", "bed_write_duration", "bed_attempts", "bed_attempt_duration", "bed_log_write_duration", "bed_job_deliveries", "bed_parked", "bed_receipts_replayed", "bed_receipts_purged", "bed_events_dropped"} {
			if !names[name] {
				t.Errorf("nothing is in %s", name)
			}
			delete(names, name)
		}
		if len(names) > 0 {
			t.Errorf("there are %v too: add them here", names)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
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
