package ops_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/internal/test/testdb"
)

// BenchmarkLargeLog shows how long an operator waits for an answer. It is run by
// hand, with the number of entries:
//
//	BED_BENCH_ENTRIES=5000000 go test ./internal/ops -run - -bench LargeLog -benchtime 20x -timeout 2h
//
// One in fifty entries is parked, one in a thousand has been leased, the others
// wait; half of these have failed.
func BenchmarkLargeLog(b *testing.B) {
	n, _ := strconv.Atoi(os.Getenv("BED_BENCH_ENTRIES"))
	if n == 0 {
		n = 2_000
	}
	for name, make := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		b.Run(name, func(b *testing.B) {
			db := make(b)
			r := newRig(b, db)
			r.fill(b, n)
			one, err := r.Entries(b.Context(), ops.Filter{State: ops.Parked}, ops.Page{Limit: 1})
			must(b, err)
			for _, q := range []struct {
				what string
				ask  func(context.Context) error
			}{
				{"overview", func(ctx context.Context) error { _, err := r.Overview(ctx, ops.OverviewOptions{Hours: 3}); return err }},
				{"list", r.asking(ops.Filter{})},
				{"list/parked", r.asking(ops.Filter{State: ops.Parked})},
				{"list/waiting", r.asking(ops.Filter{State: ops.Waiting, DataSource: "orders_3"})},
				{"list/leased", r.asking(ops.Filter{State: ops.Leased})},
				{"list/text", r.asking(ops.Filter{Text: "Lock wait"})},
				{"list/no_such_text", r.asking(ops.Filter{Text: "no such text"})},
				{"list/transaction", r.asking(ops.Filter{Transaction: one.Entries[0].ID})},
				{"kinds", func(ctx context.Context) error { _, err := r.Kinds(ctx, ops.Filter{}); return err }},
				{"count/parked", func(ctx context.Context) error { _, err := r.Count(ctx, ops.Filter{State: ops.Parked}, 0); return err }},
				{"entry", func(ctx context.Context) error { _, err := r.Entry(ctx, one.Entries[0].ID); return err }},
			} {
				b.Run(q.what, func(b *testing.B) {
					var took []time.Duration
					for b.Loop() {
						began := time.Now()
						must(b, q.ask(b.Context()))
						took = append(took, time.Since(began))
					}
					slices.Sort(took)
					b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
					b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms/worst")
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}

func (r *rig) asking(f ops.Filter) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := r.Entries(ctx, f, ops.Page{Limit: 100})
		return err
	}
}

// fill has the database write entries straight into the table.
func (r *rig) fill(t testing.TB, n int) {
	t.Helper()
	pool := r.db.Open(t)
	now := time.Now().UnixMilli()
	const insert = `INSERT INTO transaction_log (id, transaction_type, data_source, {sql}, parameters, creation_time, async_delivery_try_times,
  transaction_id, statement_no, statement_count, settings, not_replayable, receipt, fingerprint, in_doubt, next_try_time, last_error, parked, lease_token, lease_until)
SELECT id, 'BestEffortsDelivery', {source}, 'UPDATE account SET balance = balance - ?, changed = ? WHERE id = ? AND region = ?', '[17,"2026-11-20",123456,"eu"]', {now} - {n} + k, 0,
  id, 0, 1, '{"settings":""}', '', '', '', 0, CASE WHEN k % 1000 = 1 THEN {now} + 3600000 ELSE {now} - {n} + k END,
  CASE WHEN k % 50 = 0 THEN {error} WHEN k % 2 = 0 THEN 'Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction' END,
  CASE WHEN k % 50 = 0 THEN 1 ELSE 0 END, CASE WHEN k % 1000 = 1 THEN 't' END, CASE WHEN k % 1000 = 1 THEN {now} + 3600000 END FROM {rows}`
	words := map[string][]string{
		testdb.DriverMySQL: {"{sql}", "`sql`", "{source}", "CONCAT('orders_', k % 8)", "{error}", "CONCAT('Error 1062 (23000): Duplicate entry ''v', k, ''' for key ''users.email''')",
			"{rows}", `(SELECT CONCAT(LEFT(h, 8), '-', SUBSTR(h, 9, 4), '-7000-8000-000000000000') AS id, k FROM
  (SELECT seq AS k, LOWER(LPAD(HEX({now} - {n} + seq), 12, '0')) AS h FROM seq_{from}_to_{to}) AS a) AS b`},
		testdb.DriverPostgres: {"{sql}", `"sql"`, "{source}", "'orders_' || k % 8", "{error}", "'Error 1062 (23000): Duplicate entry ''v' || k || ''' for key ''users.email'''",
			"{rows}", `(SELECT left(h, 8) || '-' || substr(h, 9, 4) || '-7000-8000-000000000000' AS id, k FROM
  (SELECT k, lpad(to_hex({now} - {n} + k), 12, '0') AS h FROM generate_series({from}, {to}) AS k) AS a) AS b`},
	}[r.db.Driver]
	for from := 1; from <= n; from += 100_000 {
		text := strings.NewReplacer(words...).Replace(insert)
		text = strings.NewReplacer("{now}", strconv.FormatInt(now, 10), "{n}", strconv.Itoa(n), "{from}", strconv.Itoa(from), "{to}", strconv.Itoa(min(n, from+99_999))).Replace(text)
		_, err := pool.ExecContext(t.Context(), text)
		must(t, err)
	}
	_, err := pool.ExecContext(t.Context(), map[string]string{testdb.DriverMySQL: "ANALYZE TABLE transaction_log", testdb.DriverPostgres: "VACUUM ANALYZE transaction_log"}[r.db.Driver])
	must(t, err)
}
