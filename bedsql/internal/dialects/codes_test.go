package dialects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
)

func TestUnlistedCodeIsUnclassified(t *testing.T) {
	t.Parallel()
	codes := ReadCodes("# a comment\n\nduplicate key\t1062\tER_DUP_ENTRY\nrefused\t22\tdata exception\nunknown\t1053 1080-1082\tER_SERVER_SHUTDOWN (it ended)\nmistake\t42\tsyntax\noutage\t1040\tfull")
	for code, want := range map[string]dialect.Class{
		"1062": dialect.Duplicate, "22": dialect.Refused, "1053": dialect.Unknown, "1080": dialect.Unknown, "1082": dialect.Unknown,
		"1079": dialect.Unclassified, "1083": dialect.Unclassified, "42": dialect.Refused, "1040": dialect.Retryable,
	} {
		if got := codes.Of(code).Class; got != want {
			t.Errorf("%s is %v, want %v", code, got, want)
		}
	}
	if !codes.Of("1000", "42").Mistake || codes.Of("22", "42").Mistake || !codes.Of("1040").Outage || codes.Of("42").Outage {
		t.Error("mistakes and outages are not told apart from other refusals and retryable errors")
	}
	if got := codes.Of("9999", "22").Class; got != dialect.Refused {
		t.Errorf("by the second of its names it is %v, want refused", got)
	}
	if got := codes.Of("9999", "40").Class; got != dialect.Unclassified {
		t.Errorf("one that is not listed is %v, want unclassified", got)
	}
}

func TestUnreadableLineIsNotSkipped(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"refusd\t1031\tER_ILLEGAL_HA":                      "no such class",
		"Refused\t1031\tER_ILLEGAL_HA":                     "no such class",
		"?\t1031\tER_ILLEGAL_HA":                           "no such class",
		"unreachable\t1031\tER_ILLEGAL_HA":                 "no such class", // an answer is never that
		"retryable\t1031":                                  "a class, a code and a reason",
		"retryable\t1031\t ":                               "a class, a code and a reason",
		"retryable\t\tER_ILLEGAL_HA":                       "a class, a code and a reason",
		"refused 1031 ER_ILLEGAL_HA":                       "a class, a code and a reason",
		"refused\t1031\tER_ILLEGAL_HA\tand more":           "a class, a code and a reason",
		"refused\t1003-1001\tONE":                          "a range",
		"refused\t1031\tONE\nretryable\t1031\tTHE OTHER":   "listed already",
		"refused\t1\tONE\n\n# two\nrefusd\t2\tTWO\n":       "line 4",
		"refused\t1\tONE\nrefused\t2\tTWO\nrefused\t3\t\n": "line 3",
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%q: %s; want it to panic and say %q", line, got, want)
				}
			}()
			ReadCodes(line)
		}()
	}
}
