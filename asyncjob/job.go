package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/txlog"
)

// ErrClosed is returned by a job that was closed.
var ErrClosed = errors.New("asyncjob: the job is closed")

// Job delivers what the log holds for its targets. It is safe for concurrent
// use: rounds that run at the same time share the work.
type Job struct {
	storage  txlog.Storage
	leases   *lease.Renewer
	cfg      Config
	schedule cron.Schedule
	sources  map[string]*source
	log      *logrus.Entry
	running  atomic.Bool
	closed   atomic.Bool
	// control is for what operators tell the job and are told.
	control *control
	// concerns are what was told that only an operator can mend.
	concerns concerns
	// watching is held while Config.OnProgress is called.
	watching sync.Mutex

	// ahead is how far the machine's wall clock has run ahead of the time that passed;
	// a test has its own.
	ahead func() time.Duration

	mu sync.Mutex
	// serving are the data sources of which a round of Run is going.
	serving map[string]bool
}

// New makes a job on a log and its targets, which may be empty and may lack
// data sources of the log: those are reported and wait. It dials nothing. An
// error names every field that is wrong. Close the job after use; storage
// stays the caller's to close.
func New(storage txlog.Storage, targets Targets, cfg Config) (*Job, error) {
	cfg = cfg.WithDefaults()
	var errs []error
	if storage == nil {
		errs = append(errs, errors.New("asyncjob: storage is nil: open the transaction log with txlog.Open"))
	}
	if err := errors.Join(append(errs, cfg.validate(), targets.validate())...); err != nil {
		return nil, err
	}
	schedule, err := parseSchedule(cfg.Cron)
	if err != nil {
		return nil, err
	}
	j := &Job{
		ahead:   wallClock(time.Now()),
		storage: storage, leases: lease.NewRenewer(storage, cfg.Lease),
		cfg: cfg, schedule: schedule,
		sources: make(map[string]*source, len(targets)), serving: map[string]bool{},
		log: cfg.Logger.WithField("job", cfg.Name),
	}
	j.control = newControl(storage, &cfg, j.log)
	receipts := attempt.Receipts{
		LogIdentity: storage.Identity(), Retention: j.cfg.ReceiptRetention, KeyRetention: j.cfg.KeyRetention,
	}
	for name, t := range targets {
		j.sources[name] = newSource(name, t, storage, receipts, &j.cfg, j.log)
	}
	return j, nil
}

// RunOnce makes one round: it delivers what is due, all data sources side by
// side. When ctx is done it begins nothing new, gives back what it claimed and
// did not begin, and waits for what is in flight, at most for
// Config.ShutdownTimeout. An error means that the round is not complete,
// because of ctx or of the log; the report says what was done all the same. A
// unit that fails and a data source that is unreachable, or waits for an
// operator, are no error, they are in the report.
func (j *Job) RunOnce(ctx context.Context) (Report, error) {
	if j.closed.Load() {
		return Report{}, ErrClosed
	}
	s, t := newShutdown(ctx, j.cfg.ShutdownTimeout), newTally(j)
	defer s.end()
	due, err := j.due(ctx)
	if err != nil {
		t.failed(err)
	}
	var all sync.WaitGroup
	j.beat(ctx, err)
	if j.control.purgeDue(j.cfg.PurgeInterval) {
		all.Go(func() { j.guard(func() { j.control.purge(s.ctx) }) })
	}
	for _, name := range slices.Sorted(maps.Keys(due)) {
		work := due[name]
		all.Go(func() { j.guard(func() { j.serve(s, t, name, work, true) }) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		t.failed(fmt.Errorf("asyncjob: the round was cut short: %w", err))
	}
	return t.result()
}

// Run makes rounds by Config.Cron until ctx is done; then it waits for what is
// in flight as [Job.RunOnce] does, and returns nil. Each data source has rounds
// of its own: a tick begins one for each that has work, and skips those whose
// round before is still going. A round that fails is logged, the next tries
// again. Only one Run of a job at a time; another returns an error.
func (j *Job) Run(ctx context.Context) error {
	if !j.running.CompareAndSwap(false, true) {
		return fmt.Errorf("asyncjob: %s is running already", j.cfg.Name)
	}
	defer j.running.Store(false)
	if j.closed.Load() {
		return ErrClosed
	}
	s := newShutdown(ctx, j.cfg.ShutdownTimeout)
	defer s.end()
	var rounds sync.WaitGroup
	logger := cronLogger{j.log}
	// In this order: a panic that reached SkipIfStillRunning would make it skip
	// every tick from then on.
	tick := cron.NewChain(cron.SkipIfStillRunning(logger), cron.Recover(logger)).
		Then(cron.FuncJob(func() { j.tick(s, &rounds) }))
	c := cron.New(cron.WithLogger(cron.DiscardLogger))
	entry := c.Schedule(j.schedule, tick)
	c.Start()
	// The next time was taken from a clock that shows another one now.
	j.followClock(ctx, func() {
		c.Remove(entry)
		entry = c.Schedule(j.schedule, tick)
	})
	<-c.Stop().Done()
	rounds.Wait()
	return nil
}

// tick is what each time of the schedule does: it asks the log which data sources
// have work, records that the job is alive, begins what look does, and begins a round
// of each data source that has work and is not served yet.
func (j *Job) tick(s *shutdown, rounds *sync.WaitGroup) {
	due, err := j.due(s.ctx)
	if err != nil && s.ctx.Err() == nil {
		j.log.WithError(err).Error("the round is not complete")
	}
	j.beat(s.ctx, err)
	j.look(s, rounds, due)
	for _, name := range slices.Sorted(maps.Keys(due)) {
		work := due[name]
		if !j.take(name) {
			j.log.WithField("data_source", name).Debug("a tick is skipped: the round before is still going")
			continue
		}
		rounds.Go(func() {
			defer j.leave(name)
			j.guard(func() { j.round(s, name, work) })
		})
	}
}

// beat says that the job is alive, unless the log did not answer.
func (j *Job) beat(ctx context.Context, err error) {
	if err == nil {
		j.control.alive(ctx, j.schedule.Next(time.Now()))
	}
}

// look does what operators are told of beside the rounds: it probes data sources
// without work that are not known to be reachable, and purges.
func (j *Job) look(s *shutdown, rounds *sync.WaitGroup, due map[string]bool) {
	if j.control.purgeDue(j.cfg.PurgeInterval) {
		rounds.Go(func() { j.guard(func() { j.control.purge(s.ctx) }) })
	}
	for name := range j.sources {
		if due[name] || !j.control.wonders(name) || !j.take(name) {
			continue
		}
		rounds.Go(func() {
			defer j.leave(name)
			j.guard(func() { _ = newDrain(s, newTally(j), name).probe() })
		})
	}
}

func (j *Job) take(name string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.serving[name] {
		return false
	}
	j.serving[name] = true
	return true
}

func (j *Job) leave(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.serving, name)
}

// round is one of Run's, of one data source.
func (j *Job) round(s *shutdown, name string, work bool) {
	t := newTally(j)
	j.serve(s, t, name, work, false)
	report, err := t.result()
	log := j.log.WithField("data_source", name)
	switch {
	case err != nil && s.ctx.Err() == nil:
		log.WithError(err).Errorf("the round is not complete: %v", report)
	case report.Claimed > 0:
		log.Infof("round: %v", report)
	default:
		log.Debugf("round: %v", report)
	}
}

// due gives the data sources that something is to be done for: true for those
// that have work in the log, false where only receipts are to be purged.
func (j *Job) due(ctx context.Context) (map[string]bool, error) {
	due := map[string]bool{}
	for name, src := range j.sources {
		if src.purgeWanted(j.cfg.PurgeInterval) {
			due[name] = false
		}
	}
	// A log that does not answer must not keep all later rounds from starting.
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Lease)
	defer cancel()
	names, err := j.storage.DataSources(ctx)
	if err != nil {
		return due, fmt.Errorf("asyncjob: the transaction log does not say which data sources have work: %w", err)
	}
	for _, name := range names {
		due[name] = true
	}
	return due, nil
}

// serve drains a data source that has work, and purges its receipts when their
// turn has come. once: nobody remembers what the rounds before found.
func (j *Job) serve(s *shutdown, t *tally, name string, work, once bool) {
	if work {
		d := newDrain(s, t, name)
		d.run()
		if once && d.blocked == nil {
			d.standing()
		}
	}
	if src := j.sources[name]; src != nil && s.ctx.Err() == nil {
		if due, from := src.purgeDue(j.cfg.PurgeInterval); due {
			j.purge(s.ctx, t, src, from)
		}
	}
}

// Close closes the connections to the targets. Call it when no round runs any
// more: one that does finds its data sources unreachable. It returns nil: a
// connection that cannot be closed in good order, because it was cut while it
// was idle, takes nothing along.
func (j *Job) Close() error {
	if !j.closed.CompareAndSwap(false, true) {
		return nil
	}
	j.control.leave()
	for _, s := range j.sources {
		s.others.close()
		if err := s.own.pool.Close(); err != nil {
			s.log.WithError(err).Debug("a connection was not closed in good order")
		}
	}
	return nil
}

// guard keeps a panic in one goroutine of a round from ending the process.
func (j *Job) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			j.log.WithFields(logrus.Fields{"panic": p, "stack": string(debug.Stack())}).Error("panic in the job")
		}
	}()
	f()
}
