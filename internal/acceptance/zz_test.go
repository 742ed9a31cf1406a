package acceptance
import ("testing";"context";"time";"github.com/bedsql/bed/internal/testdb")
func TestZZ(t *testing.T) {
	r := newRig(t, testdb.SQLite(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err := tx.ExecContext(ctx, "UPDATE account SET balance = (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 100000000) SELECT count(*) FROM n) WHERE id = 2")
	t.Log(err)
	_, err = tx.Exec(setBalance, 20, 2)
	t.Log(err)
	t.Log(tx.Commit())
	t.Log(r.balance(1), r.balance(2), r.counters.Delivered.Load())
}
