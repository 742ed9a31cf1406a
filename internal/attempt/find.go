package attempt

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// FindReceipt is ReadReceipt for a mere look: a database without the table
// bed_receipt holds no receipt, and one that is not committed is not seen,
// whatever isolation conn's DSN asks for. nil means that the work is not applied,
// or not yet: an attempt may be running.
func FindReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	if d.Flavor != txlog.FlavorMySQL { // the others never show what is not committed
		return findReceipt(ctx, d, conn, r, id)
	}
	opts := readCommitted(d)
	opts.ReadOnly = true
	tx, err := BeginTx(ctx, conn, opts)
	if err != nil {
		return nil, err
	}
	found, err := findReceipt(ctx, d, conn, r, id)
	if rerr := Rollback(ctx, d, conn, tx); err == nil {
		err = rerr
	}
	return found, err
}

func findReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	found, err := ReadReceipt(ctx, d, conn, r, id)
	if err != nil && NoReceipts(d, r, err) {
		return nil, nil
	}
	return found, err
}

// NoReceiptTable makes err, which NoReceipts is true of, the error that says how to
// create the table.
func NoReceiptTable(d *delivery.Dialect, r Receipts, err error) error {
	return &delivery.ReceiptTableError{Statement: creation(d, r), Err: err}
}

// NoReceipts reports whether err says that there is no table bed_receipt.
func NoReceipts(d *delivery.Dialect, r Receipts, err error) bool {
	switch {
	case err == nil:
		return false
	case r.Schema != "" && noSchema(err) && strings.Contains(err.Error(), "'"+r.Schema+"'"): // MySQL speaks of the database alone
		return true
	case !strings.Contains(err.Error(), receiptTable):
		return false
	}
	if d.Flavor == txlog.FlavorSQLite { // has one code for all of these
		return d.Class(err).Answered() && strings.Contains(err.Error(), "no such table: ")
	}
	state := dberr.Of(err).State
	return state == "42S02" || state == "42P01"
}
