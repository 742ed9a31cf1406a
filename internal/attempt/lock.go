package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// Locked is a receipt that the open local transaction has locked.
type Locked struct {
	// Inserted means that there was none: it is void now, so its request can never be applied.
	Inserted bool
	// Void means that the request was not applied and never will be, or that it was undone.
	Void bool
	// Result is the stored answer, unless it is Void.
	Result string
	// Now is the time on the clock of the database.
	Now time.Time
	// Identity is the Identity of the table of receipts; empty if it has none yet.
	Identity string
}

// LockReceipt locks the receipt u.Receipt of a request under a key in the open local transaction tx
// on conn, and waits for another transaction that writes it. A missing receipt is inserted as void,
// by the unit u.ID. After an error the transaction is rolled back; OnReceipt means the same as for
// Apply.
func LockReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, u *entry.Unit, r Receipts) (Outcome, *Locked) {
	s := r.sql(d.Flavor)
	insert := []any{u.Receipt, u.ID, r.LogIdentity, r.KeyRetention.Milliseconds(), byCaller}
	rows, err := s.lockRows(ctx, conn, insert)
	if err == nil && len(rows) != 1 {
		err = errNotLocked
	}
	var of [][]driver.Value
	if err == nil {
		of, err = Ask(ctx, conn, s.identity)
	}
	if err != nil {
		out := rolledBack(ctx, d, conn, tx, Failed(d, err, false))
		out.OnReceipt = out.Class.Later() && dberr.Of(err).Contended()
		return out, nil
	}
	l := &Locked{Inserted: Text(rows[0][1]) == u.ID, Void: Number(rows[0][0]) != 0, Now: time.UnixMilli(Number(rows[0][3])), Identity: identityIn(of)}
	if !l.Void {
		l.Result = Text(rows[0][2])
	}
	return Outcome{}, l
}

var errNotLocked = errors.New("bed: nothing was run: the receipt of the request to undo is gone")

// lockRows sends the upsert. MySQL returns the row by a second statement.
func (s *receiptSQL) lockRows(ctx context.Context, conn driver.Conn, insert []any) ([][]driver.Value, error) {
	if s.locked == "" {
		return Ask(ctx, conn, s.lock, insert...)
	}
	c := call(s.lock, insert...)
	if _, _, err := Exec(ctx, conn, c.SQL, c.Args); err != nil {
		return nil, err
	}
	return Ask(ctx, conn, s.locked, insert[0])
}

// VoidLocked makes the receipt of u void, which LockReceipt has locked, and keeps it for KeyRetention
// from now. After an error the transaction is rolled back.
func VoidLocked(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, u *entry.Unit, r Receipts) Outcome {
	c := call(r.sql(d.Flavor).voidLocked, r.KeyRetention.Milliseconds(), u.Receipt)
	res, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err != nil {
		return rolledBack(ctx, d, conn, tx, Failed(d, err, before))
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return rolledBack(ctx, d, conn, tx, Outcome{Class: dialect.Retryable, OnReceipt: true, Err: errors.Join(errNotLocked, err)})
	}
	return Outcome{}
}

// identityReceipt is the id of a row that identifies the table of receipts. It belongs to no log, so
// no purge reads it.
const identityReceipt = "identity"

const (
	identityLog    = "none"
	identityRemark = "the identity of this table (Idempotency-Scope): keep it, but delete it in a copy"
	// centuries keeps the row out of anything that looks for old ones.
	centuries = 250_000_000_000_000 // ms
)

// Identity returns the identity of the table of receipts, and makes it at first use. A copy of the
// table has the same; in SQLite it also holds the path of the file.
func Identity(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) (string, error) {
	s := r.sql(d.Flavor)
	rows, err := askCommitted(ctx, d, conn, s.identity)
	if err != nil || len(rows) > 0 {
		return identityIn(rows), err
	}
	made := call(s.insert, identityReceipt, entry.NewID(), identityLog, int64(1), int64(centuries), nil, identityRemark)
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, made); err != nil && d.Class(err) != dialect.Duplicate {
		return "", ReceiptRights(ctx, d, conn, r, err)
	}
	rows, err = askCommitted(ctx, d, conn, s.identity)
	if err == nil && len(rows) == 0 {
		err = errNoIdentity
	}
	return identityIn(rows), err
}

var errNoIdentity = errors.New("bed: nothing was run: the identity of the table of receipts is gone")

func identityIn(rows [][]driver.Value) string {
	if len(rows) == 0 {
		return ""
	}
	return Text(rows[0][0])
}
