package journal

import (
	"context"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/dberr"
)

const (
	// keepAttempts is for how long attempts at what is not in the log any more are
	// kept.
	keepAttempts = 7 * 24 * time.Hour
	// keepJobs is for how long a job that is gone is remembered.
	keepJobs = 24 * time.Hour
	// purgeRows is how many rows one statement erases.
	purgeRows = 1000
)

func answered(err error) bool { return dberr.Of(err).Known() }

// Purge erases what is older than it is kept: minutes, attempts at entries that
// are gone, jobs that are gone. The audit stays.
func (j *Journal) Purge(ctx context.Context) error {
	if j == nil {
		return nil
	}
	var errs []error
	for _, p := range []struct {
		table, statement string
		keep             time.Duration
	}{
		{Activity, `DELETE FROM bed_activity WHERE minute < {now} - ?`, KeepActivity},
		{DataSources, `DELETE FROM bed_data_source WHERE job <> '' AND alive_until < {now} - ?`, keepJobs},
	} {
		if j.usable(p.table) != nil {
			continue
		}
		if _, err := j.exec(ctx, p.table, p.statement, p.keep.Milliseconds()); err != nil {
			errs = append(errs, err)
		}
	}
	if j.usable(Attempts) == nil {
		if err := j.purgeAttempts(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// purgeAttempts erases in portions, so that locks are short.
func (j *Journal) purgeAttempts(ctx context.Context) error {
	gone := `SELECT a.unit_id, a.id FROM bed_attempt a WHERE a.creation_time < {now} - ?
  AND NOT EXISTS (SELECT 1 FROM transaction_log t WHERE t.id = a.unit_id) ORDER BY a.creation_time LIMIT ?`
	remove := j.Pick(
		`DELETE bed_attempt FROM bed_attempt JOIN (`+gone+`) AS old ON bed_attempt.unit_id = old.unit_id AND bed_attempt.id = old.id`,
		`DELETE FROM bed_attempt WHERE (unit_id, id) IN (`+gone+`)`,
		`DELETE FROM bed_attempt WHERE (unit_id, id) IN (`+gone+`)`)
	for {
		n, err := j.exec(ctx, Attempts, remove, keepAttempts.Milliseconds(), purgeRows)
		if err != nil || n < purgeRows {
			return err
		}
	}
}
