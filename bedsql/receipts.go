package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
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
// receipts as lookForReceipts does, for the target may have been out of reach
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
		if err := c.cfg.Storage.Locate(ctx, u, place.name, u.Session); err != nil {
			return attempt.Outcome{Class: delivery.Unreachable, Err: fmt.Errorf("bed: not sent, could not record in the log where its receipt will be: %w", err)}
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
	bounded, cancel := context.WithTimeout(ctx, c.cfg.LogTimeout) // the caller's context may never end
	err := attempt.CheckSchema(bounded, c.dialect, conn, c.cfg.Storage, c.target.DataSource, c.receipts)
	cancel()
	var silent *attempt.LogError
	assumed := !keyed && c.receipts.Schema == "" && errors.As(err, &silent)
	if err != nil && !assumed {
		return nil, err
	}
	if err := attempt.EnsureReceipts(ctx, c.dialect, conn, c.receipts); err != nil {
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

// forceReceipts looks for the table of receipts that a write recorded at least once needs
// because its group can turn back.
func (c *connector) forceReceipts(ctx context.Context) error {
	if c.knownPlace(false) != nil {
		return nil
	}
	if err := leavesReceipts(c.dialect, c.target.DataSource); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	err := c.locateAside(ctx, false)
	if err != nil && c.needsReceipts(err) {
		return err
	}
	return nil
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

// replay runs a unit once more.
func (c *connector) replay(ctx context.Context, conn driver.Conn, u *txlog.Unit) attempt.Outcome {
	if err := c.sameSession(ctx, conn, u); err != nil {
		return attempt.Failed(c.dialect, err, true)
	}
	run := func() attempt.Outcome { return attempt.Replay(ctx, c.dialect, conn, u, c.receipts) }
	if u.Receipt == "" {
		return run()
	}
	return c.withReceipt(ctx, conn, u, run)
}

// again makes a further step with a unit.
func (c *connector) again(ctx context.Context, conn driver.Conn, step besteffort.Step, u *txlog.Unit) attempt.Outcome {
	if step == besteffort.Retry {
		return c.replay(ctx, conn, u)
	}
	return c.onReceipt(ctx, conn, step, u)
}

// onReceipt makes a step that concerns the receipt of a unit alone.
func (c *connector) onReceipt(ctx context.Context, conn driver.Conn, step besteffort.Step, u *txlog.Unit) attempt.Outcome {
	if step == besteffort.MarkReported {
		return attempt.MarkReported(ctx, c.dialect, conn, u, c.receipts)
	}
	if err := c.sameSession(ctx, conn, u); err != nil {
		return attempt.Failed(c.dialect, err, true)
	}
	return c.withReceipt(ctx, conn, u, func() attempt.Outcome { return attempt.Void(ctx, c.dialect, conn, u, c.receipts) })
}

var errNotLookedFor = errors.New("bed: nothing was run: the table of receipts was not looked for before the transaction; " +
	"begin the transaction by BeginTx under the guarantee of its writes")

// eraseBatch is how many receipts are erased together between the callers' writes.
const eraseBatch = 32

// erasesInTurn reports whether receipts are erased on the callers' own
// connections between their writes, instead of after calls return. So it is in
// SQLite, which has one writer at a time: an application that keeps to one
// connection is never locked out.
func (c *connector) erasesInTurn() bool { return c.dialect.Flavor == txlog.FlavorSQLite }

// eraseReceipts erases receipts that no attempt can need any more, on a
// connection of the pool. What it cannot erase stays for its retention.
func (c *connector) eraseReceipts(ctx context.Context, _ removal.Session, ids []string) {
	if c.target.NoSideConnection {
		return
	}
	out := c.pool.on(ctx, false, func(conn driver.Conn) attempt.Outcome {
		err := attempt.EraseReceipts(ctx, c.dialect, conn, c.receipts, ids)
		return attempt.Outcome{Err: err, ConnLost: err != nil} // it is not known what was left behind
	})
	if out.Err != nil {
		c.receiptsStay(out.Err)
	}
}

// receiptsStay logs that err kept receipts from being erased.
func (c *connector) receiptsStay(err error) {
	c.log.WithField("error", c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
}
