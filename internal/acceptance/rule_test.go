package acceptance

import (
	"testing"

	"github.com/bedsql/bed/internal/testdb"
)

func TestRuleDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(100)
		res, err := r.wrapped.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := res.RowsAffected(); n != 1 || err != nil {
			t.Errorf("RowsAffected = %d, %v; want the driver's own 1", n, err)
		}
		if b := r.balance(1); b != 90 {
			t.Errorf("balance = %d, want 90", b)
		}
		r.wantNoLog()
	})
}
