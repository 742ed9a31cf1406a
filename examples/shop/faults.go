package main

import (
	"context"
	"time"
)

// lock keeps everybody out of the ledger for a while: writes wait, and are left to the job.
func (x *shop) lock(ctx context.Context, d time.Duration) error {
	conn, err := x.bare.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	lock, release := []string{"BEGIN IMMEDIATE"}, "ROLLBACK"
	switch x.Ledger.Driver {
	case "postgres":
		lock = []string{"BEGIN", "LOCK TABLE entries IN ACCESS EXCLUSIVE MODE"}
	case "mysql":
		lock, release = []string{"LOCK TABLES entries WRITE"}, "UNLOCK TABLES"
	}
	defer func() { _, _ = conn.ExecContext(context.WithoutCancel(ctx), release) }()
	for _, statement := range lock {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
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
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
