package journal

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/bedsql/bed/internal/sqltext"
)

// Outcome is the outcome of a write.
type Outcome uint8

// The outcomes, in the order of the columns of bed_activity.
const (
	// AtOnce means delivered by the caller's first attempt.
	AtOnce Outcome = iota
	// SyncRetry means delivered by a retry in the caller.
	SyncRetry
	// AsyncJob means delivered by the job.
	AsyncJob
	// Pending means left to the job.
	Pending
	// Parked means left to an operator.
	Parked
	// Refused means refused by the database; the caller has its error.
	Refused
	outcomes
)

var outcomeColumns = [outcomes]string{"at_once", "sync_retry", "async_job", "pending", "parked", "refused"}

// Counts are numbers of writes by outcome.
type Counts [outcomes]int64

// Minute counts the writes for a data source in one minute.
type Minute struct {
	Start      time.Time
	DataSource string
	Counts
}

// ReadActivity returns the minutes of that time, oldest first, at most the newest 400,000: a
// week of forty data sources.
func (j *Journal) ReadActivity(ctx context.Context, since time.Duration) (all []Minute, err error) {
	all, err = list(ctx, j, Activity, func(rows *sql.Rows, m *Minute) error {
		var ms int64
		c := &m.Counts
		err := rows.Scan(&ms, &m.DataSource, &c[AtOnce], &c[SyncRetry], &c[AsyncJob], &c[Pending], &c[Parked], &c[Refused])
		m.Start = time.UnixMilli(ms)
		return err
	}, `SELECT minute, data_source, at_once, sync_retry, async_job, pending, parked, refused FROM bed_activity
  WHERE minute >= {now} - ? ORDER BY minute DESC, data_source DESC LIMIT 400000`, since.Milliseconds())
	slices.Reverse(all)
	return all, err
}

const (
	// KeepActivity is how long minutes are kept.
	KeepActivity = 7 * 24 * time.Hour
	// keepAttempts is how long attempts are kept after their entry has left the log.
	keepAttempts = 7 * 24 * time.Hour
	// keepJobs is how long a job that is gone is remembered.
	keepJobs = 24 * time.Hour
	// purgeRows is the maximum number of attempts that one statement erases.
	purgeRows = 1000
)

// Purge erases outdated rows: minutes, attempts without an entry, jobs that are gone. The
// audit stays. Attempts are erased in portions, so that locks are short.
func (j *Journal) Purge(ctx context.Context) error {
	if j == nil {
		return nil
	}
	gone := `SELECT a.unit_id, a.id FROM bed_attempt a WHERE a.creation_time < {now} - ?
  AND NOT EXISTS (SELECT 1 FROM transaction_log t WHERE t.id = a.unit_id) ORDER BY a.creation_time LIMIT ` + strconv.Itoa(purgeRows)
	attempts := `DELETE FROM bed_attempt WHERE (unit_id, id) IN (` + gone + `)`
	attempts = j.Pick(sqltext.Texts{MySQL: `DELETE bed_attempt FROM bed_attempt JOIN (` + gone + `) AS old USING (unit_id, id)`, Postgres: attempts, SQLite: attempts})
	var errs []error
	for _, p := range []struct {
		table, statement string
		keep             time.Duration
	}{
		{Activity, `DELETE FROM bed_activity WHERE minute < {now} - ?`, KeepActivity},
		{DataSources, `DELETE FROM bed_data_source WHERE job <> '' AND alive_until < {now} - ?`, keepJobs},
		{Attempts, attempts, keepAttempts},
	} {
		for n := int64(purgeRows); n >= purgeRows && j.on(p.table); {
			var err error
			n, err = j.exec(ctx, p.table, p.statement, p.keep.Milliseconds())
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
