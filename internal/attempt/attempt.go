package attempt

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/listener"
)

// Outcome is how one attempt ended. Err nil means applied, Class Unknown means maybe, and any
// other class means not applied.
type Outcome struct {
	// Err is nil when the unit was delivered; otherwise the driver's own error.
	Err error
	// Class is the class of Err.
	Class dialect.Class
	// Assumed means that a duplicate key, met after an earlier attempt of unknown outcome, counts
	// as delivery. Another client's row may hold the key; this is the known limit of AtLeastOnce.
	Assumed bool
	// Found means that the receipt of an earlier attempt proves delivery. This attempt applied
	// nothing.
	Found bool
	// Replayed means Found, by another request under the same idempotency key.
	Replayed bool
	// Voided means that the receipt is void: the unit was not applied and never will be.
	Voided bool
	// Reported means Voided, and the caller has its answer.
	Reported bool
	// OnReceipt means that the receipt kept the attempt from running the unit. The attempt waited
	// in vain for another one that is writing the receipt, or it met a receipt and could not read
	// it, or the receipt was erased meanwhile. It does not count as a try.
	OnReceipt bool
	// Result is the driver's result of the last statement; nil when Assumed or Found.
	Result driver.Result
	// Results are the results of all statements of a replayed unit.
	Results []driver.Result
	// Rows are the rows of a single statement run by Query.
	Rows *Rows
	// ConnLost means that the connection must not be used again.
	ConnLost bool
}

// Delivered reports whether the unit was applied.
func (o Outcome) Delivered() bool { return o.Err == nil }

// Maybe reports whether the unit may or may not have been applied.
func (o Outcome) Maybe() bool { return o.Err != nil && o.Class == dialect.Unknown }

// Uncommitted returns o for a local transaction whose COMMIT was not sent: the server rolls it back
// with the session.
func (o Outcome) Uncommitted() Outcome {
	if o.Maybe() {
		o.Class = dialect.Unreachable
	}
	return o
}

// Unasked reports whether the lookup of a receipt failed.
func (o Outcome) Unasked() bool { return o.Err != nil && o.Class != dialect.Refused }

// Failed makes the outcome of a statement's error. before means that the statement itself was not
// sent.
func Failed(d *dialect.Dialect, err error, before bool) Outcome {
	o := Outcome{Err: err}
	if before {
		o.Class = d.DialClass(err)
	} else {
		o.Class = d.Class(err)
	}
	// SQLite runs in this process: an interrupted statement does not lose the
	// connection, and one to a database in memory must not be given up.
	o.ConnLost = !o.Class.Answered() && (d.Flavor != sqltext.SQLite || errors.Is(err, driver.ErrBadConn))
	return o
}

// assume turns a duplicate key met after a maybe into a delivery.
func (o Outcome) assume(inDoubt bool) Outcome {
	if inDoubt && o.Err != nil && o.Class == dialect.Duplicate {
		return Outcome{Assumed: true, ConnLost: o.ConnLost}
	}
	return o
}

// Replay runs a unit from the log as one attempt. It leaves a receipt if the unit has one.
// Otherwise it runs a single statement in autocommit, and several as one local transaction. It
// ignores NotReplayable; the caller must check it. A unit with unreadable parameters is Refused.
// On return the connection holds no open transaction, or ConnLost is set and the caller must close
// it.
func Replay(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) Outcome {
	if len(u.Statements) == 0 {
		return Outcome{Class: dialect.Refused, Err: fmt.Errorf("bed: entry %s holds no statement", u.ID)}
	}
	calls, err := callsOf(u)
	if err != nil {
		return Outcome{Class: dialect.Refused, Err: err}
	}
	if d.Peer != nil && u.Place != "" {
		ctx = d.Peer.Within(ctx, u.Place)
	}
	switch {
	case u.Receipt != "" && d.Peer == nil:
		return Apply(ctx, d, conn, calls, u, r, false)
	case len(calls) == 1:
		out := One(ctx, d, conn, calls[0], false, u.InDoubt)
		if out.Result != nil {
			out.Results = []driver.Result{out.Result}
		}
		return out
	default:
		return together(ctx, d, conn, calls, false, u.InDoubt)
	}
}

// callsOf are u's statements as they are sent.
func callsOf(u *entry.Unit) ([]dialect.Call, error) {
	calls := make([]dialect.Call, 0, len(u.Statements))
	for i, s := range u.Statements {
		args, err := s.Args()
		if err != nil {
			return nil, fmt.Errorf("bed: entry %s, statement %d: %w", u.ID, i, err)
		}
		calls = append(calls, dialect.Call{SQL: s.SQL, Args: args, Prepared: s.Prepared, Required: s.Required})
	}
	return calls, nil
}

// together runs statements as one local transaction. A single statement takes one round trip if
// the dialect supports it. rows means the same as for Apply.
func together(ctx context.Context, d *dialect.Dialect, conn driver.Conn, calls []dialect.Call, rows, inDoubt bool) Outcome {
	if len(calls) == 1 && d.Atomic != nil && !rows {
		if results, handled, err := d.Atomic(ctx, conn, calls); err != nil {
			return Failed(d, err, false).assume(inDoubt)
		} else if handled {
			return Outcome{Result: results[0], Results: results}
		}
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		out := Failed(d, err, true)
		out.ConnLost = !out.Class.Answered() // it may have begun
		return out
	}
	return throughCommit(ctx, d, conn, tx, calls, rows, inDoubt)
}

// throughCommit runs statements in tx, the open local transaction on conn, and commits it.
func throughCommit(ctx context.Context, d *dialect.Dialect, conn driver.Conn, tx driver.Tx, calls []dialect.Call, rows, inDoubt bool) (out Outcome) {
	results := make([]driver.Result, 0, len(calls))
	for i, c := range calls {
		out = Inside(ctx, d, conn, c, rows && i == len(calls)-1, inDoubt)
		if out.Err != nil || out.Assumed {
			return rolledBack(ctx, d, conn, tx, out)
		}
		results = append(results, out.Result)
	}
	out.Results = results
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err).assume(inDoubt)
	}
	return out
}

// certain wraps an error whose class we know better than its text says. It keeps the driver's text
// and unwraps to the driver's error.
type certain struct {
	error
	class dialect.Class
}

func (e *certain) Unwrap() error { return e.error }

func (e *certain) Certainly() dialect.Class { return e.class }

// Certain gives err a class, whatever its own class is.
func Certain(err error, class dialect.Class) error { return &certain{err, class} }

// NotSent marks err, of the given class, as met before the write was sent, unless err is an
// answer.
func NotSent(err error, class dialect.Class) error {
	if class != dialect.Unknown {
		return err
	}
	return Certain(err, dialect.Unreachable)
}

// Event makes the event of an attempt on u. It omits parameters that it cannot read.
func (o Outcome) Event(t listener.EventType, by listener.Origin, u *entry.Unit, d *dialect.Dialect) listener.Event {
	ev := listener.Event{
		Type: t, Origin: by, Time: time.Now(),
		ID: u.ID, TransactionID: u.TransactionID, DataSource: u.DataSource, TraceParent: u.TraceParent,
		System: d.System, Namespace: d.Namespace,
		Statements: make([]listener.Statement, len(u.Statements)),
		Err:        o.Err, Assumed: o.Assumed, Found: o.Found,
	}
	if o.Err != nil {
		ev.Class = o.Class
	}
	for i, s := range u.Statements {
		args, _ := s.Args()
		ev.Statements[i] = listener.Statement{SQL: s.SQL, Parameters: args}
	}
	return ev
}

// Apply runs calls, the statements of u, as one attempt that leaves u's receipt. It inserts the
// receipt first, in the same local transaction. If it meets the receipt, it applies nothing and
// returns Found or Voided. If another attempt is just writing the receipt, Apply waits for that
// attempt. With rows, it runs the last call by Query and reads all its rows.
func Apply(ctx context.Context, d *dialect.Dialect, conn driver.Conn, calls []dialect.Call, u *entry.Unit, r Receipts, rows bool) Outcome {
	if err := ctx.Err(); err != nil {
		return Failed(d, err, true)
	}
	if u.Ordered() {
		return inTurn(ctx, d, conn, calls, u, r, rows)
	}
	return apply(ctx, d, conn, calls, u, r, rows, nil)
}

// apply is Apply, with the fences after the receipt.
func apply(ctx context.Context, d *dialect.Dialect, conn driver.Conn, calls []dialect.Call, u *entry.Unit, r Receipts, rows bool, fences []dialect.Call) Outcome {
	receipt := r.Insertion(d.Flavor, u, false)
	if d.Atomic != nil && !rows && u.Fingerprint == "" {
		own := append(append(make([]dialect.Call, 0, 1+len(fences)+len(calls)), receipt), fences...)
		results, handled, err := d.Atomic(ctx, conn, append(own, calls...))
		switch {
		case !handled:
		case err != nil:
			return applyFailed(ctx, d, conn, u, r, err)
		default:
			return Outcome{Result: results[len(results)-1], Results: results[len(own):]}
		}
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{})
	if err != nil {
		return Failed(d, err, true)
	}
	if _, before, err := Exec(ctx, conn, receipt.SQL, receipt.Args); err != nil {
		out := rolledBack(ctx, d, conn, tx, Failed(d, err, before))
		out.OnReceipt = waited(ctx, before)
		return onReceipt(ctx, d, conn, u, r, out)
	}
	if len(fences) > 0 {
		if failed := pass(ctx, d, conn, fences); failed.Err != nil {
			return rolledBack(ctx, d, conn, tx, failed)
		}
	}
	out := Outcome{Results: make([]driver.Result, 0, len(calls))}
	var answer Answer
	for i, c := range calls {
		one := Inside(ctx, d, conn, c, rows && i == len(calls)-1, false)
		if one.Err != nil {
			return rolledBack(ctx, d, conn, tx, one)
		}
		out.Result, out.Rows = one.Result, one.Rows
		out.Results = append(out.Results, one.Result)
		if u.Fingerprint != "" {
			answer.Add(printsIn(d.Flavor, u, u.Statements[i]), one.Result, one.Rows)
		}
	}
	if u.Fingerprint != "" {
		if failed := StoreAnswer(ctx, d, conn, u, r, answer); failed.Err != nil {
			return rolledBack(ctx, d, conn, tx, failed)
		}
	}
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err)
	}
	return out
}

// applyFailed classifies the error of an attempt sent in one piece.
func applyFailed(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, err error) Outcome {
	out := Failed(d, err, false)
	if isReceipt(d, out, u) {
		return onReceipt(ctx, d, conn, u, r, out)
	}
	if d.ReceiptBusy != nil && out.Class.Later() {
		out.OnReceipt = d.ReceiptBusy(err)
	}
	return out
}

func isReceipt(d *dialect.Dialect, out Outcome, u *entry.Unit) bool {
	return out.Class == dialect.Duplicate && d.ReceiptDuplicate != nil && d.ReceiptDuplicate(out.Err, u.Receipt)
}

// onReceipt reads the failure of a receipt's own insert.
func onReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, out Outcome) Outcome {
	if out.Class.Later() && dberr.Of(out.Err).Contended() {
		out.OnReceipt = true
	}
	switch {
	case !isReceipt(d, out, u):
		return out
	case out.ConnLost:
		return unread(driver.ErrBadConn, true)
	}
	found, err := ReadReceipt(ctx, d, conn, r, u.Receipt)
	if err == nil && found != nil && (found.UnitID == u.Decides() || u.Fingerprint != "") {
		var gone bool
		if gone, err = keepReceipt(ctx, d, conn, u, r, found); gone {
			found = nil
		}
	}
	switch {
	case err != nil:
		return unread(err, Failed(d, err, true).ConnLost)
	case found == nil:
		return goneReceipt()
	case found.Void:
		return Outcome{Class: dialect.Refused, Voided: true, Reported: found.Reported, Err: dialect.ErrVoided}
	default:
		return found.outcome(u)
	}
}

// unread is the outcome of an attempt that met the receipt and could not read it. Another attempt
// finds out whether the work is done or void. The outcome hides the duplicate key error, because
// no one made a mistake.
func unread(err error, lost bool) Outcome {
	return Outcome{Class: dialect.Unknown, OnReceipt: true, ConnLost: lost,
		Err: fmt.Errorf("bed: an earlier attempt left the receipt of this write, which could not be read: %w", err)}
}

// goneReceipt is the outcome of an attempt that met a receipt just before its erasure. Another
// attempt can run the unit. The outcome hides the duplicate key error, because no one made a
// mistake.
func goneReceipt() Outcome {
	return Outcome{Class: dialect.Unknown, OnReceipt: true, Err: errors.New("bed: the receipt of an earlier attempt was met and is gone")}
}

// Look reads u's receipt to find out whether u was applied. It changes nothing else. If it returns
// Found, it has renewed the receipt, because an unanswered attempt may still arrive. It does not
// wait for an attempt in flight.
//
// A Peer is not asked: its receipts are found out by undoing.
func Look(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) (Outcome, error) {
	if d.Peer != nil {
		return Outcome{}, nil
	}
	found, err := ReadReceipt(ctx, d, conn, r, u.Receipt)
	if err != nil || found == nil || found.Void {
		return Outcome{}, err
	}
	if gone, err := keepReceipt(ctx, d, conn, u, r, found); gone || err != nil {
		return Outcome{}, err
	}
	return found.outcome(u), nil
}

// outcome returns the outcome of an attempt of u that met the receipt.
func (f *Found) outcome(u *entry.Unit) Outcome {
	out := Outcome{Found: true, Replayed: f.UnitID != u.Decides()}
	if u.Fingerprint == "" {
		return out
	}
	if !f.Of(u) {
		return Outcome{Class: dialect.Refused, Voided: true, Err: f.reused(u)}
	}
	answer, err := ReadAnswer(f.Result)
	if err != nil {
		return out // applied nevertheless; its results are lost
	}
	for i := range answer.Statements {
		out.Result, out.Rows = answer.Statements[i].Result(), answer.Statements[i].Rows()
		out.Results = append(out.Results, out.Result)
	}
	return out
}

// Void decides a unit in doubt. It inserts the receipt as void, so no attempt can apply the unit
// any more. Found means that the unit was applied. Voided means that it was not and never will be.
// Any other outcome decides nothing.
//
// Under a caller's key the receipt does not stay, because the caller may resend the request. Doubt
// arises there only after an answer to the receipt's own insert. A later insert that succeeds
// therefore shows that the attempt has ended.
func Void(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) Outcome {
	ended := func(out Outcome) Outcome { return out }
	if u.Fingerprint != "" {
		tx, err := BeginTx(ctx, conn, driver.TxOptions{})
		if err != nil {
			return Failed(d, err, true)
		}
		ended = func(out Outcome) Outcome { return rolledBack(ctx, d, conn, tx, out) }
	}
	c := r.Insertion(d.Flavor, u, true)
	_, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err == nil {
		return ended(Outcome{Class: dialect.Refused, Voided: true, Err: dialect.ErrVoided})
	}
	out := ended(Failed(d, err, before))
	out.OnReceipt = waited(ctx, before)
	return onReceipt(ctx, d, conn, u, r, out)
}

// Supersede makes certain that no attempt applies u, so that an amended text can take its place
// under another receipt. u has no caller's key. Supersede inserts u's receipt as void, with that
// reason. It returns false if an attempt was applied, or if the receipt is void for another
// reason, as the caller may know. It waits for an attempt in flight.
func Supersede(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) (certain bool, err error) {
	c := r.Insertion(d.Flavor, u, true)
	c.Args[len(c.Args)-1].Value = voidAmended
	_, before, err := Exec(ctx, conn, c.SQL, c.Args)
	if err == nil {
		return true, nil
	}
	if out := Failed(d, err, before); !isReceipt(d, out, u) || out.ConnLost {
		return false, err
	}
	found, err := ReadReceipt(ctx, d, conn, r, u.Receipt)
	if err == nil && found == nil {
		return false, goneReceipt().Err
	}
	return err == nil && found.Void && found.UnitID == u.ID && found.Result == voidAmended, err
}

// waited reports whether the end of ctx cut off the insert of a receipt. The insert itself takes
// no time, so it waited for another attempt, in a database whose own wait is longer than ctx
// (PostgreSQL's lock_timeout is off by default).
func waited(ctx context.Context, before bool) bool { return !before && ctx.Err() != nil }

// Commit ends the open local transaction on conn with u's receipt in it. finish commits the
// transaction. undo rolls it back, or reports a lost connection. plain means that finish is a bare
// COMMIT. An error that is an answer means that nothing was committed, except for
// Found.
func Commit(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, plain bool, finish func(context.Context) Outcome, undo func() (lost bool)) Outcome {
	receipt := r.Insertion(d.Flavor, u, false)
	fences := r.fences(d.Flavor, u)
	rolledBack := func(out Outcome) Outcome {
		out.ConnLost = undo() || out.ConnLost
		return out
	}
	if plain && d.CommitWith != nil {
		handled, err := d.CommitWith(ctx, conn, append([]dialect.Call{receipt}, fences...))
		if handled {
			if err == nil {
				return Outcome{}
			}
			out := Failed(d, err, false)
			if !out.Class.Answered() {
				return out
			}
			if out = rolledBack(out); !isReceipt(d, out, u) && !goesOn(d, conn, out) {
				_ = conn.Close() // as after any other COMMIT that failed
				out.ConnLost = true
			}
			return onOrder(d, u, onCommitReceipt(ctx, d, conn, u, r, out))
		}
	}
	if _, before, err := Exec(ctx, conn, receipt.SQL, receipt.Args); err != nil {
		return onCommitReceipt(ctx, d, conn, u, r, rolledBack(Failed(d, err, before).Uncommitted()))
	}
	if failed := Fence(ctx, d, conn, u, r); failed.Err != nil {
		return rolledBack(failed.Uncommitted())
	}
	return finish(ctx)
}

// CommitEntries runs calls in the open local transaction on conn, each of which must change its
// Required rows, and commits it by finish; plain means that finish is a bare COMMIT. An
// EntriesError in the outcome means that COMMIT was not sent, although the transaction may be open.
func CommitEntries(ctx context.Context, d *dialect.Dialect, conn driver.Conn, calls []dialect.Call, plain bool, finish func(context.Context) Outcome) Outcome {
	if plain && d.CommitWith != nil {
		if handled, err := d.CommitWith(ctx, conn, calls); handled && err == nil {
			return Outcome{}
		} else if handled {
			out := Failed(d, err, false)
			if out.Class.Answered() && !errors.As(err, new(*dialect.EntriesError)) && !goesOn(d, conn, out) {
				_ = conn.Close() // as after any other COMMIT that failed
				out.ConnLost = true
			}
			return out
		}
	}
	for _, c := range calls {
		out := checked(ctx, d, conn, c)
		if out.Err == nil {
			out = Inside(ctx, d, conn, c, false, false)
		}
		if out.Err != nil {
			out.Err = &dialect.EntriesError{Err: out.Err}
			return out.Uncommitted()
		}
	}
	return finish(ctx)
}

// checked runs the Check of a call.
func checked(ctx context.Context, d *dialect.Dialect, conn driver.Conn, c dialect.Call) Outcome {
	if c.Check == "" {
		return Outcome{}
	}
	rows, err := Ask(ctx, conn, c.Check)
	if err == nil && len(rows) == 0 {
		err = dialect.Unmet(c.Required, 0)
	}
	if err != nil {
		return Failed(d, err, false)
	}
	return Outcome{}
}

// onCommitReceipt handles a transaction that meets its own receipt: the job overtook it. The
// transaction is rolled back, and the job's work stands.
func onCommitReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, out Outcome) Outcome {
	if isReceipt(d, out, u) {
		return onReceipt(ctx, d, conn, u, r, out)
	}
	return out
}
