package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/test/testdb"
)

// bare is the driver itself: the one statement, committed by itself.
func bare(driver string) func(context.Context, *stage) (*setup, error) {
	return barely(driver, 1, func(st statement) operation {
		return func(ctx context.Context, n int64) error { return st.exec(ctx, n) }
	})
}

// bareTx is a local transaction of two UPDATEs by the driver itself.
func bareTx(ctx context.Context, w *stage) (*setup, error) {
	return barely(testdb.DriverMySQL, 2, twice)(ctx, w)
}

// barely does an operation of n UPDATEs by the driver itself.
func barely(driver string, updates int64, operate func(statement) operation) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		pool, update, balances, err := w.update(ctx, w.targets[driver][0])
		if err != nil {
			return nil, err
		}
		return &setup{
			caller: each(operate(update)),
			idle:   idle(w.callers, pool),
			check:  func(ctx context.Context, done int64) error { return balances(ctx, updates*done) },
			close:  pool.Close,
		}, nil
	}
}

// bareTwo makes two autocommits in two databases, one after the other, without any bond between
// them.
func bareTwo(ctx context.Context, w *stage) (*setup, error) {
	return bareBoth(ctx, w, func(ctx context.Context, st statement, n int64) error { return st.exec(ctx, n) })
}

// bareTxThen commits a local transaction of an UPDATE in the first database, and then
// updates the second.
func bareTxThen(ctx context.Context, w *stage) (*setup, error) {
	return bareBoth(ctx, w, func(ctx context.Context, st statement, n int64) error {
		tx, err := st.pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := oneRow(st.within(ctx, tx, n)); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}

// bareBoth updates two databases, the first one by first.
func bareBoth(ctx context.Context, w *stage, first func(context.Context, statement, int64) error) (*setup, error) {
	var pools []*sql.DB
	var statements []statement
	var checks []func(context.Context, int64) error
	for _, target := range w.targets[testdb.DriverMySQL] {
		pool, update, balances, err := w.update(ctx, target)
		if err != nil {
			return nil, err
		}
		pools, statements, checks = append(pools, pool), append(statements, update), append(checks, balances)
	}
	return &setup{
		caller: each(func(ctx context.Context, n int64) error {
			if err := first(ctx, statements[0], n); err != nil {
				return err
			}
			return statements[1].exec(ctx, n)
		}),
		idle:  idle(w.callers, pools...),
		check: allOf(checks),
		close: func() error { return closeAll(pools...) },
	}, nil
}

func allOf(checks []func(context.Context, int64) error) func(context.Context, int64) error {
	return func(ctx context.Context, done int64) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(ctx, done))
		}
		return errors.Join(errs...)
	}
}

// The table and the statements of Sharding-JDBC 1.5's transaction log.
const (
	shardingTable = "CREATE TABLE IF NOT EXISTS transaction_log (id VARCHAR(40) NOT NULL, transaction_type VARCHAR(30) NOT NULL, " +
		"data_source VARCHAR(255) NOT NULL, sql_text TEXT NOT NULL, parameters TEXT NOT NULL, creation_time BIGINT NOT NULL, " +
		"async_delivery_try_times INT NOT NULL DEFAULT 0, PRIMARY KEY (id))"
	shardingInsert = "INSERT INTO transaction_log (id, transaction_type, data_source, sql_text, parameters, creation_time) VALUES (?, ?, ?, ?, ?, ?)"
	shardingDelete = "DELETE FROM transaction_log WHERE id = ?"
)

// sequential is Sharding-JDBC's protocol: the log's row, the write and the removal of the row,
// each with a commit of its own. The log is in a database of its own on the target's server.
func sequential(driver string) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		pool, update, balances, err := w.update(ctx, w.targets[driver][0])
		if err != nil {
			return nil, err
		}
		log, err := w.log(driver)
		if err != nil {
			return nil, err
		}
		if err := log.exec(ctx, shardingTable); err != nil {
			return nil, err
		}
		logPool, err := log.open(w.far, w.opts.Prepared, w.callers)
		if err != nil {
			return nil, err
		}
		insert, err := newStatement(ctx, logPool, log.placeholders(shardingInsert), w.opts.Prepared)
		if err != nil {
			return nil, err
		}
		remove, err := newStatement(ctx, logPool, log.placeholders(shardingDelete), w.opts.Prepared)
		if err != nil {
			return nil, err
		}
		return &setup{
			caller: each(func(ctx context.Context, n int64) error {
				id := uuid.Must(uuid.NewV7()).String()
				if err := insert.exec(ctx, id, "BestEffortsDelivery", "ds_0", update.text, "["+strconv.FormatInt(n, 10)+"]", 1); err != nil {
					return err
				}
				if err := update.exec(ctx, n); err != nil {
					return err
				}
				return remove.exec(ctx, id)
			}),
			idle: idle(w.callers, pool, logPool),
			check: func(ctx context.Context, done int64) error {
				left, err := log.number(ctx, "SELECT COUNT(*) FROM transaction_log")
				if err == nil && left != 0 {
					err = fmt.Errorf("%d rows are left in the log", left)
				}
				return errors.Join(err, balances(ctx, done))
			},
			close: func() error { return closeAll(pool, logPool) },
		}, nil
	}
}

var branches atomic.Int64

// xa is MariaDB's two-phase commit over the databases. It omits the log that a coordinator would
// have to write between the phases.
func xa(databases int) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		var pools []*sql.DB
		var texts []string
		var checks []func(context.Context, int64) error
		for _, target := range w.targets[testdb.DriverMySQL][:databases] {
			table, err := w.accounts(ctx, target)
			if err != nil {
				return nil, err
			}
			// The driver puts the text together even for applications that prepare, because XA's
			// own statements cannot be prepared.
			pool, err := target.open(w.far, false, w.callers)
			if err != nil {
				return nil, err
			}
			pools, texts, checks = append(pools, pool), append(texts, target.update(table)), append(checks, w.sum(target, table))
		}
		return &setup{
			caller: func(ctx context.Context) (operation, func(), error) {
				conns := make([]*sql.Conn, 0, len(pools))
				release := func() {
					for _, c := range conns {
						_ = c.Close()
					}
				}
				for _, pool := range pools {
					conn, err := pool.Conn(ctx)
					if err != nil {
						release()
						return nil, nil, err
					}
					conns = append(conns, conn)
				}
				return func(ctx context.Context, n int64) error { return twoPhases(ctx, conns, texts, n) }, release, nil
			},
			idle:  idle(w.callers, pools...),
			check: allOf(checks),
			close: func() error { return closeAll(pools...) },
		}, nil
	}
}

// twoPhases writes in one branch on each connection, prepares all and commits all.
func twoPhases(ctx context.Context, conns []*sql.Conn, texts []string, n int64) error {
	global := strconv.FormatInt(branches.Add(1), 10)
	phase := func(verb string) error {
		for i, c := range conns {
			if _, err := c.ExecContext(ctx, "XA "+verb+" 'bench"+global+"','"+strconv.Itoa(i)+"'"); err != nil {
				return err
			}
		}
		return nil
	}
	if err := phase("START"); err != nil {
		return err
	}
	for i, c := range conns {
		if err := oneRow(c.ExecContext(ctx, texts[i], n)); err != nil {
			return err
		}
	}
	for _, verb := range []string{"END", "PREPARE", "COMMIT"} {
		if err := phase(verb); err != nil {
			return err
		}
	}
	return nil
}
