package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/ownsql"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// DefaultRetention is how long receipts are kept by default.
const DefaultRetention = 7 * 24 * time.Hour

// Receipts says how receipts of units are written.
type Receipts struct {
	// LogIdentity names the transaction log (txlog.Storage.Identity) in the column
	// log_id: only the jobs of that log purge its receipts.
	LogIdentity string
	// Retention is how long a receipt is kept that was not erased at once.
	Retention time.Duration
	// KeyRetention is the same for a receipt under a caller's idempotency key.
	KeyRetention time.Duration
	// Schema is the schema of their own that the data source's settings give them
	// (delivery.Target.ReceiptSchema); empty: none.
	Schema string
	// Place is where bed_receipt is otherwise (see ReceiptPlace), for a session
	// whose unqualified names may lead elsewhere by now. Empty: where they lead.
	Place string
}

// text is one of the statements on bed_receipt at its place. n is the number of
// ids.
func (r Receipts) text(f txlog.Flavor, k receiptStatement, n int) string {
	place := r.Place
	if r.Schema != "" {
		place = quoteSchema(f, r.Schema)
	}
	return receiptText(f, k, n, place)
}

// Table is the table's name in a statement.
func (r Receipts) Table(f txlog.Flavor) string {
	if r.Schema == "" {
		return receiptTable
	}
	return quoteSchema(f, r.Schema) + "." + receiptTable
}

// at is the call of one that names no ids.
func (r Receipts) at(f txlog.Flavor, k receiptStatement, args ...any) delivery.Call {
	return call(r.text(f, k, 0), args...)
}

// insert is the call that writes u's receipt.
func (r Receipts) insert(f txlog.Flavor, u *txlog.Unit, void bool) delivery.Call {
	keep := r.retention(u).Milliseconds()
	if u.Fingerprint == "" && !void {
		c := r.at(f, receiptInsertPlain, u.Receipt, u.ID, r.LogIdentity, keep)
		c.Fixed = 2
		return c
	}
	var fingerprint any
	if u.Fingerprint != "" {
		fingerprint = u.Fingerprint
	}
	v := int64(0)
	if void {
		v = 1
	}
	return r.at(f, receiptInsert, u.Receipt, u.ID, r.LogIdentity, v, keep, fingerprint, nil)
}

// retention is how long u's receipt is kept.
func (r Receipts) retention(u *txlog.Unit) time.Duration {
	if u.Fingerprint != "" {
		return r.KeyRetention
	}
	return r.Retention
}

// Found is what a receipt says.
type Found struct {
	// Void: the work was not done and never will be.
	Void bool
	// Told: Void, and the caller was told so.
	Told bool
	// UnitID is the unit whose attempt left it.
	UnitID string
	// Fingerprint is that of the request, under a caller's key.
	Fingerprint string
	// Result is the stored answer, under a caller's key.
	Result string
	// Left is how long it is kept from now on.
	Left time.Duration
}

// ReadReceipt looks a receipt up; nil if there is none. It does not wait for
// one that is being written.
func ReadReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	rows, err := Ask(ctx, conn, r.text(d.Flavor, receiptRead, 0), id)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	row := rows[0]
	return &Found{Void: number(row[0]) != 0, Told: number(row[0]) != 0 && text(row[3]) == voidTold, UnitID: text(row[1]), Fingerprint: text(row[2]), Result: text(row[3]),
		Left: time.Duration(number(row[4])) * time.Millisecond}, nil
}

// keepReceipt gives u's receipt, which was met, another retention when part of
// the last one has passed: it counts from the end of the unit, and another
// attempt of it may have begun just now. gone: f is of another request under
// the key, and was purged meanwhile. Nothing may be told of it then: this
// request's own entry, should it stay or come late, would find no receipt.
func keepReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts, f *Found) (gone bool, err error) {
	keep, others := r.retention(u), f.UnitID != u.ID
	if others {
		// Another request's under the key: it counts from that one, but an
		// attempt of this one may come as late as any.
		keep = min(keep, r.Retention)
	}
	if f.Left > keep-keep/10 {
		return false, nil
	}
	kept, err := alone(ctx, d, conn, driver.TxOptions{}, r.at(d.Flavor, receiptKeep, keep.Milliseconds(), u.Receipt, f.UnitID))
	return others && kept == 0, err
}

// NoteTold notes in u's receipt, which is void, that the caller was told so and
// the entry removed: should a late write to the log bring the entry back, an
// operator has nothing to decide.
func NoteTold(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts) Outcome {
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, r.at(d.Flavor, receiptTold, u.Receipt)); err != nil {
		return Failed(d, err, false)
	}
	return Outcome{}
}

// alone runs statements of our own as a local transaction, and tells how many
// rows they changed.
func alone(ctx context.Context, d *delivery.Dialect, conn driver.Conn, opts driver.TxOptions, calls ...delivery.Call) (rows int, err error) {
	tx, err := BeginTx(ctx, conn, opts)
	if err != nil {
		return 0, err
	}
	for _, c := range calls {
		var n int64
		res, _, err := Exec(ctx, conn, c.SQL, c.Args)
		if err == nil {
			n, err = res.RowsAffected()
		}
		if err != nil {
			_ = Rollback(ctx, d, conn, tx)
			return 0, err
		}
		rows += int(n)
	}
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return 0, CommitFailed(ctx, d, conn, err).Err
	}
	return rows, nil
}

// EraseReceipts deletes receipts that are known to exist. It runs at READ
// COMMITTED: InnoDB's default level would lock the gaps between them, in which
// every new receipt lands.
func EraseReceipts(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, ids []string) error {
	_, err := byIDs(ctx, d, conn, r, receiptErase, ids)
	return err
}

// byIDs runs a statement that names receipts by their ids, after its own args,
// in transactions of not too many, and tells how many it changed.
func byIDs(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, k receiptStatement, ids []string, args ...any) (rows int, err error) {
	portion := receiptPortion
	if d.Flavor == txlog.FlavorPostgres {
		portion = receiptPageSize
	}
	for page := range slices.Chunk(ids, receiptPageSize) {
		var calls []delivery.Call
		for some := range slices.Chunk(page, portion) {
			calls = append(calls, byIDsCall(d, r, k, some, args))
		}
		n, err := alone(ctx, d, conn, readCommitted(d), calls...)
		if rows += n; err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func byIDsCall(d *delivery.Dialect, r Receipts, k receiptStatement, ids []string, args []any) delivery.Call {
	args = slices.Clip(args)
	if d.Flavor == txlog.FlavorPostgres {
		args = append(args, ownsql.Array(ids))
	} else {
		for _, id := range ids {
			args = append(args, id)
		}
	}
	return call(r.text(d.Flavor, k, len(ids)), args...)
}

func readCommitted(d *delivery.Dialect) driver.TxOptions {
	if d.Flavor == txlog.FlavorSQLite {
		return driver.TxOptions{}
	}
	return driver.TxOptions{Isolation: 2} // sql.LevelReadCommitted
}

// number and text read a value of our own columns in whatever form the driver
// gives it.
func number(v driver.Value) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case []byte:
		return parseInt(string(n))
	case string:
		return parseInt(n)
	default:
		return parseInt(fmt.Sprint(v))
	}
}

func text(v driver.Value) string {
	switch s := v.(type) {
	case nil:
		return ""
	case []byte:
		return string(s)
	case string:
		return s
	default:
		return fmt.Sprint(v)
	}
}
