package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestNoTableIsWiderThanItsTerminal(t *testing.T) {
	h, st := newDesk(t)
	for _, name := range []string{"a", "127.0.0.1:3306/orders_of_a_long_name", strings.Repeat("x", 120)} {
		for _, sql := range []string{"UPDATE a", "UPDATE orders SET " + strings.Repeat("x = x, ", 40) + "y = 1"} {
			u := &entry.Unit{ID: entry.NewID(), DataSource: name, Statements: []entry.Statement{{SQL: sql}, {SQL: sql}}}
			if err := st.Add(t.Context(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
			if err := st.Release(t.Context(), u, entry.Verdict{Park: name == "a", After: time.Hour, Err: "Error 1205 (HY000): " + strings.Repeat("Lock wait timeout exceeded ", 20)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.run(t, "retry", "--data-source", "a", "--text", "UPDATE a", "--reason", strings.Repeat("because ", 40))
	h.run(t, "pause", "a", "--reason", "work")
	for _, args := range []string{"list", "list --verify", "list --parked", "stats", "watch --count 1", "kinds", "audit"} {
		for _, width := range []int{0, 40, 80, 100, 140, 200, 300} {
			h.OutTTY, h.Width = true, func() int { return width }
			limit := width
			if limit == 0 {
				limit = 80 // a terminal that does not say
			}
			r := h.run(t, strings.Fields(args)...)
			if r.status != 0 || strings.Count(r.out, "\n") < 2 {
				t.Errorf("%s on %d columns: %+v", args, width, r)
			}
			for line := range strings.Lines(strings.TrimPrefix(r.out, "\x1b[H\x1b[2J")) {
				if strings.HasPrefix(line, "  --kind ") {
					continue // to be pasted, so never cut
				}
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > limit {
					t.Errorf("%s on %d columns has %d: %s", args, width, n, line)
				}
			}
		}
		// Output for programs is not cut.
		h.OutTTY, h.Width = false, nil
		if r := h.run(t, strings.Fields(args)...); strings.Contains(r.out, "…") {
			t.Errorf("%s is cut where no terminal is: %s", args, r.out)
		}
	}
}

func TestErrorKindsAreCountedAndAuditIsListed(t *testing.T) {
	h, st := newDesk(t)
	for i, text := range []string{"Error 1205 (HY000): Lock wait timeout exceeded", "Error 1062 (23000): Duplicate entry 's3cr3t' for key 'u'", "Error 1062 (23000): Duplicate entry 'other' for key 'u'"} {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "a", Statements: []entry.Statement{{SQL: fmt.Sprint("UPDATE ", i)}}}
		if err := st.Add(t.Context(), time.Minute, u); err != nil {
			t.Fatal(err)
		}
		if err := st.Release(t.Context(), u, entry.Verdict{Park: true, Err: text}); err != nil {
			t.Fatal(err)
		}
	}
	r := h.run(t, "kinds")
	if lines := strings.Split(r.out, "\n"); r.status != 0 || len(lines) != 6 || !strings.HasPrefix(lines[1], "2 ") || !strings.Contains(lines[1], " 1062 ") || strings.Contains(r.out, "s3cr3t") {
		t.Errorf("kinds prints %+v", r)
	}
	paste := strings.Fields(strings.Split(r.out, "\n")[2])
	for args, n := range map[string]int{"list -o json": 2, "park --dry-run -o json": 2, "kinds -o json": 1} {
		got := h.run(t, append(strings.Fields(args), paste...)...)
		if n := n; got.status != 0 || strings.Count(got.out, "\n    \"")+strings.Count(got.out, `"transactionId"`)+strings.Count(got.out, `"oldest"`) < n || strings.Contains(got.out, "1205") {
			t.Errorf("%s %s: %+v", args, paste, got)
		}
	}
	if r := h.run(t, "list", "--kind", ""); r.status != 2 {
		t.Errorf("an empty kind: %+v", r)
	}
	if r := h.run(t, "list", "--kind", "nonsense"); r.status != 1 || !strings.Contains(r.err, "kind") {
		t.Errorf("a kind that is none: %+v", r)
	}
	// A list that is cut says so.
	if r := h.run(t, "list", "--limit", "2", "-o", "json"); strings.Count(r.out, `"transactionId"`) != 2 || !strings.Contains(r.err, "more than 2") {
		t.Errorf("a list of 2: %+v", r)
	}
	if r := h.run(t, "list", "--limit", "3"); r.err != "" {
		t.Errorf("a list of all: %+v", r)
	}
	var kinds []ops.Kind
	r = h.run(t, "kinds", "--text", "timeout", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &kinds); err != nil || len(kinds) != 1 || kinds[0].Code != "1205" || kinds[0].Count != 1 || kinds[0].Key == "" {
		t.Errorf("kinds as JSON: %+v, %v", r, err)
	}
	h.run(t, "kinds", "--data-source", "b", "-o", "json").want(t, 0, "[]\n")

	h.run(t, "audit", "-o", "json").want(t, 0, "[]\n")
	h.run(t, "retry", "--parked", "--reason", "fixed \x1b[31m")
	h.run(t, "pause", "a", "--reason", "work")
	r = h.run(t, "audit")
	if lines := strings.Split(r.out, "\n"); r.status != 0 || len(lines) != 4 || !strings.Contains(lines[1], " pause ") || !strings.Contains(lines[2], " retry ") || strings.Contains(r.out, "\x1b") {
		t.Errorf("audit prints %+v", r)
	}
	var records []ops.Record
	r = h.run(t, "audit", "--limit", "1", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &records); err != nil || len(records) != 1 || records[0].What != "a" || records[0].Reason != "work" {
		t.Errorf("audit as JSON: %+v, %v", r, err)
	}
	r = h.run(t, "audit", "--limit", "0", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &records); err != nil || len(records) != 2 || records[1].Count != 3 {
		t.Errorf("all of the audit: %+v, %v", r, err)
	}
}

func TestAgesAreWrittenAsInTheAPI(t *testing.T) {
	h, st := newDesk(t)
	fill(t, st, 1, "a", false)
	for args, want := range map[string]string{"5d": "[]\n", "36h": "[]\n", "90": "[]\n"} {
		h.run(t, "list", "-o", "json", "--older-than", args).want(t, 0, want)
	}
	if r := h.run(t, "check", "--oldest-warning", "2d", "--oldest-critical", "7d"); r.status != 0 || !strings.Contains(r.out, ";172800;604800") {
		t.Errorf("check: %+v", r)
	}
}

func TestWatchPrintsOneJSONLinePerRefresh(t *testing.T) {
	h, st := newDesk(t)
	fill(t, st, 2, "a\u202e", false)
	h.OutTTY = true
	r := h.run(t, "watch", "--interval", "100ms", "--count", "2", "-o", "json")
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if r.status != 0 || len(lines) != 2 || strings.Contains(r.out, "\u202e") {
		t.Fatalf("got %+v", r)
	}
	for _, line := range lines {
		var o ops.Overview
		if err := json.Unmarshal([]byte(line), &o); err != nil || len(o.DataSources) != 2 {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestFlagValueIsNotTakenForCommand(t *testing.T) {
	h := newHarness(t, newLog(t))
	for line, want := range map[string]string{
		"run --frobnicate": "{", "-c x console --frobnicate": "{", "--log-level info run --frobnicate": "{",
		"list --data-source console --frobnicate": "bed-job: ", "retry --data-source run --frobnicate": "bed-job: ", "pause console --frobnicate": "bed-job: ", "nosuch run": "bed-job: ",
	} {
		if r := h.run(t, strings.Fields(line)...); r.status != 2 || !strings.HasPrefix(r.err, want) {
			t.Errorf("%q: %+v, want it to begin with %q", line, r, want)
		}
	}
}

// The log accepts connections and answers, until a certain statement.
func TestSearchesAndTrialsTimeOutOnHungLogs(t *testing.T) {
	t.Parallel()
	for _, fresh := range []func(testing.TB) testdb.DB{testdb.MySQL, testdb.Postgres} {
		db := fresh(t)
		t.Run(db.Driver, func(t *testing.T) {
			t.Parallel()
			st, err := txlog.Open(t.Context(), db.Driver, db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			id := fill(t, st, 1, "orders", false)[0]
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			p := testproxy.New(t, db.Addr())
			h := &harness{app: app{Getenv: env(nil), Now: time.Now, Open: openLog}, config: t.TempDir() + "/bed-job.yaml"}
			write(t, h.config, fmt.Sprintf("targetDataSource: {orders: {driver: %s, dsn: %q}}\ntransactionLogDataSource: {driver: %[1]s, dsn: %[3]q}\n", db.Driver, db.DSN, db.Via(p.Addr()).DSN))
			contains := map[string]string{testdb.DriverMySQL: "INSTR(", testdb.DriverPostgres: "strpos("}[db.Driver]
			for _, c := range []struct{ args, at string }{
				{"list --text DELETE", contains}, {"kinds", "GROUP BY data_source"}, {"audit", "FROM bed_audit"},
				{"try " + id, "SELECT id, "}, {"try " + id, "INSERT INTO bed_audit"},
			} {
				reached, release := p.Hold(testproxy.Text(c.at))
				begun := time.Now()
				r := h.run(t, append(strings.Fields(c.args), "--log-timeout", "5s")...)
				if took := time.Since(begun); r.status != 1 || !strings.Contains(r.err, "did not answer within 5s") || took > 30*time.Second {
					t.Errorf("%s, held at %s: %+v after %v", c.args, c.at, r, took)
				}
				select {
				case <-reached:
				default:
					t.Errorf("%s: %q was not reached", c.args, c.at)
				}
				release()
				p.Forget()
			}
		})
	}
}
