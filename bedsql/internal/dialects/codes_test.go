package dialects

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/bedsql/bed/listener/delivery"
)

func TestUnlistedCodeIsRetryable(t *testing.T) {
	t.Parallel()
	codes := ReadCodes("# a comment\n\nduplicate key\t1062\tER_DUP_ENTRY\nrefused\t22\tdata exception\nunknown\t1053\tER_SERVER_SHUTDOWN (it ended)")
	want := Codes{"1062": delivery.Duplicate, "22": delivery.Refused, "1053": delivery.Unknown}
	if !maps.Equal(codes, want) {
		t.Errorf("got %v, want %v", codes, want)
	}
	if got := codes.Class("9999", "22"); got != delivery.Refused {
		t.Errorf("by the second of its names it is %v, want refused", got)
	}
	if got := codes.Class("9999", "40"); got != delivery.Retryable {
		t.Errorf("one that is not listed is %v, want retryable", got)
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
