package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// ensureReceipts finds or creates the table of receipts, once for each
// connector. A target that is out of reach is no error: the attempts will meet
// that, and look for the table themselves.
func (c *bareConn) ensureReceipts(ctx context.Context) error {
	err := c.lookForReceipts(ctx)
	var table *delivery.ReceiptTableError
	if errors.As(err, &table) || isRights(err) {
		return err
	}
	return nil
}

// lookForReceipts is ensureReceipts whose error says why it is not known where
// they are.
func (c *bareConn) lookForReceipts(ctx context.Context) error {
	if c.c.receiptPlace.Load() != nil {
		return nil
	}
	if c.dead {
		return driver.ErrBadConn
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	err := c.c.locateReceipts(ctx, c.inner)
	if err != nil && !c.c.dialect.Class(err).Answered() {
		c.kill()
	}
	return err
}

func isRights(err error) bool {
	var rights *delivery.ReceiptRightsError
	return errors.As(err, &rights)
}

// withRights has the error of an attempt of u say which rights on the table of
// receipts are missing, or that the table is gone, where that is why it failed.
// Where it may be made again the next attempt does so.
func (c *connector) withRights(ctx context.Context, conn driver.Conn, u *txlog.Unit, out attempt.Outcome) attempt.Outcome {
	switch {
	case u.Receipt == "" || out.Err == nil:
	case attempt.NoReceipts(c.dialect, out.Err):
		c.receiptPlace.Store(nil)
		out.Err = attempt.ReceiptsGone(c.dialect, out.Err)
		out.Class = delivery.Retryable
	default:
		out.Err = attempt.ReceiptRights(ctx, c.dialect, conn, out.Err)
	}
	return out
}

// findReceipts is ensureReceipts for an attempt of u on whatever connection: the
// target may have been out of reach before. No error means that the table is
// there, and that the log says where.
func (c *connector) findReceipts(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	place := c.receiptPlace.Load()
	if place == nil {
		if err := c.locateReceipts(ctx, conn); err != nil {
			return attempt.Failed(c.dialect, err, true)
		}
		place = c.receiptPlace.Load()
	}
	if u.Place != "" || *place == "" {
		return attempt.Outcome{}
	}
	// A job that looks elsewhere would not see what this attempt applies.
	if err := c.cfg.Storage.Locate(ctx, u, *place); err != nil {
		return attempt.Outcome{Class: delivery.Unreachable, Err: fmt.Errorf("bed: not sent, the log could not be told where its receipt will be: %w", err)}
	}
	return attempt.Outcome{}
}

// locateReceipts finds or creates the table of receipts, and remembers where.
func (c *connector) locateReceipts(ctx context.Context, conn driver.Conn) error {
	if err := attempt.EnsureReceipts(ctx, c.dialect, conn); err != nil {
		return err
	}
	place, err := attempt.ReceiptPlace(ctx, c.dialect, conn)
	if err != nil && !c.dialect.Class(err).Answered() {
		return err
	}
	c.receiptPlace.Store(&place)
	return nil
}

// receiptsIn says how the receipt of a local transaction is written. A session
// that has moved may find another table of that name, or none; known is false
// if it cannot be told where the right one is.
func (c *connector) receiptsIn(t *localTx) (r attempt.Receipts, known bool) {
	r = c.receipts
	if !t.moved {
		return r, true
	}
	if place := c.receiptPlace.Load(); place != nil {
		r.Place = *place
	}
	return r, r.Place != ""
}

// replay runs a unit once more. calls are what the log would be read for; nil if
// the caller has not kept it.
func (c *connector) replay(ctx context.Context, conn driver.Conn, calls []delivery.Call, u *txlog.Unit) attempt.Outcome {
	if u.Receipt != "" {
		if out := c.findReceipts(ctx, conn, u); out.Err != nil {
			return out
		}
	}
	if calls == nil {
		return c.withRights(ctx, conn, u, attempt.Replay(ctx, c.dialect, conn, u, c.receipts))
	}
	return c.withRights(ctx, conn, u, attempt.Run(ctx, c.dialect, conn, calls, u, c.receipts))
}

// void decides a unit in doubt.
func (c *connector) void(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	if out := c.findReceipts(ctx, conn, u); out.Err != nil {
		return out
	}
	return c.withRights(ctx, conn, u, attempt.Void(ctx, c.dialect, conn, u, c.receipts))
}

var errNotLookedFor = errors.New("bed: nothing was run: the table of receipts was not looked for before the transaction; " +
	"begin the transaction by BeginTx under the guarantee of its writes")

// eraseBatch is how many receipts are erased together between the callers' writes.
const eraseBatch = 32

// erasesInTurn: SQLite has one writer at a time, and an application that keeps
// to one connection is never locked out. There receipts are erased on the
// callers' own connections between their writes; elsewhere behind the callers.
func (c *connector) erasesInTurn() bool { return c.dialect.Flavor == txlog.FlavorSQLite }

// eraseReceipts erases receipts that no attempt can need any more, on a
// connection of its own. What it cannot erase stays for its retention.
func (c *connector) eraseReceipts(ctx context.Context, ids []string) {
	if c.target.NoSideConnection {
		return
	}
	conn, err := c.dial(ctx)
	if err == nil {
		err = attempt.EraseReceipts(ctx, c.dialect, conn.Conn, ids)
		if cerr := conn.Close(); err == nil && !errors.Is(cerr, driver.ErrBadConn) {
			err = cerr
		}
	}
	c.receiptsStay(err)
}

func (c *connector) receiptsStay(err error) {
	if err != nil {
		c.log.WithField("error", c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
	}
}

// eraseInTurn erases receipts before a write or a transaction on its connection,
// if this is how it is done: after one, changes() is the application's.
func (c *bareConn) eraseInTurn(ctx context.Context) {
	if !c.c.erasesInTurn() || c.dead || c.inner == nil {
		return
	}
	if ids := c.c.deliverer.Receipts(eraseBatch); ids != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.c.cfg.LogTimeout)
		defer cancel()
		c.c.receiptsStay(attempt.EraseReceipts(ctx, c.c.dialect, &c.session, ids))
	}
}
