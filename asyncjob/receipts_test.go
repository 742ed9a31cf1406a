package asyncjob

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// A long purge of receipts must neither delay pending writes nor start over each time, or it would
// never reach the end.
func TestLongPurgeContinuesInTheNextRound(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	pool := db.Open(t)
	ddl, err := attempt.ReceiptSchema(db.Driver)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, pool, ddl)
	log := &unsure{Storage: txlog.NewMemory()}
	const page, all = 500, 1200
	fill := func() {
		t.Helper()
		mustExec(t, pool, `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, log_gone)
  WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT printf('%05d', i), i, ?, 0, 1, CASE WHEN i <= ? THEN 1 << 60 ELSE 1 END, 1 FROM n`, all, log.Identity(), page)
	}
	fill() // the first page is to be kept
	job := newJob(t, log, Targets{"orders": realTarget(t, db)}, Config{PurgeInterval: time.Hour})
	job.sources["orders"].purgeFor = 0
	left := func() (n int) {
		t.Helper()
		if err := pool.QueryRow("SELECT COUNT(*) FROM bed_receipt").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, want := range []int{all, all - page, page, page} {
		runOnce(t, job)
		if n := left(); n != want {
			t.Fatalf("%d receipts are left, want %d", n, want)
		}
	}
	// It came to its end, and does not begin anew before the interval is over,
	// but then at the beginning.
	mustExec(t, pool, "DELETE FROM bed_receipt")
	fill()
	for range 3 {
		runOnce(t, job)
	}
	if n := left(); n != all {
		t.Errorf("%d receipts are left, want %d", n, all)
	}
	mustExec(t, pool, "UPDATE bed_receipt SET keep_until = 1")
	job.sources["orders"].purged = time.Time{}
	runOnce(t, job)
	if n := left(); n != all-page {
		t.Errorf("%d receipts are left, want %d", n, all-page)
	}
	// The purge skips a failing page.
	log.fails.Store(true)
	runOnce(t, job)
	log.fails.Store(false)
	runOnce(t, job)
	if n := left(); n != all-page {
		t.Errorf("%d receipts are left, want %d: it did not wait for the interval", n, all-page)
	}
	job.sources["orders"].purged = time.Time{}
	runOnce(t, job)
	if n := left(); n != page {
		t.Errorf("%d receipts are left, want %d", n, page)
	}
	job.sources["orders"].purged = time.Time{}
	runOnce(t, job)
	if n := left(); n != 0 {
		t.Errorf("%d receipts are left", n)
	}
}

// unsure is a log that sometimes fails to list its content.
type unsure struct {
	txlog.Storage
	fails atomic.Bool
}

func (u *unsure) Missing(ctx context.Context, ids []string) ([]string, error) {
	if u.fails.Load() {
		return nil, errors.New("out of reach")
	}
	return u.Storage.Missing(ctx, ids)
}
