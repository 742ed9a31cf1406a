package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/txlog"
)

// receiptPlace is the place of a table of receipts.
type receiptPlace struct {
	name string // empty if that cannot be found out
	// assumed means that the log did not confirm this place for the data source's receipts.
	assumed bool
}

// withRights replaces the error of an attempt of u after the loss of the table of receipts, or of
// a right on it. The new error names the missing rights. If the table may be created again, the
// next attempt does so.
func (c *connector) withRights(ctx context.Context, conn driver.Conn, u *txlog.Unit, out attempt.Outcome) attempt.Outcome {
	switch {
	case u.Receipt == "" || out.Err == nil:
	case attempt.NoReceipts(c.dialect, c.receipts, out.Err):
		c.receiptPlace.Store(nil)
		out.Err = attempt.NoReceiptTable(c.dialect, c.receipts, out.Err)
		out.Class = dialect.Retryable
	default:
		out.Err = attempt.ReceiptRights(ctx, c.dialect, conn, c.receipts, out.Err)
	}
	return out
}

// withReceipt makes an attempt of u on any connection. The target may have been unreachable
// before, so it first looks for the table of receipts, as lookForReceipts does, and records its
// place in the log.
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
		// A job that looks elsewhere would not see this attempt's receipt.
		if err := c.cfg.Storage.Locate(ctx, u, place.name, u.Session); err != nil {
			return attempt.Outcome{Class: dialect.Unreachable, Err: fmt.Errorf("bed: not sent, could not record in the log where its receipt will be: %w", err)}
		}
	}
	out := run()
	if out.Err != nil {
		out = c.withRights(ctx, conn, u, out)
	}
	return out
}

// knownPlace returns the place of the table of receipts, or nil if it is not known. For a request
// under a key, the place must be certain, because earlier requests may have left their receipts
// elsewhere.
func (c *connector) knownPlace(keyed bool) *receiptPlace {
	place := c.receiptPlace.Load()
	if place != nil && place.assumed && keyed {
		return nil
	}
	return place
}

// locateReceipts finds or creates the table of receipts, and remembers its place. If the log does
// not answer, and the DSN names no schema, a write without a key need not wait for the log: it
// will find its receipt in the same place again.
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

// forceReceipts looks for the table of receipts, for a write under AtLeastOnce that needs it
// because its group has a compensation.
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

// receiptsIn returns the receipts for a local transaction. A session that has moved may find
// another table of that name, or no table. known is false if the right place is not known.
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

// onReceipt makes a step on the receipt of a unit alone.
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

// erasesInTurn reports whether receipts are erased on the callers' own connections between their
// writes, instead of after calls return. SQLite does so: it has one writer at a time, and an
// application with one connection is never locked out.
func (c *connector) erasesInTurn() bool { return c.dialect.Flavor == txlog.FlavorSQLite }

// eraseReceipts erases unneeded receipts on a connection of the pool. Those that it cannot erase
// stay for their retention.
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

// receiptsStay logs that err prevented the erasing of receipts.
func (c *connector) receiptsStay(err error) {
	c.log.WithField("error", c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
}
