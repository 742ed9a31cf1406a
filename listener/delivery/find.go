package delivery

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
)

// FindReceipt is ReadReceipt for who only looks: a database without the table
// bed_receipt holds no receipt, and one that is not committed is not seen,
// whatever isolation conn's DSN asks for. nil means that the work is not
// applied, or not yet: an attempt may be running.
func (d *Dialect) FindReceipt(ctx context.Context, conn driver.Conn, id string) (*Found, error) {
	if d.Flavor != MySQL { // the others never show what is not committed
		return d.findReceipt(ctx, conn, id)
	}
	opts := d.readCommitted()
	opts.ReadOnly = true
	tx, err := BeginTx(ctx, conn, opts)
	if err != nil {
		return nil, err
	}
	found, err := d.findReceipt(ctx, conn, id)
	if rerr := d.Rollback(ctx, conn, tx); err == nil {
		err = rerr
	}
	return found, err
}

func (d *Dialect) findReceipt(ctx context.Context, conn driver.Conn, id string) (*Found, error) {
	found, err := d.ReadReceipt(ctx, conn, id)
	if err != nil && d.NoReceipts(err) {
		return nil, nil
	}
	return found, err
}

// NoReceipts reports whether err says that there is no table bed_receipt.
func (d *Dialect) NoReceipts(err error) bool {
	if err == nil || !strings.Contains(err.Error(), "bed_receipt") {
		return false
	}
	if d.Flavor == SQLite { // has one code for all of these
		return d.Class(err).Answered() && strings.Contains(err.Error(), "no such table: ")
	}
	state := dberr.Of(err).State
	return state == "42S02" || state == "42P01"
}
