package attempt

import (
	"database/sql"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/bedsql/bed/txlog"
)

func statement(t *testing.T, query string, args ...any) txlog.Statement {
	t.Helper()
	named := make([]driver.NamedValue, len(args))
	for i, v := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
		if n, ok := v.(sql.NamedArg); ok {
			named[i].Name, named[i].Value = n.Name, n.Value
		}
	}
	text, err := txlog.EncodeParams(named)
	if err != nil {
		t.Fatal(err)
	}
	return txlog.Statement{SQL: query, Params: text}
}

func TestARequestThatDiffersSaysInWhat(t *testing.T) {
	first := statement(t, "q", int64(1), sql.Named("b", "two"))
	for want, second := range map[string]txlog.Statement{
		"the SQL of its statement 1 differs":              statement(t, "r", int64(2)),
		"its statement 1 has 1 parameter now, and had 2":  statement(t, "q", int64(1)),
		"parameter 1 of its statement 1 differs":          statement(t, "q", int64(2), sql.Named("b", "two")),
		"parameter @b of its statement 1 differs":         statement(t, "q", int64(1), sql.Named("b", "three")),
		"parameter @c of its statement 1 differs":         statement(t, "q", int64(1), sql.Named("c", "two")),
		"its statement 1 has 3 parameters now, and had 2": statement(t, "q", int64(1), sql.Named("b", "two"), nil),
	} {
		a := AnswerStatement{Fingerprint: NewRequest("k", "").Add(first)}
		err := a.Differs(1, second, NewRequest("k", "").Add(second))
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// The digests that a receipt keeps cannot be made from guessed values without the caller's key.
func TestReceiptKeepsNothingThatRevealsValues(t *testing.T) {
	s := statement(t, "q", true)
	digests := map[string]bool{}
	for _, key := range []string{"a", "b"} {
		r := NewRequest(key, "")
		one := r.Add(s)
		u := txlog.Unit{Receipt: "key", Fingerprint: r.Fingerprint(), Statements: []txlog.Statement{s}}
		stored := storedFingerprint(&u)
		if len(u.Fingerprint) > 64 || strings.Contains(stored, r.secret) || strings.Contains(one, r.secret) {
			t.Errorf("%s holds its secret %s", stored, r.secret)
		}
		if statementFingerprint(&u, s) != one {
			t.Error("the job makes another fingerprint of the statement than the application")
		}
		digests[one[digestSize:]], digests[stored] = true, true
	}
	if len(digests) != 4 {
		t.Errorf("the same request has the same digests under different keys: %v", digests)
	}
}
