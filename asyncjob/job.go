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
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/lease"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/order"
	"github.com/bedsql/bed/txlog"
)

// ErrClosed is returned by a closed job.
var ErrClosed = errors.New("asyncjob: the job is closed")

// Job delivers the log's units for its targets. It is safe for concurrent use: concurrent
// rounds share the work.
type Job struct {
	storage  txlog.Storage
	leases   *lease.Renewer
	cfg      Config
	schedule cron.Schedule
	sources  map[string]*source
	log      *logrus.Entry
	running  atomic.Bool
	closed   atomic.Bool
	// control exchanges reports between operators and the job.
	control *control
	// concerns are the reported causes that only an operator can fix.
	concerns concerns
	// watching is held while Config.OnProgress is called.
	watching sync.Mutex

	// clock is time.Now; a test has its own.
	clock func() time.Time
	keys  order.Keys
	// serving holds the data sources with a running round of Run.
	serving sync.Map
}

// New makes a job on a log and its targets. The targets may be empty and may lack data
// sources of the log: these are reported and wait. It dials no target. An error names every
// wrong field. Close the job after use; the caller closes storage.
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
		storage: storage, leases: lease.NewRenewer(storage.Renew, cfg.Lease),
		cfg: cfg, schedule: schedule, clock: time.Now,
		sources: make(map[string]*source, len(targets)),
		log:     cfg.Logger.WithField("job", cfg.Name),
	}
	j.keys = order.Keys{Storage: storage, Timeout: cfg.Lease, Logger: j.log}
	j.control = newControl(logdb.Journal(storage), &cfg, j.log)
	receipts := attempt.Receipts{
		LogIdentity: storage.Identity(), Retention: j.cfg.ReceiptRetention, KeyRetention: j.cfg.KeyRetention,
	}
	for name, t := range targets {
		j.sources[name] = newSource(name, t, storage, receipts, &j.cfg, j.log)
	}
	return j, nil
}

// RunOnce makes one round: it tries each due unit once, all data sources side by side. When
// ctx is done it begins no new work, gives back claimed units that have not begun, and waits
// for attempts in flight, for at most Config.ShutdownTimeout. An error means that the round
// is incomplete because of ctx or the log; the report is valid all the same. A failed unit,
// or a data source that is unreachable or waits for an operator, is not an error, but is in
// the report.
func (j *Job) RunOnce(ctx context.Context) (Report, error) {
	if j.closed.Load() {
		return Report{}, ErrClosed
	}
	s, t := newShutdown(ctx, j.cfg.ShutdownTimeout), newTally(j)
	defer s.end()
	for j.keys.Heal(s.ctx) {
	}
	var all sync.WaitGroup
	due, err := j.begin(s, &all)
	if err != nil {
		t.failed(err)
	}
	for _, name := range slices.Sorted(maps.Keys(due)) {
		work := due[name]
		all.Go(func() { j.guard(func() { j.serve(s, t, name, work, true) }) })
	}
	all.Wait()
	for _, name := range t.waiting { // what they wait for may be delivered
		all.Go(func() { j.guard(func() { j.drain(s, t, name, true) }) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		t.failed(fmt.Errorf("asyncjob: the round was cut short: %w", err))
	}
	return t.result()
}

// Run makes rounds by Config.Cron until ctx is done; then it waits for attempts in flight
// like [Job.RunOnce], and returns nil. Each data source has rounds of its own: a tick begins
// one for each with work, except those with a round still going. It logs a failed round, and
// the next tries again. A job allows only one Run at a time; another returns an error.
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
	for j.awaitTick(ctx) {
		j.guard(func() { j.tick(s, &rounds) })
	}
	rounds.Wait()
	return nil
}

// clockEvery is how often the job reads the wall clock, which may be changed at any time.
const clockEvery = time.Second

// awaitTick waits for the next time of the schedule; false if ctx ended before.
func (j *Job) awaitTick(ctx context.Context) bool {
	var next time.Time
	for {
		now := j.clock().Round(0) // the wall clock alone
		// After a backward change of the clock, an earlier time may come next.
		if first := j.schedule.Next(now); next.IsZero() || first.Before(next) {
			next = first
		}
		if !now.Before(next) {
			return true
		}
		if !jitter.Sleep(ctx, min(next.Sub(now), clockEvery)) {
			return false
		}
	}
}

// tick runs at each time of the schedule. For operators, it probes idle data sources that
// are not known to be reachable. It begins a round of each data source with work, unless the
// last is still going.
func (j *Job) tick(s *shutdown, rounds *sync.WaitGroup) {
	j.keys.Heal(s.ctx)
	due, err := j.begin(s, rounds)
	if err != nil && s.ctx.Err() == nil {
		j.log.WithError(err).Error("the round is not complete")
	}
	for name := range j.sources {
		if !due[name] && j.control.wonders(name) {
			j.alone(rounds, name, func() { _ = newDrain(s, newTally(j), name).probe() })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(due)) {
		if !j.alone(rounds, name, func() { j.round(s, name, due[name]) }) {
			j.log.WithField("data_source", name).Debug("a tick is skipped: the round before is still going")
		}
	}
}

// alone runs f in the background, unless the data source is already being served.
func (j *Job) alone(rounds *sync.WaitGroup, name string, f func()) bool {
	if _, busy := j.serving.LoadOrStore(name, true); busy {
		return false
	}
	rounds.Go(func() {
		defer j.serving.Delete(name)
		j.guard(f)
	})
	return true
}

// begin queries the log for data sources with work, records that the job is alive if the log
// answers, and begins to purge the operators' data.
func (j *Job) begin(s *shutdown, rounds *sync.WaitGroup) (map[string]bool, error) {
	due, err := j.due(s.ctx)
	if err == nil {
		j.alive(s.ctx)
	}
	if j.control.purgeDue(j.cfg.PurgeInterval) {
		rounds.Go(func() { j.guard(func() { j.control.purge(s.ctx) }) })
	}
	return due, err
}

func (j *Job) alive(ctx context.Context) { j.control.alive(ctx, j.schedule.Next(time.Now())) }

// round is one round of Run for one data source.
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

// due returns the data sources to serve: true for those with work in the log, false if only
// receipts are due for a purge.
func (j *Job) due(ctx context.Context) (map[string]bool, error) {
	due := map[string]bool{}
	for name, src := range j.sources {
		if _, wanted := src.purgeDue(j.cfg.PurgeInterval, false); wanted {
			due[name] = false
		}
	}
	// A silent log must not keep all later rounds from starting.
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

// serve drains a data source with work, and purges its receipts when due. once means that
// there is no memory of earlier rounds.
func (j *Job) serve(s *shutdown, t *tally, name string, work, once bool) {
	if work {
		d := j.drain(s, t, name, !once)
		if once && d.blocked.get() == nil {
			d.standing()
		}
	}
	if src := j.sources[name]; src != nil && s.ctx.Err() == nil {
		if from, due := src.purgeDue(j.cfg.PurgeInterval, true); due {
			j.purge(s.ctx, t, src, from)
		}
	}
}

// drain delivers the due units of a data source. again is set if the round does not come
// back to it.
func (j *Job) drain(s *shutdown, t *tally, name string, again bool) *drain {
	d := newDrain(s, t, name)
	d.again = again
	d.run()
	return d
}

// Close closes the connections to the targets. Call it when no round is running: a running
// one would find its data sources unreachable. It returns nil: a failure to close a broken
// idle connection has no consequences.
func (j *Job) Close() error {
	if !j.closed.CompareAndSwap(false, true) {
		return nil
	}
	j.control.leave()
	for _, s := range j.sources {
		s.others.close()
		if err := s.own.close(); err != nil {
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

// writeGrace is how long verdicts may still be written after attempts in flight were cut
// off.
const writeGrace = 5 * time.Second

// shutdown ends work in three steps, one context after the other.
type shutdown struct {
	// ctx is the caller's: once it is done, no new work begins.
	ctx context.Context
	// flight ends ShutdownTimeout after ctx: it cuts off attempts in flight.
	flight context.Context
	// writes ends writeGrace after flight: later verdicts are left to the leases' end.
	writes context.Context
	end    func()
}

func newShutdown(ctx context.Context, timeout time.Duration) *shutdown {
	s := &shutdown{ctx: ctx}
	var endFlight, endWrites func()
	s.flight, endFlight = outlive(ctx, timeout)
	s.writes, endWrites = outlive(s.flight, writeGrace)
	s.end = func() {
		endWrites()
		endFlight()
	}
	return s
}

// outlive derives a context that ends d after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		jitter.Sleep(longer, d)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}
