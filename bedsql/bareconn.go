package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener/delivery"
)

// bareConn is the driver's own connection, with what is known about it whatever
// runs on it.
type bareConn struct {
	c *connector
	// inner is the bare connection, nil until first use.
	inner driver.Conn
	// session is inner with what its dialect remembers of it.
	session attempt.Session
	// has holds the interfaces of inner that every call needs; nil where inner
	// lacks one.
	has struct {
		driver.ExecerContext
		driver.QueryerContext
		driver.SessionResetter
		driver.Validator
	}
	// dead says that inner must not be used again. It is never redialled in
	// place, because what its session held is gone.
	dead bool
	// nextTx says that MySQL's SET TRANSACTION was sent. It is for the application's
	// next transaction, and bed's own questions would be that.
	nextTx bool
	// stmts are the prepared statements, for a driver that looks there for each
	// text it is given (see delivery.Dialect.PreparedByText).
	stmts []*stmt
}

var errNoOther = errors.New("bed: the connection is gone, and another one would reach another database (:memory:)")

// undoTimeout bounds a ROLLBACK that the caller did not ask for.
const undoTimeout = 5 * time.Second

// ensure dials on first use. The error is the driver's.
func (c *bareConn) ensure(ctx context.Context) error {
	if c.dead {
		return driver.ErrBadConn
	}
	if c.inner != nil {
		return nil
	}
	session, err := c.c.dial(ctx)
	if err != nil {
		return err
	}
	inner := session.Conn
	c.inner, c.session = inner, session
	c.has.ExecerContext, _ = inner.(driver.ExecerContext)
	c.has.QueryerContext, _ = inner.(driver.QueryerContext)
	c.has.SessionResetter, _ = inner.(driver.SessionResetter)
	c.has.Validator, _ = inner.(driver.Validator)
	return nil
}

// ready is ensure for calls that need not be refused on a dead connection: the
// driver itself says what is wrong with it.
func (c *bareConn) ready(ctx context.Context) error {
	if c.inner != nil {
		return nil
	}
	return c.ensure(ctx)
}

// prepare prepares a statement of the application's on the bare connection.
func (c *bareConn) prepare(ctx context.Context, query string) (driver.Stmt, error) {
	st, err := attempt.Prepare(ctx, c.inner, query)
	if reusable := c.c.dialect.Reusable; err == nil && reusable != nil {
		st = reusable(c.inner, query, st)
	}
	return st, err
}

// kill takes the connection out of use.
func (c *bareConn) kill() { c.dead = true }

// lossy takes the connection out of use if the attempt lost it.
func (c *bareConn) lossy(out attempt.Outcome) attempt.Outcome {
	if out.ConnLost {
		c.kill()
	}
	return out
}

// again runs f as a further attempt on a connection that was checked: the
// caller's own while it answers, else one of the pool.
func (c *bareConn) again(ctx context.Context, f func(driver.Conn) attempt.Outcome) attempt.Outcome {
	if !c.dead {
		if err := c.ensure(ctx); err != nil {
			return attempt.Outcome{Err: err, Class: c.c.dialect.DialClass(err)}
		}
		if attempt.Ping(ctx, c.inner) == nil {
			return c.attempt(func() attempt.Outcome { return f(&c.session) })
		}
		if err := ctx.Err(); err != nil {
			return attempt.Outcome{Err: err, Class: delivery.Unreachable}
		}
		c.kill()
	}
	if c.c.target.NoSideConnection {
		return attempt.Outcome{Err: errNoOther, Class: delivery.Unreachable}
	}
	return c.c.pool.attempt(ctx, true, f)
}

// attempt runs an attempt on the connection, and takes the connection out of use
// if the attempt lost it or the driver panicked: a transaction may be open on it,
// which the next attempt would commit.
func (c *bareConn) attempt(run func() attempt.Outcome) attempt.Outcome {
	lost := true
	defer func() {
		if lost {
			c.kill()
		}
	}()
	out := run()
	lost = out.ConnLost
	return out
}

// discard is kill for a connection that may hold an open transaction: what the
// caller still sends there must not end it.
func (c *bareConn) discard() {
	c.kill()
	_ = c.session.Close()
}

// text is a statement that was given as text. A write is sent as prepared where
// the driver would do so.
func (c *bareConn) text(query string, class sqltext.Class) statement {
	s := statement{query: query, class: class}
	for _, open := range c.stmts {
		if open.query == query && open.prepared != nil {
			s.prepared = open.prepared
			break
		}
	}
	return s
}

// send runs s on the bare connection, as a prepared statement if it is one.
// before is as for attempt.Send.
func (c *bareConn) send(ctx context.Context, s statement, args []driver.NamedValue) (res driver.Result, before bool, err error) {
	if err := s.prepareLate(ctx, args); err != nil {
		return nil, true, err
	}
	call := s.call(args)
	r, before, err := attempt.Send(ctx, c.inner, &call, false)
	return r.Result, before, err
}

// bare hands s to the driver as database/sql would: driver.ErrSkip comes back as
// it is, unless s is a prepared statement, which must not skip.
func (c *bareConn) bare(ctx context.Context, s statement, args []driver.NamedValue, rows bool) (r attempt.Reply, err error) {
	if err := s.prepareLate(ctx, args); err != nil {
		return r, err
	}
	switch {
	case s.prepared != nil:
		return attempt.SendStmt(ctx, s.prepared, args, rows)
	case rows && c.has.QueryerContext != nil:
		r.Rows, err = c.has.QueryContext(ctx, s.query, args)
	case !rows && c.has.ExecerContext != nil:
		r.Result, err = c.has.ExecContext(ctx, s.query, args)
	default:
		err = driver.ErrSkip
	}
	return r, err
}

// undo rolls back, or takes the connection out of use: an open transaction
// must not go back to the pool.
func (c *bareConn) undo(undo func() error) {
	if !attempt.RolledBack(c.c.dialect, undo()) {
		c.kill()
	}
}

// sendEnd runs a statement that ends the open transaction on the bare connection,
// as one attempt. before is as for attempt.Send.
func (c *bareConn) sendEnd(ctx context.Context, s statement, args []driver.NamedValue) (res driver.Result, before bool, out attempt.Outcome) {
	res, before, err := c.send(ctx, s, args)
	if err == nil {
		return res, before, attempt.Outcome{Result: res}
	}
	out = attempt.Failed(c.c.dialect, err, before)
	if !s.class.ImplicitCommit && (!before || out.Class.Answered()) {
		out = attempt.CommitFailed(ctx, c.c.dialect, &c.session, err)
	}
	return res, before, c.lossy(out)
}

// afterImplicitCommit says how the open transaction ended when a statement that
// commits implicitly failed with out's error. committed reports that it did
// commit. If nobody can tell, the connection is closed.
func (c *bareConn) afterImplicitCommit(ctx context.Context, out attempt.Outcome) (end ending, committed bool) {
	state := delivery.Committed
	if after := c.c.dialect.AfterImplicitCommit; after != nil {
		state = after(ctx, c.inner, out.Err)
	}
	switch state {
	case delivery.StillOpen:
		return ending{Outcome: out, open: true}, false
	case delivery.InDoubt:
		out.Class, out.ConnLost = delivery.Unknown, true
		c.discard()
		return ending{Outcome: out}, false
	default:
		return ending{}, true
	}
}

// rollback makes a ROLLBACK for undo, of tx or of what was begun by a statement.
func (c *bareConn) rollback(ctx context.Context, tx driver.Tx) func() error {
	return func() error {
		bounded := ctx
		if ctx.Done() != nil || tx == nil {
			var cancel context.CancelFunc
			bounded, cancel = context.WithTimeout(ctx, undoTimeout)
			defer cancel()
		}
		return attempt.Rollback(bounded, c.c.dialect, &c.session, tx)
	}
}
