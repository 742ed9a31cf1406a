package attempt

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// FindReceipt is ReadReceipt for who only looks: a database without the table
// bed_receipt holds no receipt, and one that is not committed is not seen,
// whatever isolation conn's DSN asks for. nil means that the work is not
// applied, or not yet: an attempt may be running.
func FindReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, id string) (*Found, error) {
	if d.Flavor != txlog.FlavorMySQL { // the others never show what is not committed
		return findReceipt(ctx, d, conn, id)
	}
	opts := readCommitted(d)
	opts.ReadOnly = true
	tx, err := BeginTx(ctx, conn, opts)
	if err != nil {
		return nil, err
	}
	found, err := findReceipt(ctx, d, conn, id)
	if rerr := Rollback(ctx, d, conn, tx); err == nil {
		err = rerr
	}
	return found, err
}

func findReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, id string) (*Found, error) {
	found, err := ReadReceipt(ctx, d, conn, id)
	if err != nil && NoReceipts(d, err) {
		return nil, nil
	}
	return found, err
}

// ReceiptsGone is the error for err that says that the table of receipts, which
// was there, is there no more.
func ReceiptsGone(d *delivery.Dialect, err error) error {
	return &delivery.ReceiptTableError{Statement: receiptText(d.Flavor, receiptCreate, 0), Err: err}
}

// NoReceipts reports whether err says that there is no table bed_receipt.
func NoReceipts(d *delivery.Dialect, err error) bool {
	if err == nil || !strings.Contains(err.Error(), "bed_receipt") {
		return false
	}
	if d.Flavor == txlog.FlavorSQLite { // has one code for all of these
		return d.Class(err).Answered() && strings.Contains(err.Error(), "no such table: ")
	}
	state := dberr.Of(err).State
	return state == "42S02" || state == "42P01"
}
