package bedsql

import (
	"context"

	"github.com/bedsql/bed/internal/entry"
)

// scope holds a context's settings for the writes under it.
type scope struct {
	soft *SoftTransaction
	features
	// unlogged means that they go straight to the driver.
	unlogged bool
	// guarantee is their guarantee if the context names one.
	guarantee     Guarantee
	withGuarantee bool
	// logging is their Logging if the context names one.
	logging     Logging
	withLogging bool
	// required is how many rows each of them must change.
	required entry.Requirement
}

type scopeKey struct{}

func scopeOf(ctx context.Context) scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return *s
	}
	return scope{}
}

func (s scope) in(ctx context.Context) context.Context { return context.WithValue(ctx, scopeKey{}, &s) }

// scoped returns a context with the scope of ctx after change.
func scoped(ctx context.Context, change func(*scope)) context.Context {
	s := scopeOf(ctx)
	change(&s)
	return context.WithValue(ctx, scopeKey{}, &s)
}

// WithGuarantee returns a context under which writes have the guarantee g instead of
// Config.Guarantee. A local transaction takes it from the context of its BeginTx.
func WithGuarantee(ctx context.Context, g Guarantee) context.Context {
	return scoped(ctx, func(s *scope) { s.guarantee, s.withGuarantee = g, true })
}

// WithLogging returns a context under which entries are written at the time l instead of
// Config.Logging. A local transaction takes it from the context of its BeginTx. Staged soft
// transactions always log first.
func WithLogging(ctx context.Context, l Logging) context.Context {
	return scoped(ctx, func(s *scope) { s.logging, s.withLogging = l, true })
}

// Unlogged returns a context under which writes go straight to the driver, unlogged and unretried.
// A local transaction with some statements under Unlogged is not delivered again when the answer
// to its COMMIT is lost: it is parked.
func Unlogged(ctx context.Context) context.Context {
	return scoped(ctx, func(s *scope) { s.unlogged = true })
}

// RequireRows returns a context under which each write must change exactly n rows. A write that
// changes another number is rolled back and refused with a *RowsError:
//
//	ctx = bedsql.RequireRows(ctx, 1)
//	_, err := db.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = ? AND n >= 1", id)
//
// The requirement belongs to the write: every attempt checks it before its COMMIT, also in staged
// soft transactions, in retries and in the job. Under an idempotency key it is part of the
// request. A refusal after an attempt of unknown outcome proves nothing, because that attempt may
// have changed the rows. The write is then parked, unless a receipt decides it (ExactlyOnce).
//
// In a local transaction the write returns the *RowsError. Its Commit rolls back and returns the
// error again, unless the application has rolled back to a savepoint before the write.
//
// A write outside any local transaction runs in one of its own: BEGIN, the write and COMMIT, but
// in one round trip to MariaDB. Tables without transactions (MyISAM) cannot be rolled back. The
// number of changed rows is RowsAffected; for a write sent through Query it is the number of
// returned rows. MySQL and MariaDB do not count a row that an UPDATE leaves as it was, unless the
// DSN has clientFoundRows=true. They count 2 for a row changed by ON DUPLICATE KEY UPDATE.
//
// Some statements cannot be checked and are refused before they are sent: several statements in
// one text, CALL and the like, and writes outside a local transaction on a connection whose
// session holds state, because a transaction could not be begun safely there. Queries, DDL and
// transaction control are unaffected. A negative n is an error of the write. The innermost
// RequireRows or AtLeastRows counts; AtLeastRows(ctx, 0) requires nothing.
func RequireRows(ctx context.Context, n int64) context.Context {
	return scoped(ctx, func(s *scope) { s.required = entry.Exactly(n) })
}

// AtLeastRows is RequireRows for n rows or more.
func AtLeastRows(ctx context.Context, n int64) context.Context {
	return scoped(ctx, func(s *scope) { s.required = entry.AtLeast(n) })
}
