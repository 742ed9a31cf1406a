package slogger_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/slogger"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// lines is a buffer for several goroutines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func textTo(out *lines, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestLinesKeepTheirLevelsAndFields(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{
		slog.LevelDebug: "level=DEBUG msg=d\nlevel=INFO msg=i\nlevel=WARN msg=w a=1 error=\"1205 (HY000)\"\nlevel=ERROR msg=e\n",
		slog.LevelError: "level=ERROR msg=e\n",
	} {
		var out lines
		other, hook := test.NewNullLogger()
		l := slogger.Of(other, textTo(&out, level))
		l.Debug("d")
		l.Info("i")
		l.WithField("error", errors.New("1205 (HY000)")).WithField("a", 1).Warn("w")
		l.Error("e")
		if out.String() != want || len(hook.AllEntries()) > 0 {
			t.Errorf("at %v the handler has\n%sand logrus %d lines", level, out.String(), len(hook.AllEntries()))
		}
	}
}

func TestANilLoggerIsNone(t *testing.T) {
	t.Parallel()
	own, _ := test.NewNullLogger()
	var none *slog.Logger
	if got := slogger.Of(own, none); got != own {
		t.Errorf("with a nil *slog.Logger the lines go to %v", got)
	}
	if got := slogger.Of(nil, nil); got != logrus.StandardLogger() {
		t.Errorf("by default the lines go to %v", got)
	}
}

// Each place that takes logrus's logger takes a *slog.Logger, and then nothing goes to the other.
func TestEveryPlaceTakesASlogLogger(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	other, hook := test.NewNullLogger()
	other.SetLevel(logrus.TraceLevel)
	var out lines
	to := textTo(&out, slog.LevelDebug)
	has := func(where, line string) {
		t.Helper()
		if !strings.Contains(out.String(), line) {
			t.Errorf("%s has no line %s in\n%s", where, line, out.String())
		}
	}

	storage, err := txlog.Open(ctx, "sqlite", "file:"+filepath.Join(dir, "log.db"), txlog.WithLogger(other), txlog.WithSlog(to))
	must(err)
	defer storage.Close()
	bus := listener.NewBus(other)
	bus.Slog = to
	sub := bus.Subscribe(func(listener.Event) { panic("on purpose") })
	target, err := sqlite.Target("file:" + filepath.Join(dir, "orders.db") + "?bedDataSource=orders")
	must(err)
	connector, err := sqlite.NewConnector(target, bedsql.Config{Storage: storage, Bus: bus, Logger: other, Slog: to})
	must(err)
	db := sql.OpenDB(connector)
	defer db.Close()
	_, err = db.ExecContext(ctx, "CREATE TABLE n (id INTEGER PRIMARY KEY, n INTEGER)")
	must(err)
	_, err = db.ExecContext(ctx, "UPDATE n SET n = n + 1 WHERE id = 1")
	must(err)
	sub.Close()
	has("bedsql", `level=WARN msg="bed: a statement is not idempotent"`)
	has("the bus", `level=ERROR msg="bed: a listener panicked"`)

	u := &entry.Unit{ID: entry.NewID(), DataSource: "nowhere", Statements: []entry.Statement{{SQL: "DELETE FROM t"}}, Lease: entry.Lease{Token: "t"}}
	u.TransactionID = u.ID
	must(storage.Add(ctx, time.Minute, u))
	must(storage.Release(ctx, u, entry.Verdict{}))
	job, err := asyncjob.New(storage, asyncjob.Targets{}, asyncjob.Config{Logger: other, Slog: to, MaxDeliveryTryDelay: asyncjob.NoDelay})
	must(err)
	_, err = job.RunOnce(ctx)
	must(err)
	must(job.Close())
	has("the job", "data_source=nowhere")

	c, err := console.NewOn(console.Config{Listen: "127.0.0.1:8390", Logger: other, Slog: to}, console.Log{Store: func() console.Store { return nil }})
	must(err)
	defer c.Close()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/entries", nil)
	r.Host = "127.0.0.1:8390"
	c.ServeHTTP(httptest.NewRecorder(), r)
	has("the console", `msg="the console could not answer`)
	if n := len(hook.AllEntries()); n > 0 {
		t.Errorf("%d lines went to the other logger, such as %q", n, fmt.Sprint(hook.AllEntries()[0]))
	}
}
