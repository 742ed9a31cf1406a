package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	_ "github.com/bedsql/bed/bedsql/sqlite" // as the place of a log
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// way is how this project is configured.
type way struct {
	guarantee bedsql.Guarantee
	removal   bedsql.Removal
	logging   bedsql.Logging
	// uncounted means that the writes of each minute are not counted.
	uncounted bool
	// ordered puts each write under an order key, see orderKey.
	ordered bool
	// with commits the entry with a local transaction in the first database.
	with bool
}

var (
	atLeastOnce = way{guarantee: bedsql.AtLeastOnce, removal: bedsql.RemovalAfterReturn}
	exactlyOnce = way{guarantee: bedsql.ExactlyOnce}
)

// logged is the way with its entry written at another time.
func (w way) logged(l bedsql.Logging) way {
	w.logging = l
	return w
}

// targetOf reads a DSN as the wrapped driver and the job do.
func targetOf(driver, dsn string) (delivery.Target, error) {
	if driver == testdb.DriverPostgres {
		return postgres.Target(dsn)
	}
	return mysql.Target(dsn)
}

// wrapped opens a DSN through this project.
func wrapped(driver, dsn string, cfg bedsql.Config) (*sql.DB, error) {
	t, err := targetOf(driver, dsn)
	if err != nil {
		return nil, err
	}
	wrap := mysql.NewConnector
	if driver == testdb.DriverPostgres {
		wrap = postgres.NewConnector
	}
	c, err := wrap(t, cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

// ledger is a watched transaction log.
type ledger struct {
	place    *place
	storage  *txlog.SQLStorage
	targets  []*place
	cfg      bedsql.Config
	counters *bedsql.Counters
}

// newLedger makes a log of a driver's kind for writes to targets.
func (w *stage) newLedger(ctx context.Context, driver string, how way, targets ...*place) (*ledger, error) {
	p, err := w.log(driver)
	if err != nil {
		return nil, err
	}
	dsn, err := p.dsn(w.far, true)
	if err != nil {
		return nil, err
	}
	var opts []txlog.Option
	if how.uncounted {
		opts = append(opts, txlog.WithoutActivity())
	}
	storage, err := txlog.Open(ctx, driver, dsn, opts...)
	if err != nil {
		return nil, err
	}
	l := &ledger{place: p, storage: storage, counters: new(bedsql.Counters)}
	l.cfg = bedsql.Config{Storage: storage, Counters: l.counters, Logger: quiet(), Guarantee: how.guarantee, Removal: how.removal, Logging: how.logging}
	if how.guarantee == bedsql.ExactlyOnce {
		l.targets = targets
	}
	if how.ordered { // should two callers be under one key at a time
		l.cfg.OrderWait = time.Minute
	}
	return l, nil
}

// outstanding counts the log's rows and the receipts of its units.
func (l *ledger) outstanding(ctx context.Context) (logs, receipts int64, err error) {
	logs, err = l.place.number(ctx, "SELECT COUNT(*) FROM transaction_log")
	for _, t := range l.targets {
		if err != nil {
			return 0, 0, err
		}
		var n int64
		n, err = t.number(ctx, t.placeholders("SELECT COUNT(*) FROM bed_receipt WHERE log_id = ?"), l.storage.Identity())
		receipts += n
	}
	return logs, receipts, err
}

// check wants every write to have been delivered by its first attempt's way,
// logged and without a word to the job.
func (l *ledger) check(done int64, each int64) error {
	c := l.counters
	if n := c.Delivered.Load(); n != uint64(done*each) {
		return fmt.Errorf("%d units were delivered in %d operations of %d", n, done, each)
	}
	for what, n := range map[string]uint64{
		"pending": c.Pending.Load(), "refused": c.Refused.Load(), "not logged": c.NotLogged.Load(),
		"passed through": c.PassedThrough.Load(), "skipped": c.Unlogged.Load(), "applied without their entry": c.AppliedUnlogged.Load(),
	} {
		if n != 0 {
			return fmt.Errorf("%d writes were %s", n, what)
		}
	}
	return nil
}

// orderKey is the key for a row. Each of 64 callers has 15 keys of its own, so that no write waits
// under its key.
func orderKey(row int64) string {
	const keysPerCaller = 15
	return strconv.FormatInt((row-1)/rowsPerCaller*keysPerCaller+(row-1)%keysPerCaller, 10)
}

// deliver writes to a target through this project.
func deliver(driver, logDriver string, how way) func(context.Context, *stage) (*setup, error) {
	return delivering(driver, logDriver, how, 1, func(st statement) operation {
		return func(ctx context.Context, n int64) error {
			if how.ordered {
				ctx = bedsql.WithOrderKey(ctx, orderKey(n))
			}
			return st.exec(ctx, n)
		}
	})
}

// delivering does an operation of n UPDATEs through this project.
func delivering(driver, logDriver string, how way, updates int64, operate func(statement) operation) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		target := w.targets[driver][0]
		table, err := w.accounts(ctx, target)
		if err != nil {
			return nil, err
		}
		log, err := w.newLedger(ctx, logDriver, how, target)
		if err != nil {
			return nil, err
		}
		dsn, err := target.dsn(w.far, w.opts.Prepared)
		if err != nil {
			return nil, err
		}
		pool, err := wrapped(driver, dsn, log.cfg)
		if err != nil {
			return nil, err
		}
		limit(pool, w.callers)
		st, err := newStatement(ctx, pool, target.update(table), w.opts.Prepared)
		if err != nil {
			return nil, err
		}
		balances := w.sum(target, table)
		return &setup{
			caller:      each(operate(st)),
			idle:        idle(w.callers, pool),
			outstanding: log.outstanding,
			receipts:    how.guarantee == bedsql.ExactlyOnce,
			unlogged:    how.logging == bedsql.LogOnFailure,
			check: func(ctx context.Context, done int64) error {
				return errors.Join(log.check(done, 1), balances(ctx, updates*done))
			},
			close: func() error { return errors.Join(pool.Close(), log.storage.Close()) },
		}, nil
	}
}

// throughBed opens a target of MariaDB through bed, with the statement for it.
func (w *stage) throughBed(ctx context.Context, target *place, table string, log *ledger) (*sql.DB, statement, error) {
	dsn, err := target.dsn(w.far, w.opts.Prepared)
	if err != nil {
		return nil, statement{}, err
	}
	pool, err := wrapped(testdb.DriverMySQL, dsn, log.cfg)
	if err != nil {
		return nil, statement{}, err
	}
	limit(pool, w.callers)
	st, err := newStatement(ctx, pool, target.update(table), w.opts.Prepared)
	return pool, st, err
}

// staged writes to two databases as one group, with its log in a third.
func staged(how way) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		targets := w.targets[testdb.DriverMySQL]
		log, err := w.newLedger(ctx, testdb.DriverMySQL, how, targets...)
		if err != nil {
			return nil, err
		}
		var pools []*sql.DB
		var statements []statement
		var checks []func(context.Context, int64) error
		for _, target := range targets {
			table, err := w.accounts(ctx, target)
			if err != nil {
				return nil, err
			}
			pool, st, err := w.throughBed(ctx, target, table, log)
			if err != nil {
				return nil, err
			}
			pools, statements, checks = append(pools, pool), append(statements, st), append(checks, w.sum(target, table))
		}
		balances := allOf(checks)
		move, units := transfer, int64(len(targets))
		if how.with {
			move, units = transferWith, 1
		}
		return &setup{
			caller:      each(func(ctx context.Context, n int64) error { return move(ctx, statements, n) }),
			idle:        idle(w.callers, pools...),
			outstanding: log.outstanding,
			receipts:    how.guarantee == bedsql.ExactlyOnce,
			check: func(ctx context.Context, done int64) error {
				return errors.Join(log.check(done, units), balances(ctx, done))
			},
			close: func() error { return errors.Join(closeAll(pools...), log.storage.Close()) },
		}, nil
	}
}

// transfer is a staged soft transaction of one write in each database.
func transfer(ctx context.Context, statements []statement, n int64) error {
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	defer soft.Discard()
	results := make([]sql.Result, len(statements))
	for i, st := range statements {
		if results[i], err = st.send(ctx, n); err != nil {
			return err
		}
	}
	if err := soft.End(ctx); err != nil {
		return err
	}
	for _, res := range results {
		if err := oneRow(res, nil); err != nil {
			return err
		}
	}
	return nil
}

// with has the entry commit with a local transaction.
func with(w way) way {
	w.with = true
	return w
}

// transferWith is a local transaction in the first database, which also records a write to the
// second one.
func transferWith(ctx context.Context, statements []statement, n int64) error {
	tx, err := statements[0].pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	ctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		return err
	}
	if err := oneRow(statements[0].within(ctx, tx, n)); err != nil {
		return err
	}
	res, err := statements[1].send(ctx, n)
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if err := soft.End(ctx); err != nil {
		return err
	}
	return oneRow(res, nil)
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}
