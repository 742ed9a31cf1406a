package keyed

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
)

// Undo undoes an earlier request. BeginTx locks that request's receipt after inserting its own.
type Undo struct {
	// Key is the earlier request's.
	Key string
	// Decide decides what follows from the locked receipt. It may run several times; the last one
	// counts. If it returns true, the receipt becomes void.
	Decide func(ctx context.Context, found Undone) (void bool)
	// Waiting reports whether one of the entries is in the log, as the transaction sees it. BeginTx
	// sets it, for Decide.
	Waiting func(ctx context.Context, entries []string) (bool, error)
	// Home identifies the data source and the place of its receipts, for Undone. BeginTx sets it.
	Home func(identity string) string
}

// Undone is the receipt of the request to undo.
type Undone struct {
	// Inserted means that there was none. It is Void now.
	Inserted, Void bool
	// Answer is the request's stored answer; nil if it is Void, or unreadable.
	Answer *attempt.Answer
	// Now is the time on the database's clock.
	Now time.Time
	// Home identifies the table of receipts; empty if it has no identity.
	Home string
}

// Response returns the request's response.
func (u *Undone) Response() json.RawMessage {
	if u.Answer == nil {
		return nil
	}
	return u.Answer.Response
}

// undo locks the receipt of the request to undo in the open transaction inner, and decides.
func (t *Tx) undo(ctx context.Context, d *dialect.Dialect, conn driver.Conn, inner driver.Tx, r attempt.Receipts) attempt.Outcome {
	of := &entry.Unit{ID: t.id, DataSource: t.src.Name, Receipt: t.src.receipt(t.Kept.Undo.Key, "")}
	out, locked := attempt.LockReceipt(ctx, d, conn, inner, of, r)
	if out.Err != nil {
		return out
	}
	found := Undone{Inserted: locked.Inserted, Void: locked.Void, Now: locked.Now}
	if !found.Void {
		found.Answer, _ = attempt.ReadAnswer(locked.Result)
	}
	if locked.Identity != "" {
		found.Home = t.Kept.Undo.Home(locked.Identity)
	}
	if !t.Kept.Undo.Decide(ctx, found) || found.Void {
		return attempt.Outcome{}
	}
	return attempt.VoidLocked(ctx, d, conn, inner, of, r)
}
