package attempt

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
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
	c := call(r.sql(d.Flavor).undo, part.Receipt)
	res, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err != nil {
		out := rolledBack(ctx, d, conn, tx, Failed(d, err, before))
		out.OnReceipt = waited(ctx, before) || out.Class.Later() && dberr.Of(err).Contended()
		return out
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return rolledBack(ctx, d, conn, tx, Outcome{Class: dialect.Retryable, OnReceipt: true, Err: errOther})
	}
	out := Outcome{Results: make([]driver.Result, 0, len(calls))}
	for _, c := range calls {
		one := Inside(ctx, d, conn, c, false, false)
		if one.Err != nil {
			return rolledBack(ctx, d, conn, tx, one)
		}
		out.Result = one.Result
		out.Results = append(out.Results, one.Result)
	}
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err)
	}
	return out
}
