package attempt

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Undo undoes a part of a group that has turned back, as (*txlog.Unit).Part gives it, in the
// session where it was done: it inserts the receipt of the part's forward unit as void, so
// that what is not applied never will be. If the receipt is there, it is made void, and the
// part's statements run, in one local transaction. Err nil: the part is undone; Voided:
// nothing had to be run for that. Else the outcome is as Apply's, and it may be
// repeated whatever it was: what is void is undone. A forward attempt in flight is waited for.
func Undo(ctx context.Context, d *delivery.Dialect, conn driver.Conn, part *txlog.Unit, r Receipts) Outcome {
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
	return Outcome{Class: delivery.Retryable, OnReceipt: true, Err: errOther}
}

// undoLooks bounds how often Undo looks again at a receipt that another attempt was faster
// with.
const undoLooks = 3

// errOther says that the receipt that was met is void, or gone, by now.
var errOther = errors.New("bed: another attempt to undo the part was faster")

// undoApplied makes the receipt void and runs what undoes the part.
func undoApplied(ctx context.Context, d *delivery.Dialect, conn driver.Conn, part *txlog.Unit, r Receipts) Outcome {
	calls, err := callsOf(part)
	if err != nil {
		return Outcome{Class: delivery.Refused, Err: err}
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		return Failed(d, err, true)
	}
	c := call(r.sql(d.Flavor).undo, part.Receipt)
	res, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err != nil {
		out := undone(ctx, d, conn, tx, Failed(d, err, before))
		out.OnReceipt = waited(ctx, before) || out.Class.Later() && dberr.Of(err).Contended()
		return out
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return undone(ctx, d, conn, tx, Outcome{Class: delivery.Retryable, OnReceipt: true, Err: errOther})
	}
	out := Outcome{Results: make([]driver.Result, 0, len(calls))}
	for _, c := range calls {
		one := Inside(ctx, d, conn, c, false, false)
		if one.Err != nil {
			return undone(ctx, d, conn, tx, one)
		}
		out.Result = one.Result
		out.Results = append(out.Results, one.Result)
	}
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err)
	}
	return out
}
