package cli

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bedsql/bed/txlog"
)

// wantJSON reads each line of text as an entry of the log, and finds one with
// each of the texts in its message.
func wantJSON(t *testing.T, text string, want ...string) {
	t.Helper()
	var messages []string
	for line := range strings.Lines(text) {
		var entry struct{ Level, Msg, Time string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" {
			t.Errorf("this is not an entry in JSON: %s", line)
		}
		messages = append(messages, entry.Level+": "+entry.Msg)
	}
	all := strings.Join(messages, "\n")
	for _, w := range want {
		if !strings.Contains(all, w) {
			t.Errorf("%q is missing in\n%s", w, text)
		}
	}
}

func TestErrorsAreJSONWhereTheLogLinesAre(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newLog(t))
	broken := newHarness(t, txlog.NewMemory())
	write(t, broken.config, "transactionLogDataSource: {driver: oracle, dsn: x}\nwhat: is this\n")
	gone := newHarness(t, txlog.NewMemory())
	gone.config = "/nowhere/bed-job.yaml"
	for _, tc := range []struct {
		h      *harness
		args   string
		status int
		want   []string
	}{
		{h, "run", 1, []string{"fatal: ", "the configuration has no targetDataSource"}},
		{h, "run --frobnicate", 2, []string{"fatal: unknown flag: --frobnicate"}},
		{h, "run extra", 2, []string{"fatal: run takes no argument"}},
		{h, "run --log-level loud", 2, []string{`fatal: --log-level "loud" is unknown`}},
		{broken, "run", 1, []string{"fatal: " + broken.config + ":1:", "unknown driver", "fatal: " + broken.config + ":2:", "unknown key"}},
		{gone, "run --once", 1, []string{"fatal: the configuration cannot be read"}},
		{broken, "list --log-format json", 1, []string{"unknown driver"}},
		{h, "list --log-format=json --frobnicate", 2, []string{"unknown flag"}},
		{h, "list --frobnicate --log-format json", 2, []string{"unknown flag"}},
		{h, "show x --log-format json", 1, []string{"x: the log holds no such id"}},
		{h, "retry x y --log-format json", 1, []string{"error: x: the log holds no such id", "error: y: the log holds no such id"}},
	} {
		r := tc.h.run(t, strings.Fields(tc.args)...)
		if r.status != tc.status || r.err == "" || r.out != "" {
			t.Errorf("%s: %+v", tc.args, r)
		}
		wantJSON(t, r.err, tc.want...)
	}
}

func TestErrorsAreTextWhereTheLogLinesAre(t *testing.T) {
	t.Parallel()
	h := newHarness(t, txlog.NewMemory())
	onTerminal := newHarness(t, txlog.NewMemory())
	onTerminal.ErrTTY = true
	for _, tc := range []struct {
		h    *harness
		args string
	}{
		{h, "run --log-format text"}, {h, "run --frobnicate --log-format text"}, {h, "list --frobnicate"}, {h, "show x"}, {onTerminal, "run"},
	} {
		if r := tc.h.run(t, strings.Fields(tc.args)...); r.status == 0 || !strings.HasPrefix(r.err, "bed-job: ") {
			t.Errorf("%s: %+v", tc.args, r)
		}
	}
}

func TestConfigurationErrorIsPrintedAsJSON(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "run", "-c", "/nowhere/bed-job.yaml")
	cmd.Env = append(os.Environ(), beMain+"=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v", err)
	}
	wantJSON(t, stderr.String(), "fatal: the configuration cannot be read")
}
