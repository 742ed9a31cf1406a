package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// silentServer accepts connections and never says a word.
func silentServer(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var conns []net.Conn
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// logsAt are the possible logs at an address.
func logsAt(addr string) map[string]string {
	return map[string]string{
		"mysql":    "root:s3cr3t-Pa55@tcp(" + addr + ")/bed",
		"postgres": "postgres://u:s3cr3t-Pa55@" + addr + "/bed?sslmode=disable",
	}
}

func silentStage(t *testing.T, driver, dsn string) (config string) {
	t.Helper()
	dir := t.TempDir()
	config = filepath.Join(dir, "bed-job.yaml")
	write(t, config, fmt.Sprintf("targetDataSource:\n  target: {driver: sqlite, dsn: %q}\ntransactionLogDataSource: {driver: %s, dsn: %q}\n",
		filepath.Join(dir, "target.db"), driver, dsn))
	return config
}

func TestUnresponsiveLogIsReportedByEveryCommand(t *testing.T) {
	t.Parallel()
	addr := silentServer(t)
	for driver, dsn := range logsAt(addr) {
		h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: openLog}, config: silentStage(t, driver, dsn)}
		for _, args := range []string{"run --once", "run --exit-if-log-unavailable", "list", "show x", "stats", "retry x", "discard x --yes --reason x", "list --verify"} {
			start := time.Now()
			r := h.run(t, append(strings.Fields(args), "--log-timeout", "200ms")...)
			for _, want := range []string{"transactionLogDataSource", driver + " at " + addr + "/bed", "did not answer within 200ms", "--log-timeout"} {
				if r.status != 1 || !strings.Contains(r.err, want) {
					t.Errorf("%s, %s: %+v, want in it %q", driver, args, r, want)
				}
			}
			if took := time.Since(start); took > 8*time.Second {
				t.Errorf("%s, %s: it took %v", driver, args, took)
			}
			if strings.Contains(r.out+r.err, "Pa55") {
				t.Errorf("%s, %s printed the password: %+v", driver, args, r)
			}
		}
	}
}

// stuckLog is open, and answers nothing any more.
type stuckLog struct{ txlog.Storage }

func (stuckLog) List(ctx context.Context, _ txlog.Filter) ([]*entry.Unit, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (stuckLog) Get(ctx context.Context, _ string) (*entry.Unit, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (stuckLog) DataSources(ctx context.Context) ([]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (stuckLog) Stats(ctx context.Context) ([]txlog.Stats, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestLogThatStopsAnsweringIsReported(t *testing.T) {
	t.Parallel()
	h := newHarness(t, stuckLog{txlog.NewMemory()})
	write(t, h.config, "targetDataSource:\n  a: {driver: sqlite, dsn: /nowhere/a.db}\ntransactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n")
	for _, args := range []string{"list", "list --verify", "show x", "stats", "run --once"} {
		r := h.run(t, append(strings.Fields(args), "--log-timeout", "50ms")...)
		if r.status != 1 || !strings.Contains(r.err, "sqlite at /nowhere/log.db) did not answer within 50ms") {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

func TestRunWaitsForLogAndStopsOnSignal(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{silentServer(t), "127.0.0.1:1"} { // where nobody listens
		for driver, dsn := range logsAt(addr) {
			s := &stage{config: silentStage(t, driver, dsn)}
			p := s.start(t, "run", "--log-timeout", "100ms", "--log-format", "json")
			p.until(t, `"msg":"waiting for the transaction log, which is not available`)
			p.signal(t, syscall.SIGTERM)
			status, rest := p.end()
			if status != 0 || !strings.Contains(rest, `"msg":"bed-job has ended"`) || strings.Contains(rest, "Pa55") || strings.Contains(rest, "level\":\"error") {
				t.Errorf("%s at %s: the status is %d and it wrote\n%s", driver, addr, status, rest)
			}
		}
	}
}

func TestRunGoesOnWhenTheLogIsThere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args, setting string
		err           error
		tries, status int
	}{
		"it comes up":       {err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, tries: 3},
		"a flag":            {args: "--exit-if-log-unavailable", err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, tries: 1, status: 1},
		"a setting":         {setting: "jobConfig: {exitIfLogUnavailable: true}\n", err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, tries: 1, status: 1},
		"a setting, undone": {setting: "jobConfig: {exitIfLogUnavailable: false}\n", err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, tries: 2},
		"no use to wait":    {err: fmt.Errorf("the table: %w", txlog.ErrUnusable), tries: 1, status: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := silentStage(t, "mysql", logsAt("127.0.0.1:1")["mysql"])
			text, err := os.ReadFile(config)
			if err != nil {
				t.Fatal(err)
			}
			write(t, config, string(text)+tc.setting)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var tries atomic.Int32
			var out, errs bytes.Buffer
			a := app{Out: &out, Err: &errs, In: strings.NewReader(""), Getenv: env(nil), Now: time.Now,
				Open: func(context.Context, dataSource, bool) (txlog.Storage, error) {
					if n := int(tries.Add(1)); n < tc.tries || tc.status != 0 {
						return nil, tc.err
					}
					cancel() // it runs, and ends at once
					return txlog.NewMemory(), nil
				}}
			status := a.run(ctx, append(strings.Fields("run -c "+config), strings.Fields(tc.args)...))
			if status != tc.status || int(tries.Load()) != tc.tries {
				t.Errorf("status %d after %d tries, want %d after %d; it wrote\n%s", status, tries.Load(), tc.status, tc.tries, errs.String())
			}
			if told := strings.Count(errs.String(), "waiting for the transaction log"); tc.status == 0 && told != 1 || tc.status != 0 && told != 0 {
				t.Errorf("it was reported %d times:\n%s", told, errs.String())
			}
			if tc.status == 0 && !strings.Contains(errs.String(), "bed-job is running") {
				t.Errorf("it wrote\n%s", errs.String())
			}
		})
	}
}

func TestLogThatLacksColumnsIsNotRetried(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if _, err := s.target.Exec("CREATE TABLE transaction_log (id TEXT)"); err != nil {
		t.Fatal(err)
	}
	if _, err := txlog.Open(t.Context(), "sqlite", s.file); !errors.Is(err, txlog.ErrUnusable) {
		t.Errorf("got %v", err)
	}
}

// Some drivers' dials end by the clock, before the context's timer fires.
func TestLogTimeoutsAreNamedBeforeTheContextEnds(t *testing.T) {
	t.Parallel()
	log := boundedLog{source: dataSource{driver: "mysql", dsn: "root@tcp(127.0.0.1:1)/bed"}, within: time.Millisecond}
	for range 50 {
		_, err := ask(t.Context(), log, func(ctx context.Context) (int, error) {
			for end, _ := ctx.Deadline(); time.Now().Before(end); {
			}
			return 0, errors.New("dial tcp: i/o timeout")
		})
		if err == nil || !strings.Contains(err.Error(), "did not answer within 1ms") {
			t.Fatal(err)
		}
	}
}
