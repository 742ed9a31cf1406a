package bench

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// drainConns is drain.conns of a measurement.
const drainConns = 64

// The configuration of a job for speed.
const (
	drainJobConns = 16
	drainBatch    = 32
)

// drain measures the speed of working off a backlog: by the job, by other queues, and by callers
// of the bare driver.
type drain struct {
	opts *Options
	site *site
	// conns is the number of connections of the bare driver, and of a job that delivers each unit
	// alone.
	conns int
	// rates are rows per second by target and contender, cpu the processor
	// time of all their turns.
	rates map[string]map[string]series
	cpu   map[string]map[string]spent
	watch processes
}

// drainer is a way to change each row of a table once.
type drainer struct {
	id string
	// prepare lays the work out, work does it.
	prepare func(ctx context.Context, table string) (work func(context.Context) error, done func(context.Context) error, err error)
}

func (d *drain) run(ctx context.Context, progress func(string)) error {
	d.rates, d.cpu = map[string]map[string]series{}, map[string]map[string]spent{}
	d.watch = d.site.processes(ctx)
	for _, kind := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		target, err := d.site.create(kind)
		if err != nil {
			return err
		}
		d.rates[kind], d.cpu[kind] = map[string]series{}, map[string]spent{}
		start := time.Now()
		for round := 0; d.opts.another(round, start, drainShare/2); round++ {
			progress(fmt.Sprintf("drain on %s: round %d", kind, round+1))
			for _, one := range d.drainers(target) {
				rate, cpu, err := d.turn(ctx, target, one, fmt.Sprintf("%s_%d", one.id, round))
				if err != nil {
					return fmt.Errorf("drain on %s by %s: %w", kind, one.id, err)
				}
				d.rates[kind][one.id] = append(d.rates[kind][one.id], rate)
				d.cpu[kind][one.id] = d.cpu[kind][one.id].plus(cpu)
			}
		}
	}
	return nil
}

func (d *drain) turn(ctx context.Context, target *place, one drainer, name string) (perSecond float64, cpu spent, err error) {
	table, err := target.accounts(ctx, name, d.opts.DrainUnits)
	if err != nil {
		return 0, spent{}, err
	}
	work, done, err := one.prepare(ctx, table)
	if err != nil {
		return 0, spent{}, err
	}
	defer func() { err = errors.Join(err, done(ctx)) }()
	endProfile, err := startProfile(profilePath(d.opts.Profiles, "drain", target.db.Driver, name))
	if err != nil {
		return 0, spent{}, err
	}
	cpu = d.watch.now()
	start := time.Now()
	err = work(ctx)
	took := time.Since(start)
	cpu = d.watch.now().minus(cpu)
	if err := errors.Join(err, endProfile()); err != nil {
		return 0, spent{}, err
	}
	once, err := target.number(ctx, "SELECT COUNT(*) FROM "+table+" WHERE balance = 1")
	if err == nil && once != int64(d.opts.DrainUnits) {
		err = fmt.Errorf("%d of %d rows were changed once", once, d.opts.DrainUnits)
	}
	return float64(d.opts.DrainUnits) / took.Seconds(), cpu, err
}

func (d *drain) drainers(target *place) []drainer {
	all := []drainer{
		{"bare", d.bare(target)},
		{"job", d.job(target, bedsql.AtLeastOnce, d.fast)},
	}
	if !d.opts.Figures {
		all = append(all,
			drainer{"job-alone", d.job(target, bedsql.AtLeastOnce, d.alone)},
			drainer{"job-defaults", d.job(target, bedsql.AtLeastOnce, func(*asyncjob.Config) {})},
			drainer{"job-eo", d.job(target, bedsql.ExactlyOnce, d.alone)})
	}
	if target.db.Driver == testdb.DriverPostgres {
		for _, q := range d.opts.Queues {
			all = append(all, drainer{q.Name, d.queue(target, q)})
		}
	}
	return all
}

// warmUnits are enough for each of a job's connections.
const warmUnits = 4 * drainConns

// fast is a job's configuration for speed: up to drainBatch units in one local transaction, with
// few connections.
func (d *drain) fast(c *asyncjob.Config) {
	c.Concurrency = drainJobConns
	c.DeliveryBatch = drainBatch
	c.TransactionLogFetchDataCount = 1000
}

// alone is a configuration with a local transaction for each unit.
func (d *drain) alone(c *asyncjob.Config) {
	c.Concurrency = d.conns
	c.TransactionLogFetchDataCount = 1000
}

// bare has the bare driver's callers share the rows.
func (d *drain) bare(target *place) func(context.Context, string) (func(context.Context) error, func(context.Context) error, error) {
	return func(ctx context.Context, table string) (func(context.Context) error, func(context.Context) error, error) {
		pool, err := target.open(false, d.opts.Prepared, d.conns)
		if err != nil {
			return nil, nil, err
		}
		st, err := newStatement(ctx, pool, target.update(table), d.opts.Prepared)
		if err == nil {
			err = warm(ctx, pool, d.conns, st)
		}
		if err != nil {
			return nil, nil, errors.Join(err, pool.Close())
		}
		var next atomic.Int64
		work := func(ctx context.Context) error {
			return together(ctx, d.conns, func(ctx context.Context) error {
				for {
					n := next.Add(1)
					if n > int64(d.opts.DrainUnits) {
						return nil
					}
					if err := st.exec(ctx, n); err != nil {
						return err
					}
				}
			})
		}
		return work, func(context.Context) error { return pool.Close() }, nil
	}
}

// noRow is the id of no row: an UPDATE of it only warms up.
const noRow = 0

// warm opens the pool's connections and runs the statement once on each, on no row. A worker in
// steady state has done so.
func warm(ctx context.Context, pool *sql.DB, callers int, st statement) error {
	var errs []error
	conns := make([]*sql.Conn, 0, callers)
	for range callers {
		conn, err := pool.Conn(ctx)
		if err != nil {
			errs = append(errs, err)
			break
		}
		conns = append(conns, conn)
		_, err = conn.ExecContext(ctx, st.text, noRow)
		errs = append(errs, err)
	}
	for _, conn := range conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// together runs f concurrently and returns the errors.
func together(ctx context.Context, callers int, f func(context.Context) error) error {
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() { errs[i] = f(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// job delivers a backlog by one job, from a log of the target's kind in a database of its own.
func (d *drain) job(target *place, g bedsql.Guarantee, change func(*asyncjob.Config)) func(context.Context, string) (func(context.Context) error, func(context.Context) error, error) {
	return func(ctx context.Context, table string) (_, _ func(context.Context) error, err error) {
		log, err := d.site.create(target.db.Driver)
		if err != nil {
			return nil, nil, err
		}
		storage, err := txlog.Open(ctx, log.db.Driver, log.db.DSN)
		if err != nil {
			return nil, nil, err
		}
		dsn, err := target.dsn(false, d.opts.Prepared)
		if err != nil {
			return nil, nil, err
		}
		t, err := targetOf(target.db.Driver, dsn)
		if err != nil {
			return nil, nil, err
		}
		leave := func(id int64) (*entry.Unit, error) {
			params, err := entry.EncodeParams([]driver.NamedValue{{Ordinal: 1, Value: id}})
			u := &entry.Unit{ID: entry.NewID(), DataSource: t.DataSource, Settings: t.Settings,
				Statements: []entry.Statement{{SQL: target.update(table), Params: params}}}
			if g == bedsql.ExactlyOnce {
				u.Receipt = u.ID
			}
			return u, err
		}
		cfg := asyncjob.Config{Logger: quiet(), MaxDeliveryTryDelay: asyncjob.NoDelay}
		change(&cfg)
		job, err := asyncjob.New(storage, asyncjob.Targets{t.DataSource: t}, cfg)
		if err != nil {
			return nil, nil, errors.Join(err, storage.Close())
		}
		round := func(ctx context.Context, units int) error {
			report, err := job.RunOnce(ctx)
			if err == nil && report.Delivered != units {
				err = fmt.Errorf("the job delivered %d of %d units: %v", report.Delivered, units, report)
			}
			return err
		}
		// After the first round only the steady state of a job remains.
		err = fill(ctx, log, storage, warmUnits, func(int64) (*entry.Unit, error) { return leave(noRow) })
		if err == nil {
			err = round(ctx, warmUnits)
		}
		if err == nil {
			err = fill(ctx, log, storage, d.opts.DrainUnits, leave)
		}
		if err != nil {
			return nil, nil, errors.Join(err, job.Close(), storage.Close())
		}
		work := func(ctx context.Context) error { return round(ctx, d.opts.DrainUnits) }
		done := func(ctx context.Context) error {
			left, err := log.number(ctx, "SELECT COUNT(*) FROM transaction_log")
			if err == nil && left != 0 {
				err = fmt.Errorf("%d rows are left in the log", left)
			}
			return errors.Join(err, job.Close(), storage.Close())
		}
		return work, done, nil
	}
}

// fill adds the units as failed first attempts leave them: handed over, not in
// doubt, due.
func fill(ctx context.Context, log *place, storage txlog.Storage, units int, leave func(int64) (*entry.Unit, error)) error {
	var batch []*entry.Unit
	for id := int64(1); id <= int64(units); id++ {
		u, err := leave(id)
		if err != nil {
			return err
		}
		if batch = append(batch, u); len(batch) < 1000 && id < int64(units) {
			continue
		}
		if err := storage.Add(ctx, time.Minute, batch...); err != nil {
			return err
		}
		batch = nil
	}
	return log.exec(ctx, "UPDATE transaction_log SET in_doubt = 0, lease_token = NULL, lease_until = NULL, next_try_time = creation_time")
}

// queue works off jobs of one statement each.
func (d *drain) queue(target *place, q Queue) func(context.Context, string) (func(context.Context) error, func(context.Context) error, error) {
	return func(ctx context.Context, table string) (_, _ func(context.Context) error, err error) {
		// In the target's own database, because a further database would cost extra.
		pool, err := sql.Open(target.db.SQLDriver(), target.db.DSN)
		if err != nil {
			return nil, nil, err
		}
		limit(pool, d.conns)
		ids := make([]int64, d.opts.DrainUnits)
		for i := range ids {
			ids[i] = int64(i) + 1
		}
		if err := warm(ctx, pool, d.conns, statement{text: target.update(table)}); err != nil {
			return nil, nil, errors.Join(err, pool.Close())
		}
		filled, err := q.Fill(ctx, target.db.DSN, pool, target.update(table), ids)
		if err != nil {
			return nil, nil, errors.Join(err, pool.Close())
		}
		return filled.Drain, func(ctx context.Context) error { return errors.Join(filled.Close(ctx), pool.Close()) }, nil
	}
}
