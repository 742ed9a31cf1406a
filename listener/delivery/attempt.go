package delivery

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/bedsql/bed/txlog"
)

// Outcome is how one attempt ended. Certainty follows from it: Err nil is
// applied, Class Unknown is maybe, any other class is not applied.
type Outcome struct {
	// Err is nil when the unit was delivered; otherwise the driver's own error.
	Err error
	// Class says what Err means.
	Class Class
	// Assumed: delivered is concluded from a duplicate key that was met after
	// an earlier attempt of unknown outcome. Somebody else's row may hold the
	// key; that is the known limit of at-least-once.
	Assumed bool
	// Result is the driver's result of the last statement that ran; nil when
	// Assumed.
	Result driver.Result
	// Rows are the rows of a single statement run by Query.
	Rows *Rows
	// ConnLost: the connection must not be used again.
	ConnLost bool
}

// Delivered reports whether the unit was applied.
func (o Outcome) Delivered() bool { return o.Err == nil }

// Maybe reports whether it is not known if the unit was applied.
func (o Outcome) Maybe() bool { return o.Err != nil && o.Class == Unknown }

// Failed makes the outcome of a statement's error. before says that the
// statement itself had not been sent.
func (d *Dialect) Failed(err error, before bool) Outcome {
	o := Outcome{Err: err}
	if before {
		o.Class = d.classBefore(err)
	} else {
		o.Class = d.Class(err)
	}
	// SQLite runs in this process: an interrupted statement loses no
	// connection, and one to a database in memory must not be given up.
	o.ConnLost = !o.Class.Answered() && (d.Flavor != SQLite || errors.Is(err, driver.ErrBadConn))
	return o
}

// assume turns a duplicate key met after a maybe into a delivery.
func (o Outcome) assume(inDoubt bool) Outcome {
	if inDoubt && o.Err != nil && o.Class == Duplicate {
		return Outcome{Assumed: true, ConnLost: o.ConnLost}
	}
	return o
}

// ExecOne runs a single statement as one attempt, in the session's autocommit.
// inDoubt says that an earlier attempt of the same statement may have been
// applied.
func (d *Dialect) ExecOne(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue, inDoubt bool) Outcome {
	res, before, err := Exec(ctx, conn, query, args)
	if err != nil {
		return d.Failed(err, before).assume(inDoubt)
	}
	return Outcome{Result: res}
}

// QueryOne is ExecOne for a statement that returns rows: they are read to
// their end.
func (d *Dialect) QueryOne(ctx context.Context, conn driver.Conn, query string, args []driver.NamedValue, inDoubt bool) Outcome {
	rows, before, err := Query(ctx, conn, query, args)
	if err != nil {
		return d.Failed(err, before).assume(inDoubt)
	}
	buffered, err := Buffer(rows)
	if err != nil {
		return d.Failed(err, false).assume(inDoubt)
	}
	return Outcome{Rows: buffered}
}

// Replay runs a unit from the log as one attempt: a single statement in
// autocommit, several as one local transaction. It does not look at
// NotReplayable; the caller must. A unit whose parameters cannot be read is
// Refused. On return the connection holds no open transaction, or ConnLost is
// set and it must be closed.
func (d *Dialect) Replay(ctx context.Context, conn driver.Conn, u *txlog.Unit) Outcome {
	args := make([][]driver.NamedValue, len(u.Statements))
	for i, s := range u.Statements {
		a, err := s.Args()
		if err != nil {
			return Outcome{Class: Refused, Err: fmt.Errorf("bed: log %s, statement %d: %w", u.ID, i, err)}
		}
		args[i] = a
	}
	switch len(u.Statements) {
	case 0:
		return Outcome{Class: Refused, Err: fmt.Errorf("bed: log %s holds no statement", u.ID)}
	case 1:
		return d.ExecOne(ctx, conn, u.Statements[0].SQL, args[0], u.InDoubt)
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		out := d.Failed(err, true)
		out.ConnLost = !out.Class.Answered() // it may have begun
		return out
	}
	var out Outcome
	for i, s := range u.Statements {
		out = d.ExecOne(ctx, conn, s.SQL, args[i], u.InDoubt)
		if out.Err == nil && !out.Assumed {
			continue
		}
		if out.Err != nil && out.Class == Unknown {
			// COMMIT was never sent: the server rolls back with the session.
			out.Class = Unreachable
		}
		if err := tx.Rollback(); err != nil {
			out.ConnLost = true
		}
		return out
	}
	if err := tx.Commit(); err != nil {
		return d.CommitFailed(ctx, conn, err).assume(u.InDoubt)
	}
	return out
}

// CommitFailed reads the error of a COMMIT. An answer means that the
// transaction is gone; without one it is not known.
func (d *Dialect) CommitFailed(ctx context.Context, conn driver.Conn, err error) Outcome {
	out := d.Failed(err, false)
	if d.Flavor == SQLite {
		// A busy COMMIT leaves SQLite's transaction open, so may an interrupted
		// one. Without an open one this ROLLBACK fails, which is as good.
		_, _, rerr := Exec(context.WithoutCancel(ctx), conn, "ROLLBACK", nil)
		out.ConnLost = errors.Is(rerr, driver.ErrBadConn)
	}
	return out
}
