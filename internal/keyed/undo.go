package keyed

import (
	"context"
	"database/sql/driver"

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

// Undone is the locked receipt of the request to undo.
type Undone struct {
	*attempt.Locked
	// Answer is the request's stored answer; empty if the receipt is Void, or unreadable.
	Answer attempt.Answer
	// Home identifies the table of receipts; empty if it has no identity.
	Home string
}

// undo locks the receipt of the request to undo in the open transaction inner, and decides.
func (t *Tx) undo(ctx context.Context, d *dialect.Dialect, conn driver.Conn, inner driver.Tx, r attempt.Receipts) attempt.Outcome {
	of := &entry.Unit{ID: t.id, DataSource: t.src.Name, Receipt: t.src.receipt(t.Kept.Undo.Key, "")}
	out, locked := attempt.LockReceipt(ctx, d, conn, inner, of, r)
	if out.Err != nil {
		return out
	}
	found := Undone{Locked: locked}
	if answer, err := attempt.ReadAnswer(locked.Result); err == nil {
		found.Answer = *answer
	}
	if locked.Identity != "" {
		found.Home = t.Kept.Undo.Home(locked.Identity)
	}
	if !t.Kept.Undo.Decide(ctx, found) || found.Void {
		return attempt.Outcome{}
	}
	return attempt.VoidLocked(ctx, d, conn, inner, of, r)
}
