package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// receiptPlace is where a table of receipts is.
type receiptPlace struct {
	name string // empty if that cannot be found out
	// assumed: the log did not confirm that this data source's receipts are there.
	assumed bool
}

// ensureReceipts finds or creates the table of receipts, once for each connector.
// A target that is out of reach is not an error: the attempts will meet that, and
// look for the table themselves. keyed: what is to be written is under a key.
func (c *bareConn) ensureReceipts(ctx context.Context, keyed bool) error {
	err := c.lookForReceipts(ctx, keyed)
	if err == nil {
		return nil
	}
	var table *delivery.ReceiptTableError
	var elsewhere *attempt.SchemaError
	var rights *delivery.ReceiptRightsError
	if errors.As(err, &table) || errors.As(err, &elsewhere) || errors.As(err, &rights) {
		return err
	}
	if errors.Is(err, ErrNotLogged) && !c.c.cfg.RunUnlogged {
		return err // an entry that is written all the same would not say where its receipt is
	}
	return nil
}

// lookForReceipts is ensureReceipts with an error that says why the table's place
// is not known.
func (c *bareConn) lookForReceipts(ctx context.Context, keyed bool) error {
	if c.c.knownPlace(keyed) != nil {
		return nil
	}
	if c.dead {
		return driver.ErrBadConn
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	var err error
	if c.nextTx && !c.c.target.NoSideConnection {
		out := c.c.pool.attempt(ctx, true, func(conn driver.Conn) attempt.Outcome {
			if _, err := c.c.locateReceipts(ctx, conn, keyed); err != nil {
				return attempt.Failed(c.c.dialect, err, true)
			}
			return attempt.Outcome{}
		})
		err = out.Err
	} else if _, err = c.c.locateReceipts(ctx, c.inner, keyed); err != nil && !c.c.dialect.Class(err).Answered() {
		c.kill()
	}
	var silent *attempt.LogError
	if errors.As(err, &silent) {
		return &NotLoggedError{DataSource: c.c.target.DataSource, Cause: silent.Err}
	}
	return err
}

// withRights makes the error of an attempt of u say which rights on the table of
// receipts are missing, or that the table is gone, if that is why it failed.
// Where the table may be made again the next attempt does so.
func (c *connector) withRights(ctx context.Context, conn driver.Conn, u *txlog.Unit, out attempt.Outcome) attempt.Outcome {
	switch {
	case u.Receipt == "" || out.Err == nil:
	case attempt.NoReceipts(c.dialect, c.receipts, out.Err):
		c.receiptPlace.Store(nil)
		out.Err = attempt.NoReceiptTable(c.dialect, c.receipts, out.Err)
		out.Class = delivery.Retryable
	default:
		out.Err = attempt.ReceiptRights(ctx, c.dialect, conn, c.receipts, out.Err)
	}
	return out
}

// withReceipt makes an attempt of u on any connection: it sees to the table of
// receipts as ensureReceipts does, for the target may have been out of reach
// before, and to the log's saying where that is, and runs the attempt then.
func (c *connector) withReceipt(ctx context.Context, conn driver.Conn, u *txlog.Unit, run func() attempt.Outcome) attempt.Outcome {
	keyed := u.Fingerprint != ""
	place := c.knownPlace(keyed)
	if place == nil {
		var err error
		if place, err = c.locateReceipts(ctx, conn, keyed); err != nil {
			return attempt.Failed(c.dialect, err, true)
		}
	}
	if u.Place == "" && place.name != "" {
		// A job that looks elsewhere would not see what this attempt applies.
		if err := c.cfg.Storage.Locate(ctx, u, place.name); err != nil {
			return attempt.Outcome{Class: delivery.Unreachable, Err: fmt.Errorf("bed: not sent, the log could not be told where its receipt will be: %w", err)}
		}
	}
	out := run()
	if out.Err != nil {
		out = c.withRights(ctx, conn, u, out)
	}
	return out
}

// knownPlace is where the table of receipts was found; nil if it was not, and for
// a request under a key, if that need not be where earlier ones left theirs.
func (c *connector) knownPlace(keyed bool) *receiptPlace {
	place := c.receiptPlace.Load()
	if place != nil && place.assumed && keyed {
		return nil
	}
	return place
}

// locateReceipts finds or creates the table of receipts, and remembers where. If
// the log does not say where they are, and the DSN names no schema, what is
// under no key finds its receipt where it leaves it, and need not wait for the
// log.
func (c *connector) locateReceipts(ctx context.Context, conn driver.Conn, keyed bool) (*receiptPlace, error) {
	err := attempt.EnsureReceipts(ctx, c.dialect, conn, promptLog{c.cfg.Storage, c.cfg.LogTimeout}, c.target.DataSource, c.receipts)
	var silent *attempt.LogError
	assumed := !keyed && c.receipts.Schema == "" && errors.As(err, &silent)
	if assumed {
		err = attempt.EnsureReceipts(ctx, c.dialect, conn, nil, c.target.DataSource, c.receipts)
	}
	if err != nil {
		return nil, err
	}
	name, err := attempt.ReceiptPlace(ctx, c.dialect, conn, c.receipts)
	if err != nil && !c.dialect.Class(err).Answered() {
		return nil, err
	}
	place := &receiptPlace{name, assumed}
	c.receiptPlace.Store(place)
	return place, nil
}

// promptLog is a log that says where receipts are, or fails, within a time: a
// write waits for it, whose caller's context may never end.
type promptLog struct {
	txlog.Storage
	within time.Duration
}

// ReceiptSchema implements [txlog.Storage].
func (l promptLog) ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	return l.Storage.ReceiptSchema(ctx, dataSource)
}

// SetReceiptSchema implements [txlog.Storage].
func (l promptLog) SetReceiptSchema(ctx context.Context, dataSource, schema string) error {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	return l.Storage.SetReceiptSchema(ctx, dataSource, schema)
}

// receiptsIn says how the receipt of a local transaction is written. A session
// that has moved may find another table of that name, or none; known is false if
// the right one's place is not known.
func (c *connector) receiptsIn(t *localTx) (r attempt.Receipts, known bool) {
	r = c.receipts
	if !t.moved || r.Schema != "" {
		return r, true
	}
	if place := c.receiptPlace.Load(); place != nil {
		r.Place = place.name
	}
	return r, r.Place != ""
}

// replay runs a unit once more. calls are what would otherwise be read from the
// log; nil if the caller has not kept them.
func (c *connector) replay(ctx context.Context, conn driver.Conn, calls []delivery.Call, u *txlog.Unit) attempt.Outcome {
	run := func() attempt.Outcome {
		if calls == nil {
			return attempt.Replay(ctx, c.dialect, conn, u, c.receipts)
		}
		return attempt.Run(ctx, c.dialect, conn, calls, u, c.receipts)
	}
	if u.Receipt == "" {
		return run()
	}
	return c.withReceipt(ctx, conn, u, run)
}

// void decides a unit in doubt.
func (c *connector) void(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	return c.withReceipt(ctx, conn, u, func() attempt.Outcome { return attempt.Void(ctx, c.dialect, conn, u, c.receipts) })
}

// noteTold notes in the receipt that decided a unit that its caller was told.
func (c *connector) noteTold(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	return attempt.NoteTold(ctx, c.dialect, conn, u, c.receipts)
}

var errNotLookedFor = errors.New("bed: nothing was run: the table of receipts was not looked for before the transaction; " +
	"begin the transaction by BeginTx under the guarantee of its writes")

// eraseBatch is how many receipts are erased together between the callers' writes.
const eraseBatch = 32

// erasesInTurn reports whether receipts are erased on the callers' own
// connections between their writes, instead of behind the callers. So it is in
// SQLite, which has one writer at a time: an application that keeps to one
// connection is never locked out.
func (c *connector) erasesInTurn() bool { return c.dialect.Flavor == txlog.FlavorSQLite }

// eraseReceipts erases receipts that no attempt can need any more, on a
// connection of the pool. What it cannot erase stays for its retention.
func (c *connector) eraseReceipts(ctx context.Context, _ removal.Settings, ids []string) {
	if c.target.NoSideConnection {
		return
	}
	out := c.pool.attempt(ctx, false, func(conn driver.Conn) attempt.Outcome {
		err := attempt.EraseReceipts(ctx, c.dialect, conn, c.receipts, ids)
		return attempt.Outcome{Err: err, ConnLost: err != nil} // it is not known what was left behind
	})
	if out.Err != nil {
		c.receiptsStay(out.Err)
	}
}

// receiptsStay tells that err kept receipts from being erased.
func (c *connector) receiptsStay(err error) {
	c.log.WithField("error", c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
}

// eraseInTurn erases receipts before a write or a transaction on its connection,
// where that is the way. After one it would be too late: changes() is the
// application's.
func (c *bareConn) eraseInTurn(ctx context.Context) {
	if !c.c.erasesInTurn() || c.dead || c.inner == nil {
		return
	}
	if ids := c.c.deliverer.Receipts(eraseBatch); ids != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.c.cfg.LogTimeout)
		defer cancel()
		if err := attempt.EraseReceipts(ctx, c.c.dialect, &c.session, c.c.receipts, ids); err != nil {
			c.c.receiptsStay(err)
		}
	}
}
