package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
)

// A job with a console reports its deliveries and the log's content to Prometheus.
func TestARunningJobServesItsMetrics(t *testing.T) {
	dir := t.TempDir()
	log := testdb.DB{Driver: "sqlite", DSN: "file:" + filepath.Join(dir, "log.db")}
	orders := testdb.DB{Driver: "sqlite", DSN: "file:" + filepath.Join(dir, "orders.db") + "?_pragma=busy_timeout(5000)"}
	in := install(t, log, map[string]testdb.DB{"orders": orders})
	for _, sql := range []string{"INSERT INTO account VALUES (1, 1)", "INSERT INTO nowhere VALUES (1)"} {
		oldEntry(t, in, func(u *entry.Unit) { u.Statements[0].SQL = sql })
	}
	in.exec(log, "UPDATE transaction_log SET next_try_time = 0, in_doubt = 0, lease_token = NULL, lease_until = NULL")
	file := filepath.Join(dir, "bed-job.yaml")
	write(t, file, fmt.Sprintf("targetDataSource: {orders: {driver: sqlite, dsn: %q}}\ntransactionLogDataSource: {driver: sqlite, dsn: %q}\n"+
		"jobConfig: {cron: \"* * * * * ?\", maxDeliveryTryDelayMillis: 0}\nconsole: {listen: \"127.0.0.1:0\"}\n", orders.DSN, log.DSN))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	said, to := io.Pipe()
	ended := make(chan int, 1)
	a := app{Getenv: env(nil), In: strings.NewReader(""), Out: io.Discard, Err: to, Now: time.Now, Open: openLog}
	go func() {
		ended <- a.run(ctx, []string{"run", "-c", file})
		_ = to.Close()
	}()
	lines := bufio.NewScanner(said)
	url := ""
	for url == "" && lines.Scan() {
		var line struct{ URL string }
		if json.Unmarshal(lines.Bytes(), &line) == nil {
			url = line.URL
		}
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	page := ""
	has := func(lines ...string) bool {
		for _, l := range lines {
			if !strings.Contains(page, "\n"+l) {
				return false
			}
		}
		return true
	}
	up := fmt.Sprintf(`bed_log_up{log=%q} 1`, filepath.Join(dir, "log.db"))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(time.Minute); ; {
		page = get(t, url+"metrics")
		if has(`bed_job_deliveries_total{data_source="orders",outcome="delivered"} 1`, `bed_parked_total{data_source="orders",origin="job"} 1`, up,
			`bed_log_entries{data_source="orders",log=`, `bed_log_oldest_seconds{data_source="orders",log=`,
			`bed_attempts_total{class="refused",data_source="orders",origin="job"} 1`, `bed_attempt_duration_seconds_count{data_source="orders",origin="job"} 2`, "go_goroutines ") {
			break
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("the metrics are\n%s", page)
		}
	}
	if strings.Contains(page, "nowhere") {
		t.Error("the metrics hold SQL or an error's text")
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if status := <-ended; status != 0 {
		t.Errorf("the job ended with %d", status)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %d, %v: %s", url, r.StatusCode, err, body)
	}
	return string(body)
}
