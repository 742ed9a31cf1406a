package cli

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bedsql/bed/internal/test/webproxy"
)

// The keys of bed-job.yaml put the console below a path of an nginx, which logs its users in.
func TestAnNginxLogsInToTheConsoleBelowItsPath(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.configure(t, `console:
  listen: "127.0.0.1:0"
  allowedHosts: [bed.example.com]
  basePath: /bed
  trustedProxies: [127.0.0.1]
  proxyAuth: {header: X-Forwarded-User, groups: X-Forwarded-Groups, roles: {ops: operate}, default: read}
`)
	p := s.start(t, "run")
	url := p.listens(t)
	p.until(t, "bed-job is running")
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	write(t, passwords, "ann:{PLAIN}ann-pw\nbob:{PLAIN}bob-pw\n")
	if err := os.Chmod(filepath.Dir(passwords), 0o755); err != nil {
		t.Fatal(err)
	}
	front := "http://" + webproxy.Nginx(t, "auth_basic bed; auth_basic_user_file "+passwords+`; set $groups ""; if ($remote_user = ann) { set $groups "staff, ops"; }
location /bed/ { proxy_pass `+url+`/; proxy_set_header X-Forwarded-User $remote_user; proxy_set_header X-Forwarded-Groups $groups; proxy_set_header Authorization ""; }`)
	ask := func(method, address, user, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Forwarded-User", "mallory")
		r.Header.Set("X-Forwarded-Groups", "ops")
		r.SetBasicAuth(user, user+"-pw")
		w, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		text, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.StatusCode, string(text)
	}
	if status, page := ask("GET", front+"/bed/", "ann", ""); status != 200 || !strings.Contains(page, "ann · operate") || !strings.Contains(page, `href="/bed/entries"`) {
		t.Errorf("ann's page: %d\n%s", status, page)
	}
	const pause = "/api/v1/data-sources/-/pause?dataSource=target"
	if status, body := ask("POST", front+"/bed"+pause, "bob", `{"reason": "bob's"}`); status != 403 {
		t.Errorf("bob pauses: %d %s", status, body)
	}
	if status, body := ask("POST", front+"/bed"+pause, "ann", `{"reason": "ann's"}`); status != 200 {
		t.Errorf("ann pauses: %d %s", status, body)
	}
	if status, body := ask("POST", front+"/bed"+pause, "carl", `{}`); status != 401 {
		t.Errorf("carl pauses: %d %s", status, body)
	}
	if status, audit := ask("GET", front+"/bed/api/v1/audit", "bob", ""); status != 200 || strings.Count(audit, `"who":`) != 1 || !strings.Contains(audit, `"who":"ann"`) {
		t.Errorf("the audit: %d %s", status, audit)
	}
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

// A job that serves no console serves its metrics, by any name and address.
func TestMetricsAreServedAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.configure(t, "metrics: {listen: \"0.0.0.0:0\"}\n")
	id := s.promise(t, "target", "INSERT INTO a VALUES (1)")
	p := s.start(t, "run")
	url := strings.Replace(p.listens(t), "localhost", "127.0.0.1", 1)
	p.until(t, "bed-job is running")
	ask := func(method, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "10.244.1.7:9464" // a pod's address
		w, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		text, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.StatusCode, string(text)
	}
	for page := ""; !strings.Contains(page, `bed_job_deliveries_total{data_source="target",outcome="delivered"} 1`); {
		_, page = ask("GET", "/metrics")
		if strings.Contains(page, id) || strings.Contains(page, "INSERT") {
			t.Fatalf("the metrics are\n%s", page)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/": 404, "/entries": 404, "/api/v1/entries": 404, "/api/v1/overview": 404, "/assets/app.css": 404, "/metrics/": 404, "/debug/pprof/": 404} {
		if status, body := ask("GET", path); status != want {
			t.Errorf("%s: %d, want %d\n%.300s", path, status, want, body)
		}
	}
	if status, _ := ask("POST", "/metrics"); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

// With a console beside them, the metrics are the same, and each address has only its own.
func TestMetricsAndConsoleAreServedSideBySide(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.configure(t, "metrics: {listen: \"127.0.0.1:0\"}\nconsole: {listen: \"127.0.0.1:0\"}\n")
	p := s.start(t, "run")
	console, metrics := p.listens(t), p.listens(t)
	p.until(t, "bed-job is running")
	for address, want := range map[string]int{console + "/entries": 200, console + "/metrics": 200, metrics + "/metrics": 200, metrics + "/entries": 404} {
		if status, body := fetch(t, address); status != want {
			t.Errorf("%s: %d, want %d\n%.300s", address, status, want, body)
		}
	}
	other := newStage(t)
	other.configure(t, "metrics: {listen: \""+strings.TrimPrefix(metrics, "http://")+"\"}\n")
	if status, rest := other.start(t, "run").end(); status != 1 || !strings.Contains(rest, "metrics.listen") {
		t.Errorf("on a taken address it ended with %d\n%s", status, rest)
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

func TestMetricsAloneSayThatTheLogIsDown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.config = filepath.Join(t.TempDir(), "bed-job.yaml")
	write(t, s.config, `targetDataSource: {a: {driver: sqlite, dsn: "file:/tmp/a.db"}}
transactionLogDataSource: {driver: mysql, dsn: "root@tcp(127.0.0.1:1)/bed"}
metrics: {listen: "127.0.0.1:0"}
`)
	p := s.start(t, "run")
	url := p.listens(t)
	p.until(t, "waiting for the transaction log")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200} {
		status, body := fetch(t, url+path)
		if status != want || path == "/metrics" && !strings.Contains(body, `bed_log_up{log="127.0.0.1:1/bed"} 0`) {
			t.Errorf("%s: %d, want %d\n%s", path, status, want, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

// promtool is Debian's prometheus, which has no discovery in Kubernetes.
func TestPromtoolAcceptsTheScrapeOfPods(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: needs promtool")
	}
	file := filepath.Join("..", "..", "..", "..", "docs", "prometheus", "scrape.yml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const discovery = "kubernetes_sd_configs: [{role: pod}]"
	if strings.Count(string(text), discovery) != 1 {
		t.Fatalf("it does not find pods:\n%s", text)
	}
	without := filepath.Join(t.TempDir(), "scrape.yml")
	write(t, without, strings.Replace(string(text), discovery, `static_configs: [{targets: ["10.244.1.7:9464"]}]`, 1))
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", "--syntax-only", without).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	deployment, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "kubernetes", "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "regex: metrics,") || !strings.Contains(string(deployment), "{name: metrics, containerPort: 9464}") {
		t.Error("the port of the recipe is not that of the pods")
	}
}
