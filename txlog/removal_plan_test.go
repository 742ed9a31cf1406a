package txlog_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/testdb"
	"github.com/bedsql/bed/txlog"
)

// scans says how often the log was read whole, and how many rows were deleted.
func scans(t *testing.T, pool *sql.DB) (whole, deleted int) {
	t.Helper()
	if err := pool.QueryRow("SELECT seq_scan, n_tup_del FROM pg_stat_user_tables WHERE relname = 'transaction_log'").Scan(&whole, &deleted); err != nil {
		t.Fatal(err)
	}
	return whole, deleted
}

func TestManyLogsAreRemovedWithoutReadingTheWholeLog(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	pool := db.Open(t)
	const many = 100
	remove := func(s *txlog.SQLStorage) {
		units := make([]*txlog.Unit, many)
		for i := range units {
			units[i] = &txlog.Unit{ID: txlog.NewID(), DataSource: "bank", Statements: []txlog.Statement{{SQL: "UPDATE t SET n = 1", Params: "[]"}}}
		}
		if err := s.Add(t.Context(), time.Minute, units...); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), units...); err != nil {
			t.Fatal(err)
		}
	}
	// A session tells what it did when it ends.
	told := func(want int) (whole int) {
		whole, deleted := scans(t, pool)
		for end := time.Now().Add(time.Minute); deleted < want; whole, deleted = scans(t, pool) {
			if time.Now().After(end) {
				t.Fatalf("%d rows are known to be deleted, of %d", deleted, want)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return whole
	}
	deleted := 0
	rounds := func(n int) (whole int) {
		s := open(t, db)
		for range n {
			remove(s)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		deleted += many * n
		return told(deleted)
	}
	created := rounds(1)
	if whole := rounds(8); whole != created {
		t.Errorf("the log was read whole %d times by 8 removals", whole-created)
	}
}
