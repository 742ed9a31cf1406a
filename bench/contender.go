package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
)

// scene is the number of callers and the distance of the servers.
type scene struct {
	callers int
	far     bool
	name    string
}

// contender is one way to do a piece of work.
type contender struct {
	// id names it in figures and options, name in the table.
	id, name string
	// base is the id of the contender for comparison: the bare driver at the same work.
	base string
	open func(context.Context, *stage) (*setup, error)
}

// The kinds of work.
const (
	onMariaDB  = "bare-mariadb"
	onPostgres = "bare-postgres"
	onTwo      = "bare-two"
	inTx       = "bare-tx"
	txThen     = "bare-tx-then"
	byHTTP     = "http-rows"
	byCall     = "post"
)

// contenders are all of them in the order of the table, each kind of work
// begun by its bare driver.
func contenders() []contender {
	all := []contender{
		{id: onMariaDB, name: "bare driver, autocommit", base: onMariaDB, open: bare(testdb.DriverMySQL)},
		{id: "sequential-mariadb", name: "log, write, removal as three commits (Sharding-JDBC)", base: onMariaDB, open: sequential(testdb.DriverMySQL)},
		{id: "xa-mariadb", name: "XA", base: onMariaDB, open: xa(1)},
	}
	alone := func(id, name string, what aloneForm) {
		base := onMariaDB
		if what.both {
			base = onTwo
		}
		all = append(all, contender{id: "alone-" + id, name: "the protocol alone, " + name, base: base, open: byHand(what)})
	}
	alone("mariadb-before", "log in MariaDB, removed before the caller returns", aloneForm{log: testdb.DriverMySQL, before: true})
	alone("mariadb", "log in MariaDB, removed after the call", aloneForm{log: testdb.DriverMySQL})
	alone("sqlite", "log in SQLite, removed after the call", aloneForm{log: testdb.DriverSQLite})
	alone("alongside", "log alongside in MariaDB, callers share an INSERT", aloneForm{log: testdb.DriverMySQL, alongside: true})
	alone("alongside-apart", "log alongside in MariaDB, an INSERT for each", aloneForm{log: testdb.DriverMySQL, alongside: true, apart: true})
	alone("eo-mariadb", "log in MariaDB and receipts", aloneForm{log: testdb.DriverMySQL, receipts: true})
	all = append(all, delivered("mariadb", testdb.DriverMySQL, onMariaDB)...)
	all = append(all, contender{id: "order-eo", name: "exactly once, each under one of 1,000 order keys, log in MariaDB", base: onMariaDB,
		open: deliver(testdb.DriverMySQL, testdb.DriverMySQL, way{guarantee: bedsql.ExactlyOnce, ordered: true})})
	all = append(all,
		contender{id: onPostgres, name: "bare driver, autocommit", base: onPostgres, open: bare(testdb.DriverPostgres)},
		contender{id: "sequential-postgres", name: "log, write, removal as three commits (Sharding-JDBC)", base: onPostgres, open: sequential(testdb.DriverPostgres)})
	all = append(all, delivered("postgres", testdb.DriverPostgres, onPostgres)...)
	all = append(all, transactions()...)
	all = append(all,
		contender{id: onTwo, name: "bare driver, two autocommits one after the other", base: onTwo, open: bareTwo},
		contender{id: "xa-two", name: "XA over both", base: onTwo, open: xa(2)})
	alone("staged-eo", "staged, with receipts", aloneForm{log: testdb.DriverMySQL, receipts: true, both: true})
	return append(all,
		contender{id: "staged-alo", name: "staged, at least once", base: onTwo, open: staged(atLeastOnce)},
		contender{id: "staged-eo", name: "staged, exactly once", base: onTwo, open: staged(exactlyOnce)},
		contender{id: txThen, name: "bare driver, a local transaction and then an autocommit", base: txThen, open: bareTxThen},
		contender{id: "with-alo", name: "with the local transaction, at least once", base: txThen, open: staged(with(atLeastOnce))},
		contender{id: "with-eo", name: "with the local transaction, exactly once", base: txThen, open: staged(with(exactlyOnce))},
		contender{id: byHTTP, name: "the handler's own local transaction, exactly once", base: byHTTP, open: requests(false)},
		contender{id: "http-key", name: "under its Idempotency-Key, with its response", base: byHTTP, open: requests(true)},
		contender{id: byCall, name: "bare client, a new Idempotency-Key for each", base: byCall, open: requests(true)},
		contender{id: "call-unlogged", name: "a call without an entry", base: byCall, open: calls(true)},
		contender{id: "call", name: "a call, log in MariaDB", base: byCall, open: calls(false)})
}

// delivered are this project's ways to write to a target.
func delivered(target, driver, base string) []contender {
	var all []contender
	add := func(id, name, log string, w way) {
		all = append(all, contender{id: id, name: name, base: base, open: deliver(driver, log, w)})
	}
	own := map[string]string{testdb.DriverMySQL: "MariaDB", testdb.DriverPostgres: "PostgreSQL"}[driver]
	add("alo-"+target+"-log-"+target+"-before", "at least once, log in "+own+", removed before Exec returns", driver, way{guarantee: atLeastOnce.guarantee})
	logs := []struct{ id, name, driver string }{
		{"mariadb", "MariaDB", testdb.DriverMySQL}, {"postgres", "PostgreSQL", testdb.DriverPostgres}, {"sqlite", "SQLite", testdb.DriverSQLite},
	}
	for _, log := range logs {
		add("alo-"+target+"-log-"+log.id, "at least once, log in "+log.name+", removed after the call", log.driver, atLeastOnce)
	}
	uncounted := atLeastOnce
	uncounted.uncounted = true
	add("uncounted-"+target, "at least once, log in "+own+", writes not counted for the console", driver, uncounted)
	for _, log := range logs {
		add("eo-"+target+"-log-"+log.id, "exactly once, log in "+log.name, log.driver, exactlyOnce)
	}
	for _, log := range logs {
		add("alongside-alo-"+target+"-log-"+log.id, "at least once, log alongside in "+log.name, log.driver, atLeastOnce.logged(bedsql.LogAlongside))
	}
	add("alongside-eo-"+target, "exactly once, log alongside in "+own, driver, exactlyOnce.logged(bedsql.LogAlongside))
	add("onfailure-alo-"+target, "at least once, log on failure", driver, atLeastOnce.logged(bedsql.LogOnFailure))
	add("onfailure-eo-"+target, "exactly once, log on failure", driver, exactlyOnce.logged(bedsql.LogOnFailure))
	return all
}

// transactions are local transactions of two UPDATEs in MariaDB.
func transactions() []contender {
	all := []contender{{id: inTx, name: "bare driver", base: inTx, open: bareTx}}
	for _, one := range []struct {
		id, name string
		logging  bedsql.Logging
	}{
		{"tx-before", "at least once, log in MariaDB", bedsql.LogBefore},
		{"tx-alongside", "at least once, log alongside in MariaDB", bedsql.LogAlongside},
		{"tx-onfailure", "at least once, log on failure", bedsql.LogOnFailure},
	} {
		all = append(all, contender{id: one.id, name: one.name, base: inTx,
			open: delivering(testdb.DriverMySQL, testdb.DriverMySQL, atLeastOnce.logged(one.logging), 2, twice)})
	}
	return all
}

// twice runs the statement twice in a local transaction.
func twice(st statement) operation {
	return func(ctx context.Context, n int64) error {
		tx, err := st.pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		for range 2 {
			if err := oneRow(st.within(ctx, tx, n)); err != nil {
				return errors.Join(err, tx.Rollback())
			}
		}
		return tx.Commit()
	}
}

// within is send in a local transaction.
func (s statement) within(ctx context.Context, tx *sql.Tx, args ...any) (sql.Result, error) {
	if s.prepared != nil {
		return tx.StmtContext(ctx, s.prepared).ExecContext(ctx, args...)
	}
	return tx.ExecContext(ctx, s.text, args...)
}

// statement is the application's statement, prepared or not as in the options.
type statement struct {
	pool *sql.DB
	text string
	// prepared is nil when text is sent each time.
	prepared *sql.Stmt
}

func newStatement(ctx context.Context, pool *sql.DB, text string, prepared bool) (statement, error) {
	s := statement{pool: pool, text: text}
	if !prepared {
		return s, nil
	}
	var err error
	s.prepared, err = pool.PrepareContext(ctx, text)
	return s, err
}

// exec runs it and returns an error unless it changed one row.
func (s statement) exec(ctx context.Context, args ...any) error {
	res, err := s.send(ctx, args...)
	return oneRow(res, err)
}

func (s statement) send(ctx context.Context, args ...any) (sql.Result, error) {
	if s.prepared != nil {
		return s.prepared.ExecContext(ctx, args...)
	}
	return s.pool.ExecContext(ctx, s.text, args...)
}

func oneRow(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	switch n, err := res.RowsAffected(); {
	case err != nil:
		return err
	case n != 1:
		return fmt.Errorf("%d rows were changed, not one", n)
	}
	return nil
}

// each returns the same operation for every caller.
func each(do operation) func(context.Context) (operation, func(), error) {
	return func(context.Context) (operation, func(), error) { return do, func() {}, nil }
}

// idle closes the pools' connections and leaves the pools as they were.
func idle(conns int, pools ...*sql.DB) func() {
	return func() {
		for _, p := range pools {
			p.SetMaxIdleConns(-1)
			p.SetMaxIdleConns(conns)
		}
	}
}

func closeAll(pools ...*sql.DB) error {
	var errs []error
	for _, p := range pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// sum checks that each operation of the scene changed its table once.
func (w *stage) sum(p *place, table string) func(context.Context, int64) error {
	return func(ctx context.Context, done int64) error {
		got, err := p.number(ctx, "SELECT SUM(balance) FROM "+table)
		if got -= w.before[table]; err == nil && got != done {
			err = fmt.Errorf("%s: the balances grew by %d in %d writes of one each", table, got, done)
		}
		return err
	}
}
