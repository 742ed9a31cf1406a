package withtx

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
)

// takes takes one from account 1 at home.
func takes(b *rig.Begun) {
	b.T.Helper()
	b.Must(b.Tx, "UPDATE account SET balance = balance - ? WHERE id = ?", 1, 1)
}

func wantNotCommitted(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrNotCommitted) || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
		t.Errorf("End says %v (%v), want ErrNotCommitted", err, bedsql.OutcomeOf(err))
	}
}
