package cli

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// canned is a log with fixed contents.
type canned struct {
	txlog.Storage
	units []*entry.Unit
	stats []txlog.Stats
	err   error
}

func (c canned) List(_ context.Context, f txlog.Filter) (found []*entry.Unit, _ error) {
	for _, u := range c.units {
		if u.ID > f.After && (!f.Parked || u.Parked) && (f.DataSource == "" || f.DataSource == u.DataSource) && len(found) < f.Limit {
			found = append(found, u)
		}
	}
	return found, c.err
}

func (c canned) Get(_ context.Context, id string) (*entry.Unit, error) {
	for _, u := range c.units {
		if u.ID == id {
			return u, c.err
		}
	}
	return nil, txlog.ErrNotFound
}

func (c canned) Stats(context.Context) ([]txlog.Stats, error) { return c.stats, c.err }

func encoded(args ...any) string {
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	named[len(named)-1].Name = "last"
	s, err := entry.EncodeParams(named)
	if err != nil {
		panic(err)
	}
	return s
}

const secretParam = "the-customer's-secret"

func cannedLog() canned {
	return canned{
		units: []*entry.Unit{
			{
				ID: "id-1", ReadAt: noon, TransactionID: "tx", DataSource: "orders_0", Settings: "loc=UTC", Tries: 3, Parked: true, InDoubt: true,
				CreatedAt: noon.Add(-3 * time.Hour), NextTry: noon, LastError: "Unknown column\n'x'",
				Statements: []entry.Statement{
					{SQL: "INSERT INTO a\n\tVALUES (?, ?, '\x1b[2Jé')", Params: encoded(secretParam, []byte{1, 2, 255})},
					{SQL: "UPDATE b SET c = 1", Required: entry.Exactly(1)},
				},
			},
			{
				ID: "id-2", ReadAt: noon, TransactionID: "id-2", DataSource: "ledger", CreatedAt: noon.Add(-90 * time.Second), NextTry: noon.Add(30 * time.Second),
				Statements: []entry.Statement{{SQL: "UPDATE accounts SET balance = ?, owner = ? WHERE id = ? AND something_long IS NOT NULL", Params: encoded(int64(math.MaxInt64), nil, 1.5, true, noon, math.NaN())}},
			},
			{
				ID: "id-3", ReadAt: noon, TransactionID: "id-3", DataSource: "ledger", CreatedAt: noon.Add(-time.Second), NextTry: noon.Add(time.Minute), Leased: true,
				NotReplayable: "it read before it wrote", Unreadable: errors.New("its sql is NULL"),
			},
			{
				ID: "id-4", ReadAt: noon, AtOnce: true, TransactionID: "id-4", DataSource: "ledger", CreatedAt: noon, NextTry: noon.Add(-time.Second),
				Statements: []entry.Statement{{SQL: "DELETE FROM a", Params: "[broken"}},
			},
		},
		stats: []txlog.Stats{{DataSource: "ledger", Waiting: 2, Leased: 1, Oldest: noon.Add(-90 * time.Second)}, {DataSource: "orders_0", Parked: 1}},
	}
}

func TestListIsOneLineForEachLog(t *testing.T) {
	h := newHarness(t, cannedLog())
	h.run(t, "list").want(t, 0, ""+
		"ID    DATA SOURCE  STATE    TRIES  CREATED                         NEXT TRY                            LAST ERROR          SQL\n"+
		"id-1  orders_0     parked   3      2026-03-01T09:00:00+01:00 (3h)  -                                   Unknown column 'x'  (1 of 2) INSERT INTO a VALUES (?, ?, '\\x1b[2Jé')\n"+
		"id-2  ledger       waiting  0      2026-03-01T11:58:30+01:00 (1m)  2026-03-01T12:00:30+01:00 (in 30s)  -                   UPDATE accounts SET balance = ?, owner = ? WHERE id = ? AND something_long IS NOT NULL\n"+
		"id-3  ledger       leased   0      2026-03-01T11:59:59+01:00 (1s)  2026-03-01T12:01:00+01:00 (in 1m)   -                   (unreadable: its sql is NULL)\n"+
		"id-4  ledger       waiting  0      2026-03-01T12:00:00+01:00 (0s)  2026-03-01T11:59:59+01:00 (due)     -                   DELETE FROM a\n")
}

func TestListFilters(t *testing.T) {
	h := newHarness(t, cannedLog())
	for _, tc := range []struct{ args, want string }{
		{"--parked", "id-1"}, {"--data-source ledger", "id-2 id-3 id-4"}, {"--limit 2", "id-1 id-2"}, {"--data-source none", ""},
	} {
		r := h.run(t, append([]string{"list", "-o", "json"}, strings.Fields(tc.args)...)...)
		var got []unitView
		if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.status != 0 {
			t.Fatalf("%s: status %d, %v\n%s%s", tc.args, r.status, err, r.out, r.err)
		}
		var ids []string
		for _, v := range got {
			ids = append(ids, v.ID)
		}
		if strings.Join(ids, " ") != tc.want {
			t.Errorf("list %s gave %v, want %s", tc.args, ids, tc.want)
		}
	}
	if r := h.run(t, "list", "--data-source", "none"); r.status != 0 || r.out != "" || r.err != "The log holds nothing of that kind.\n" {
		t.Errorf("got %+v", r)
	}
}

func TestListPagesThroughEverything(t *testing.T) {
	var c canned
	for i := range 2*pageSize + 1 {
		c.units = append(c.units, &entry.Unit{ID: fmt.Sprintf("id-%06d", i), Statements: []entry.Statement{{SQL: "DELETE FROM a"}}})
	}
	h := newHarness(t, c)
	r := h.run(t, "list", "-o", "json", "--limit", "0")
	var got []unitView
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || len(got) != len(c.units) || got[len(got)-1].ID != c.units[len(c.units)-1].ID {
		t.Errorf("%d of %d, %v", len(got), len(c.units), err)
	}
	if r := h.run(t, "list", "--limit", fmt.Sprint(pageSize+1)); strings.Count(r.out, "\n") != pageSize+2 {
		t.Errorf("%d lines", strings.Count(r.out, "\n"))
	}
}

func TestListAsJSONKeepsItsNames(t *testing.T) {
	c := cannedLog()
	c.units = c.units[:1]
	newHarness(t, c).run(t, "list", "-o", "json").want(t, 0, `[
  {
    "id": "id-1",
    "transactionId": "tx",
    "dataSource": "orders_0",
    "state": "parked",
    "createdAt": "2026-03-01T08:00:00Z",
    "tries": 3,
    "nextTry": null,
    "lastError": "Unknown column\n'x'",
    "inDoubt": true,
    "notReplayable": "",
    "unreadable": "",
    "settings": "loc=UTC",
    "statements": [
      {
        "sql": "INSERT INTO a\n\tVALUES (?, ?, '\u001b[2Jé')"
      },
      {
        "sql": "UPDATE b SET c = 1",
        "requiredRows": "=1"
      }
    ]
  }
]
`)
}

func TestStatsCountByDataSource(t *testing.T) {
	h := newHarness(t, cannedLog())
	h.run(t, "stats").want(t, 0, ""+
		"DATA SOURCE  WAITING  LEASED  PARKED  OLDEST\n"+
		"ledger       2        1       0       2026-03-01T11:58:30+01:00 (1m)\n"+
		"orders_0     0        0       1       -\n")
	h.run(t, "stats", "-o", "json").want(t, 0, `[
  {
    "dataSource": "ledger",
    "waiting": 2,
    "leased": 1,
    "parked": 0,
    "oldest": "2026-03-01T10:58:30Z"
  },
  {
    "dataSource": "orders_0",
    "waiting": 0,
    "leased": 0,
    "parked": 1,
    "oldest": null
  }
]
`)
	h = newHarness(t, canned{})
	h.run(t, "stats", "-o", "json").want(t, 0, "[]\n")
	h.run(t, "list", "-o", "json").want(t, 0, "[]\n")
	if r := h.run(t, "stats"); r.out != "" || r.err != "The log is empty.\n" {
		t.Errorf("got %+v", r)
	}
}

func TestShowMasksParameters(t *testing.T) {
	h := newHarness(t, cannedLog())
	h.run(t, "show", "id-1").want(t, 0, `ID:           id-1
Transaction:  tx
Data source:  orders_0
State:        parked
Created:      2026-03-01T09:00:00+01:00 (3h)
Tries:        3
In doubt:     yes: an earlier attempt may have been applied
Verdict:      cannot tell (at-least-once): it leaves no receipt in its target: look at the data
Settings:     loc=UTC
Last error:   Unknown column\n'x'

SQL 1 of 2:
    INSERT INTO a
    	VALUES (?, ?, '\x1b[2Jé')
Parameters (their values with --show-parameters):
    1        string, 21 bytes
    2 @last  []byte, 3 bytes

SQL 2 of 2:
    UPDATE b SET c = 1
Must change: exactly 1 row
`)
}

func TestShowPrintsParametersWhenAsked(t *testing.T) {
	h := newHarness(t, cannedLog())
	r := h.run(t, "show", "id-1", "--show-parameters")
	if want := "Parameters:\n    1        string, 21 bytes  \"the-customer's-secret\"\n    2 @last  []byte, 3 bytes   base64 AQL/\n"; !strings.Contains(r.out, want) {
		t.Errorf("got\n%s\nwant in it\n%s", r.out, want)
	}
	r = h.run(t, "show", "id-2", "--show-parameters")
	if want := `    1        int64      9223372036854775807
    2        null       NULL
    3        float64    1.5
    4        bool       true
    5        time.Time  2026-03-01T11:00:00Z
    6 @last  float64    NaN
`; !strings.Contains(r.out, want) {
		t.Errorf("got\n%s\nwant in it\n%s", r.out, want)
	}
}

func TestShowAsJSON(t *testing.T) {
	h := newHarness(t, cannedLog())
	params := func(args ...string) string {
		r := h.run(t, append([]string{"show", "-o", "json"}, args...)...)
		var v struct {
			Statements []struct {
				Parameters      json.RawMessage
				ParametersError string
			}
		}
		if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.status != 0 {
			t.Fatalf("status %d, %v\n%s%s", r.status, err, r.out, r.err)
		}
		return strings.Join(strings.Fields(string(v.Statements[0].Parameters)+v.Statements[0].ParametersError), "")
	}
	for _, tc := range []struct{ got, want string }{
		{params("id-1"), `[{"ordinal":1,"type":"string","size":21},{"ordinal":2,"name":"last","type":"[]byte","size":3}]`},
		{params("id-1", "--show-parameters"), `[{"ordinal":1,"type":"string","size":21,"value":"the-customer's-secret"},{"ordinal":2,"name":"last","type":"[]byte","size":3,"value":"AQL/","encoding":"base64"}]`},
		{params("id-2", "--show-parameters"), `[{"ordinal":1,"type":"int64","value":"9223372036854775807"},{"ordinal":2,"type":"null"},{"ordinal":3,"type":"float64","value":"1.5"},{"ordinal":4,"type":"bool","value":true},{"ordinal":5,"type":"time.Time","value":"2026-03-01T11:00:00Z"},{"ordinal":6,"name":"last","type":"float64","value":"NaN"}]`},
	} {
		if tc.got != tc.want {
			t.Errorf("got  %s\nwant %s", tc.got, tc.want)
		}
	}
	if got := params("id-4"); !strings.HasPrefix(got, "txlog:") {
		t.Errorf("parameters that cannot be read are shown as %q", got)
	}
}

func TestUnreadableEntryIsShownAsFarAsPossible(t *testing.T) {
	h := newHarness(t, cannedLog())
	r := h.run(t, "show", "id-3")
	for _, want := range []string{"Leased until:    2026-03-01T12:01:00+01:00 (in 1m)", "Not replayable:  it read before it wrote", "Unreadable:      its sql is NULL"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("got\n%s\nwant in it %s", r.out, want)
		}
	}
	if r := h.run(t, "show", "id-4"); r.status != 0 || !strings.Contains(r.out, "DELETE FROM a\nParameters: ") {
		t.Errorf("got %+v", r)
	}
}

func TestParametersAreNeverPrintedUnasked(t *testing.T) {
	h := newHarness(t, cannedLog())
	for _, args := range [][]string{
		{"list"}, {"list", "-o", "json"}, {"list", "--parked"}, {"show", "id-1"}, {"show", "id-1", "-o", "json"}, {"show", "id-2"}, {"stats"},
	} {
		if r := h.run(t, args...); strings.Contains(r.out+r.err, secretParam) || strings.Contains(r.out, "9223372036854775807") || r.status != 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestAnUnknownIDIsAnError(t *testing.T) {
	r := newHarness(t, canned{}).run(t, "show", "nope\x1b")
	if r.status != 1 || r.err != "bed-job: nope\\x1b: the log holds no such id: it was delivered or discarded, or the id is mistyped\n" {
		t.Errorf("got %+v", r)
	}
}

func TestALogThatFailsIsAnError(t *testing.T) {
	h := newHarness(t, canned{err: errors.New("connection refused")})
	for _, command := range []string{"list", "stats"} {
		for _, format := range []string{"json", "table"} {
			if r := h.run(t, command, "-o", format); r.status != 1 || r.err != "bed-job: connection refused\n" {
				t.Errorf("%s -o %s: %+v", command, format, r)
			}
		}
	}
}

// The later of the next try and the age required by the job counts, by the log's clock. An
// operator's retry overrides the age.
func TestListShowsTheTimeThatReallyCounts(t *testing.T) {
	ahead := noon.Add(24 * time.Hour) // the log's clock
	unit := func(id string, change func(*entry.Unit)) *entry.Unit {
		u := &entry.Unit{ID: id, CreatedAt: ahead.Add(-10 * time.Second), NextTry: ahead, ReadAt: ahead, Statements: []entry.Statement{{SQL: "x"}}}
		change(u)
		return u
	}
	h := newHarness(t, canned{units: []*entry.Unit{
		unit("young", func(*entry.Unit) {}),
		unit("retried", func(u *entry.Unit) { u.AtOnce = true }),
		unit("rests", func(u *entry.Unit) { u.NextTry = ahead.Add(2 * time.Hour) }),
		unit("leased", func(u *entry.Unit) { u.Leased, u.NextTry = true, ahead.Add(5*time.Second) }),
	}})
	write(t, h.config, "transactionLogDataSource: {driver: sqlite, dsn: /nowhere/log.db}\njobConfig: {maxDeliveryTryDelayMillis: 600000}\n")
	r := h.run(t, "list")
	var next []string
	for line := range strings.Lines(r.out) {
		if f := strings.Fields(line); len(f) > 6 && f[0] != "ID" {
			next = append(next, f[0]+strings.SplitN(line, "(10s)", 2)[1])
		}
	}
	for i, want := range []string{"young.*\\(in 9m\\)", "retried.*\\(due\\)", "rests.*\\(in 2h\\)", "leased.*\\(in 5s\\)"} {
		if len(next) != 4 || !regexp.MustCompile(want).MatchString(next[i]) {
			t.Errorf("want %s in\n%s%s", want, r.out, r.err)
		}
	}
	if r := h.run(t, "list", "-o", "json"); !strings.Contains(r.out, `"nextTry": "2026-03-02T11:09:50Z"`) {
		t.Errorf("the JSON says\n%s", r.out)
	}
}

func TestAListIsAsWideAsItsTerminal(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("error ", 40)
	sql := "UPDATE a SET " + strings.Repeat("x = x, ", 40) + "y = 1"
	st := txlog.NewMemory()
	u := &entry.Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: sql}}}
	if err := st.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	if err := st.Release(t.Context(), u, entry.Verdict{Park: true, Err: long}); err != nil {
		t.Fatal(err)
	}
	widest := func(width int) (line string) {
		h := newHarness(t, st)
		h.Width = func() int { return width }
		for l := range strings.Lines(h.run(t, "list").out) {
			if l = strings.TrimSuffix(l, "\n"); utf8.RuneCountInString(l) > utf8.RuneCountInString(line) {
				line = l
			}
		}
		return line
	}
	if line := widest(0); !strings.Contains(line, strings.TrimSpace(long)) || !strings.Contains(line, sql) {
		t.Errorf("where no terminal is it is cut: %s", line)
	}
	for _, width := range []int{170, 200, 300} {
		if line := widest(width); utf8.RuneCountInString(line) != width {
			t.Errorf("on %d columns it has %d: %s", width, utf8.RuneCountInString(line), line)
		}
	}
	if line := widest(1000); !strings.Contains(line, sql) || !strings.Contains(line, strings.TrimSpace(long)) {
		t.Errorf("on 1000 columns it is cut: %s", line)
	}
}
