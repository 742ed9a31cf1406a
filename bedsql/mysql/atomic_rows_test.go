package mysql

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestAtomicChecksRequiredRowsInOneRoundTrip(t *testing.T) {
	t.Parallel()
	const inserts = "INSERT INTO stock VALUES (1, 7) ON DUPLICATE KEY UPDATE n = n + ?" // counts 2 for a row that is there
	for _, test := range []struct {
		param, text string
		args        []any
		messages    int
		met, unmet  entry.Requirement
		got         int64
	}{
		{"", "UPDATE stock SET n = n + 1", nil, 1, entry.Exactly(1), entry.Exactly(2), 1},
		{"", "UPDATE stock SET n = n + 1", nil, 1, entry.AtLeast(1), entry.AtLeast(2), 1},
		{"", "DELETE FROM stock WHERE n < 0", nil, 1, entry.Exactly(0), entry.AtLeast(1), 0},
		{"interpolateParams=true", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1, entry.Exactly(1), entry.Exactly(0), 1},
		{"prepared", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1, entry.Exactly(1), entry.Exactly(0), 1},
		{"prepared", inserts, []any{int64(1)}, 1, entry.Exactly(2), entry.Exactly(1), 2},
		{"prepared&interpolateParams=true", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1, entry.AtLeast(1), entry.AtLeast(3), 1},
	} {
		for _, receipted := range []bool{false, true} {
			direct := testdb.MySQL(t)
			proxy := testproxy.New(t, direct.Addr())
			e := receiptfulOn(t, direct, direct.Via(proxy.Addr()), test.param, stock, "INSERT INTO stock VALUES (1, 10)")
			calls := func(id string, r entry.Requirement) (all []dialect.Call) {
				if receipted {
					all = append(all, receipt(id))
				}
				write := call(test.text, test.args...)
				write.Required = r
				return append(all, write)
			}
			for _, id := range []string{"first", "second"} {
				n := proxy.Count(func([]byte) bool { return true })
				results, err := e.atomic(calls(id, test.met)...)
				if err != nil {
					t.Fatalf("%s %s: %v", test.param, test.text, err)
				}
				if got, _ := results[len(results)-1].RowsAffected(); got != test.got {
					t.Errorf("%s %s: %d rows, want %d", test.param, test.text, got, test.got)
				}
				if got := n(); id == "second" && got != test.messages {
					t.Errorf("%s %s: %d messages, want %d", test.param, test.text, got, test.messages)
				}
			}
			before := e.int("SELECT n FROM stock")
			_, err := e.atomic(calls("unmet", test.unmet)...)
			var rows *dialect.RowsError
			if !errors.As(err, &rows) || rows.Got != test.got || e.d.Class(err) != dialect.Refused {
				t.Errorf("%s %s under %v: %v, want a RowsError of %d", test.param, test.text, test.unmet, err, test.got)
			}
			if n := e.int("SELECT n FROM stock"); n != before {
				t.Errorf("%s %s: n is %d after it was refused, was %d", test.param, test.text, n, before)
			}
			e.is("SELECT COUNT(*) FROM bed_receipt WHERE id = 'unmet'", 0)
			e.noneOpen()
		}
	}
}

// The server's ROW_COUNT() counts as the driver's RowsAffected does.
func TestAtomicCountsRowsAsTheDSNSays(t *testing.T) {
	t.Parallel()
	for param, got := range map[string]int64{"": 0, "clientFoundRows=true": 1, "prepared": 0, "prepared&clientFoundRows=true": 1} {
		e := receiptful(t, param, stock, "INSERT INTO stock VALUES (1, 10)")
		write := call("UPDATE stock SET n = 10 WHERE id = 1")
		write.Required = entry.Exactly(got)
		if _, err := e.atomic(write); err != nil {
			t.Errorf("%q, requiring %d: %v", param, got, err)
		}
		write.Required = entry.Exactly(1 - got)
		if _, err := e.atomic(write); e.d.Class(err) != dialect.Refused {
			t.Errorf("%q, requiring %d: %v, want it refused", param, 1-got, err)
		}
	}
}

// A trigger's SIGNAL is the application's own error.
func TestAtomicTriggerSignalIsNoRowsError(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "", stock, "INSERT INTO stock VALUES (1, 10)",
		"CREATE TRIGGER moody BEFORE UPDATE ON stock FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'bed_rows: call 7 0'")
	write := call("UPDATE stock SET n = 11")
	write.Required = entry.Exactly(1)
	_, err := e.atomic(write)
	var rows *dialect.RowsError
	if err == nil || errors.As(err, &rows) {
		t.Errorf("%v, want the trigger's error", err)
	}
}
