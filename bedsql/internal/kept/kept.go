// Package kept is what a context tells those packages of bedsql that the application's
// does not: how bedhttp has a response kept with the receipt of an idempotency key (it goes
// with the context of BeginTx), and whether a message is of a group.
package kept

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
)

// Request is a request of which more is kept than the answers to its statements. These
// are not kept then, and its COMMIT needs no entry in the log: what it did is found out
// by the key.
type Request struct {
	// Response is JSON. COMMIT stores it, and is refused without it.
	Response json.RawMessage
	// Ends end the soft transactions whose entries the transaction held, the newest
	// first. COMMIT sets it.
	Ends []func(context.Context) error
	// Ended: COMMIT was not sent, for the transaction had ended before, as after an error
	// in it. COMMIT sets it.
	Ended bool

	// What follows is set by BeginTx.

	// Begun: the transaction is under the key.
	Begun bool
	// Answered: an earlier request has committed under the key, and this one is rolled back.
	Answered bool
	// Stored is that one's Response.
	Stored json.RawMessage
	// Outstanding: BeginTx waited for another transaction under the key, or for its
	// database, and gave up.
	Outstanding bool
}

type contextKey struct{}

// In returns the context for the BeginTx of r.
func In(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// Of is the request of a BeginTx; nil if there is none.
func Of(ctx context.Context) *Request {
	r, _ := ctx.Value(contextKey{}).(*Request)
	return r
}

type txKey struct{}

// Within returns the context of a request whose transaction is tx, begun under its key.
func Within(ctx context.Context, tx any) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// Covers reports whether tx is that transaction: what is recorded in it is recorded once.
func Covers(ctx context.Context, tx any) bool { return tx != nil && ctx.Value(txKey{}) == tx }

type groupKey struct{}

// InGroup returns the context of a soft transaction.
func InGroup(ctx context.Context) context.Context { return context.WithValue(ctx, groupKey{}, true) }

// Grouped reports whether ctx is of a soft transaction, also of one that has ended.
func Grouped(ctx context.Context) bool { return ctx.Value(groupKey{}) != nil }

type probeKey struct{}

// Find returns the connection of bed under db; nil, without an error, if bed did not open
// db. It begins a transaction, because a BEGIN reaches bed through any tracer around it:
// Found answers it, and nothing is dialled.
func Find(ctx context.Context, db *sql.DB) (conn any, err error) {
	tx, err := db.BeginTx(context.WithValue(ctx, probeKey{}, &conn), nil)
	if err == nil {
		err = tx.Rollback()
	}
	if conn != nil {
		err = nil
	}
	return conn, err
}

// Found hands conn to Find if ctx comes from it, and returns the transaction to answer with;
// nil otherwise.
func Found(ctx context.Context, conn any) driver.Tx {
	if to, ok := ctx.Value(probeKey{}).(*any); ok {
		*to = conn
		return noTx{}
	}
	return nil
}

type noTx struct{}

func (noTx) Commit() error   { return nil }
func (noTx) Rollback() error { return nil }
