package bedsql

import (
	"context"

	"github.com/bedsql/bed/txlog"
)

// scope is what a context says of the writes under it.
type scope struct {
	soft *SoftTransaction
	// undo: they are recorded as compensations of soft's parts.
	undo bool
	key  *IdempotencyKey
	// skip says that they go straight to the driver.
	skip bool
	// guarantee is theirs if the context names one.
	guarantee     Guarantee
	withGuarantee bool
	// logging is theirs if the context names one.
	logging     Logging
	withLogging bool
	// required is how many rows each of them must change.
	required txlog.Requirement
	// order is their order key, if they are ordered.
	order   string
	ordered bool
	// own: what runs is bed's own, and writes an entry within that transaction.
	own *home
	// id is the message's, and its entry's.
	id string
}

type scopeKey struct{}

func scopeOf(ctx context.Context) scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return *s
	}
	return scope{}
}

func (s scope) in(ctx context.Context) context.Context { return context.WithValue(ctx, scopeKey{}, &s) }

// WithGuarantee returns a context under which writes have the guarantee g instead
// of Config.Guarantee. A local transaction takes it from the context of its
// BeginTx or BEGIN; where autocommit is off and nothing begins it, from Config.
func WithGuarantee(ctx context.Context, g Guarantee) context.Context {
	s := scopeOf(ctx)
	s.guarantee, s.withGuarantee = g, true
	return s.in(ctx)
}

// WithLogging returns a context under which the entries of writes are written as
// l says instead of Config.Logging. A local transaction takes it from the context
// of its BeginTx or BEGIN; where autocommit is off and nothing begins it, from
// Config. Staged soft transactions always log first.
func WithLogging(ctx context.Context, l Logging) context.Context {
	s := scopeOf(ctx)
	s.logging, s.withLogging = l, true
	return s.in(ctx)
}

// Unlogged returns a context under which writes go straight to the driver,
// unlogged and unretried. A local transaction of which only some statements
// were skipped is not delivered again when the answer to its COMMIT is lost: it
// is parked.
func Unlogged(ctx context.Context) context.Context {
	s := scopeOf(ctx)
	s.skip = true
	return s.in(ctx)
}

// RequireRows returns a context under which each write must change exactly n rows. One
// that changes another number is rolled back and refused with a *RowsError:
//
//	ctx = bedsql.RequireRows(ctx, 1)
//	_, err := db.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE id = ? AND n >= 1", id)
//
// The requirement belongs to the write: every attempt checks it before its COMMIT, also
// those of a staged soft transaction, of retries and of the job, and under an
// idempotency key it is part of the request. A refusal after an attempt of unknown
// outcome proves nothing, for that one may have changed the rows: the write is parked,
// unless a receipt decides it (ExactlyOnce).
//
// In a local transaction the write returns the *RowsError and its Commit rolls back and
// returns it again, unless the application has rolled back to a savepoint before the
// write.
//
// A write outside any local transaction runs in one of its own: BEGIN, the write and
// COMMIT, but in one round trip to MariaDB. Tables without transactions (MyISAM) cannot
// be rolled back. How many rows changed is what RowsAffected gives; of a write sent
// through Query it is how many rows it returns. MySQL and MariaDB do not count a row
// that an UPDATE leaves as it was, unless the DSN says clientFoundRows=true; they count
// 2 for a row that ON DUPLICATE KEY UPDATE changes.
//
// What cannot be checked is refused before it is sent: several statements in one text,
// CALL and the like, and writes outside a local transaction on a connection whose session
// holds state, where a transaction could not be begun safely. Queries, DDL and transaction
// control are not concerned. A negative n is an error of the write. The innermost
// RequireRows or AtLeastRows counts; AtLeastRows(ctx, 0) requires nothing.
func RequireRows(ctx context.Context, n int64) context.Context {
	s := scopeOf(ctx)
	s.required = txlog.Exactly(n)
	return s.in(ctx)
}

// AtLeastRows is RequireRows for n rows or more.
func AtLeastRows(ctx context.Context, n int64) context.Context {
	s := scopeOf(ctx)
	s.required = txlog.AtLeast(n)
	return s.in(ctx)
}

// exactlyOnce reports whether a write in s leaves a receipt.
func (s scope) exactlyOnce(cfg *Config) bool {
	if s.id != "" { // a message
		return false
	}
	g := cfg.Guarantee
	if s.withGuarantee {
		g = s.guarantee
	}
	return g == ExactlyOnce || s.key != nil || s.ordered
}
