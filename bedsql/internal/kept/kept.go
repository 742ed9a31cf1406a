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

type contextKey struct{}

// In returns the context for the BeginTx of r.
func In(ctx context.Context, r *keyed.Request) context.Context {
	return context.WithValue(ctx, contextKey{}, r)
}

// Of returns the request of a BeginTx; nil without a request.
func Of(ctx context.Context) *keyed.Request {
	r, _ := ctx.Value(contextKey{}).(*keyed.Request)
	return r
}

type txKey struct{}

// Within returns the context of a request whose transaction is tx, begun under its key.
func Within(ctx context.Context, tx any) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// Covers reports whether tx is that transaction. If so, its writes are recorded only once.
func Covers(ctx context.Context, tx any) bool { return tx != nil && ctx.Value(txKey{}) == tx }

type confinedKey struct{}

// Confine returns the context of a request that can be undone: all its writes must be in its
// transaction, or recorded there.
func Confine(ctx context.Context) context.Context { return context.WithValue(ctx, confinedKey{}, true) }

// Confined reports whether ctx comes from Confine.
func Confined(ctx context.Context) bool { return ctx.Value(confinedKey{}) != nil }

type groupKey struct{}

// InGroup returns the context of a soft transaction.
func InGroup(ctx context.Context) context.Context { return context.WithValue(ctx, groupKey{}, true) }

// Grouped reports whether ctx belongs to a soft transaction, open or ended.
func Grouped(ctx context.Context) bool { return ctx.Value(groupKey{}) != nil }

type probeKey struct{}

// probe is what Find and Home ask of the connection.
type probe struct {
	conn any
	home *string
}

// Find returns the connection of bed under db, or nil without an error for a db not opened by bed.
// It begins a transaction, because a BEGIN reaches bed through any tracer around it. Found answers
// the BEGIN without dialling.
func Find(ctx context.Context, db *sql.DB) (conn any, err error) {
	p := &probe{}
	if err = p.ask(ctx, db); p.conn != nil {
		err = nil
	}
	return p.conn, err
}

// Home returns what identifies the receipts in db: the data source, their place and the identity of
// their table, which it makes at first use. It returns an empty text for a db not opened by bed.
func Home(ctx context.Context, db *sql.DB) (home string, err error) {
	p := &probe{home: &home}
	err = p.ask(ctx, db)
	return home, err
}

func (p *probe) ask(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(context.WithValue(ctx, probeKey{}, p), nil)
	if err != nil {
		return err
	}
	return tx.Rollback()
}

// Found hands conn to Find or Home if ctx comes from one of them, and returns the transaction to
// answer with. Otherwise it returns nil. home is where Home wants its answer; nil for Find.
func Found(ctx context.Context, conn any) (tx driver.Tx, home *string) {
	if p, ok := ctx.Value(probeKey{}).(*probe); ok {
		p.conn = conn
		return noTx{}, p.home
	}
	return nil, nil
}

type noTx struct{}

func (noTx) Commit() error   { return nil }
func (noTx) Rollback() error { return nil }
