package main

import (
	"context"
	"time"
)

// lock keeps everybody out of the ledger for a while: writes wait, and are left to the job.
func (x *shop) lock(ctx context.Context, d time.Duration) error {
	tx, err := x.bare.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "LOCK TABLE entries IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	pass(ctx, d)
	return nil
}

// rename takes the ledger's table away for a while: writes are refused, and parked.
func (x *shop) rename(ctx context.Context, d time.Duration) error {
	if _, err := x.bare.ExecContext(ctx, "ALTER TABLE entries RENAME TO entries_away"); err != nil {
		return err
	}
	pass(ctx, d)
	_, err := x.bare.ExecContext(context.WithoutCancel(ctx), "ALTER TABLE entries_away RENAME TO entries")
	return err
}

func pass(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
