package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// Runner makes one attempt at a unit, as Replay, Void and Undo do.
type Runner = func(context.Context, *dialect.Dialect, driver.Conn, *entry.Unit, Receipts) Outcome

// Undo compensates a part of a group, as (*entry.Unit).Part returns it, in the session where it
// was done. It inserts the receipt of the part's forward unit as void; then no attempt can apply
// that unit. If the receipt exists, Undo makes it void and runs the part's statements, in one
// local transaction. Err nil means that the part is compensated; Voided means that there was
// nothing to run. Otherwise the outcome is the same as Apply's, and the caller may always repeat
// Undo, because a void receipt means compensated. Undo waits for a forward attempt in flight.
func Undo(ctx context.Context, d *dialect.Dialect, conn driver.Conn, part *entry.Unit, r Receipts) Outcome {
	if d.Peer != nil {
		nothing, err := d.Peer.Undo(ctx, Bare(conn), part)
		if err != nil {
			return Failed(d, err, false)
		}
		return Outcome{Voided: nothing}
	}
	for range undoLooks {
		out := Void(ctx, d, conn, part, r)
		switch {
		case out.Voided:
			return Outcome{Voided: true}
		case !out.Found:
			return out
		}
		if out = undoApplied(ctx, d, conn, part, r); !errors.Is(out.Err, errOther) || out.ConnLost {
			return out
		}
	}
	return Outcome{Class: dialect.Retryable, OnReceipt: true, Err: errOther}
}

// undoLooks bounds how often Undo reads a receipt again after another attempt was faster.
const undoLooks = 3

// errOther reports that the receipt in question is void, or gone, by now.
var errOther = errors.New("bed: another attempt to compensate the part was faster")

// undoApplied makes the receipt void and runs the part's statements.
func undoApplied(ctx context.Context, d *dialect.Dialect, conn driver.Conn, part *entry.Unit, r Receipts) Outcome {
	calls, err := callsOf(part)
	if err != nil {
		return Outcome{Class: dialect.Refused, Err: err}
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		return Failed(d, err, true)
	}
	c := call(r.text(d.Flavor, setUndone), part.Receipt)
	res, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err != nil {
		out := rolledBack(ctx, d, conn, tx, Failed(d, err, before))
		out.OnReceipt = waited(ctx, before) || out.Class.Later() && dberr.Of(err).Contended()
		return out
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return rolledBack(ctx, d, conn, tx, Outcome{Class: dialect.Retryable, OnReceipt: true, Err: errOther})
	}
	return throughCommit(ctx, d, conn, tx, calls, false, false)
}

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
	insert := []any{u.Receipt, u.ID, r.LogIdentity, r.KeyRetention.Milliseconds(), byCaller}
	var rows [][]driver.Value
	var err error
	if lock := r.text(d.Flavor, lockReceipt); d.Flavor != sqltext.MySQL {
		rows, err = Ask(ctx, conn, lock, insert...)
	} else if _, _, err = Exec(ctx, conn, lock, Numbered(insert)); err == nil {
		rows, err = Ask(ctx, conn, r.text(d.Flavor, readLocked), u.Receipt)
	}
	if err == nil && len(rows) != 1 {
		err = errNotLocked
	}
	var of [][]driver.Value
	if err == nil {
		of, err = Ask(ctx, conn, r.text(d.Flavor, readIdentity))
	}
	if err != nil {
		out := rolledBack(ctx, d, conn, tx, Failed(d, err, false))
		out.OnReceipt = out.Class.Later() && dberr.Of(err).Contended()
		return out, nil
	}
	l := &Locked{Inserted: Text(rows[0][1]) == u.ID, Void: Number(rows[0][0]) != 0, Now: time.UnixMilli(Number(rows[0][3])), Identity: first(of)}
	if !l.Void {
		l.Result = Text(rows[0][2])
	}
	return Outcome{}, l
}

var errNotLocked = errors.New("bed: nothing was run: the receipt of the request to undo is gone")

// VoidLocked makes the receipt of u void, which LockReceipt has locked, and keeps it for KeyRetention
// from now. After an error the transaction is rolled back.
func VoidLocked(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, u *entry.Unit, r Receipts) Outcome {
	c := call(r.text(d.Flavor, voidLocked), r.KeyRetention.Milliseconds(), u.Receipt)
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
	identity := r.text(d.Flavor, readIdentity)
	rows, err := askCommitted(ctx, d, conn, identity)
	if err != nil || len(rows) > 0 {
		return first(rows), err
	}
	made := call(r.text(d.Flavor, insertReceipt), identityReceipt, entry.NewID(), identityLog, int64(1), int64(centuries), nil, identityRemark)
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, made); err != nil && d.Class(err) != dialect.Duplicate {
		return "", ReceiptRights(ctx, d, conn, r, err)
	}
	rows, err = askCommitted(ctx, d, conn, identity)
	if err == nil && len(rows) == 0 {
		err = errNoIdentity
	}
	return first(rows), err
}

var errNoIdentity = errors.New("bed: nothing was run: the identity of the table of receipts is gone")
