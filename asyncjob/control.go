package asyncjob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/journal"
)

const (
	// beatEvery is the minimum time between two beats of a job. beatGrace is how long after its
	// next tick the job counts as gone.
	beatEvery, beatGrace = 5 * time.Second, 30 * time.Second
	// tellFor bounds a job's reports to operators: a round does not depend on them.
	tellFor = 5 * time.Second
	// idleProbe is how often an idle data source is probed if it is not known to be reachable.
	idleProbe = 30 * time.Second
	// busyWrites is the number of applications' writes, in this minute and the last, from which
	// applications count as writing.
	busyWrites = 60
	// slotWait is the longest wait of a limited drain before it checks again.
	slotWait = time.Second
)

// control exchanges reports with operators and other jobs, through tables of the log.
// Without such tables it has no journal.
type control struct {
	journal   *journal.Journal
	job, name string
	log       logrus.FieldLogger
	// answerWithin bounds the queries that a round depends on, so that a silent log ends the
	// round and not the job.
	answerWithin time.Duration
	// after is time.After; a test has its own.
	after func(time.Duration) <-chan time.Time
	// read is set once the operators' decisions were read.
	read atomic.Bool

	mu     sync.Mutex
	beat   time.Time
	purged time.Time
	seen   map[string]seen
}

// seen is the last report about a data source.
type seen struct {
	reachable bool
	probed    time.Time
}

func newControl(j *journal.Journal, cfg *Config, log logrus.FieldLogger) *control {
	c := &control{
		journal: j, job: journal.NewID(), log: log, seen: map[string]seen{},
		answerWithin: cfg.Lease, after: time.After,
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	c.name = fmt.Sprintf("%s on %s, process %d", cfg.Name, host, os.Getpid())
	c.journal.TellOff(log.Warn, journal.Audit)
	return c
}

// tell runs a report to operators. Its failure is no reason to end a round.
func (c *control) tell(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, tellFor)
	defer cancel()
	return f(ctx)
}

// alive reports that the job is alive, and will be until the next tick.
func (c *control) alive(ctx context.Context, next time.Time) {
	c.journal.TellOff(c.log.Warn, journal.Audit)
	c.mu.Lock()
	now := time.Now()
	due := now.Sub(c.beat) >= beatEvery
	if due {
		c.beat = now
	}
	c.mu.Unlock()
	if due {
		_ = c.tell(ctx, func(ctx context.Context) error {
			return c.journal.Beat(ctx, c.job, c.name, max(next.Sub(now), 0)+beatGrace)
		})
	}
}

// see reports the job's view of a data source when it changes.
func (c *control) see(ctx context.Context, dataSource string, why error) {
	c.mu.Lock()
	before, was := c.seen[dataSource]
	c.seen[dataSource] = seen{why == nil, time.Now()}
	c.mu.Unlock()
	if was && before.reachable == (why == nil) {
		return
	}
	text := ""
	if why != nil {
		text = cmp.Or(why.Error(), fmt.Sprintf("%T", why))
	}
	if c.tell(ctx, func(ctx context.Context) error {
		return c.journal.See(ctx, dataSource, c.job, c.name, text)
	}) != nil {
		c.mu.Lock()
		delete(c.seen, dataSource) // the next time
		c.mu.Unlock()
	}
}

// wonders reports whether to probe an idle data source: it was not probed, or was
// unreachable then.
func (c *control) wonders(dataSource string) bool {
	if c.journal == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seen[dataSource]
	return !s.reachable && time.Since(s.probed) >= idleProbe
}

// reserve returns how many units may be claimed now: want without a limit, 0 while the data
// source is paused. It waits for the limit's next slots, which all jobs share in a row of
// the log.
func (c *control) reserve(ctx context.Context, dataSource string, want int) (n int, paused bool, err error) {
	for {
		bounded, cancel := context.WithTimeout(ctx, c.answerWithin)
		n, wait, control, err := c.journal.Reserve(bounded, dataSource, want)
		cancel()
		switch {
		case errors.Is(err, journal.ErrOff) && !c.read.Load(): // the log has no table of decisions
			return want, false, nil
		case err != nil:
			return 0, false, fmt.Errorf("whether it is paused or limited cannot be read: %w", err)
		}
		c.read.Store(true) // from now on there may be decisions
		if control.Paused || n > 0 {
			return n, control.Paused, nil
		}
		select {
		case <-c.after(min(wait, slotWait)):
		case <-ctx.Done():
			return 0, false, nil
		}
	}
}

// others tells p whether applications write to a data source, and how many jobs deliver to
// it. It uses the reports to operators; without them it assumes no others.
func (c *control) others(ctx context.Context, dataSource string, p *pace) {
	_ = c.tell(ctx, func(ctx context.Context) error {
		writes, jobs, err := c.journal.Writers(ctx, dataSource)
		if err == nil {
			p.share(writes >= busyWrites, jobs)
		}
		return err
	})
}

// purgeDue reports whether to purge the operators' data now.
func (c *control) purgeDue(interval time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := time.Since(c.purged) >= interval
	if due {
		c.purged = time.Now()
	}
	return due
}

func (c *control) purge(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, purgeLimit)
	defer cancel()
	_ = c.journal.Purge(ctx)
}

// leave reports that the job has ended.
func (c *control) leave() {
	c.mu.Lock()
	told := len(c.seen) > 0 || !c.beat.IsZero()
	c.mu.Unlock()
	if told {
		_ = c.tell(context.Background(), func(ctx context.Context) error { return c.journal.Leave(ctx, c.job) })
	}
}
