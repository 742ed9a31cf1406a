package bedprom_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/logmetrics"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/listener/bedprom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// counted publishes events and returns the Collector with their counts.
func counted(t *testing.T, events ...listener.Event) *bedprom.Collector {
	t.Helper()
	bus := listener.NewBus(nil)
	c := bedprom.New(bus)
	for _, ev := range events {
		bus.Publish(ev)
	}
	c.Close()
	return c
}

// gathered returns the samples of the metrics with this name prefix, one line each.
func gathered(t *testing.T, c prometheus.Collector, prefix string) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), prefix) {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			lines = append(lines, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","), v))
		}
	}
	return lines
}

func want(t *testing.T, got []string, lines ...string) {
	t.Helper()
	if g, w := strings.Join(got, "\n"), strings.Join(lines, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func TestWritesAreCountedByOutcome(t *testing.T) {
	t.Parallel()
	answer := func(err error, attempts int) listener.Event {
		return listener.Event{
			Type: listener.Answered, DataSource: "orders", Err: err, Attempts: make([]listener.Attempt, attempts),
			Took: 20 * time.Millisecond, LogTook: time.Millisecond,
		}
	}
	cause := errors.New("no")
	c := counted(t,
		answer(nil, 1), answer(nil, 1), answer(nil, 2),
		answer(&dialect.RowsError{Want: 1}, 1),
		answer(&listener.PendingError{Cause: cause}, 4),
		answer(&listener.PendingError{Cause: cause, Parked: true}, 1),
		answer(&listener.RefusedError{Cause: cause}, 1),
		listener.Event{Type: listener.Answered, DataSource: "orders", Err: &listener.NotLoggedError{Cause: cause}},
		listener.Event{Type: listener.Answered, DataSource: "orders", Err: &listener.UnknownOutcomeError{Cause: cause, Log: cause}},
	)
	want(t, gathered(t, c, "bed_writes"),
		"bed_writes_total{data_source=orders,outcome=at_once} 2",
		"bed_writes_total{data_source=orders,outcome=not_logged} 1",
		"bed_writes_total{data_source=orders,outcome=parked} 2",
		"bed_writes_total{data_source=orders,outcome=pending} 1",
		"bed_writes_total{data_source=orders,outcome=refused} 1",
		"bed_writes_total{data_source=orders,outcome=sync_retry} 1",
		"bed_writes_total{data_source=orders,outcome=unknown} 1",
	)
	want(t, gathered(t, c, "bed_write_duration"), "bed_write_duration_seconds{data_source=orders} 9")
	want(t, gathered(t, c, "bed_log_write"), "bed_log_write_duration_seconds{} 7")
}

func TestAttemptsAreCountedByOriginAndClass(t *testing.T) {
	t.Parallel()
	ended := func(o listener.Origin, err error, class dialect.Class) listener.Event {
		ev := listener.Event{Type: listener.ExecuteSuccess, Origin: o, DataSource: "orders", Err: err, Class: class, Took: time.Millisecond}
		if err != nil {
			ev.Type = listener.ExecuteFailure
		}
		return ev
	}
	no := errors.New("Duplicate entry 'secret' for key 'PRIMARY'")
	found := ended(listener.AsyncJob, nil, 0)
	found.Found = true
	c := counted(t,
		ended(listener.Caller, no, dialect.Unreachable), ended(listener.SyncRetry, nil, 0),
		ended(listener.AsyncJob, no, dialect.Retryable), ended(listener.AsyncJob, no, dialect.Refused),
		ended(listener.AsyncJob, no, dialect.Duplicate), ended(listener.AsyncJob, no, dialect.Unknown), found,
		listener.Event{Type: listener.Parked, Origin: listener.AsyncJob, DataSource: "orders", Err: no},
		listener.Event{Type: listener.ReceiptsPurged, DataSource: "orders", Receipts: 40},
	)
	want(t, gathered(t, c, "bed_attempts"),
		"bed_attempts_total{class=duplicate,data_source=orders,origin=job} 1",
		"bed_attempts_total{class=ok,data_source=orders,origin=job} 1",
		"bed_attempts_total{class=ok,data_source=orders,origin=sync_retry} 1",
		"bed_attempts_total{class=refused,data_source=orders,origin=job} 1",
		"bed_attempts_total{class=retryable,data_source=orders,origin=job} 1",
		"bed_attempts_total{class=unknown,data_source=orders,origin=job} 1",
		"bed_attempts_total{class=unreachable,data_source=orders,origin=caller} 1",
	)
	want(t, gathered(t, c, "bed_job_deliveries"),
		"bed_job_deliveries_total{data_source=orders,outcome=delivered} 1",
		"bed_job_deliveries_total{data_source=orders,outcome=failed} 4",
	)
	want(t, gathered(t, c, "bed_receipts"),
		"bed_receipts_purged_total{data_source=orders} 40", "bed_receipts_replayed_total{data_source=orders} 1")
	want(t, gathered(t, c, "bed_parked"), "bed_parked_total{data_source=orders,origin=job} 1")
	for _, line := range gathered(t, c, "") {
		if strings.Contains(line, "secret") {
			t.Errorf("a value is in a metric: %s", line)
		}
	}
}

func TestLabelsAreBoundedForManyDataSources(t *testing.T) {
	t.Parallel()
	events := []listener.Event{{Type: listener.Parked, DataSource: "bad \xff name"}}
	for i := range 1000 {
		events = append(events, listener.Event{Type: listener.Parked, DataSource: fmt.Sprint("source ", i)})
	}
	got := gathered(t, counted(t, events...), "bed_parked")
	if len(got) != 201 || got[0] != "bed_parked_total{data_source=(others),origin=caller} 801" {
		t.Errorf("%d samples, the first is %s", len(got), got[0])
	}
}

func TestLabelsHoldNoTerminalControls(t *testing.T) {
	name := "a\x1b[31m\u202eb\xff\u009b"
	c := counted(t, listener.Event{Type: listener.Parked, DataSource: name})
	for _, line := range gathered(t, c, "bed_") {
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", line)
		}
	}
	log := logmetrics.New(func(context.Context) []logmetrics.Log {
		return []logmetrics.Log{{Name: name, Overview: &ops.Overview{DataSources: []ops.DataSource{{Name: name}}}}}
	})
	w := httptest.NewRecorder()
	bedprom.Handler(log).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if body := w.Body.String(); strings.ContainsAny(body, "\x1b\u202e\u009b") || !strings.Contains(body, "bed_log_entries") {
		t.Errorf("%.2000q", body)
	}
}

func TestTheStateOfEachLogIsReported(t *testing.T) {
	t.Parallel()
	yes, asked := true, 0
	now := time.Now()
	hourAgo := now.Add(-time.Hour)
	said := logmetrics.Log{Name: "bed", Overview: &ops.Overview{At: now, Jobs: make([]ops.Job, 2), DataSources: []ops.DataSource{
		{Name: "orders", Waiting: 3, Leased: 1, Parked: 7, Oldest: &hourAgo, Reachable: &yes, Paused: true},
		{Name: "ledger"},
	}}}
	c := logmetrics.New(func(context.Context) []logmetrics.Log {
		asked++
		return []logmetrics.Log{said}
	})
	got := gathered(t, c, "bed_log_entries")
	want(t, got,
		"bed_log_entries{data_source=ledger,log=bed,state=leased} 0", "bed_log_entries{data_source=ledger,log=bed,state=parked} 0",
		"bed_log_entries{data_source=ledger,log=bed,state=waiting} 0", "bed_log_entries{data_source=orders,log=bed,state=leased} 1",
		"bed_log_entries{data_source=orders,log=bed,state=parked} 7", "bed_log_entries{data_source=orders,log=bed,state=waiting} 3")
	want(t, gathered(t, c, "bed_data_source"), "bed_data_source_paused{data_source=ledger,log=bed} 0", "bed_data_source_paused{data_source=orders,log=bed} 1",
		"bed_data_source_up{data_source=orders,log=bed} 1")
	want(t, gathered(t, c, "bed_log_up"), "bed_log_up{log=bed} 1")
	want(t, gathered(t, c, "bed_jobs"), "bed_jobs_alive{log=bed} 2")
	if asked != 1 {
		t.Errorf("the log was asked %d times within its interval", asked)
	}

	down := logmetrics.New(func(context.Context) []logmetrics.Log {
		return []logmetrics.Log{{Name: "down"}, said}
	})
	want(t, gathered(t, down, "bed_log_up"), "bed_log_up{log=bed} 1", "bed_log_up{log=down} 0")
	want(t, gathered(t, down, "bed_jobs"), "bed_jobs_alive{log=bed} 2")
}

func TestTheHandlerServesWhatPrometheusReads(t *testing.T) {
	t.Parallel()
	c := counted(t, listener.Event{Type: listener.Answered, DataSource: "orders", Attempts: make([]listener.Attempt, 1)})
	w := httptest.NewRecorder()
	bedprom.Handler(c).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{`bed_writes_total{data_source="orders",outcome="at_once"} 1`, "go_goroutines ", "process_start_time_seconds "} {
		if !strings.Contains(w.Body.String(), "\n"+line) {
			t.Errorf("the page does not hold %s", line)
		}
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("the metrics are not named as Prometheus wants it: %v %v", problems, err)
	}
}
