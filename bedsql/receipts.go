package bedsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"io/fs"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/removal"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/target"
)

// ReceiptMigrations returns the steps that create and upgrade bed_receipt and bed_order in a target:
// "mysql" (also for MariaDB), "postgres" or "sqlite". They are files for goose, golang-migrate or
// atlas, 00001_bed_receipt.up.sql and so on; see txlog.Migrations. Without them the wrapped driver
// and the job create the tables at first use.
func ReceiptMigrations(database string) (fs.FS, error) {
	text, err := attempt.TargetSchema(database)
	if err != nil {
		return nil, err
	}
	return tables.Migrations(sqltext.FlavorOf(database), text, "bed_receipt")
}

// attempt has run make an attempt of u on conn, in u's session. If u leaves a receipt, the table of
// receipts is there by then, and the log holds its place.
func (c *connector) attempt(ctx context.Context, conn driver.Conn, u *entry.Unit, run func() attempt.Outcome) attempt.Outcome {
	if err := c.target.InSession(ctx, conn, u); err != nil {
		return c.target.Failed(err)
	}
	out, _ := c.target.Attempt(ctx, conn, u, run)
	return out
}

// lookForReceipts finds or creates the table of receipts, once for each connector, within
// AttemptTimeout. deadline is the end of that time after a look. The error explains why the
// table's place is unknown. keyed means that the write is under a key.
func (c *Conn) lookForReceipts(ctx context.Context, keyed bool) (deadline time.Time, err error) {
	if c.c.target.Known(keyed) != nil {
		return deadline, nil
	}
	if err := leavesReceipts(c.c.dialect, c.c.target.DataSource); err != nil {
		return deadline, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.c.cfg.AttemptTimeout)
	defer cancel()
	deadline, _ = ctx.Deadline()
	if c.dead {
		return deadline, driver.ErrBadConn
	}
	if err := c.ready(ctx); err != nil {
		return deadline, err
	}
	if c.nextTx && !c.c.target.NoSideConnection {
		return deadline, c.c.locateAside(ctx, keyed)
	}
	if _, err = c.c.target.Find(ctx, c.inner, keyed); err == nil {
		return deadline, nil
	}
	if !c.c.dialect.Class(err).Answered() {
		c.dead = true
	}
	return deadline, c.c.unlocated(err)
}

// locateAside is target.Source.Find on a connection of the pool.
func (c *connector) locateAside(ctx context.Context, keyed bool) error {
	out := c.onPool(ctx, true, func(conn driver.Conn) attempt.Outcome {
		if _, err := c.target.Find(ctx, conn, keyed); err != nil {
			return attempt.Failed(c.dialect, err, true)
		}
		return attempt.Outcome{}
	})
	return c.unlocated(out.Err)
}

// unlocated turns an error of target.Source.Find into the caller's error.
func (c *connector) unlocated(err error) error {
	var silent *target.LogError
	if errors.As(err, &silent) {
		return &NotLoggedError{DataSource: c.target.DataSource, Cause: silent.Err}
	}
	return err
}

// needsReceipts reports whether err, of lookForReceipts, prevents the logging of a write. An
// unreachable target does not: the attempts will meet that error, and look for the table
// themselves.
func (c *connector) needsReceipts(err error) bool {
	_, unusable := target.Unusable(err, c.dialect.Describe)
	return unusable || errors.As(err, new(*target.ElsewhereError)) ||
		// An entry written all the same would not name the place of its receipt.
		errors.Is(err, ErrNotLogged) && !c.cfg.RunUnlogged || leavesReceipts(c.dialect, c.target.DataSource) != nil
}

// eraseInTurn erases receipts before a write or a transaction on its connection, for databases
// that do so in turn. After a write it would be too late, because changes() belongs to the
// application.
func (c *Conn) eraseInTurn(ctx context.Context) {
	if !c.c.deliverer.EraseInTurn || c.dead || c.inner == nil {
		return
	}
	if ids := c.c.deliverer.Removals.Receipts(eraseBatch); ids != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.c.cfg.LogTimeout)
		defer cancel()
		if err := attempt.EraseReceipts(ctx, c.c.dialect, &c.session, c.c.receipts, ids); err != nil {
			c.c.receiptsStay(err)
		}
	}
}

// leaveReceipt makes u leave a receipt. known means that u also names the receipt's place.
func (c *connector) leaveReceipt(u *entry.Unit) (known bool) {
	u.Receipt = attempt.ReceiptID(c.dialect, u.ID)
	place := c.target.Known(false)
	if place != nil {
		u.Place = place.Name
	}
	return place != nil
}

// receiptsIn returns the receipts for a local transaction. A session with another search path may
// find another table, or none. Without the right place known is false.
func (c *connector) receiptsIn(t *localTx) (r attempt.Receipts, known bool) {
	r = c.receipts
	if !t.moved || r.Schema != "" {
		return r, true
	}
	if place := c.target.Known(false); place != nil {
		r.Place = place.Name
	}
	return r, r.Place != ""
}

// run is attempt by f.
func (c *connector) run(ctx context.Context, conn driver.Conn, u *entry.Unit, f attempt.Runner) attempt.Outcome {
	return c.attempt(ctx, conn, u, func() attempt.Outcome { return f(ctx, c.dialect, conn, u, c.receipts) })
}

var errNotLookedFor = errors.New("bed: nothing was run: the table of receipts was not looked for before the transaction; " +
	"begin the transaction by BeginTx under the guarantee of its writes")

// eraseBatch is how many receipts are erased together between the callers' writes.
const eraseBatch = 32

// eraseReceipts erases unneeded receipts on a connection of the pool. Those that it cannot erase
// stay for their retention.
func (c *connector) eraseReceipts(ctx context.Context, _ removal.Session, ids []string) {
	if c.target.NoSideConnection {
		return
	}
	if err := c.pool.Ask(ctx, func(conn driver.Conn) error { return attempt.EraseReceipts(ctx, c.dialect, conn, c.receipts, ids) }); err != nil {
		c.receiptsStay(err)
	}
}

// receiptsStay logs that err prevented the erasing of receipts.
func (c *connector) receiptsStay(err error) {
	c.log.WithField("error", c.dialect.Describe(err)).Info("bed: receipts could not be erased, they stay for their retention")
}
