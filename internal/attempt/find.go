package attempt

import (
	"context"
	"database/sql/driver"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Found is what a receipt says.
type Found struct {
	// Void: the work was not done and never will be.
	Void bool
	// Reported: Void, and the caller has that answer.
	Reported bool
	// Undone: Void, and the work was done before that.
	Undone bool
	// UnitID is the unit whose attempt left it.
	UnitID string
	// Fingerprint is that of the request, under a caller's key: see Of.
	Fingerprint string
	// Result is the stored answer, under a caller's key.
	Result string
	// Left is how long it is kept from now on.
	Left time.Duration

	flavor txlog.Flavor
}

// ReadReceipt looks a receipt up; nil if there is none. It does not wait for
// one that is being written, and does not see it. nil means that the work is not
// applied, or not yet: an attempt may be running.
func ReadReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	rows, err := askCommitted(ctx, d, conn, r.sql(d.Flavor).read, id)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	row := rows[0]
	void, result := Number(row[0]) != 0, Text(row[3])
	return &Found{flavor: d.Flavor, Void: void, Reported: void && result == voidReported, Undone: void && result == voidUndone, UnitID: Text(row[1]), Fingerprint: Text(row[2]), Result: result,
		Left: time.Duration(Number(row[4])) * time.Millisecond}, nil
}

// askCommitted is Ask for receipts, outside of any transaction: it sees what is
// committed, all of it and nothing else, at whatever level of isolation the
// session's DSN, its account or its server lets it read.
func askCommitted(ctx context.Context, d *delivery.Dialect, conn driver.Conn, query string, args ...any) ([][]driver.Value, error) {
	if d.Flavor == txlog.FlavorSQLite {
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

// askSQLite has no levels to ask for: where connections share a cache, a PRAGMA
// shows a session what others have not committed.
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

// keepReceipt gives u's receipt, which was met, another retention when part of
// the last one has passed: it counts from the end of the unit, and another
// attempt of it may have begun just now. gone: f is of another request under
// the key, and was purged meanwhile. Nothing is known of it then: this
// request's own entry, should it stay or come late, would find no receipt.
func keepReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts, f *Found) (gone bool, err error) {
	keep, others := r.retention(u), f.UnitID != owner(u)
	if others {
		// Another request's under the key: it counts from that one, but an
		// attempt of this one may come as late as any.
		keep = min(keep, r.Retention)
	}
	if f.Left > keep-keep/10 {
		return false, nil
	}
	kept, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.sql(d.Flavor).keep, keep.Milliseconds(), u.Receipt, f.UnitID))
	return others && kept == 0, err
}

// MarkReported notes in u's receipt, which is void, that the caller has its answer and
// the entry removed: should a late write to the log bring the entry back, an
// operator has nothing to decide.
func MarkReported(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts) Outcome {
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.sql(d.Flavor).reported, u.Receipt)); err != nil {
		return Failed(d, err, false)
	}
	return Outcome{}
}

// FindReceipt is ReadReceipt for a mere look: a database without the table
// bed_receipt holds no receipt.
func FindReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
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
	}
	return noTable(d, err, receiptTable)
}

// noTable reports whether err says that there is no table of that name.
func noTable(d *delivery.Dialect, err error, table string) bool {
	if err == nil || !strings.Contains(err.Error(), table) {
		return false
	}
	if d.Flavor == txlog.FlavorSQLite { // has one code for all of these
		return d.Class(err).Answered() && strings.Contains(err.Error(), "no such table: ")
	}
	state := dberr.Of(err).State
	return state == "42S02" || state == "42P01"
}
