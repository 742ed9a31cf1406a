package entry_test

import (
	"testing"

	"github.com/bedsql/bed/internal/entry"
)

func TestRequirementIsMetByTheRightRows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		r          entry.Requirement
		met, unmet []int64
		sign, text string
	}{
		{entry.Requirement{}, []int64{0, 1, 7}, nil, "", ""},
		{entry.AtLeast(0), []int64{0, 1, 7}, nil, "", ""},
		{entry.Exactly(0), []int64{0}, []int64{1}, "=0", "exactly 0 rows"},
		{entry.Exactly(1), []int64{1}, []int64{0, 2}, "=1", "exactly 1 row"},
		{entry.AtLeast(2), []int64{2, 3}, []int64{0, 1}, ">=2", "at least 2 rows"},
	} {
		for _, n := range c.met {
			if !c.r.Met(n) {
				t.Errorf("%q is not met by %d", c.sign, n)
			}
		}
		for _, n := range c.unmet {
			if c.r.Met(n) {
				t.Errorf("%q is met by %d", c.sign, n)
			}
		}
		if c.r.Sign() != c.sign || c.r.String() != c.text || c.r.Given() != (c.sign != "") {
			t.Errorf("it is written %q, %q, want %q, %q", c.r.Sign(), c.r, c.sign, c.text)
		}
	}
}
