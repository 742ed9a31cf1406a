package txlog_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
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

func TestManyEntriesAreRemovedWithoutReadingTheLog(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	pool := db.Open(t)
	const many = 100
	remove := func(s *txlog.SQLStorage) {
		units := make([]*entry.Unit, many)
		for i := range units {
			units[i] = &entry.Unit{ID: entry.NewID(), DataSource: "bank", Statements: []entry.Statement{{SQL: "UPDATE t SET n = 1", Params: "[]"}}}
		}
		if err := s.Add(t.Context(), time.Minute, units...); err != nil {
			t.Fatal(err)
		}
		if err := s.Remove(t.Context(), units...); err != nil {
			t.Fatal(err)
		}
	}
	// A session's statistics appear at its end, and one may have scanned and another deleted.
	told := func(want int) (whole int) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			var left int
			if err := pool.QueryRow("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&left); err != nil {
				t.Fatal(err)
			}
			whole, deleted := scans(t, pool)
			if left == 0 && deleted >= want {
				return whole
			}
			if time.Now().After(end) {
				t.Fatalf("%d rows are known to be deleted, of %d; %d sessions are left", deleted, want, left)
			}
		}
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

// lockRow locks a row of the log, like a client writing to it.
func lockRow(t *testing.T, db testdb.DB, id string) *sql.Tx {
	t.Helper()
	tx, err := db.Open(t).Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.Exec("UPDATE transaction_log SET last_error = 'locked' WHERE id = ?", id); err != nil {
		t.Fatal(err)
	}
	return tx
}

// MariaDB would rather scan a small log than read a fifth of it by ids, and the scan would wait for
// rows just being added.
func TestARemovalDoesNotWaitForOtherLogs(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	const inLog = 60
	for name, c := range map[string]struct {
		untold, twoTokens bool
		size, take        int
	}{
		"half":                 {take: 30},
		"as on MySQL":          {untold: true, take: 30},
		"most":                 {take: 50},
		"a unit of many rows":  {size: 30, take: 1},
		"of two tokens":        {twoTokens: true, take: 40},
		"two tokens, on MySQL": {untold: true, twoTokens: true, take: 40},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, db)
			if c.untold {
				s.NotReturning()
			}
			units := make([]*entry.Unit, inLog/max(c.size, 1))
			for i := range units {
				units[i] = unit(slices.Repeat([]string{"UPDATE t SET n = 1"}, max(c.size, 1))...)
			}
			if c.twoTokens {
				units[0].Lease.Token = entry.NewID() // not the storage's own
			}
			mustAdd(t, s, units...)
			other := lockRow(t, db, units[len(units)-1].ID)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := s.Remove(ctx, units[:c.take]...); err != nil {
				t.Fatalf("it waited: %v", err)
			}
			if err := other.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := s.Remove(t.Context(), units[c.take:]...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestWorkOnOneUnitAwaitsNoOther(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	s := open(t, db)
	units := make([]*entry.Unit, 2)
	for i := range units {
		units[i] = unit(slices.Repeat([]string{"UPDATE t SET n = 1"}, 30)...)
	}
	mustAdd(t, s, units...)
	lockRow(t, db, units[1].ID)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	u := units[0]
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"renewing", func() error { _, err := s.Renew(ctx, time.Minute, u); return err }},
		{"parking", func() error { return s.Release(ctx, u, entry.Verdict{Park: true}) }},
		{"retrying", func() error { return s.Retry(ctx, u.ID) }},
		{"discarding", func() error { return s.Discard(ctx, u.ID) }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s waited: %v", step.name, err)
		}
	}
}

// If sql_safe_updates is set for every session, it refuses a DELETE with a hint.
func TestSafeUpdatesAreNoObstacle(t *testing.T) {
	t.Parallel()
	db := withSetting(testdb.MySQL(t), "sql_safe_updates=1")
	for _, untold := range []bool{false, true} {
		s := open(t, db)
		if untold {
			s.NotReturning()
		}
		for _, n := range []int{1, 2, 100} {
			units := make([]*entry.Unit, n)
			for i := range units {
				units[i] = unit("UPDATE a", "UPDATE b")
			}
			mustAdd(t, s, units...)
			if lost, err := s.Renew(t.Context(), time.Minute, units...); err != nil || len(lost) > 0 {
				t.Fatalf("renewing %d: %d are lost, %v", n, len(lost), err)
			}
			if err := s.Remove(t.Context(), units...); err != nil {
				t.Fatalf("removing %d: %v", n, err)
			}
			if gone := missing(t, s, units...); len(gone) != n {
				t.Errorf("%d of %d units are gone", len(gone), n)
			}
		}
	}
}
