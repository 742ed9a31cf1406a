package bedsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Tx is a wrapped local transaction.
type Tx struct {
	c     *Conn
	ctx   context.Context
	inner driver.Tx
}

var _ driver.Tx = (*Tx)(nil)

// Begin implements driver.Conn.
func (c *Conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements driver.ConnBeginTx. Its error is the driver's.
func (c *Conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if soft := c.stagedIn(ctx); soft != nil && c.tx == nil && !opts.ReadOnly {
		return c.beginStaged(ctx, opts, soft)
	}
	if c.dead {
		return nil, driver.ErrBadConn // its BEGIN could commit what is still open
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	if k := scopeOf(ctx).key; k != nil && !scopeOf(ctx).skip && !opts.ReadOnly {
		return c.beginKeyed(ctx, opts, k)
	}
	if !opts.ReadOnly {
		c.beforeBegin(ctx)
	}
	if c.tx != nil && c.c.dialect.Flavor != txlog.FlavorMySQL {
		// A BEGIN sent as text is open. What the database makes of a second
		// one, the driver says; the writes so far are still to be committed.
		inner, err := attempt.BeginTx(ctx, c.inner, opts)
		if err != nil {
			return nil, err
		}
		return &Tx{c: c, ctx: ctx, inner: inner}, nil
	}
	var (
		inner     driver.Tx
		failed    error
		committed bool // what was open, although no transaction has begun
	)
	t := c.tx
	begin := func(ctx context.Context) ending {
		if inner, failed = attempt.BeginTx(ctx, c.inner, opts); failed == nil {
			return ending{}
		}
		out := c.lossy(attempt.Failed(c.c.dialect, failed, false))
		if t == nil || !out.Class.Answered() {
			return ending{Outcome: out}
		}
		switch c.afterImplicitCommit(ctx, &out) {
		case delivery.StillOpen:
			return ending{Outcome: out, open: true}
		case delivery.InDoubt:
			return ending{Outcome: out}
		default:
			committed = true
			return ending{}
		}
	}
	// Where a transaction is open already (SET autocommit=0, a BEGIN sent as
	// text) MySQL commits it first.
	if swallowed, err := c.commit(ctx, ender{finish: begin, undo: c.rollback(ctx, nil)}); err != nil && !swallowed {
		failed = err
	}
	if failed != nil {
		if t != nil && c.tx != t && !committed {
			c.lose(t, failed) // to the caller it goes on
		}
		return nil, failed
	}
	local := c.open(ctx)
	local.readsLock = sql.IsolationLevel(opts.Isolation) == sql.LevelSerializable
	local.readOnly = opts.ReadOnly && scopeOf(ctx).key != nil && !scopeOf(ctx).skip
	if opts.ReadOnly && local.receipt {
		// The table of receipts was not looked for. SQLite's driver lets it
		// write all the same.
		local.receipt = false
		local.unreplayable("it was begun as a read-only one, and leaves no receipt")
	}
	return &Tx{c: c, ctx: ctx, inner: inner}, nil
}

// Commit implements driver.Tx. The writes of the transaction are logged as one
// unit before COMMIT is sent. An answer of the database to COMMIT is the
// caller's; without an answer the unit is delivered again if that is safe, and
// parked if not.
func (t *Tx) Commit() error {
	c := t.c
	if c.tx != nil && c.tx.lost != nil {
		if c.tx.keyed != nil {
			c.tx.keyed.back()
		}
		err := fmt.Errorf("bed: nothing was committed: %w", c.tx.lostError())
		c.undo(c.rollback(t.ctx, t.inner))
		c.closed()
		return err
	}
	swallowed, err := c.commit(t.ctx, ender{
		finish: func(ctx context.Context) ending {
			if err := attempt.CommitTx(ctx, c.c.dialect, &c.session, t.inner); err != nil {
				return ending{Outcome: c.lossy(attempt.CommitFailed(ctx, c.c.dialect, &c.session, err))}
			}
			return ending{}
		},
		plain: true,
		undo:  c.rollback(t.ctx, t.inner),
	})
	if swallowed {
		return nil
	}
	return err
}

// Rollback implements driver.Tx. It leaves nothing in the log.
func (t *Tx) Rollback() error {
	c := t.c
	if c.tx != nil && c.tx.keyed != nil {
		c.tx.keyed.back()
	}
	return c.rolledBack(t.ctx, t.inner)
}

// rolledBack ends the local transaction by ROLLBACK and gives its error, after
// which the connection is not used again: the transaction may still be open.
func (c *Conn) rolledBack(ctx context.Context, tx driver.Tx) error {
	err := attempt.Rollback(ctx, c.c.dialect, &c.session, tx)
	if !attempt.RolledBack(c.c.dialect, err) {
		c.kill()
	}
	c.closed()
	return err
}

// undoTimeout bounds a ROLLBACK that the caller did not ask for.
const undoTimeout = 5 * time.Second

// rollback makes a ROLLBACK for undo, of tx or of what was begun by a statement.
func (c *Conn) rollback(ctx context.Context, tx driver.Tx) func() error {
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
