package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// alone is the protocol without this project, by hand and as short as possible. It writes an entry
// before the write and removes it after the write. Concurrent callers share an INSERT or a DELETE.
// It shows the cost of the protocol itself on a machine. It does not retry, lease, watch or
// classify anything: a caller's error ends the run, and so do entries left by a failed removal.
type alone struct {
	// what is the form of the protocol.
	what aloneForm

	mu             sync.Mutex
	adds, removals []*wish
	// added and removed announce new wishes in a queue.
	added, removed chan struct{}
	// insert writes an entry by itself.
	insert func(adds []*wish) error
}

type aloneForm struct {
	log string
	// before removes an entry before its caller returns.
	before bool
	// receipts means that each write leaves a receipt, which is erased with the log.
	receipts bool
	// both means a write to each of two databases. Their entries are written together, and the
	// writes are delivered at the same time.
	both bool
	// alongside writes an entry while its write is under way.
	alongside bool
	// apart gives each entry an INSERT of its own.
	apart bool
}

// wish is a caller's request to the log.
type wish struct {
	id, params string
	// target is the number of the write's database.
	target int
	// done is nil if no one waits.
	done chan error
}

const (
	// Removals after the calls' return go together as in the project.
	aloneBatch = 256
	aloneFor   = 25 * time.Millisecond
	aloneToken = "00000000-0000-7000-8000-000000000000"
	// aloneFar is the number of concurrent INSERTs to far servers, if concurrency pays there.
	aloneFar = 4
)

// queue adds wishes and waits for their outcome, if they have a done channel.
func (a *alone) queue(list *[]*wish, told chan struct{}, wishes ...*wish) error {
	a.mu.Lock()
	*list = append(*list, wishes...)
	a.mu.Unlock()
	select {
	case told <- struct{}{}:
	default:
	}
	var errs []error
	for _, w := range wishes {
		if w.done != nil {
			errs = append(errs, <-w.done)
		}
	}
	return errors.Join(errs...)
}

// take takes the next wishes: all removals, or one batch of those without a waiting caller.
func (a *alone) take(adds, removals, late bool) (newest, gone []*wish) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if adds {
		newest, a.adds = a.adds, nil
	}
	if removals && (a.what.before || late || len(a.removals) >= aloneBatch) {
		n := min(len(a.removals), aloneBatch)
		gone, a.removals = a.removals[:n:n], a.removals[n:]
	}
	return newest, gone
}

// write writes the queued wishes until ctx is done, one write at a time.
func (a *alone) write(ctx context.Context, adds, removals bool, write func(adds, removals []*wish) error) {
	tick := time.NewTicker(aloneFor)
	defer tick.Stop()
	var added, removed chan struct{}
	if adds {
		added = a.added
	}
	if removals {
		removed = a.removed
	}
	late := false
	for {
		newest, gone := a.take(adds, removals, late)
		late = false
		if len(newest)+len(gone) > 0 {
			err := write(newest, gone)
			for _, w := range append(newest, gone...) {
				if w.done != nil {
					w.done <- err
				}
			}
			continue
		}
		select {
		case <-added:
		case <-removed:
		case <-tick.C:
			late = true
		case <-ctx.Done():
			return
		}
	}
}

// byHand makes a contender of a form, with MariaDB as its target.
func byHand(what aloneForm) func(context.Context, *stage) (*setup, error) {
	return func(ctx context.Context, w *stage) (*setup, error) {
		targets := w.targets[testdb.DriverMySQL][:1]
		if what.both {
			targets = w.targets[testdb.DriverMySQL]
		}
		place, err := w.log(what.log)
		if err != nil {
			return nil, err
		}
		if err := place.createLog(ctx); err != nil {
			return nil, err
		}
		var pools []*sql.DB
		var deliver []aloneDelivery
		var checks []func(context.Context, int64) error
		var text string
		for _, target := range targets {
			table, err := w.accounts(ctx, target)
			if err != nil {
				return nil, err
			}
			pool, err := target.open(w.far, w.opts.Prepared, w.callers)
			if err != nil {
				return nil, err
			}
			text = target.update(table)
			one, err := what.delivery(ctx, target, pool, text, w.opts.Prepared)
			if err != nil {
				return nil, err
			}
			pools, deliver, checks = append(pools, pool), append(deliver, one), append(checks, w.sum(target, table))
		}
		inserts := 1
		switch {
		case what.apart:
			inserts = w.callers
		case w.far:
			inserts = aloneFar
		}
		logPool, err := place.open(w.far, true, inserts+1)
		if err != nil {
			return nil, err
		}
		a := &alone{what: what, added: make(chan struct{}, 1), removed: make(chan struct{}, 1)}
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		var loops sync.WaitGroup
		if what.log == testdb.DriverSQLite {
			logPool.SetMaxOpenConns(1)
			write, err := aloneInFile(running, logPool, text)
			if err != nil {
				stop()
				return nil, errors.Join(err, closeAll(append(pools, logPool)...))
			}
			loops.Go(func() { a.write(running, true, true, write) })
		} else {
			on := &aloneServer{ctx: running, pool: logPool, text: text}
			if what.receipts {
				on.targets = pools
			}
			a.insert = on.insert
			for range inserts {
				loops.Go(func() { a.write(running, true, false, func(adds, _ []*wish) error { return on.insert(adds) }) })
			}
			loops.Go(func() { a.write(running, false, true, func(_, removals []*wish) error { return on.remove(removals) }) })
		}
		return &setup{
			caller: each(func(ctx context.Context, n int64) error { return a.one(ctx, deliver, n) }),
			idle:   idle(w.callers, pools...),
			outstanding: func(ctx context.Context) (logs, receipts int64, err error) {
				logs, err = place.number(ctx, "SELECT COUNT(*) FROM transaction_log")
				for _, target := range targets {
					if err == nil && what.receipts {
						var n int64
						n, err = target.number(ctx, "SELECT COUNT(*) FROM bed_receipt WHERE log_id = '"+aloneToken+"'")
						receipts += n
					}
				}
				return logs, receipts, err
			},
			receipts: what.receipts,
			check:    allOf(checks),
			close: func() error {
				stop()
				loops.Wait()
				return closeAll(append(pools, logPool)...)
			},
		}, nil
	}
}

// one is a caller's write, or its writes to both databases.
func (a *alone) one(ctx context.Context, deliver []aloneDelivery, n int64) error {
	adds, removals := make([]*wish, len(deliver)), make([]*wish, len(deliver))
	for i := range deliver {
		id := uuid.Must(uuid.NewV7()).String()
		adds[i] = &wish{id: id, params: fmt.Sprintf(`[{"i":"%d"}]`, n), target: i, done: make(chan error, 1)}
		removals[i] = &wish{id: id, target: i}
		if a.what.before {
			removals[i].done = make(chan error, 1)
		}
	}
	errs := make([]error, len(deliver)+1)
	log, logged := len(deliver), func() {}
	if a.what.alongside {
		var beside sync.WaitGroup
		beside.Go(func() { errs[log] = a.log(adds) })
		logged = beside.Wait
	} else if err := a.log(adds); err != nil {
		return err
	}
	var others sync.WaitGroup
	for i := range deliver[1:] {
		others.Go(func() { errs[i+1] = deliver[i+1](ctx, adds[i+1].id, n) })
	}
	errs[0] = deliver[0](ctx, adds[0].id, n)
	others.Wait()
	logged()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return a.queue(&a.removals, a.removed, removals...)
}

// log writes a caller's entries.
func (a *alone) log(adds []*wish) error {
	if a.what.apart {
		return a.insert(adds)
	}
	return a.queue(&a.adds, a.added, adds...)
}

// createLog makes the project's own table.
func (p *place) createLog(ctx context.Context) error {
	dsn, err := p.dsn(false, true)
	if err != nil {
		return err
	}
	storage, err := txlog.Open(ctx, p.db.Driver, dsn)
	if err != nil {
		return err
	}
	return storage.Close()
}

// aloneDelivery is a caller's work between the entry and its removal.
type aloneDelivery func(ctx context.Context, id string, n int64) error

func (f aloneForm) delivery(ctx context.Context, target *place, pool *sql.DB, update string, prepared bool) (aloneDelivery, error) {
	if !f.receipts {
		st, err := newStatement(ctx, pool, update, prepared)
		return func(ctx context.Context, _ string, n int64) error { return st.exec(ctx, n) }, err
	}
	if err := target.createReceipts(ctx); err != nil {
		return nil, err
	}
	now, retention := sqltext.MySQL.Clock(), attempt.DefaultRetention.Milliseconds()
	compound, err := pool.PrepareContext(ctx, "BEGIN NOT ATOMIC DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; START TRANSACTION; "+
		"INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, id, '"+aloneToken+"', 0, "+now+", creation_time + "+strconv.FormatInt(retention, 10)+"); "+
		update+"; COMMIT; END")
	return func(ctx context.Context, id string, n int64) error {
		_, err := compound.ExecContext(ctx, id, n)
		return err
	}, err
}

// aloneServer is a log in MariaDB.
type aloneServer struct {
	ctx  context.Context //nolint:containedctx // that of its loops
	pool *sql.DB
	// targets are the databases for erasing receipts; empty without receipts.
	targets []*sql.DB
	text    string
	stmts   sync.Map // from aloneStmt
}

type aloneStmt struct {
	pool *sql.DB
	text string
}

func (s *aloneServer) run(pool *sql.DB, text string, args []any) error {
	st, ok := s.stmts.Load(aloneStmt{pool, text})
	if !ok {
		prepared, err := pool.PrepareContext(s.ctx, text)
		if err != nil {
			return err
		}
		st = prepared
		s.stmts.Store(aloneStmt{pool, text}, st)
	}
	_, err := st.(*sql.Stmt).ExecContext(s.ctx, args...)
	return err
}

func (s *aloneServer) insert(adds []*wish) error {
	now := sqltext.MySQL.Clock()
	row := "(?, 'BestEffortsDelivery', ?, ?, ?, " + now + ", 0, ?, 0, 1, ?, '', '', '', 1, " + now + " + 60000, NULL, 0, ?, " + now + " + 60000)"
	var args []any
	for _, w := range adds {
		args = append(args, w.id, "127.0.0.1:3306/bed", s.text, w.params, w.id, "loc=UTC", aloneToken)
	}
	return s.run(s.pool, aloneColumns("`sql`")+repeated(row, len(adds)), args)
}

func (s *aloneServer) remove(removals []*wish) error {
	if err := s.erase(s.pool, "transaction_log", removals); err != nil {
		return err
	}
	for i, target := range s.targets {
		var own []*wish
		for _, w := range removals {
			if w.target == i {
				own = append(own, w)
			}
		}
		if err := s.erase(target, "bed_receipt", own); err != nil {
			return err
		}
	}
	return nil
}

func (s *aloneServer) erase(pool *sql.DB, table string, gone []*wish) error {
	if len(gone) == 0 {
		return nil
	}
	args := make([]any, len(gone))
	for i, w := range gone {
		args[i] = w.id
	}
	text := sqltext.MySQL.Text("{by key}DELETE FROM " + table + " WHERE id IN (" + repeated("?", len(gone)) + ")")
	return s.run(pool, text, args)
}

func aloneColumns(sqlColumn string) string {
	return "INSERT INTO transaction_log (id, transaction_type, data_source, " + sqlColumn + ", parameters, creation_time, async_delivery_try_times, " +
		"transaction_id, statement_no, statement_count, settings, not_replayable, receipt, fingerprint, in_doubt, next_try_time, last_error, parked, " +
		"lease_token, lease_until) VALUES "
}

func repeated(item string, n int) string { return strings.Repeat(item+", ", n-1) + item }

// aloneInFile writes to a log in SQLite, adds and removals in one transaction.
func aloneInFile(ctx context.Context, pool *sql.DB, text string) (func(adds, removals []*wish) error, error) {
	insert, err := pool.PrepareContext(ctx, aloneColumns(`"sql"`)+"(?, 'BestEffortsDelivery', ?, ?, ?, ?, 0, ?, 0, 1, ?, '', '', '', 1, ?, NULL, 0, ?, ?)")
	if err != nil {
		return nil, err
	}
	remove, err := pool.PrepareContext(ctx, "DELETE FROM transaction_log WHERE id = ?")
	if err != nil {
		return nil, err
	}
	return func(adds, removals []*wish) error {
		tx, err := pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		st := tx.StmtContext(ctx, insert)
		for _, w := range adds {
			if err == nil {
				_, err = st.ExecContext(ctx, w.id, "127.0.0.1:3306/bed", text, w.params, now, w.id, "loc=UTC", now+60000, aloneToken, now+60000)
			}
		}
		st = tx.StmtContext(ctx, remove)
		for _, w := range removals {
			if err == nil {
				_, err = st.ExecContext(ctx, w.id)
			}
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}, nil
}

// createReceipts makes the project's own table.
func (p *place) createReceipts(ctx context.Context) error {
	ddl, err := attempt.ReceiptSchema(p.db.Driver)
	if err != nil {
		return err
	}
	return p.exec(ctx, ddl)
}
