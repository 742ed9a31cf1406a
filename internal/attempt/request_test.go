package attempt

import (
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

func statement(t *testing.T, query string, args ...any) entry.Statement {
	t.Helper()
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
		if n, ok := v.(sql.NamedArg); ok {
			named[i].Name, named[i].Value = n.Name, n.Value
		}
	}
	text, err := entry.EncodeParams(named)
	if err != nil {
		t.Fatal(err)
	}
	return entry.Statement{SQL: query, Params: text}
}

func TestARequestThatDiffersSaysInWhat(t *testing.T) {
	first := statement(t, "q", int64(1), sql.Named("b", "two"))
	for want, second := range map[string]entry.Statement{
		"the SQL of its statement 1 differs":              statement(t, "r", int64(2)),
		"its statement 1 has 1 parameter now, and had 2":  statement(t, "q", int64(1)),
		"parameter 1 of its statement 1 differs":          statement(t, "q", int64(2), sql.Named("b", "two")),
		"parameter @b of its statement 1 differs":         statement(t, "q", int64(1), sql.Named("b", "three")),
		"parameter @c of its statement 1 differs":         statement(t, "q", int64(1), sql.Named("c", "two")),
		"its statement 1 has 3 parameters now, and had 2": statement(t, "q", int64(1), sql.Named("b", "two"), nil),
	} {
		was := NewRequest("k", "").Answered(sqltext.MySQL, first)
		for _, a := range []AnswerStatement{{Prints: was}, {Prints: Prints{Fingerprint: was.Fingerprint}}} {
			err := a.Differs(1, second, NewRequest("k", "").Answered(sqltext.MySQL, second))
			if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// Without the caller's key, guessed values do not reproduce the digests in a receipt.
func TestReceiptKeepsNothingThatRevealsValues(t *testing.T) {
	s := statement(t, "q", true)
	digests := map[string]bool{}
	for _, key := range []string{"a", "b"} {
		r := NewRequest(key, "")
		one := r.Answered(sqltext.MySQL, s)
		u := entry.Unit{Receipt: "key", Fingerprint: r.Fingerprint(), Statements: []entry.Statement{s}}
		stored := storedFingerprint(&u)
		if len(u.Fingerprint) > 64 || strings.Contains(stored, r.secret) || strings.Contains(one.Fingerprint+one.Asked, r.secret) {
			t.Errorf("%s holds its secret %s", stored, r.secret)
		}
		if printsIn(sqltext.MySQL, &u, s) != one {
			t.Error("the job makes another fingerprint of the statement than the application")
		}
		digests[one.Fingerprint[digestSize:]], digests[stored], digests[one.Asked] = true, true, true
	}
	if len(digests) != 6 {
		t.Errorf("the same request has the same digests under different keys: %v", digests)
	}
}

// unitOf is a unit under the key k.
func unitOf(statements ...entry.Statement) *entry.Unit {
	r := NewRequest("k", "")
	for _, s := range statements {
		r.Add(s)
	}
	return &entry.Unit{Receipt: "key", Fingerprint: r.Fingerprint(), Statements: statements}
}

// receiptOf is the receipt of u; an earlier version kept only the texts' prints.
func receiptOf(t *testing.T, f sqltext.Flavor, u *entry.Unit, earlier bool) *Found {
	t.Helper()
	var a Answer
	for _, s := range u.Statements {
		p := printsIn(f, u, s)
		if earlier {
			p.Asked = ""
		}
		a.Add(p, driver.RowsAffected(1), nil)
	}
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return &Found{flavor: f, Fingerprint: storedFingerprint(u), Result: string(text)}
}

func TestRequestIsWhatTheDatabaseIsAsked(t *testing.T) {
	t.Parallel()
	berlin := time.FixedZone("CET", 3600)
	at := time.Date(2026, 11, 28, 13, 0, 0, 5, time.UTC)
	all := []sqltext.Flavor{sqltext.MySQL, sqltext.Postgres, sqltext.SQLite}
	for what, c := range map[string]struct {
		one, other any
		same       []sqltext.Flavor
	}{
		"integers of another width":   {int64(5), uint64(5), all},
		"named integers":              {int32(5), 5, all},
		"another value":               {int64(5), int64(6), nil},
		"a text for a number":         {int64(5), "5", nil},
		"a float for an integer":      {int64(5), 5.0, nil},
		"floats of another width":     {float32(1.5), 1.5, all},
		"floats that are not equal":   {float32(0.1), 0.1, nil},
		"a number for a bool":         {true, int64(1), []sqltext.Flavor{sqltext.MySQL, sqltext.SQLite}},
		"the same moment":             {at, at.In(berlin), all},
		"another moment":              {at, at.Add(1), nil},
		"bytes for a text":            {"text", []byte("text"), []sqltext.Flavor{sqltext.MySQL, sqltext.Postgres}},
		"bytes with escapes":          {`\x41`, []byte(`\x41`), []sqltext.Flavor{sqltext.MySQL}},
		"a duration for a number":     {time.Duration(5), int64(5), nil},
		"no value":                    {nil, "", nil},
		"lists of another width":      {[]int64{1, 2}, []int32{1, 2}, all},
		"other lists":                 {[]int64{1, 2}, []int32{2, 1}, nil},
		"texts with blanks in a list": {[]string{"a b"}, []string{"a", "b"}, nil},
		"times in a list":             {[]time.Time{at}, []time.Time{at.In(berlin)}, all},
	} {
		for _, f := range all {
			first, second := unitOf(statement(t, "UPDATE t SET a = ? /*1*/", c.one)), unitOf(statement(t, "UPDATE t SET a = ?;", c.other))
			if got, want := receiptOf(t, f, first, false).Of(second), slices.Contains(c.same, f); got != want {
				t.Errorf("%v, %s: the same %v, want %v", f, what, got, want)
			}
		}
	}
}

func TestReceiptOfAnEarlierVersionIsComparedItsWay(t *testing.T) {
	t.Parallel()
	u := unitOf(statement(t, "UPDATE t SET a = ? /*1*/", int64(1)), statement(t, "DELETE FROM t"))
	if f := receiptOf(t, sqltext.MySQL, u, true); !f.Of(u) || f.Of(unitOf(statement(t, "UPDATE t SET a = ? /*2*/", int64(1)), statement(t, "DELETE FROM t"))) {
		t.Error("a receipt without prints of what was asked is not compared by the texts alone")
	}
	if f := receiptOf(t, sqltext.MySQL, u, false); !f.Of(u) || f.Of(unitOf(statement(t, "UPDATE t SET a = ?", int64(1)))) {
		t.Error("a receipt is not compared by all of its statements")
	}
}
