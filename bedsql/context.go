package bedsql

import "context"

// scope is what a context says of the writes under it.
type scope struct {
	soft *SoftTransaction
	key  *IdempotencyKey
	// skip says that they go straight to the driver.
	skip bool
	// guarantee is theirs if the context names one.
	guarantee     Guarantee
	withGuarantee bool
	// logging is theirs if the context names one.
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

// Skip returns a context under which writes go straight to the driver,
// unlogged and unretried. A local transaction of which only some statements
// were skipped is not delivered again when the answer to its COMMIT is lost: it
// is parked.
func Skip(ctx context.Context) context.Context {
	s := scopeOf(ctx)
	s.skip = true
	return s.in(ctx)
}

// exactlyOnce reports whether a write in s leaves a receipt.
func (s scope) exactlyOnce(cfg *Config) bool {
	g := cfg.Guarantee
	if s.withGuarantee {
		g = s.guarantee
	}
	return g == ExactlyOnce || s.key != nil
}
