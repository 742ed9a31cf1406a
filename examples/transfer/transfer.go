package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/txlog"
)

// bank has an account in each of two databases.
type bank struct {
	storage      *txlog.SQLStorage
	north, south *sql.DB
	// bareNorth and bareSouth lead there without bed, to be in the way.
	bareNorth, bareSouth *sql.DB
	job                  *asyncjob.Job
}

func open(ctx context.Context, logDSN, northDSN, southDSN string) (*bank, error) {
	storage, err := txlog.Open(ctx, "mysql", logDSN)
	if err != nil {
		return nil, err
	}
	// A deposit must be added once.
	cfg := bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, AttemptTimeout: 5 * time.Second, RetryTimeout: 5 * time.Second}
	north, err1 := mysql.Target(northDSN)
	south, err2 := postgres.Target(southDSN)
	if err := errors.Join(err1, err2); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	north.DataSource, south.DataSource = "north", "south"
	toNorth, err1 := mysql.NewConnector(north, cfg)
	toSouth, err2 := postgres.NewConnector(south, cfg)
	job, err3 := asyncjob.New(storage, asyncjob.Targets{"north": north, "south": south}, asyncjob.Config{MaxDeliveryTryDelay: asyncjob.NoDelay})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, errors.Join(err, storage.Close())
	}
	b := &bank{storage: storage, north: sql.OpenDB(toNorth), south: sql.OpenDB(toSouth), bareNorth: sql.OpenDB(north.Connector), bareSouth: sql.OpenDB(south.Connector), job: job}
	for _, db := range []*sql.DB{b.north, b.south} {
		for _, s := range []string{
			"CREATE TABLE IF NOT EXISTS account (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
			"INSERT INTO account SELECT 1, 100 FROM (SELECT 1) one WHERE NOT EXISTS (SELECT 1 FROM account)",
		} {
			if _, err := db.ExecContext(bedsql.Unlogged(ctx), s); err != nil {
				b.close()
				return nil, err
			}
		}
	}
	return b, nil
}

func (b *bank) close() {
	_ = b.job.Close()
	for _, db := range []*sql.DB{b.north, b.south, b.bareNorth, b.bareSouth} {
		_ = db.Close()
	}
	_ = b.storage.Close()
}

// fault is a failure in a transfer.
type fault int

const (
	none fault = iota
	// noEnd ends the process between Commit and End.
	noEnd
	rolledBack
	// northInUse and southInUse lock the account there by another client.
	northInUse
	southInUse
	// noAccount names a missing account in the south.
	noAccount
)

// errEnded is the answer of a process that has ended.
var errEnded = fmt.Errorf("%w: the process ended before End", bedsql.ErrUnknownOutcome)

const credit = "UPDATE account SET balance = balance + $1 WHERE id = 1"

// with moves money by a local transaction in the north. Its COMMIT writes the entry for the write in
// the south.
func (b *bank) with(ctx context.Context, cents int64, f fault) error {
	tx, err := b.north.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	ctx, soft, err := bedsql.Begin(ctx, bedsql.WithTx(tx))
	if err != nil {
		return err
	}
	ctx = bedsql.RequireRows(ctx, 1)
	if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance - ? WHERE id = 1 AND balance >= ?", cents, cents); err != nil {
		return err // *bedsql.RowsError: the balance is too low
	}
	if _, err := b.south.ExecContext(ctx, credit, cents); err != nil {
		return err
	}
	if f == rolledBack {
		return errors.Join(tx.Rollback(), soft.End(ctx)) // it says bedsql.ErrRolledBack
	}
	if err := tx.Commit(); err != nil && !errors.Is(err, bedsql.ErrUnknownOutcome) {
		return err
	}
	if f == noEnd {
		return errEnded // the job delivers
	}
	return soft.End(ctx) // or finds out, if COMMIT was not answered
}

// compensated moves money by a group with compensations: if either side refuses, now or when the
// job delivers, the other side is compensated. A separate write to check the balance, before the
// group, would not do: while that write is pending, nothing has logged the rest.
func (b *bank) compensated(ctx context.Context, cents int64, f fault) error {
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	defer soft.Discard() // after End it does nothing
	if busy := map[fault]*sql.DB{northInUse: b.bareNorth, southInUse: b.bareSouth}[f]; busy != nil {
		other, err := busy.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = other.Rollback() }()
		if _, err := other.ExecContext(ctx, "SELECT 1 FROM account WHERE id = 1 FOR UPDATE"); err != nil {
			return err
		}
	}
	account := 1
	if f == noAccount {
		account = 2
	}
	undo := soft.Compensation(ctx)
	ctx = bedsql.RequireRows(ctx, 1)
	for _, w := range []struct {
		db   *sql.DB
		ctx  context.Context
		text string
		args []any
	}{
		{b.north, ctx, "UPDATE account SET balance = balance - ? WHERE id = 1 AND balance >= ?", []any{cents, cents}},
		{b.north, undo, "UPDATE account SET balance = balance + ? WHERE id = 1", []any{cents}},
		{b.south, ctx, "UPDATE account SET balance = balance + $1 WHERE id = $2", []any{cents, account}},
		{b.south, undo, "UPDATE account SET balance = balance - $1 WHERE id = $2", []any{cents, account}},
	} {
		if _, err := w.db.ExecContext(w.ctx, w.text, w.args...); err != nil {
			return err
		}
	}
	return soft.End(ctx) // *bedsql.CompensatedError: all is compensated
}

// balances returns the accounts' balances.
func (b *bank) balances(ctx context.Context) string {
	var north, south int64
	if err := errors.Join(b.north.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&north),
		b.south.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&south)); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("north %d, south %d", north, south)
}
