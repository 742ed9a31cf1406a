package cli

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/txlog"
)

// twoLogs writes a configuration with two logs in SQLite files and a target, and returns the logs.
func twoLogs(t *testing.T) (h *harness, target *sql.DB, logs []*txlog.SQLStorage) {
	t.Helper()
	dir := t.TempDir()
	h = &harness{config: filepath.Join(dir, "bed-job.yaml")}
	h.app = app{Getenv: env(nil), Now: time.Now, Open: openLog}
	file := filepath.Join(dir, "target.db")
	text := fmt.Sprintf("targetDataSource:\n  target: {driver: sqlite, dsn: %q}\ntransactionLogDataSource:\n", "file:"+file+"?_pragma=busy_timeout(60000)")
	for _, name := range []string{"eu", "us"} {
		path := filepath.Join(dir, name+".db")
		text += fmt.Sprintf("  - {name: %s, driver: sqlite, dsn: %q}\n", name, path)
		log, err := txlog.Open(t.Context(), "sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = log.Close() })
		logs = append(logs, log)
	}
	write(t, h.config, text+"jobConfig: {cron: \"* * * * * ?\", maxDeliveryTryDelayMillis: 0, probeTimeoutMillis: 60000}\n")
	target, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = target.Close() })
	if _, err := target.Exec("CREATE TABLE a (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return h, target, logs
}

func rowsOf(t *testing.T, target *sql.DB) (n int) {
	t.Helper()
	if err := target.QueryRow("SELECT COUNT(*) FROM a").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOneProcessServesSeveralLogs(t *testing.T) {
	t.Parallel()
	h, target, logs := twoLogs(t)
	for i, log := range logs {
		(&stage{log: log}).promise(t, "target", fmt.Sprintf("INSERT INTO a VALUES (%d)", i))
	}
	r := h.run(t, "run", "--once")
	if n := rowsOf(t, target); r.status != 0 || n != 2 || !strings.Contains(r.out, "log eu:") || !strings.Contains(r.out, "log us:") {
		t.Errorf("status %d, %d rows; printed\n%s%s", r.status, n, r.out, r.err)
	}

	// By the schedule too, until it is ended.
	for i, log := range logs {
		(&stage{log: log}).promise(t, "target", fmt.Sprintf("INSERT INTO a VALUES (%d)", 10+i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	var out, errs bytes.Buffer // read when the command has ended
	a := h.app
	a.Out, a.Err, a.In = &out, &errs, strings.NewReader("")
	go func() { done <- a.run(ctx, []string{"run", "-c", h.config}) }()
	for deadline := time.Now().Add(time.Minute); rowsOf(t, target) < 4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d rows, want 4", rowsOf(t, target))
			break
		}
	}
	cancel()
	if status := <-done; status != 0 {
		t.Errorf("status %d:\n%s", status, errs.String())
	}
}

func TestOfSeveralLogsOneIsNamed(t *testing.T) {
	t.Parallel()
	h, target, logs := twoLogs(t)
	id := (&stage{log: logs[1]}).promise(t, "target", "INSERT INTO a VALUES (1)")
	if r := h.run(t, "list"); r.status != 2 || !strings.Contains(r.err, "--log (eu, us)") {
		t.Errorf("without a name: status %d, %s", r.status, r.err)
	}
	if r := h.run(t, "list", "--log", "asia"); r.status != 2 || !strings.Contains(r.err, "eu, us") {
		t.Errorf("another name: status %d, %s", r.status, r.err)
	}
	if r := h.run(t, "list", "--log", "eu", "-o", "json"); r.status != 0 || strings.Contains(r.out, id) {
		t.Errorf("the first: status %d, %s%s", r.status, r.out, r.err)
	}
	if r := h.run(t, "list", "--log", "us", "-o", "json"); r.status != 0 || !strings.Contains(r.out, id) {
		t.Errorf("the second: status %d, %s%s", r.status, r.out, r.err)
	}
	if r := h.run(t, "run", "--once", "--log", "eu"); r.status != 0 || rowsOf(t, target) != 0 {
		t.Errorf("the job of the first: status %d, %d rows\n%s%s", r.status, rowsOf(t, target), r.out, r.err)
	}
	if r := h.run(t, "run", "--once", "--log", "us"); r.status != 0 || rowsOf(t, target) != 1 {
		t.Errorf("the job of the second: status %d, %d rows\n%s%s", r.status, rowsOf(t, target), r.out, r.err)
	}
}
