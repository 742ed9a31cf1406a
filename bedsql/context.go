package bedsql

import "context"

// scope is what a context says of the writes under it.
type scope struct {
	soft *SoftTransaction
	key  *IdempotencyKey
	// skip: they go straight to the driver.
	skip bool
	// guarantee is theirs if it is said.
	guarantee     Guarantee
	withGuarantee bool
	// logging is theirs if it is said.
	logging     Logging
	withLogging bool
}

type scopeKey struct{}

func scopeOf(ctx context.Context) scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return *s
	}
	return scope{}
}

func (s scope) in(ctx context.Context) context.Context { return context.WithValue(ctx, scopeKey{}, &s) }

// WithGuarantee returns a context under which writes have another guarantee
// than the one of Config. A local transaction has that of its BeginTx or BEGIN,
// and where autocommit is off, so that nobody begins it, that of Config.
func WithGuarantee(ctx context.Context, g Guarantee) context.Context {
	s := scopeOf(ctx)
	s.guarantee, s.withGuarantee = g, true
	return s.in(ctx)
}

// WithLogging returns a context under which the entries of writes are written at
// another time than Config.Logging says. A local transaction has that of its
// BeginTx or BEGIN, and where autocommit is off, so that nobody begins it, that
// of Config. Staged soft transactions always log first.
func WithLogging(ctx context.Context, l Logging) context.Context {
	s := scopeOf(ctx)
	s.logging, s.withLogging = l, true
	return s.in(ctx)
}

// Skip returns a context under which writes go straight to the driver,
// unlogged and unretried. A local transaction of which only some statements
// were skipped is not delivered again when the answer to its COMMIT is lost: it
// is parked.
func Skip(ctx context.Context) context.Context {
	s := scopeOf(ctx)
	s.skip = true
	return s.in(ctx)
}

// exactlyOnce says whether a write in s leaves a receipt.
func (s scope) exactlyOnce(cfg *Config) bool {
	g := cfg.Guarantee
	if s.withGuarantee {
		g = s.guarantee
	}
	return g == ExactlyOnce || s.key != nil
}
