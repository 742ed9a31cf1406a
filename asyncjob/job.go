package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ErrClosed is returned by a job that was closed.
var ErrClosed = errors.New("asyncjob: the job is closed")

// Job delivers what the log holds for its targets. It is safe for concurrent
// use: rounds that run at the same time share the work.
type Job struct {
	storage  txlog.Storage
	keeper   *txlog.Keeper
	cfg      Config
	schedule cron.Schedule
	sources  map[string]*source
	log      *logrus.Entry
	running  atomic.Bool
	closed   atomic.Bool
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
		storage: storage, keeper: txlog.NewKeeper(storage, cfg.Lease),
		cfg: cfg, schedule: schedule,
		sources: make(map[string]*source, len(targets)),
		log:     cfg.Logger.WithField("job", cfg.Name),
	}
	receipts := delivery.Receipts{
		LogID: storage.Identity(), Retention: j.cfg.ReceiptRetention, KeyRetention: j.cfg.KeyRetention,
	}
	for name, t := range targets {
		j.sources[name] = newSource(name, t, receipts, &j.cfg, j.log)
	}
	return j, nil
}

// RunOnce makes one round: it delivers what is due, all data sources side by
// side. When ctx is done it begins nothing new, gives back what it claimed and
// did not begin, and waits for what is in flight, at most for
// Config.ShutdownTimeout. An error means that the round is not complete,
// because of ctx or of the log; the report says what was done all the same. A
// unit that fails and a data source that is unreachable are no error, they are
// in the report.
func (j *Job) RunOnce(ctx context.Context) (Report, error) {
	if j.closed.Load() {
		return Report{}, ErrClosed
	}
	r := newRound(ctx, j)
	defer r.end()
	return r.run()
}

// Run makes rounds by Config.Cron until ctx is done; then it waits for what is
// in flight as [Job.RunOnce] does, and returns nil. A tick that comes while a
// round is still going is skipped. A round that fails is logged, the next
// tries again. Only one Run of a job at a time; another returns an error.
func (j *Job) Run(ctx context.Context) error {
	if !j.running.CompareAndSwap(false, true) {
		return fmt.Errorf("asyncjob: %s is running already", j.cfg.Name)
	}
	defer j.running.Store(false)
	if j.closed.Load() {
		return ErrClosed
	}
	logger := cronLogger{j.log}
	// In this order: a panic that reached SkipIfStillRunning would make it skip
	// every tick from then on.
	c := cron.New(cron.WithLogger(cron.DiscardLogger),
		cron.WithChain(cron.SkipIfStillRunning(logger), cron.Recover(logger)))
	c.Schedule(j.schedule, cron.FuncJob(func() { j.tick(ctx) }))
	c.Start()
	<-ctx.Done()
	<-c.Stop().Done()
	return nil
}

func (j *Job) tick(ctx context.Context) {
	report, err := j.RunOnce(ctx)
	log := j.log
	switch {
	case err != nil && ctx.Err() == nil:
		log.WithError(err).Errorf("the round is not complete: %v", report)
	case report.Claimed > 0:
		log.Infof("round: %v", report)
	default:
		log.Debugf("round: %v", report)
	}
}

// Close closes the connections to the targets. Call it when no round runs any
// more: one that does finds its data sources unreachable.
func (j *Job) Close() error {
	if !j.closed.CompareAndSwap(false, true) {
		return nil
	}
	var errs []error
	for name, s := range j.sources {
		s.others.close()
		if err := s.own.pool.Close(); err != nil {
			errs = append(errs, fmt.Errorf("asyncjob: close data source %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
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

// cronLogger takes the lines of the cron chain.
type cronLogger struct{ log logrus.FieldLogger }

func (l cronLogger) Info(msg string, _ ...any) {
	if msg == "skip" {
		msg = "a tick is skipped: the round before is still going"
	}
	l.log.Debug(msg)
}

func (l cronLogger) Error(err error, msg string, kv ...any) {
	l.log.WithError(err).WithField("details", fmt.Sprint(kv...)).Error(msg)
}
