package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"
	"time"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// rollbackTimeout bounds a ROLLBACK when the context that it belongs to has
// ended.
const rollbackTimeout = time.Second

// CommitFailed reads the error of a COMMIT. An answer means that nothing was
// committed; without one the outcome is unknown. Either way the transaction may
// still be open (Galera's 1047), and the next BEGIN would commit it: the
// connection is closed, and ConnLost set, unless the protocol shows that none is
// open (Idle).
//
// SQLite runs in this process, and closing the connection would lose a database
// in memory: there the transaction is rolled back.
func CommitFailed(ctx context.Context, d *delivery.Dialect, conn driver.Conn, err error) Outcome {
	out := Failed(d, err, false)
	if d.Flavor == txlog.FlavorSQLite {
		out.ConnLost = !RolledBack(d, Rollback(context.WithoutCancel(ctx), d, conn, nil))
		return out
	}
	if goesOn(d, conn, out) {
		return out
	}
	_ = conn.Close()
	out.ConnLost = true
	return out
}

// goesOn reports whether no transaction is open on conn after a COMMIT that was
// answered with out's error.
func goesOn(d *delivery.Dialect, conn driver.Conn, out Outcome) bool {
	return d.Idle != nil && out.Class.Answered() && !out.ConnLost && d.Idle(conn)
}

// Rollback rolls back tx, the local transaction that is open on conn, or, if tx
// is nil, the one that was begun by a statement. Unless it is RolledBack
// afterwards, conn is closed and must not be used again.
func Rollback(ctx context.Context, d *delivery.Dialect, conn driver.Conn, tx driver.Tx) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
	}
	var err error
	switch {
	case tx == nil:
		_, _, err = Exec(ctx, conn, "ROLLBACK", nil)
	case d.Flavor == txlog.FlavorMySQL:
		err = end(ctx, conn, "ROLLBACK", tx.Rollback)
	default:
		err = tx.Rollback()
	}
	if !RolledBack(d, err) {
		_ = conn.Close()
	}
	return err
}

// RolledBack reports whether no transaction is open after a ROLLBACK that ended
// with err. SQLite says by an error that it has rolled back on its own.
func RolledBack(d *delivery.Dialect, err error) bool {
	return err == nil || d.Flavor == txlog.FlavorSQLite && strings.Contains(err.Error(), "no transaction is active")
}

// end ends a transaction in MySQL by its text, if ctx may end: driver.Tx, which
// takes no context, would go on waiting for the answer. The others do without:
// pgx's Tx has the context of BeginTx, and SQLite always answers.
func end(ctx context.Context, conn driver.Conn, text string, plain func() error) error {
	if c, ok := Bare(conn).(driver.ExecerContext); ok && ctx.Done() != nil {
		if _, err := c.ExecContext(ctx, text, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	return plain()
}

// undone rolls back what an outcome before COMMIT leaves open.
func undone(ctx context.Context, d *delivery.Dialect, conn driver.Conn, tx driver.Tx, o Outcome) Outcome {
	if o.Err != nil && o.Class == delivery.Unknown {
		// COMMIT was never sent: the server rolls back with the session.
		o.Class = delivery.Unreachable
	}
	if !RolledBack(d, Rollback(ctx, d, conn, tx)) {
		o.ConnLost = true
	}
	return o
}
