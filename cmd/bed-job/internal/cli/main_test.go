package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/txlog"
)

// beMain in the environment makes the test binary the program itself.
const beMain = "BED_JOB_TEST_BE_MAIN"

// wishFor in its environment is its oneWish.
const wishFor = "BED_JOB_TEST_ONE_WISH"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		if wish, err := time.ParseDuration(os.Getenv(wishFor)); err == nil {
			oneWish = wish
		}
		os.Exit(Main())
	}
	time.Local = time.FixedZone("", 3600)
	goleak.VerifyTestMain(leaks.Patient(m))
}

// A run is one command line's outcome.
type run struct {
	status   int
	out, err string
}

// A harness is an app on a log of its own.
type harness struct {
	app
	config string
}

// unclosed keeps a log open between the commands of a test.
type unclosed struct{ txlog.Storage }

func (unclosed) Close() error            { return nil }
func (u unclosed) Unwrap() txlog.Storage { return u.Storage }

func newHarness(t *testing.T, st txlog.Storage) *harness {
	t.Helper()
	h := &harness{config: filepath.Join(t.TempDir(), "bed-job.yaml")}
	write(t, h.config, "transactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n")
	h.app = app{
		Getenv: env(nil), Now: func() time.Time { return noon },
		Open: func(context.Context, dataSource, bool) (txlog.Storage, error) { return unclosed{st}, nil },
	}
	return h
}

func (h *harness) run(t *testing.T, args ...string) run {
	t.Helper()
	var out, err bytes.Buffer
	a := h.app
	a.Out, a.Err = &out, &err
	if a.In == nil {
		a.In = strings.NewReader("")
	}
	return run{a.run(t.Context(), append(args, "-c", h.config)), out.String(), err.String()}
}

var noon = time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)

func (r run) want(t *testing.T, status int, out string) {
	t.Helper()
	if r.status != status || r.out != out {
		t.Errorf("status %d, want %d; printed\n%s\nwant\n%s\nand to stderr\n%s", r.status, status, r.out, out, r.err)
	}
}

// newLog makes a log in a file, for an operator to work with.
func newLog(t *testing.T) *txlog.SQLStorage {
	t.Helper()
	st, err := txlog.Open(t.Context(), "sqlite", "file:"+filepath.Join(t.TempDir(), "log.db"), txlog.WithoutActivity())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}
