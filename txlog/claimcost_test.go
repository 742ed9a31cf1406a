package txlog

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
)

// plan returns the database's plan of a statement as text.
func plan(t *testing.T, pool *sql.DB, f sqltext.Flavor, sh shape, args ...any) string {
	t.Helper()
	rows, err := pool.Query(f.Pick(sqltext.Texts{MySQL: "EXPLAIN ", Postgres: "EXPLAIN ", SQLite: "EXPLAIN QUERY PLAN "})+sh.text(f), args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for rows.Next() {
		cells := make([]sql.NullString, len(names))
		pointers := make([]any, len(names))
		for i := range cells {
			pointers[i] = &cells[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			t.Fatal(err)
		}
		for i := range cells {
			fmt.Fprintf(&text, "%s=%s ", names[i], cells[i].String)
		}
		text.WriteByte('\n')
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// Parked rows, and rows of a data source that is down, must not make claims for another one more
// expensive. The index skips them and provides the order, without a sort.
func TestClaimReadsOnlyDueRowsInIndexOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		s, err := Open(t.Context(), db.Driver, db.DSN, WithMaxConns(2))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		pool := db.Open(t)
		f := s.db.backend.Flavor
		// There are thousands each of parked rows, rows of another data source, and rows not yet
		// due, and a few due ones.
		quoted := f.Text("{sql}")
		seed := "INSERT INTO transaction_log (id, transaction_type, data_source, " + quoted + ", parameters, creation_time, async_delivery_try_times, transaction_id, statement_no, statement_count, settings, not_replayable, receipt, fingerprint, in_doubt, next_try_time, parked) " +
			"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) " +
			"SELECT " + f.Pick(sqltext.Texts{MySQL: "CONCAT('%[1]s', i)", Postgres: "'%[1]s' || i", SQLite: "'%[1]s' || i"}) + ", 'x', '%[2]s', 'UPDATE a', '', i, 0, 'x', 0, 1, '', '', '', '', 0, %[3]s, %[4]d FROM n"
		for _, kind := range []struct {
			name, source, next string
			parked, times      int
		}{{"p", "orders", "i", 1, 5}, {"d", "down", "i", 0, 5}, {"w", "orders", "i + 99999999999999", 0, 5}, {"o", "orders", "i", 0, 1}} {
			for n := range kind.times {
				if _, err := pool.Exec(fmt.Sprintf(seed, fmt.Sprintf("%s%d-", kind.name, n), kind.source, kind.next, kind.parked)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := pool.Exec(f.Pick(sqltext.Texts{MySQL: "ANALYZE TABLE transaction_log", Postgres: "ANALYZE transaction_log", SQLite: "ANALYZE"})); err != nil {
			t.Fatal(err)
		}
		for what, got := range map[string]string{
			"claim":           plan(t, pool, f, shape{kind: selectDue}, "orders", 0, 0, "", 1<<60, 0, 10),
			"DataSources":     plan(t, pool, f, shape{kind: nextDataSource}, "", lastName),
			"DataSources, at": plan(t, pool, f, shape{kind: nextDataSource}, "down", lastName),
		} {
			lower := strings.ToLower(got)
			for _, sorted := range []string{"filesort", "temporary", "temp b-tree", "seq scan", "scan transaction_log"} {
				if strings.Contains(lower, sorted) {
					t.Errorf("%s sorts or reads all:\n%s", what, got)
				}
			}
			if strings.Contains(strings.ReplaceAll(got, "Incremental Sort", ""), "Sort ") {
				t.Errorf("%s sorts:\n%s", what, got)
			}
			if !strings.Contains(got, "transaction_log_due") {
				t.Errorf("%s does not use the index:\n%s", what, got)
			}
		}
	})
}

// A small table is cheaper read whole than by many ids, says MySQL, and locks
// every row on the way: those of others too.
func TestManyRowStatementLeavesOtherRowsAlone(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	s, err := Open(t.Context(), db.Driver, db.DSN, WithMaxConns(2))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	units := make([]*Unit, 300)
	ids := make([]any, 256)
	for i := range units {
		units[i] = &Unit{ID: entry.NewID(), DataSource: "orders", Statements: []entry.Statement{{SQL: "UPDATE a"}}}
		if i < len(ids) {
			ids[i] = units[i].ID
		}
	}
	if err := s.Add(t.Context(), time.Minute, units...); err != nil {
		t.Fatal(err)
	}
	pool := db.Open(t)
	for what, got := range map[string]string{
		"removal": plan(t, pool, sqltext.MySQL, shape{kind: deleteOwned, rows: len(ids)}, append(slices.Clip(ids), "token")...),
		"claim":   plan(t, pool, sqltext.MySQL, shape{kind: takeRows, rows: len(ids)}, append(append([]any{"token", 1, 1}, ids...), 1<<60)...),
		"renewal": plan(t, pool, sqltext.MySQL, shape{kind: renewOwned, rows: len(ids)}, append(append([]any{1, 1}, ids...), "token")...),
	} {
		if !strings.Contains(got, "type=range") || !strings.Contains(got, "key=PRIMARY") {
			t.Errorf("the %s reads rows that it does not name:\n%s", what, got)
		}
	}
}
