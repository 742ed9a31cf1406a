package demo

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

func TestDemoLeavesItsStuckEntryInAConsole(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var served string
	var out strings.Builder
	o := Options{Width: 100, Out: &out, Console: true, BedJob: func(ctx context.Context, _ io.Writer, args ...string) int {
		if args[0] == "run" {
			text, err := os.ReadFile(args[slices.Index(args, "-c")+1])
			if err != nil {
				t.Error(err)
			}
			served = string(text)
			if n := jobsOf(ctx, t, served); n != 0 {
				t.Errorf("before the console's own job there are %d in the list", n)
			}
		}
		return 0
	}}
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(served, `console: {listen: "`)
	address, _, _ = strings.Cut(address, `"`)
	if !ok || !strings.Contains(out.String(), "http://"+address+"/") {
		t.Errorf("run was given\n%s\nand the operator read\n%s", served, out.String())
	}
}

// jobsOf counts the jobs that the console lists for the log of a configuration.
func jobsOf(ctx context.Context, t *testing.T, configuration string) int {
	t.Helper()
	_, dsn, _ := strings.Cut(configuration, "transactionLogDataSource: {driver: sqlite, dsn: ")
	dsn, _, _ = strings.Cut(dsn, "}\n")
	dsn, err := strconv.Unquote(dsn)
	if err != nil {
		t.Fatal(err)
	}
	log, err := txlog.Open(ctx, "sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	store, err := ops.New(log, ops.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := store.Overview(ctx, ops.OverviewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(o.Jobs)
}
