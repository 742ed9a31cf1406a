package journal

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
// safe for concurrent use and costs a few nanoseconds.
type Tally struct {
	name    string
	journal *Journal
	counts  [outcomes]atomic.Int64
}

// counts are the tallies of a journal, and when they are written.
type counts struct {
	off bool
	// armed: a write is due.
	armed atomic.Bool

	mu      sync.Mutex
	tallies map[string]*Tally
	timer   *time.Timer
	stopped bool
	// writing is held by who writes.
	writing sync.Mutex
}

// Tally gives the counter of a data source; nil where no activity is kept.
func (j *Journal) Tally(dataSource string) *Tally {
	if j == nil || j.counts.off || !j.on(Activity) {
		return nil
	}
	c := &j.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tallies[dataSource]
	if t == nil {
		t = &Tally{name: dataSource, journal: j}
		if c.tallies == nil {
			c.tallies = map[string]*Tally{}
		}
		c.tallies[dataSource] = t
	}
	return t
}

// Count counts n writes. They are written within a few seconds.
func (t *Tally) Count(o Outcome, n int) {
	if t == nil {
		return
	}
	t.counts[o].Add(int64(n))
	c := &t.journal.counts
	if c.armed.Load() || c.armed.Swap(true) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.timer = time.AfterFunc(flushEvery, func() {
			ctx, cancel := context.WithTimeout(context.Background(), flushFor)
			defer cancel()
			_ = t.journal.Flush(ctx)
		})
	}
}

func (c *counts) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// counted is what a tally had counted.
type counted struct {
	tally *Tally
	Counts
}

// take empties the tallies. It gives those that counted something, by name, so
// that processes that write at the same time take their locks in one order.
func (c *counts) take() []counted {
	c.armed.Store(false) // before: what is counted from now on arms again
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []counted
	for _, t := range c.tallies {
		n, some := counted{tally: t}, false
		for o := range n.Counts {
			n.Counts[o] = t.counts[o].Swap(0)
			some = some || n.Counts[o] != 0
		}
		if some {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b counted) int { return strings.Compare(a.tally.name, b.tally.name) })
	return all
}

// Flush writes what was counted, to the minute that the log's clock shows. What
// the database refused for a passing reason is counted again; what was not
// answered is not, so that nothing is counted twice.
func (j *Journal) Flush(ctx context.Context) error {
	if j == nil || j.counts.off {
		return nil
	}
	j.counts.writing.Lock()
	defer j.counts.writing.Unlock()
	all := j.counts.take()
	for len(all) > 0 {
		n := min(len(all), flushRows)
		if err := j.addActivity(ctx, all[:n]); err != nil {
			if j.on(Activity) && dberr.Of(err).Known() {
				for _, c := range all {
					c.again()
				}
			}
			return err
		}
		all = all[n:]
	}
	return nil
}

func (c *counted) again() {
	for o, n := range c.Counts {
		if n != 0 {
			c.tally.Count(Outcome(o), int(n))
		}
	}
}

func (j *Journal) addActivity(ctx context.Context, all []counted) error {
	args := make([]any, 0, 7*len(all))
	for _, c := range all {
		args = append(args, c.tally.name)
		for _, n := range c.Counts {
			args = append(args, n)
		}
	}
	_, err := j.exec(ctx, Activity, `INSERT INTO bed_activity (minute, data_source, `+strings.Join(outcomeColumns[:], ", ")+`) VALUES `+
		sqltext.List(len(all), `(`+j.Pick(sqltext.Texts{MySQL: `{now} DIV 60000`, Postgres: `{now} / 60000`, SQLite: `{now} / 60000`})+` * 60000, ?, ?, ?, ?, ?, ?, ?)`, `, `)+
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
	// purgeRows is how many rows one statement erases.
	purgeRows = 1000
)

// Purge erases what is past its time: minutes, attempts at entries that are gone,
// jobs that are gone. The audit stays.
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
		if !j.on(p.table) {
			continue
		}
		_, err := j.exec(ctx, p.table, p.statement, p.keep.Milliseconds())
		errs = append(errs, err)
	}
	if j.on(Attempts) {
		errs = append(errs, j.purgeAttempts(ctx))
	}
	return errors.Join(errs...)
}

// purgeAttempts erases in portions, so that locks are short.
func (j *Journal) purgeAttempts(ctx context.Context) error {
	gone := `SELECT a.unit_id, a.id FROM bed_attempt a WHERE a.creation_time < {now} - ?
  AND NOT EXISTS (SELECT 1 FROM transaction_log t WHERE t.id = a.unit_id) ORDER BY a.creation_time LIMIT ?`
	remove := `DELETE FROM bed_attempt WHERE (unit_id, id) IN (` + gone + `)`
	remove = j.Pick(sqltext.Texts{MySQL: `DELETE bed_attempt FROM bed_attempt JOIN (` + gone + `) AS old USING (unit_id, id)`, Postgres: remove, SQLite: remove})
	for {
		n, err := j.exec(ctx, Attempts, remove, keepAttempts.Milliseconds(), purgeRows)
		if err != nil || n < purgeRows {
			return err
		}
	}
}
