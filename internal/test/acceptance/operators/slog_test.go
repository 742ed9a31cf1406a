package operators

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/console"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

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
	var out rig.LogLines
	to := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
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

	c, err := console.NewOn(console.Config{Listen: "127.0.0.1:8390", Logger: other, Slog: to}, console.Log{Store: func() *ops.Store { return nil }})
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
