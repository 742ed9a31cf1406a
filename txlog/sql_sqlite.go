package txlog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What callers write to a log in SQLite at the same time, additions and removals
// alike, goes into one local transaction: such a database has one writer anyway,
// and each COMMIT waits for the disk. Its statements run on the driver's
// connection itself: within the process, what database/sql does for one of them
// costs more than many of them.

// writeShared makes one write of what is in the requests.
func (w *writer) writeShared(ctx context.Context, group []*request, again bool) error {
	var found []*removal
	err := w.inRaw(ctx, func(ctx context.Context, q *rawTx) (err error) {
		if err := q.insert(ctx, group); err != nil {
			return err
		}
		found, err = q.remove(ctx, group)
		return err
	})
	if err != nil {
		return err
	}
	for _, h := range found {
		h.done = true
	}
	if again {
		return w.markGone(ctx, group)
	}
	return nil
}

// rawTx is a local transaction on the driver's own connection.
type rawTx struct {
	flavor Flavor
	conn   driver.Conn
	// kept are the statements that the connection keeps prepared; nil when it
	// keeps none.
	kept map[shape]driver.Stmt
	own  []driver.Stmt
	args []driver.NamedValue

	// began says that the first write has the lock. quiet is the context without
	// an end.
	began bool
	quiet context.Context
}

// inRaw runs f in one local transaction that begins with a write, so that
// SQLite needs no BEGIN IMMEDIATE.
func (w *writer) inRaw(ctx context.Context, f func(context.Context, *rawTx) error) error {
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	defer conn.Close()
	unclean := false
	err = conn.Raw(func(c any) error {
		q := &rawTx{flavor: FlavorSQLite, conn: c.(driver.Conn), quiet: context.WithoutCancel(ctx)}
		if keeper, ok := c.(*keepingConn); ok {
			q.kept = keeper.stmts
			keeper.makeRoom()
		}
		defer q.close()
		tx, err := q.begin()
		if err != nil {
			return fmt.Errorf("%w (%w)", err, errNotSent)
		}
		if err := f(ctx, q); err != nil {
			// Without COMMIT nothing is written.
			unclean = tx.Rollback() != nil
			return fmt.Errorf("%w (%w)", err, errNotSent)
		}
		return tx.Commit()
	})
	if unclean {
		// It may have a transaction open: see rollback.
		discard(conn)
	}
	return err
}

// begin waits for nobody: the first write takes the lock.
func (q *rawTx) begin() (driver.Tx, error) {
	if b, ok := q.conn.(driver.ConnBeginTx); ok {
		return b.BeginTx(q.quiet, driver.TxOptions{})
	}
	return q.conn.Begin() //nolint:staticcheck // the only way such a driver has
}

// close lets go of what the connection does not keep.
func (q *rawTx) close() {
	for _, stmt := range q.own {
		_ = stmt.Close()
	}
}

// stmt gives a prepared statement.
func (q *rawTx) stmt(sh shape) (driver.Stmt, error) {
	if stmt := q.kept[sh]; stmt != nil {
		return stmt, nil
	}
	text := q.flavor.text(sh)
	var stmt driver.Stmt
	var err error
	if p, ok := q.conn.(driver.ConnPrepareContext); ok {
		stmt, err = p.PrepareContext(q.quiet, text)
	} else {
		stmt, err = q.conn.Prepare(text)
	}
	switch {
	case err != nil:
		return nil, err
	case q.kept != nil:
		q.kept[sh] = stmt
	default:
		q.own = append(q.own, stmt)
	}
	return stmt, nil
}

// run runs a statement with q.args and gives the number of rows it wrote. For
// each statement a driver watches a context that can end; after the first write
// of a transaction nothing waits for anybody, so it is enough to check the
// context in between.
func (q *rawTx) run(ctx context.Context, stmt driver.Stmt) (n int64, err error) {
	if q.began {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		ctx = q.quiet
	}
	q.began = true
	var result driver.Result
	if e, ok := stmt.(driver.StmtExecContext); ok {
		result, err = e.ExecContext(ctx, q.args)
	} else {
		values := make([]driver.Value, len(q.args))
		for i := range q.args {
			values[i] = q.args[i].Value
		}
		result, err = stmt.Exec(values) //nolint:staticcheck // the only way such a driver has
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (q *rawTx) bind(values ...any) {
	q.args = q.args[:0]
	for i, v := range values {
		q.args = append(q.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
}

// insert writes the rows of the requests. SQLite's clock is this process's:
// reading it once is enough.
func (q *rawTx) insert(ctx context.Context, group []*request) error {
	now := time.Now().UnixMilli()
	for _, r := range group {
		for i := range r.Body.adds {
			if err := q.insertRow(ctx, &r.Body.adds[i], now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *rawTx) insertRow(ctx context.Context, r *row, now int64) error {
	stmt, err := q.stmt(shape{kind: insertAt, rows: 1})
	if err != nil {
		return err
	}
	var id, begin, end any = r.id, now, now + r.lease
	q.bind(id, r.source, r.text, r.params, begin, r.transaction, int64(r.no), int64(r.count),
		r.settings, r.notReplayable, r.receipt, r.fingerprint, end, r.token, end)
	_, err = q.run(ctx, stmt)
	return err
}

// remove deletes the units of the requests and gives those that were owned.
func (q *rawTx) remove(ctx context.Context, group []*request) (found []*removal, err error) {
	err = each(group, func(h *removal) error {
		stmt, err := q.stmt(shape{kind: deleteOwned, rows: 1})
		if err != nil {
			return err
		}
		there := false
		for n := range h.rows {
			q.bind(rowID(h.id, n), h.token)
			deleted, err := q.run(ctx, stmt)
			if err != nil {
				return err
			}
			there = there || deleted > 0
		}
		if there {
			found = append(found, h)
		}
		return nil
	})
	return found, err
}

// keepingConn is a connection to SQLite that keeps its own statements prepared
// until it is closed, unknown to database/sql.
type keepingConn struct {
	wholeConn
	stmts map[shape]driver.Stmt
	// writes counts the transactions; ballast is renewed now and then.
	writes  int
	ballast []driver.Stmt
}

// wholeConn is all that database/sql asks of a connection of SQLite's driver.
type wholeConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// keeping makes the connection keep statements, unless its driver's connection
// has fewer interfaces, or more, than the wrapper would show.
func keeping(conn driver.Conn) driver.Conn {
	whole, ok := conn.(wholeConn)
	if _, more := conn.(driver.NamedValueChecker); more || !ok {
		return conn
	}
	return &keepingConn{wholeConn: whole, stmts: map[shape]driver.Stmt{}}
}

// SQLite asks for a buffer as large as a page of the database, 4 KiB and a few
// bytes, whenever it balances one of its trees, and gives it back right after. In
// its port to Go (modernc.org/sqlite) seven of that size share 64 KiB, which are
// mapped from the system for the first of them and unmapped with the last: if all
// others are in use, for each buffer anew, which takes longer than the balancing.
// So there has to be room beside one that stays. The text of a prepared statement
// is such a one. SQLite's cache and other users of it take the room by and by, so
// it is made again.
const (
	// ballastText is as long as puts it into the same size class as a buffer:
	// more than 4 KiB and not more than 8.
	ballastText = 6 << 10
	// ballastStmts are prepared, every other one is kept: there is room beside
	// each of these, whatever else is of that size.
	ballastStmts = 6
	// ballastFor is for how many transactions they stay.
	ballastFor = 32
)

// makeRoom sees to it that there is room for buffers. If it fails, everything
// works, only slower.
func (c *keepingConn) makeRoom() {
	if c.writes++; c.writes%ballastFor != 1 {
		return
	}
	text := "SELECT 1 --" + strings.Repeat(" ", ballastText)
	last := c.ballast
	c.ballast = nil
	var room []driver.Stmt
	for n := range ballastStmts {
		stmt, err := c.Prepare(text)
		switch {
		case err != nil:
		case n%2 == 0:
			room = append(room, stmt)
		default:
			c.ballast = append(c.ballast, stmt)
		}
	}
	for _, stmt := range append(room, last...) {
		_ = stmt.Close()
	}
}

func (c *keepingConn) Close() error {
	var errs []error
	for _, stmt := range c.stmts {
		errs = append(errs, stmt.Close())
	}
	for _, stmt := range c.ballast {
		errs = append(errs, stmt.Close())
	}
	clear(c.stmts)
	c.ballast = nil
	return errors.Join(append(errs, c.wholeConn.Close())...)
}
