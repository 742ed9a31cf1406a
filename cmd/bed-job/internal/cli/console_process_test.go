package cli

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

// listens reads the address of the process's console.
func (p *process) listens(t *testing.T) (url string) {
	t.Helper()
	for line := range p.lines {
		if _, rest, ok := strings.Cut(line, `"url":"`); ok {
			url, _, _ = strings.Cut(rest, `"`)
			return strings.TrimSuffix(url, "/")
		}
	}
	t.Fatal("the process ended before it served a console")
	return ""
}

func (s *stage) configure(t *testing.T, section string) {
	t.Helper()
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s.config, string(text)+section)
}

func fetch(t *testing.T, url string) (status int, body string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestTheConsoleIsServedByRunAndAlone(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "console"} {
		s := newStage(t)
		s.configure(t, "console: {listen: \"127.0.0.1:0\"}\n")
		p := s.start(t, command)
		url := p.listens(t)
		for path, want := range map[string]string{"/healthz": "ok", "/": "<!doctype html>", "/api/v1/entries": `"entries":[`, "/metrics": "# HELP bed_"} {
			// The log is opened while the console answers already.
			status, body := fetch(t, url+path)
			for status == http.StatusServiceUnavailable {
				status, body = fetch(t, url+path)
			}
			if status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s: %s: %d %.200s", command, path, status, body)
			}
		}
		// A page with live updates holds nothing up.
		r, err := http.Get(url + "/events")
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "retry:") {
			t.Errorf("the stream begins with %q, %v", line, err)
		}
		p.signal(t, syscall.SIGTERM)
		if status, rest := p.end(); status != 0 {
			t.Errorf("%s ended with %d\n%s", command, status, rest)
		}
		_ = r.Body.Close()
	}
}

func TestRunServesNoConsoleWithoutAnAddress(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.configure(t, "console: {allowedHosts: [bed.example.com]}\n")
	p := s.start(t, "run")
	p.until(t, "bed-job is running")
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 || strings.Contains(rest, "console") {
		t.Errorf("status %d\n%s", status, rest)
	}
}

func TestAConsoleThatOthersReachNeedsAuthentication(t *testing.T) {
	t.Parallel()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"run", "console"} {
		for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "bed.example.com:8390"} {
			s := newStage(t)
			s.configure(t, fmt.Sprintf("console: {listen: %q}\n", listen))
			status, rest := s.start(t, command).end()
			if status != 1 || !strings.Contains(rest, "neither users nor tokens") {
				t.Errorf("%s on %s: %d\n%s", command, listen, status, rest)
			}
		}
		s := newStage(t)
		s.configure(t, fmt.Sprintf("console: {listen: \"0.0.0.0:0\", users: [{name: ann, passwordHash: %q, role: read}]}\n", hash))
		p := s.start(t, command)
		url := strings.Replace(p.listens(t), "localhost", "127.0.0.1", 1)
		if status, _ := fetch(t, url+"/"); status != http.StatusUnauthorized {
			t.Errorf("%s: nobody gets %d", command, status)
		}
		if status, _ := fetch(t, strings.Replace(url, "http://", "http://ann:"+password+"@", 1)+"/assets/app.css"); status != 200 {
			t.Errorf("%s: ann gets %d", command, status)
		}
		p.signal(t, syscall.SIGTERM)
		if status, rest := p.end(); status != 0 || strings.Contains(rest, password) || strings.Contains(rest, string(hash)) {
			t.Errorf("%s ended with %d\n%s", command, status, rest)
		}
	}
}

func TestConsoleDoesNotStartOnATakenAddress(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.configure(t, "console: {listen: \"127.0.0.1:0\"}\n")
	url := s.start(t, "console").listens(t)
	other := newStage(t)
	other.configure(t, fmt.Sprintf("console: {listen: %q}\n", strings.TrimPrefix(url, "http://")))
	if status, rest := other.start(t, "run").end(); status != 1 || !strings.Contains(rest, "console.listen") {
		t.Errorf("status %d\n%s", status, rest)
	}
}

func TestTheConsoleSaysThatTheLogIsDown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.config = filepath.Join(t.TempDir(), "bed-job.yaml")
	write(t, s.config, `targetDataSource: {}
transactionLogDataSource: {driver: mysql, dsn: "root@tcp(127.0.0.1:1)/bed"}
console: {listen: "127.0.0.1:0"}
`)
	p := s.start(t, "console")
	url := p.listens(t)
	p.until(t, "waiting for the transaction log")
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/": 503, "/entries": 503, "/api/v1/overview": 503, "/assets/app.css": 200, "/metrics": 200} {
		if status, body := fetch(t, url+path); status != want {
			t.Errorf("%s: %d, want %d\n%s", path, status, want, body)
		}
	}
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

func TestTheConsoleOfSeveralLogsLeadsToEach(t *testing.T) {
	t.Parallel()
	h, _, logs := twoLogs(t)
	text, err := os.ReadFile(h.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, h.config, string(text)+"console: {listen: \"127.0.0.1:0\"}\n")
	s := &stage{config: h.config}
	ids := map[string]string{}
	for i, name := range []string{"eu", "us"} {
		ids[name] = fill(t, logs[i], 1, "target", false)[0]
	}
	for _, command := range []string{"console", "run"} {
		p := s.start(t, command)
		url := p.listens(t)
		for status := 0; status != 200; {
			status, _ = fetch(t, url+"/readyz") // until both are open
		}
		for path, want := range map[string][2]bool{"/": {false, false}, "/logs/eu/api/v1/entries": {true, false}, "/logs/us/entries": {false, true}} {
			status, body := fetch(t, url+path)
			if status != 200 || strings.Contains(body, ids["eu"]) != want[0] || strings.Contains(body, ids["us"]) != want[1] {
				t.Errorf("%s: %s: %d, want the entries of eu %v, of us %v\n%s", command, path, status, want[0], want[1], body)
			}
		}
		if status, body := fetch(t, url+"/metrics"); status != 200 || !strings.Contains(body, `bed_log_entries{data_source="target",log="eu",state="parked"} 1`) ||
			!strings.Contains(body, `bed_log_entries{data_source="target",log="us",state="parked"} 1`) {
			t.Errorf("%s: the metrics are not those of both logs: %d\n%s", command, status, body)
		}
		p.signal(t, syscall.SIGTERM)
		if status, rest := p.end(); status != 0 {
			t.Errorf("%s ended with %d\n%s", command, status, rest)
		}
	}
	p := s.start(t, "console", "--log", "us")
	url := p.listens(t)
	for status := 0; status != 200; {
		status, _ = fetch(t, url+"/readyz")
	}
	if _, body := fetch(t, url+"/api/v1/entries"); strings.Contains(body, ids["eu"]) || !strings.Contains(body, ids["us"]) {
		t.Errorf("one log alone: %s", body)
	}
	p.signal(t, syscall.SIGTERM)
	if status, rest := p.end(); status != 0 {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
}

// Only run makes a log: the console of a misspelt log would show that all is well.
func TestTheConsoleMakesNoLog(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	path := filepath.Join(t.TempDir(), "misspelt.db")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	config := regexp.MustCompile(`(?m)^transactionLogDataSource:.*$`).ReplaceAllString(string(text), "transactionLogDataSource: {driver: sqlite, dsn: \"file:"+path+"\"}")
	if n := strings.Count(config, path); n != 1 {
		t.Fatalf("the log stands %d times in\n%s", n, config)
	}
	write(t, s.config, config)
	p := s.start(t, "console", "--listen", "127.0.0.1:0")
	if status, rest := p.end(); status == 0 || !strings.Contains(rest, path) {
		t.Errorf("it ended with %d\n%s", status, rest)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("%s was made (%v)", path, err)
	}
}
