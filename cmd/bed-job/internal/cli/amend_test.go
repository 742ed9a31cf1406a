package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// renamed is a harness with a log, a target after renaming a column, and an entry from before that.
func renamed(t *testing.T, db testdb.DB) (*harness, *txlog.SQLStorage, *entry.Unit, testdb.DB) {
	t.Helper()
	st := newLog(t)
	h := newHarness(t, st)
	write(t, h.config, "targetDataSource:\n"+targetLine("target", db)+"transactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n")
	if _, err := db.Open(t).ExecContext(t.Context(), "CREATE TABLE account (id INT PRIMARY KEY, amount INT)"); err != nil {
		t.Fatal(err)
	}
	target, err := dataSource{name: "target", driver: db.Driver, dsn: db.DSN}.target()
	if err != nil {
		t.Fatal(err)
	}
	u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: target.Settings, Statements: []entry.Statement{{SQL: "INSERT INTO account (id, n) VALUES (4711, 1)"}}}
	if err := st.Add(t.Context(), 1e9, u); err != nil {
		t.Fatal(err)
	}
	if err := st.Release(t.Context(), u, entry.Verdict{Park: true, Err: "no"}); err != nil {
		t.Fatal(err)
	}
	return h, st, u, db
}

func TestAmendConfirmsRefusesAndLeavesParked(t *testing.T) {
	h, st, u, _ := renamed(t, testdb.SQLite(t))
	sql := "INSERT INTO account (id, amount) VALUES (?, 1)"
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--reason", "x", "--yes"}, 2, "--sql"},
		{[]string{"--sql", " ", "--reason", "x", "--yes"}, 2, "is empty"},
		{[]string{"--sql", sql, "--yes"}, 2, "needs a reason"},
		{[]string{"--sql", sql, "--reason", "x"}, 2, "confirm it with --yes"},
		{[]string{"--sql", sql, "--reason", "x", "--yes", "--statement", "0"}, 2, "--statement"},
		{[]string{"--sql", "DROP TABLE account", "--reason", "x", "--yes"}, 1, "one DML statement"},
		{[]string{"--sql", "DELETE FROM account WHERE gone = 1", "--reason", "x", "--yes"}, 1, "no such column"},
	} {
		if r := h.run(t, append([]string{"amend", u.ID}, c.args...)...); r.status != c.status || !strings.Contains(r.err, c.says) || r.out != "" {
			t.Errorf("amend %q: %+v", c.args, r)
		}
	}
	h.InTTY, h.In = true, strings.NewReader("n\n")
	if r := h.run(t, "amend", u.ID, "--sql", sql, "--reason", "x"); r.status != 1 || !strings.Contains(r.err, "nothing was done") {
		t.Errorf("after a no: %+v", r)
	}
	h.In = strings.NewReader("y\n")
	h.run(t, "amend", u.ID, "--sql", sql, "--parameters", "[4712]", "--reason", "the column was renamed").want(t, 0, u.ID+": statement 1 amended; it is still parked: bed-job retry "+u.ID+"\n")
	if got, err := st.Get(t.Context(), u.ID); err != nil || !got.Parked || got.Statements[0].SQL != sql || got.Statements[0].Params != "[4712]" {
		t.Errorf("the entry is %+v, %v", got, err)
	}
	// Output of show is accepted as input.
	var shown struct {
		Statements []struct {
			Parameters      json.RawMessage
			TypedParameters string
		}
	}
	r := h.run(t, "show", u.ID, "--show-parameters", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &shown); err != nil {
		t.Fatal(err, r)
	}
	for _, params := range []string{string(shown.Statements[0].Parameters), shown.Statements[0].TypedParameters} {
		if r := h.run(t, "amend", u.ID, "--parameters", params, "--reason", "x", "--yes", "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"unprepared": ""`) {
			t.Errorf("%s: %+v", params, r)
		}
		if got, err := st.Get(t.Context(), u.ID); err != nil || got.Statements[0].Params != "[4712]" {
			t.Errorf("%s gives %+v, %v", params, got, err)
		}
	}
}

func TestAuditKeepsTheOldTextAndMasksParameters(t *testing.T) {
	h, _, u, _ := renamed(t, testdb.SQLite(t))
	long := "INSERT INTO account (id, amount) VALUES (?, 1) /* " + strings.Repeat("x", 40_000) + "<end> */"
	for _, params := range []string{`["s3cr3t"]`, `["other"]`} {
		if r := h.run(t, "amend", u.ID, "--sql", long, "--parameters", params, "--reason", "x", "--yes"); r.status != 0 {
			t.Fatal(r)
		}
	}
	for flag, shows := range map[string]bool{"--limit=2": false, "--show-parameters": true} {
		var records []ops.Record
		r := h.run(t, "audit", "-o", "json", flag)
		if err := json.Unmarshal([]byte(r.out), &records); err != nil || strings.Contains(r.out, "s3cr3t") != shows {
			t.Fatalf("%v, audit %s prints %.300s", err, flag, r.out)
		}
		for records[0].Action != ops.Amend {
			records = records[1:]
		}
		if re, ok := ops.ReplacedBy(records[0]); !ok || re.Old.SQL != long || re.Entry != u.ID {
			t.Errorf("the audit says %.200s", records[0].What)
		}
	}
	if r := h.run(t, "audit"); r.status != 0 || strings.Contains(r.out, "s3cr3t") || !strings.Contains(r.out, "amend") {
		t.Errorf("audit prints %.300s", r.out)
	}
}

func TestRehearseEndsWith0Or1Or3(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		h, st, u, db := renamed(t, db)
		r := h.run(t, "rehearse")
		if r.status != 1 || !strings.HasPrefix(r.out, "1 entry with 1 different texts looked at, 1 kinds of refusal\nREFUSED") || !strings.Contains(r.out, u.ID) {
			t.Errorf("got %+v", r)
		}
		var said ops.Rehearsal
		r = h.run(t, "rehearse", "-o", "json", "--data-source", "target")
		if err := json.Unmarshal([]byte(r.out), &said); err != nil || r.status != 1 || said.Texts != 1 || said.Refused[0].Entries != 1 || said.Refused[0].Oldest != u.ID || said.Unseen == nil || strings.Contains(r.out, "4711") {
			t.Errorf("%v, got %+v", err, r)
		}
		if r := h.run(t, "amend", u.ID, "--sql", "INSERT INTO account (id, amount) VALUES (4711, 1)", "--reason", "renamed", "--yes"); r.status != 0 {
			t.Fatal(r)
		}
		h.run(t, "rehearse").want(t, 0, "1 entry with 1 different texts looked at, 0 kinds of refusal\n")
		var n int
		if err := db.Open(t).QueryRowContext(t.Context(), "SELECT COUNT(*) FROM account").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows were written, %v", n, err)
		}
		for _, args := range [][]string{{"rehearse", "--data-source", "nowhere"}, {"rehearse", "--data-source="}, {"rehearse", "x"}} {
			if r := h.run(t, args...); r.status != 3 || r.err == "" {
				t.Errorf("%q: %+v", args, r)
			}
		}
		write(t, h.config, fmt.Sprintf("targetDataSource: {target: {driver: sqlite, dsn: %q}}\ntransactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\n", filepath.Join(t.TempDir(), "none.db")))
		if r := h.run(t, "rehearse"); r.status != 3 || !strings.Contains(r.out, "NOT ASKED") {
			t.Errorf("a target that is not there: %+v", r)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		if r := h.run(t, "rehearse"); r.status != 3 || r.out != "" {
			t.Errorf("a log that is closed: %+v", r)
		}
	})
}

func TestOneAmendmentIsForAllEntriesOfAKind(t *testing.T) {
	h, st, first, _ := renamed(t, testdb.SQLite(t))
	for i := range 3 {
		u := &entry.Unit{ID: entry.NewID(), DataSource: "target", Settings: first.Settings, Statements: []entry.Statement{{SQL: "INSERT INTO account (id, n) VALUES (?, 1)", Params: fmt.Sprintf("[%d]", i)}}}
		if err := st.Add(t.Context(), 1e9, u); err != nil {
			t.Fatal(err)
		}
		if err := st.Release(t.Context(), u, entry.Verdict{Park: i < 2, Err: "no"}); err != nil {
			t.Fatal(err)
		}
	}
	// The kind from rehearse selects one text, unlike those from kinds.
	var kinds []ops.Kind
	if r := h.run(t, "kinds", "-o", "json"); json.Unmarshal([]byte(r.out), &kinds) != nil || len(kinds) != 1 {
		t.Fatal(r)
	}
	sql := filepath.Join(t.TempDir(), "new.sql")
	write(t, sql, "INSERT INTO account (id, amount) VALUES (?, 1)\n")
	by := []string{"--sql", "@" + sql, "--reason", "the column was renamed"}
	bulk := func(kind string, more ...string) run {
		return h.run(t, append(append([]string{"amend", "--kind", kind}, by...), more...)...)
	}
	if r := bulk(kinds[0].Key, "--yes"); r.status != 1 || !strings.Contains(r.err, "different texts") {
		t.Errorf("a kind of two texts: %+v", r)
	}
	var rehearsed ops.Rehearsal
	if r := h.run(t, "rehearse", "-o", "json"); json.Unmarshal([]byte(r.out), &rehearsed) != nil || len(rehearsed.Refused) != 1 {
		t.Fatal(r)
	}
	kind := rehearsed.Refused[0].Kinds[0].Kind
	if r := h.run(t, "rehearse", "--data-source", "target"); strings.Contains(r.out, "--kind") {
		t.Errorf("rehearse prints a kind for two texts: %s", r.out)
	}
	if r := bulk(kind); r.status != 2 || !strings.Contains(r.err, "--yes") {
		t.Errorf("without a yes: %+v", r)
	}
	if r := bulk(kind, "--dry-run"); r.status != 0 || !strings.Contains(r.out, "would change 1 row") || !strings.Contains(r.out, "2 entries of 2 would be amended") {
		t.Errorf("a dry run: %+v", r)
	}
	if r := bulk(kind, "--yes", "--parameters", "[]"); r.status != 1 || !strings.Contains(r.err, "placeholders") {
		t.Errorf("another number of parameters: %+v", r)
	}
	if r := h.run(t, "amend", first.ID, "--kind", kind, "--sql", "x", "--reason", "x", "--yes"); r.status != 2 {
		t.Errorf("an ID and a kind: %+v", r)
	}
	r := bulk(kind, "--yes")
	_, paste, _ := strings.Cut(strings.TrimSpace(r.out), "bed-job retry ")
	if r.status != 0 || !strings.Contains(r.out, "2 entries of 2 amended") {
		t.Fatalf("amend says %+v", r)
	}
	h.run(t, append([]string{"retry"}, strings.Fields(paste)...)...).want(t, 0, "2 entries of 2 due now\n")

	// Standard input hides values that a command line would show.
	h.In = strings.NewReader("[4712]\n")
	if r := h.run(t, "amend", first.ID, "--sql", "@"+sql, "--parameters", "-", "--reason", "x", "--yes"); r.status != 0 {
		t.Errorf("parameters from standard input: %+v", r)
	}
	if got, err := st.Get(t.Context(), first.ID); err != nil || got.Statements[0].Params != "[4712]" || got.Statements[0].SQL != "INSERT INTO account (id, amount) VALUES (?, 1)" {
		t.Errorf("the entry is %+v, %v", got, err)
	}
	if r := h.run(t, "amend", first.ID, "--sql", "@/nowhere", "--reason", "x", "--yes"); r.status != 1 || !strings.Contains(r.err, "/nowhere") {
		t.Errorf("a file that is not there: %+v", r)
	}
}
