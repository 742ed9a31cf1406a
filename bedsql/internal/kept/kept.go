// Package kept passes values through a context between bedsql, bedhttp and message. By the context
// of BeginTx, bedhttp stores a response with the receipt of an idempotency key. Another value
// marks the messages of a group.
package kept

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/keyed"
)

// Request is a request with a response of its own.
type Request = keyed.Request

type contextKey struct{}

// In returns the context for the BeginTx of r.
func In(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// Of returns the request of a BeginTx; nil without a request.
func Of(ctx context.Context) *Request {
	r, _ := ctx.Value(contextKey{}).(*Request)
	return r
}

type txKey struct{}

// Within returns the context of a request whose transaction is tx, begun under its key.
func Within(ctx context.Context, tx any) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// Covers reports whether tx is that transaction. If so, its writes are recorded only once.
func Covers(ctx context.Context, tx any) bool { return tx != nil && ctx.Value(txKey{}) == tx }

type groupKey struct{}

// InGroup returns the context of a soft transaction.
func InGroup(ctx context.Context) context.Context { return context.WithValue(ctx, groupKey{}, true) }

// Grouped reports whether ctx belongs to a soft transaction, open or ended.
func Grouped(ctx context.Context) bool { return ctx.Value(groupKey{}) != nil }

type probeKey struct{}

// Find returns the connection of bed under db, or nil without an error for a db not opened by bed.
// It begins a transaction, because a BEGIN reaches bed through any tracer around it. Found answers
// the BEGIN without dialling.
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

// Found hands conn to Find if ctx comes from it, and returns the transaction to answer with.
// Otherwise it returns nil.
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
