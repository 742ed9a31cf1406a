package rig

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// Keyed sends a local transaction of one increment under an idempotency key.
func (r *Rig) Keyed(key string) (replayed bool, rows int64) {
	r.T.Helper()
	ctx, k := bedsql.WithIdempotencyKey(context.Background(), key)
	tx, err := r.Wrapped.BeginTx(ctx, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	res, err := tx.ExecContext(ctx, AddOne)
	if err != nil {
		r.T.Fatal(err)
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, bedsql.ErrPending) {
		r.T.Fatal(err)
	}
	rows, _ = res.RowsAffected()
	return k.Replayed(), rows
}

func WantNamesKeyPart(t testing.TB, what string, err error) {
	t.Helper()
	if WantUnusable(t, what, err); err != nil && !strings.Contains(err.Error(), `bedsql.WithKeyPart(ctx, "stock")`) {
		t.Errorf("%s: %v, want it to name WithKeyPart", what, err)
	}
}

func WantReused(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyReused) || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("%s: %v, want ErrKeyReused", what, err)
	}
}

func WantUnusable(t testing.TB, what string, err error) {
	t.Helper()
	if !errors.Is(err, bedsql.ErrKeyUnusable) {
		t.Errorf("%s: %v, want ErrKeyUnusable", what, err)
	}
}

// Keyed is the context of a request that is sent once more.
func Keyed(key string) (context.Context, *bedsql.IdempotencyKey) {
	return bedsql.WithIdempotencyKey(context.Background(), key)
}

// SendUnder sends a DML as a request under a key.
func (r *Rig) SendUnder(key, query string, args ...any) (res sql.Result, replayed bool, err error) {
	ctx, k := Keyed(key)
	res, err = r.Wrapped.ExecContext(ctx, r.Q(query), args...)
	return res, k.Replayed(), err
}

func (r *Rig) MustSendUnder(key, query string, args ...any) (res sql.Result, replayed bool) {
	r.T.Helper()
	res, replayed, err := r.SendUnder(key, query, args...)
	if err != nil {
		r.T.Fatalf("%s: %v", query, err)
	}
	return res, replayed
}

// BeginUnder begins a local transaction as a request under a key.
func (r *Rig) BeginUnder(key string) (context.Context, *sql.Tx, *bedsql.IdempotencyKey) {
	r.T.Helper()
	ctx, k := Keyed(key)
	tx, err := r.Wrapped.BeginTx(ctx, nil)
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = tx.Rollback() })
	return ctx, tx, k
}

func WantReplayed(t testing.TB, got, want bool) {
	t.Helper()
	if got != want {
		t.Errorf("Replayed: %v, want %v", got, want)
	}
}
