package cli

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// newDesk makes a harness with a data source in its configuration.
func newDesk(t *testing.T) (*harness, *txlog.SQLStorage) {
	t.Helper()
	st := newLog(t)
	h := newHarness(t, st)
	target := filepath.Join(t.TempDir(), "target.db")
	pool, err := sql.Open("sqlite", "file:"+target)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.ExecContext(t.Context(), "CREATE TABLE a (id INTEGER PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	write(t, h.config, fmt.Sprintf("targetDataSource: {a: {driver: sqlite, dsn: %q}}\ntransactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n", "file:"+target))
	return h, st
}

func TestCheckTellsAMonitorByItsExitStatus(t *testing.T) {
	young := regexp.MustCompile(` oldest=\d{1,2}s;`) // it gets older while this runs
	h, st := newDesk(t)
	fill(t, st, 5, "a", false)
	u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
	if err := st.Add(t.Context(), time.Hour, u); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"", 1, "WARNING: 5 parked | parked=5;1; "},
		{"--parked-warning 6", 0, "OK: 5 parked | parked=5;6; "},
		{"--parked-warning 5", 1, "WARNING: 5 parked |"},
		{"--parked-warning 5 --parked-critical 6", 1, "WARNING: 5 parked |"},
		{"--parked-critical 6", 0, "OK: 5 parked |"},
		{"--parked-critical 5", 2, "CRITICAL: 5 parked |"},
		{"--parked-warning 5 --parked-critical 5", 2, "CRITICAL: 5 parked |"},
		{"--parked-warning 10 --parked-critical 5", 3, ""},
		{"--oldest-warning 1h --oldest-critical 59m", 3, ""},
		{"--oldest-warning 1h", 0, "OK: 5 parked | parked=5;; waiting=0 leased=1 oldest=0s;3600;\n"},
		{"--oldest-critical 3600500ms --parked-warning 9", 0, "OK: 5 parked | parked=5;9; waiting=0 leased=1 oldest=0s;;3600.5\n"},
		{"--oldest-warning 0s", 1, "WARNING: the oldest has waited for "},
		{"--oldest-warning 0s --oldest-critical 0s", 2, "CRITICAL: the oldest has waited for "},
		{"--parked-warning 0", 1, "WARNING: 5 parked |"},
		{"--parked-warning -1", 3, ""},
		{"--parked-warning many", 3, ""},
		{"--frobnicate", 3, ""},
		{"extra", 3, ""},
	} {
		r := h.run(t, append([]string{"check"}, strings.Fields(c.args)...)...)
		r.out = young.ReplaceAllString(r.out, " oldest=0s;")
		if r.status != c.status || !strings.HasPrefix(r.out, c.want) || c.status < 3 && (strings.Count(r.out, "\n") != 1 || r.err != "") {
			t.Errorf("check %s: %+v, want %d and %q", c.args, r, c.status, c.want)
		}
	}
	h.config = "/nowhere/bed-job.yaml"
	if r := h.run(t, "check"); r.status != 3 || !strings.HasPrefix(r.out, "UNKNOWN: ") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("without a configuration: %+v", r)
	}
}

func TestCheckNamesPausedAndWarnsOfWaiting(t *testing.T) {
	h, st := newDesk(t)
	id := fill(t, st, 1, "a", false)[0]
	h.run(t, "pause", "a")
	if r := h.run(t, "check", "--parked-warning", "9"); r.status != 0 || !strings.HasPrefix(r.out, "OK: a is paused; 1 parked |") {
		t.Errorf("nothing waits: %+v", r)
	}
	h.run(t, "retry", id)
	if r := h.run(t, "check", "--parked-warning", "9"); r.status != 1 || !strings.HasPrefix(r.out, "WARNING: a is paused and has 1 waiting; 0 parked |") {
		t.Errorf("one waits: %+v", r)
	}
	var c checked
	r := h.run(t, "check", "--parked-warning", "9", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &c); err != nil || r.status != 1 || c.Status != "WARNING" || c.Waiting != 1 || !slices.Equal(c.Paused, []string{"a"}) || len(c.Reasons) != 1 {
		t.Errorf("as JSON: %+v", r)
	}
	h.config = "/nowhere/bed-job.yaml"
	r = h.run(t, "check", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &c); err != nil || r.status != 3 || c.Status != "UNKNOWN" || c.Error == "" {
		t.Errorf("without a configuration: %+v", r)
	}
}

func TestCheckIsCriticalForAnUnreachableDataSource(t *testing.T) {
	h, _ := newDesk(t)
	write(t, h.config, "targetDataSource: {orders: {driver: mysql, dsn: \"root:Pa55word@tcp(127.0.0.1:1)/x\"}}\ntransactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n")
	r := h.run(t, "check", "--parked-warning", "1")
	if r.status != 2 || !strings.HasPrefix(r.out, "CRITICAL: orders cannot be reached (") || !strings.Contains(r.out, "0 parked") || strings.Contains(r.out, "Pa55") {
		t.Errorf("got %+v", r)
	}
}

func TestADataSourceIsPausedLimitedAndResumed(t *testing.T) {
	h, st := newDesk(t)
	store, err := openDesk(&h.app, boundedLog{Storage: st}, &config{})
	if err != nil {
		t.Fatal(err)
	}
	state := func() ops.DataSource {
		o, err := store.Overview(t.Context(), ops.OverviewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range o.DataSources {
			if d.Name == "a" {
				return d
			}
		}
		return ops.DataSource{}
	}
	h.run(t, "pause", "a", "--dry-run").want(t, 0, "a: would be paused: no job delivers there until it is resumed\n")
	if state().Paused {
		t.Error("a dry run has paused it")
	}
	h.run(t, "pause", "a", "--reason", "work on it").want(t, 0, "a: paused: no job delivers there until it is resumed\n")
	h.run(t, "limit", "a", "50").want(t, 0, "a: limited to 50 deliveries per second\n")
	if d := state(); !d.Paused || d.PerSecond != 50 {
		t.Errorf("it is %+v", d)
	}
	h.run(t, "resume", "a", "-o", "json").want(t, 0, "{\n  \"action\": \"resume\",\n  \"dataSource\": \"a\",\n  \"changed\": true,\n  \"dryRun\": false\n}\n")
	h.run(t, "resume", "a").want(t, 0, "a: it was not paused\n")
	h.run(t, "resume", "a", "-o", "json").want(t, 0, "{\n  \"action\": \"resume\",\n  \"dataSource\": \"a\",\n  \"changed\": false,\n  \"dryRun\": false\n}\n")
	h.run(t, "limit", "a", "0").want(t, 0, "a: not limited any more\n")
	if d := state(); d.Paused || d.PerSecond != 0 {
		t.Errorf("it is %+v", d)
	}
	for _, args := range [][]string{{"pause", "b"}, {"pause", "b", "--dry-run"}, {"limit", "b", "1"}, {"resume", "b"}} {
		if r := h.run(t, args...); r.status != 1 || r.err != "bed-job: no data source b in the log or the configuration; known: a\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	audit, err := store.Audit(t.Context(), ops.Page{})
	if err != nil || len(audit.Records) != 4 || audit.Records[3].Reason != "work on it" || audit.Records[3].What != "a" {
		t.Errorf("the audit holds %+v, %v", audit, err)
	}
}

func TestWatchDrawsTheStateAgainAndAgain(t *testing.T) {
	h, st := newDesk(t)
	fill(t, st, 2, "a", false)
	fill(t, st, 1, "b\x1b[2J\u202e", false)
	r := h.run(t, "watch", "--interval", "100ms", "--count", "2")
	if r.status != 0 || strings.Count(r.out, "DATA SOURCE") != 2 || strings.Contains(r.out, "\x1b") || strings.Contains(r.out, "\u202e") ||
		!strings.Contains(r.out, "not configured here") {
		t.Errorf("got %+v", r)
	}
	h.OutTTY = true
	if r := h.run(t, "watch", "--count", "1"); !strings.HasPrefix(r.out, "\x1b[H\x1b[2J") {
		t.Errorf("on a terminal: %q", r.out)
	}
}

func TestListAndShowSayWhenDue(t *testing.T) {
	h, st := newDesk(t)
	u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
	if err := st.Add(t.Context(), time.Hour, u); err != nil {
		t.Fatal(err)
	}
	if err := st.Release(t.Context(), u, entry.Verdict{Err: "no route to host"}); err != nil {
		t.Fatal(err)
	}
	var all []unitView
	r := h.run(t, "list", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &all); err != nil || len(all) != 1 || all[0].NextTry == nil || !all[0].NextTry.Equal(all[0].CreatedAt.Add(time.Minute)) {
		t.Fatalf("as JSON: %+v, %v", r, err)
	}
	due := all[0].NextTry.Local().Format(time.RFC3339) + " ("
	if r := h.run(t, "list"); !strings.Contains(r.out, "NEXT TRY") || !strings.Contains(r.out, due) {
		t.Errorf("list does not say %s: %+v", due, r)
	}
	if r := h.run(t, "show", u.ID); !regexp.MustCompile(`Next try: +` + regexp.QuoteMeta(due)).MatchString(r.out) {
		t.Errorf("show does not say %s: %+v", due, r)
	}
}

// No matter which client holds the log's lock, the command ends.
func TestLockedLogIsReportedByEveryAction(t *testing.T) {
	t.Parallel()
	h, st := newDesk(t)
	id := fill(t, st, 1, "a", false)[0]
	other, err := sql.Open("sqlite", "file:"+st.Location())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"retry " + id, "discard --yes --reason x " + id, "pause a"} {
		begun := time.Now()
		r := h.run(t, append(strings.Fields(args), "--log-timeout", "50ms")...)
		if r.status != 1 || !strings.Contains(r.err, "did not answer within 50ms") || time.Since(begun) > 20*time.Second {
			t.Errorf("%s: %+v after %v", args, r, time.Since(begun))
		}
	}
}

func TestCompletionIsMadeForEachShell(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var out strings.Builder
		a := app{Out: &out, Err: &out, Getenv: env(nil)}
		if status := a.run(t.Context(), []string{"completion", shell}); status != 0 || !strings.Contains(out.String(), "bed-job") {
			t.Errorf("%s: status %d, %.200s", shell, status, out.String())
		}
	}
	h, _ := newDesk(t)
	var out strings.Builder
	a := h.app
	a.Out, a.Err = &out, &out
	if status := a.run(t.Context(), []string{"__complete", "pause", "-c", h.config, ""}); status != 0 || !strings.HasPrefix(out.String(), "a\n") {
		t.Errorf("status %d, completed %q", status, out.String())
	}
}

func TestATrialIsToldAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		trial  ops.Trial
		status error
		want   string
	}{
		"one row":  {ops.Trial{Rows: []int64{1}}, nil, "would change 1 row\n"},
		"many":     {ops.Trial{Rows: []int64{3, -1}, Notes: []string{"sequences go on"}}, nil, "statement 1 would change 3 rows\nstatement 2 would be applied; how many rows it would change the database does not tell\nnote: sequences go on\n"},
		"an error": {ops.Trial{Rows: []int64{1}, Error: "lock \x1b[2Jwait"}, errReported, "statement 1 would change 1 row\nwould fail: lock \\x1b[2Jwait\n"},
	} {
		var out strings.Builder
		a := app{Out: &out}
		if err := printTrial(&a, "id", &c.trial); err != c.status || out.String() != c.want {
			t.Errorf("%s: %v, printed %q", name, err, out.String())
		}
		out.Reset()
		var said tried
		a.output = "json"
		if err := printTrial(&a, "id", &c.trial); err != c.status || json.Unmarshal([]byte(out.String()), &said) != nil || len(said.Rows) != len(c.trial.Rows) {
			t.Errorf("%s: %v, printed %s", name, err, out.String())
		}
	}
}

func TestContendedEntriesSayForHowLong(t *testing.T) {
	t.Parallel()
	h, st := newDesk(t)
	u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: "DELETE FROM a"}}}
	err := st.Add(t.Context(), time.Hour, u)
	if err == nil {
		err = st.Release(t.Context(), u, entry.Verdict{After: time.Hour, Contended: true, Err: "Error 1213 (40001): Deadlock found"})
	}
	if err != nil {
		t.Fatal(err)
	}
	for said, args := range map[string][]string{
		"contended for ": {"list"},
		"other transactions have been in its way since ":          {"show", u.ID},
		"other transactions have been in the way of 1 for up to ": {"check", "--parked-warning", "9"},
		`"contendedSince": "`:                                     {"list", "-o", "json"},
	} {
		if r := h.run(t, args...); r.status != 0 || !strings.Contains(r.out, said) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
