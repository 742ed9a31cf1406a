package keyed

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/besteffort"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener"
)

// Request is a request with a response of its own, stored instead of the answers to its
// statements. Its COMMIT needs no entry in the log, because the key shows its outcome.
type Request struct {
	// Response is JSON. COMMIT stores it, and is refused without it.
	Response json.RawMessage
	// Ends end the soft transactions with entries in the transaction, the newest first. COMMIT
	// sets it.
	Ends []func(context.Context) error
	// Ended means that COMMIT was not sent, because the transaction had ended before, for example
	// by an error in it. COMMIT sets it.
	Ended bool
	// Undoable is stored with the response: see attempt.Answer.
	Undoable bool
	// Entries are stored with the response. COMMIT sets them.
	Entries []string
	// Undo is set if the request undoes another one.
	Undo *Undo

	// BeginTx sets the fields below.

	// Begun means that the transaction is under the key.
	Begun bool
	// Answered means that an earlier request has committed under the key, and this one is rolled
	// back.
	Answered bool
	// Stored is the earlier request's Response.
	Stored json.RawMessage
	// Outstanding means that BeginTx gave up its wait for another transaction under the key, or
	// for its database.
	Outstanding bool
}

// Tx is the state of a local transaction under a key. It either collects the answers to its
// statements, or replays an earlier request's. A nil Tx is a transaction without a key: it keeps,
// replays and collects nothing.
type Tx struct {
	*Write
	// Kept holds a response to store instead of the answers; usually nil. The key then stays
	// taken, even after a rollback.
	Kept *Request

	id      string // of the unit
	request *attempt.Request
	answer  attempt.Answer
	replay  *attempt.Answer
	at      int
}

// Claim inserts the receipt into the transaction inner, open on conn. keep is its Kept. If an earlier
// request was applied, Claim rolls inner back, and the Tx replays its answer.
func (w *Write) Claim(ctx context.Context, d *dialect.Dialect, conn driver.Conn, inner driver.Tx, r attempt.Receipts, keep *Request) (*Tx, attempt.Outcome) {
	t := &Tx{Write: w, Kept: keep, id: entry.NewID(), request: w.key.request()}
	u := &entry.Unit{DataSource: w.src.Name}
	t.Mark(u) // until COMMIT knows the whole
	out, found := attempt.InsertReceipt(ctx, d, conn, inner, u, r)
	if out.Err == nil && found != nil {
		if err := t.read(found, u); err != nil {
			out = attempt.Outcome{Class: dialect.Refused, Err: err}
		}
	}
	if out.Err == nil && keep != nil && keep.Undo != nil && !t.Replays() {
		out = t.undo(ctx, d, conn, inner, r)
	}
	switch {
	case keep == nil:
	case out.Err != nil:
		keep.Outstanding = out.OnReceipt || ctx.Err() != nil
	default:
		if keep.Begun, keep.Answered = true, t.Replays(); keep.Answered {
			keep.Stored = t.replay.Response
		}
	}
	return t, out
}

// read reads the answer to replay, unless it is another request's than u's.
func (t *Tx) read(found *attempt.Found, u *entry.Unit) (err error) {
	if err = found.OfAnother(u); err != nil {
		return err
	}
	if t.replay, err = attempt.ReadAnswer(found.Result); err != nil {
		return fmt.Errorf("%w: %w", listener.ErrRowsUnknown, err)
	}
	return nil
}

// Keeps reports whether something else than the answers is kept.
func (t *Tx) Keeps() bool { return t != nil && t.Kept != nil }

// Replays reports whether the Tx replays an earlier answer.
func (t *Tx) Replays() bool { return t != nil && t.replay != nil }

// Covers is [Key.Covers] for the transaction's key.
func (t *Tx) Covers(k *Key) bool { return k == nil || t != nil && t.key.Covers(k) }

// Replay answers the next statement of a replayed transaction.
func (t *Tx) Replay(s entry.Statement, rows bool) (r attempt.Reply, err error) {
	if t.at >= len(t.replay.Statements) {
		return r, attempt.ReusedCount(t.at+1, len(t.replay.Statements))
	}
	a := &t.replay.Statements[t.at]
	if err := a.Differs(t.at+1, s, t.request.Answered(t.src.Flavor, s)); err != nil {
		return r, err
	}
	t.at++
	if err := a.Failure(); err != nil {
		return r, err
	}
	if !rows {
		return attempt.Reply{Result: a.Result()}, nil
	}
	stored := a.Rows()
	if stored == nil {
		return r, listener.ErrRowsUnknown
	}
	return attempt.Reply{Rows: stored}, nil
}

// Whole ends a replayed transaction. It refuses a request with fewer statements than the earlier
// one, and then gives the key back.
func (t *Tx) Whole() error {
	if t.at < len(t.replay.Statements) {
		t.Back()
		return attempt.ReusedCount(t.at, len(t.replay.Statements))
	}
	t.key.of.replayed.Store(true)
	return nil
}

// Ran collects the answer to an applied statement.
func (t *Tx) Ran(s entry.Statement, res driver.Result, rows *attempt.Rows) {
	if t != nil && t.Kept == nil {
		t.answer.Add(t.request.Answered(t.src.Flavor, s), res, rows)
	}
}

// Failed collects the error of a statement that leaves the transaction going.
func (t *Tx) Failed(s entry.Statement, err error) {
	if t != nil && t.Kept == nil {
		t.answer.Statements = append(t.answer.Statements, attempt.AnswerStatement{Prints: t.request.Answered(t.src.Flavor, s), Error: err.Error()})
	}
}

// Mark makes u the unit of the whole transaction so far, under the key.
func (t *Tx) Mark(u *entry.Unit) {
	if u.TransactionID == u.ID { // it is in no soft transaction
		u.TransactionID = t.id
	}
	u.ID, u.Receipt, u.Fingerprint = t.id, t.receipt, t.request.Fingerprint()
}

// Deliver is [besteffort.Deliverer.Deliver] for the unit of the transaction at its COMMIT. A
// rollback gives the key back, not Deliver.
func (t *Tx) Deliver(ctx context.Context, d *besteffort.InFlight) error {
	t.Mark(d.Unit)
	err := t.To.Deliver(ctx, d)
	t.Settle(&d.Outcome, nil)
	return err
}

// Store stores the answer with the receipt of u, the transaction's unit, before COMMIT.
func (t *Tx) Store(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r attempt.Receipts) attempt.Outcome {
	if k := t.Kept; k != nil {
		if k.Response == nil {
			return attempt.Outcome{Class: dialect.Refused, Err: errNoResponse}
		}
		t.answer.Response, t.answer.Undoable, t.answer.Entries = k.Response, k.Undoable, k.Entries
	}
	out := attempt.Fence(ctx, d, conn, u, r)
	if out.Err == nil {
		own := &entry.Unit{DataSource: t.src.Name} // u may be on its way to the log
		t.Mark(own)
		out = attempt.StoreAnswer(ctx, d, conn, own, r, t.answer)
	}
	if out.Err != nil && t.Kept != nil && dberr.Of(out.Err).State == abortedBefore {
		t.Kept.Ended = true
	}
	return out.Uncommitted()
}

// abortedBefore is PostgreSQL's state for statements after an error in a transaction, here an
// error in rows that only the caller has read.
const abortedBefore = "25P02"

// errNoResponse is the error of a Commit by the handler of a request or message.
var errNoResponse = errors.New("bed: the transaction was rolled back: it is committed after its handler has returned, and not by it")
