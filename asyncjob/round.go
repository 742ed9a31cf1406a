package asyncjob

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/bedsql/bed/txlog"
)

// writeGrace is how long verdicts may still be written after what was in
// flight has been cut off.
const writeGrace = 5 * time.Second

// round is one pass over all data sources. Its three contexts end one after
// the other.
type round struct {
	job *Job
	// ctx is the caller's: once it is done, nothing new begins.
	ctx context.Context
	// flight ends ShutdownTimeout after ctx: it cuts off what is in flight.
	flight context.Context
	// writes ends writeGrace after flight: verdicts that cannot be written by
	// then are left to the leases' end.
	writes context.Context
	end    func()
	start  time.Time

	mu   sync.Mutex
	rows map[string]DataSourceReport
	errs []error
}

func newRound(ctx context.Context, j *Job) *round {
	r := &round{job: j, ctx: ctx, start: time.Now(), rows: map[string]DataSourceReport{}}
	var endFlight, endWrites func()
	r.flight, endFlight = outlive(ctx, j.cfg.ShutdownTimeout)
	r.writes, endWrites = outlive(r.flight, writeGrace)
	r.end = func() {
		endWrites()
		endFlight()
	}
	return r
}

// outlive derives a context that ends d after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

func (r *round) run() (Report, error) {
	// A log that does not answer must not keep all later rounds from starting.
	ctx, cancel := context.WithTimeout(r.ctx, r.job.cfg.Lease)
	names, err := r.job.storage.DataSources(ctx)
	cancel()
	if err != nil {
		r.failed(fmt.Errorf("asyncjob: the transaction log does not say which data sources have work: %w", err))
	}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { r.job.guard(func() { r.serve(name) }) })
	}
	all.Wait()
	r.purgeAll()
	if err := r.ctx.Err(); err != nil {
		r.failed(fmt.Errorf("asyncjob: the round was cut short: %w", err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report(), errors.Join(r.errs...)
}

// serve drains one data source.
func (r *round) serve(name string) {
	v := &visit{
		round: r, src: r.job.sources[name], name: name,
		rested: map[string]bool{}, holds: map[*txlog.Unit]func(){},
	}
	v.note(func(*DataSourceReport) {}) // so that the report names it
	if !v.open() {
		return
	}
	if err := v.drain(); err != nil {
		r.failed(fmt.Errorf("asyncjob: data source %s: claiming failed: %w", name, err))
	}
}

// claim does not end with ctx: an answer that came too late would leave units
// claimed that nobody knows of until their leases end.
func (v *visit) claim(limit int) ([]*txlog.Unit, error) {
	cfg := &v.round.job.cfg
	ctx, cancel := context.WithTimeout(v.round.flight, cfg.Lease)
	defer cancel()
	return v.round.job.storage.Claim(ctx, txlog.ClaimRequest{
		DataSource: v.name, Limit: limit, MinAge: cfg.minAge(), Lease: cfg.Lease,
	})
}

func (r *round) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// note changes the report of a data source and tells who watches.
func (r *round) note(name string, change func(*DataSourceReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.rows[name]
	change(&row)
	r.rows[name] = row
	if watch := r.job.cfg.OnProgress; watch != nil {
		r.job.guard(func() { watch(r.report()) })
	}
}

// report is called with mu held.
func (r *round) report() Report {
	rep := Report{DataSources: maps.Clone(r.rows), Duration: time.Since(r.start)}
	for _, row := range r.rows {
		rep.add(row.Counts)
	}
	return rep
}
