package journal

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/dberr"
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

const (
	// flushEvery is how long counts wait before they are written.
	flushEvery = 5 * time.Second
	// flushFor bounds one write.
	flushFor = 5 * time.Second
	// flushRows is the maximum number of data sources in one statement.
	flushRows = 128
	// KeepActivity is how long minutes are kept.
	KeepActivity = 7 * 24 * time.Hour
)

// Tally counts the writes for one data source. A nil Tally does not count. It is safe for
// concurrent use and costs some ten nanoseconds.
type Tally struct {
	journal    *Journal
	dataSource string
}

// counts holds the unwritten counts by data source.
type counts struct {
	off bool

	mu     sync.Mutex
	counts map[string]Counts
	// timer triggers the write; nil if no write is due.
	timer *time.Timer
	// writing is held during a write.
	writing sync.Mutex
}

// Tally returns the counter of a data source; nil if no activity is kept.
func (j *Journal) Tally(dataSource string) *Tally {
	if j == nil || j.counts.off || !j.on(Activity) {
		return nil
	}
	return &Tally{j, dataSource}
}

// Count counts n writes. They are written within a few seconds.
func (t *Tally) Count(o Outcome, n int) {
	if t == nil {
		return
	}
	j := t.journal
	c := &j.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]Counts{}
	}
	sum := c.counts[t.dataSource]
	sum[o] += int64(n)
	c.counts[t.dataSource] = sum
	if c.timer == nil && !j.closed.Load() {
		c.timer = time.AfterFunc(flushEvery, func() {
			ctx, cancel := context.WithTimeout(context.Background(), flushFor)
			defer cancel()
			_ = j.Flush(ctx)
		})
	}
}

// take empties the counts and stops the timer.
func (c *counts) take() map[string]Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	all := c.counts
	c.counts, c.timer = nil, nil
	return all
}

// Flush writes the counts to the current minute of the log's clock. It restores the counts
// of a write that the database refused for a temporary reason. After a missing answer it
// drops them, so that no write is counted twice.
func (j *Journal) Flush(ctx context.Context) error {
	if j == nil {
		return nil
	}
	j.counts.writing.Lock()
	defer j.counts.writing.Unlock()
	all := j.counts.take()
	// Sorted by name: concurrent processes then take their locks in the same order.
	for names := range slices.Chunk(slices.Sorted(maps.Keys(all)), flushRows) {
		if err := j.addActivity(ctx, names, all); err != nil {
			if j.on(Activity) && dberr.Of(err).Known() {
				for name, counts := range all {
					for o, n := range counts {
						(&Tally{j, name}).Count(Outcome(o), int(n))
					}
				}
			}
			return err
		}
		for _, name := range names {
			delete(all, name)
		}
	}
	return nil
}

func (j *Journal) addActivity(ctx context.Context, names []string, all map[string]Counts) error {
	args := make([]any, 0, 7*len(names))
	for _, name := range names {
		args = append(args, name)
		for _, n := range all[name] {
			args = append(args, n)
		}
	}
	_, err := j.exec(ctx, Activity, `INSERT INTO bed_activity (minute, data_source, `+strings.Join(outcomeColumns[:], ", ")+`) VALUES `+
		sqltext.List(len(names), `(`+j.Pick(sqltext.Texts{MySQL: `{now} DIV 60000`, Postgres: `{now} / 60000`, SQLite: `{now} / 60000`})+` * 60000, ?, ?, ?, ?, ?, ?, ?)`, `, `)+
		j.onConflict("minute, data_source", "{column} = bed_activity.{column} + {new}", outcomeColumns[:]), args...)
	return err
}

// ReadActivity returns the minutes of that time, oldest first, at most the newest 400,000: a
// week of forty data sources.
func (j *Journal) ReadActivity(ctx context.Context, since time.Duration) (all []Minute, err error) {
	err = j.each(ctx, Activity, func(rows *sql.Rows) error {
		var m Minute
		var ms int64
		c := &m.Counts
		if err := rows.Scan(&ms, &m.DataSource, &c[AtOnce], &c[SyncRetry], &c[AsyncJob], &c[Pending], &c[Parked], &c[Refused]); err != nil {
			return err
		}
		m.Start = time.UnixMilli(ms)
		all = append(all, m)
		return nil
	}, `SELECT minute, data_source, at_once, sync_retry, async_job, pending, parked, refused FROM bed_activity
  WHERE minute >= {now} - ? ORDER BY minute DESC, data_source DESC LIMIT 400000`, since.Milliseconds())
	slices.Reverse(all)
	return all, err
}

const (
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
