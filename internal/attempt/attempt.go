package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Outcome is how one attempt ended. Certainty follows from it: Err nil is
// applied, Class Unknown is maybe, any other class is not applied.
type Outcome struct {
	// Err is nil when the unit was delivered; otherwise the driver's own error.
	Err error
	// Class says what Err means.
	Class delivery.Class
	// Assumed: delivery is concluded from a duplicate key that was met after an
	// earlier attempt of unknown outcome. Somebody else's row may hold the key;
	// that is the known limit of at-least-once.
	Assumed bool
	// Found: delivery is known from the unit's receipt, which an earlier attempt
	// left; this one applied nothing.
	Found bool
	// Replayed: Found, by another request under the same idempotency key.
	Replayed bool
	// Voided: its receipt says that the unit was not applied and never will be.
	Voided bool
	// Told: Voided, and the caller was told so.
	Told bool
	// OnReceipt: the receipt kept the attempt from running the unit. It waited in
	// vain for another attempt that is writing the receipt, or met a receipt that
	// could not be read or was erased meanwhile. It does not count as a try.
	OnReceipt bool
	// Result is the driver's result of the last statement that ran; nil when
	// Assumed or Found.
	Result driver.Result
	// Results are those of all statements of a unit that was replayed.
	Results []driver.Result
	// Rows are the rows of a single statement run by Query.
	Rows *Rows
	// ConnLost: the connection must not be used again.
	ConnLost bool
}

// Delivered reports whether the unit was applied.
func (o Outcome) Delivered() bool { return o.Err == nil }

// Maybe reports whether it is not known if the unit was applied.
func (o Outcome) Maybe() bool { return o.Err != nil && o.Class == delivery.Unknown }

// Failed makes the outcome of a statement's error. before says that the statement
// itself had not been sent.
func Failed(d *delivery.Dialect, err error, before bool) Outcome {
	o := Outcome{Err: err}
	if before {
		o.Class = d.DialClass(err)
	} else {
		o.Class = d.Class(err)
	}
	// SQLite runs in this process: an interrupted statement does not lose the
	// connection, and one to a database in memory must not be given up.
	o.ConnLost = !o.Class.Answered() && (d.Flavor != txlog.FlavorSQLite || errors.Is(err, driver.ErrBadConn))
	return o
}

// assume turns a duplicate key met after a maybe into a delivery.
func (o Outcome) assume(inDoubt bool) Outcome {
	if inDoubt && o.Err != nil && o.Class == delivery.Duplicate {
		return Outcome{Assumed: true, ConnLost: o.ConnLost}
	}
	return o
}

// One runs a single statement as one attempt, in the session's autocommit. The
// rows of one that returns them are read to their end. inDoubt says that an
// earlier attempt of the same statement may have been applied.
func One(ctx context.Context, d *delivery.Dialect, conn driver.Conn, c delivery.Call, rows, inDoubt bool) Outcome {
	r, before, err := Send(ctx, conn, &c, rows)
	if err != nil {
		return Failed(d, err, before).assume(inDoubt)
	}
	out := Outcome{Result: r.Result}
	if rows {
		if out.Rows, err = BufferWrite(d, r.Rows); err != nil {
			return Failed(d, err, false).assume(inDoubt)
		}
	}
	return out
}

// Replay runs a unit from the log as one attempt: with its receipt if it has
// one, else a single statement in autocommit and several as one local
// transaction. It does not look at NotReplayable; the caller must. A unit
// whose parameters cannot be read is Refused. On return the connection holds
// no open transaction, or ConnLost is set and it must be closed.
func Replay(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts) Outcome {
	if len(u.Statements) == 0 {
		return Outcome{Class: delivery.Refused, Err: fmt.Errorf("bed: entry %s holds no statement", u.ID)}
	}
	calls := make([]delivery.Call, len(u.Statements))
	for i, s := range u.Statements {
		args, err := s.Args()
		if err != nil {
			return Outcome{Class: delivery.Refused, Err: fmt.Errorf("bed: entry %s, statement %d: %w", u.ID, i, err)}
		}
		calls[i] = delivery.Call{SQL: s.SQL, Args: args, Prepared: s.Prepared}
	}
	return Run(ctx, d, conn, calls, u, r)
}

// Run is Replay for callers that have the statements of u as the driver takes
// them.
func Run(ctx context.Context, d *delivery.Dialect, conn driver.Conn, calls []delivery.Call, u *txlog.Unit, r Receipts) Outcome {
	switch {
	case u.Receipt != "":
		return Apply(ctx, d, conn, calls, u, r, false)
	case len(calls) == 1:
		out := One(ctx, d, conn, calls[0], false, u.InDoubt)
		if out.Result != nil {
			out.Results = []driver.Result{out.Result}
		}
		return out
	default:
		return replayAll(ctx, d, conn, calls, u.InDoubt)
	}
}

// replayAll runs several statements as one local transaction.
func replayAll(ctx context.Context, d *delivery.Dialect, conn driver.Conn, calls []delivery.Call, inDoubt bool) Outcome {
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		out := Failed(d, err, true)
		out.ConnLost = !out.Class.Answered() // it may have begun
		return out
	}
	var out Outcome
	results := make([]driver.Result, 0, len(calls))
	for _, c := range calls {
		out = One(ctx, d, conn, c, false, inDoubt)
		if out.Err != nil || out.Assumed {
			return undone(ctx, d, conn, tx, out)
		}
		results = append(results, out.Result)
	}
	out.Results = results
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err).assume(inDoubt)
	}
	return out
}
