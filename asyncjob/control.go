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
	"github.com/bedsql/bed/txlog"
)

const (
	// beatEvery is how often a job says that it is alive at the most, and beatGrace how
	// long after its next tick it is taken for gone.
	beatEvery, beatGrace = 5 * time.Second, 30 * time.Second
	// tellFor bounds what a job tells operators: a round does not depend on it.
	tellFor = 5 * time.Second
	// idleProbe is how often a data source is probed that has no work and is not
	// known to be reachable.
	idleProbe = 30 * time.Second
	// busyWrites is how many writes of applications in this minute and the one before
	// count as applications that write.
	busyWrites = 60
	// slotWait is how long a drain that is limited waits at the most before it looks again.
	slotWait = time.Second
)

// control is what this job reports to operators and other jobs, and what it learns: by
// tables of the log. A log that keeps none leaves it without a journal.
type control struct {
	journal   *journal.Journal
	job, name string
	log       logrus.FieldLogger
	// answerWithin bounds what a round has to know before it goes on, so that a log
	// that does not answer ends the round and not the job.
	answerWithin time.Duration
	// after is time.After; a test has its own.
	after func(time.Duration) <-chan time.Time
	// read: what operators decided was read once.
	read atomic.Bool

	mu     sync.Mutex
	beat   time.Time
	purged time.Time
	seen   map[string]seen
}

// seen is what was reported of a data source.
type seen struct {
	reachable bool
	probed    time.Time
}

func newControl(storage txlog.Storage, cfg *Config, log logrus.FieldLogger) *control {
	c := &control{
		journal: journal.Of(storage), job: journal.NewID(), log: log, seen: map[string]seen{},
		answerWithin: cfg.Lease, after: time.After,
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	c.name = fmt.Sprintf("%s on %s, process %d", cfg.Name, host, os.Getpid())
	c.journal.TellOff(log.Warn)
	return c
}

// tell runs what tells operators something. That it cannot be reported is no reason to
// end a round.
func (c *control) tell(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, tellFor)
	defer cancel()
	return f(ctx)
}

// alive says that the job is, and will be until the next tick.
func (c *control) alive(ctx context.Context, next time.Time) {
	c.journal.TellOff(c.log.Warn)
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

// see tells how the job sees a data source, when that changes.
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

// wonders reports whether a data source without work should be probed: it was
// not, or not reachable then.
func (c *control) wonders(dataSource string) bool {
	if c.journal == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.seen[dataSource]
	return !s.reachable && time.Since(s.probed) >= idleProbe
}

// reserve asks how many units may be claimed now: want without a limit, 0 while the
// data source is paused. It waits for the limit's next slots, which all jobs share by
// a row of the log.
func (c *control) reserve(ctx context.Context, dataSource string, want int) (n int, paused bool, err error) {
	for {
		n, wait, control, err := c.reserveOnce(ctx, dataSource, want)
		switch {
		case c.none(err):
			return want, false, nil
		case err != nil:
			return 0, false, fmt.Errorf("whether it is paused or limited cannot be read: %w", err)
		case control.Paused || n > 0:
			return n, control.Paused, nil
		}
		select {
		case <-c.after(min(wait, slotWait)):
		case <-ctx.Done():
			return 0, false, nil
		}
	}
}

func (c *control) reserveOnce(ctx context.Context, dataSource string, want int) (int, time.Duration, journal.Control, error) {
	ctx, cancel := context.WithTimeout(ctx, c.answerWithin)
	defer cancel()
	return c.journal.Reserve(ctx, dataSource, want)
}

// others tells p whether applications write to a data source, and how many jobs deliver
// to it. It goes by what they tell operators; a log that does not keep it knows of nobody.
func (c *control) others(ctx context.Context, dataSource string, p *pace) {
	_ = c.tell(ctx, func(ctx context.Context) error {
		writes, jobs, err := c.journal.Writers(ctx, dataSource)
		if err == nil {
			p.share(writes >= busyWrites, jobs)
		}
		return err
	})
}

// none reports whether err says that the log has no table of what operators
// decide. Once that was read, it is no answer any more: they may have decided.
func (c *control) none(err error) bool {
	if err == nil {
		c.read.Store(true)
	}
	return errors.Is(err, journal.ErrOff) && !c.read.Load()
}

// purgeDue reports whether what operators read should be purged now.
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

// leave says that the job has ended.
func (c *control) leave() {
	c.mu.Lock()
	told := len(c.seen) > 0 || !c.beat.IsZero()
	c.mu.Unlock()
	if told {
		_ = c.tell(context.Background(), func(ctx context.Context) error { return c.journal.Leave(ctx, c.job) })
	}
}
