package attempt

import (
	"context"
	"database/sql/driver"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// Found is the content of a receipt.
type Found struct {
	// Void means that the work was not done and never will be.
	Void bool
	// Reported means Void, and the caller has its answer.
	Reported bool
	// Compensated means Void, but the work was done before that.
	Compensated bool
	// UnitID is the unit of the attempt that left the receipt.
	UnitID string
	// Fingerprint is the fingerprint of the request, under a caller's key: see Of.
	Fingerprint string
	// Result is the stored answer, under a caller's key.
	Result string
	// Left is how long it is kept from now on.
	Left time.Duration

	flavor sqltext.Flavor
}

// ReadReceipt looks a receipt up, and returns nil if there is no receipt. It neither sees an
// uncommitted receipt nor waits for it. With nil, the work is not applied or not yet: an attempt
// may be running.
func ReadReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	rows, err := askCommitted(ctx, d, conn, r.text(d.Flavor, readReceipt), id)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	row := rows[0]
	void, result := Number(row[0]) != 0, Text(row[3])
	return &Found{flavor: d.Flavor, Void: void, Reported: void && result == voidReported, Compensated: void && result == voidCompensated, UnitID: Text(row[1]), Fingerprint: Text(row[2]), Result: result,
		Left: time.Duration(Number(row[4])) * time.Millisecond}, nil
}

// askCommitted is Ask for receipts, outside any transaction. It sees all committed rows and no
// others, whatever isolation level the DSN, the account or the server sets for the session.
func askCommitted(ctx context.Context, d *dialect.Dialect, conn driver.Conn, query string, args ...any) ([][]driver.Value, error) {
	if d.Flavor == sqltext.SQLite {
		return askSQLite(ctx, conn, query, args...)
	}
	tx, err := BeginTx(ctx, conn, driver.TxOptions{Isolation: readCommitted})
	if err != nil {
		return nil, err
	}
	rows, err := Ask(ctx, conn, query, args...)
	if rerr := Rollback(ctx, d, conn, tx); err == nil {
		err = rerr
	}
	return rows, err
}

// askSQLite has no levels to set. Connections with a shared cache may have a PRAGMA that shows
// them uncommitted rows.
func askSQLite(ctx context.Context, conn driver.Conn, query string, args ...any) (rows [][]driver.Value, err error) {
	dirty, err := Setting(ctx, conn, "PRAGMA read_uncommitted")
	if err != nil {
		return nil, err
	}
	if dirty != "0" {
		if _, _, err := Exec(ctx, conn, "PRAGMA read_uncommitted = 0", nil); err != nil {
			return nil, err
		}
		defer func() {
			if _, _, rerr := Exec(context.WithoutCancel(ctx), conn, "PRAGMA read_uncommitted = 1", nil); err == nil {
				err = rerr
			}
		}()
	}
	return Ask(ctx, conn, query, args...)
}

// keepReceipt extends the retention of u's receipt when a part of it has passed. Retention counts
// from the end of the unit, and another attempt of it may have begun just now. gone means that f
// belongs to another request under the key, and was purged meanwhile. Its outcome is then unknown
// to us: a late or remaining entry of this request would find no receipt.
func keepReceipt(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts, f *Found) (gone bool, err error) {
	keep, others := r.retention(u), f.UnitID != u.Decides()
	if others {
		// The receipt of another request under the key: retention counts from that request, but an
		// attempt of this one may come as late as any.
		keep = min(keep, r.Retention)
	}
	if f.Left > keep-keep/10 {
		return false, nil
	}
	kept, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.text(d.Flavor, extendReceipt), keep.Milliseconds(), u.Receipt, f.UnitID))
	return others && kept == 0, err
}

// MarkReported notes in u's void receipt that the caller has its answer and the entry is removed.
// If a late write to the log brings the entry back, an operator has nothing to decide.
func MarkReported(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) Outcome {
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.text(d.Flavor, setReported), u.Receipt)); err != nil {
		return Failed(d, err, false)
	}
	return Outcome{}
}

// NoReceiptTable wraps err in the error that explains how to create the table. NoReceipts must be
// true of err.
func NoReceiptTable(d *dialect.Dialect, r Receipts, err error) error {
	create := r.text(d.Flavor, createReceiptTable)
	if r.Schema != "" {
		create = schemaCreation(d, r) + ";\n" + create
	}
	return &dialect.ReceiptTableError{Statement: create, Err: err}
}

// NoReceipts reports whether err means that the table bed_receipt is missing.
func NoReceipts(d *dialect.Dialect, r Receipts, err error) bool {
	switch {
	case err == nil:
		return false
	case r.Schema != "" && noSchema(err) && strings.Contains(err.Error(), "'"+r.Schema+"'"): // MySQL speaks of the database alone
		return true
	}
	return noTable(d, err, receiptTable)
}

// noTable reports whether err means that the named table is missing.
func noTable(d *dialect.Dialect, err error, table string) bool {
	if err == nil || !strings.Contains(err.Error(), table) {
		return false
	}
	if d.Flavor == sqltext.SQLite { // has one code for all of these
		return d.Class(err).Answered() && strings.Contains(err.Error(), "no such table: ")
	}
	state := dberr.Of(err).State
	return state == "42S02" || state == "42P01"
}
