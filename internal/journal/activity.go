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

// Outcome is what happened to a write.
type Outcome uint8

// The outcomes, in the order of the columns of bed_activity.
const (
	// AtOnce: delivered by the caller's first attempt.
	AtOnce Outcome = iota
	// SyncRetry: delivered by a retry in the caller.
	SyncRetry
	// AsyncJob: delivered by the job.
	AsyncJob
	// Pending: left to the job.
	Pending
	// Parked: left to an operator.
	Parked
	// Refused by the database; the caller has its error.
	Refused
	outcomes
)

var outcomeColumns = [outcomes]string{"at_once", "sync_retry", "async_job", "pending", "parked", "refused"}

// Counts are numbers of writes by outcome.
type Counts [outcomes]int64

// Minute is what happened to the writes for a data source in a minute.
type Minute struct {
	Start      time.Time
	DataSource string
	Counts
}

const (
	// flushEvery is how long counts wait to be written.
	flushEvery = 5 * time.Second
	// flushFor bounds one write.
	flushFor = 5 * time.Second
	// flushRows is how many data sources one statement covers.
	flushRows = 128
	// KeepActivity is for how long minutes are kept.
	KeepActivity = 7 * 24 * time.Hour
)

// Tally counts the writes for one data source. A nil one counts nothing. It is
// safe for concurrent use and costs some ten nanoseconds.
type Tally struct {
	journal    *Journal
	dataSource string
}

// counts are what was counted and is not yet written, by data source.
type counts struct {
	off bool

	mu     sync.Mutex
	counts map[string]Counts
	// timer writes them; nil where no write is due.
	timer *time.Timer
	// writing is held by who writes.
	writing sync.Mutex
}

// Tally gives the counter of a data source; nil where no activity is kept.
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

// Flush writes what was counted, to the minute that the log's clock shows. What
// the database refused for a passing reason is counted again; what was not
// answered is not, so that nothing is counted twice.
func (j *Journal) Flush(ctx context.Context) error {
	if j == nil {
		return nil
	}
	j.counts.writing.Lock()
	defer j.counts.writing.Unlock()
	all := j.counts.take()
	// By name, so that processes that write at the same time take their locks in one order.
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

// ReadActivity gives the minutes since then, oldest first, at most the newest
// 400,000: a week of forty data sources.
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
	// keepAttempts is for how long attempts are kept whose entry is not in the
	// log any more.
	keepAttempts = 7 * 24 * time.Hour
	// keepJobs is for how long a job that is gone is remembered.
	keepJobs = 24 * time.Hour
	// purgeRows is how many attempts one statement erases.
	purgeRows = 1000
)

// Purge erases what is past its time: minutes, attempts at entries that are gone,
// jobs that are gone. The audit stays. Attempts go in portions, so that locks are short.
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
