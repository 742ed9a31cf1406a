package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
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

// Table is the table's name in a statement.
func (r Receipts) Table(f txlog.Flavor) string {
	if r.Schema == "" {
		return receiptTable
	}
	return quoteSchema(f, r.Schema) + "." + receiptTable
}

// insert is the call that writes u's receipt.
func (r Receipts) insert(f txlog.Flavor, u *txlog.Unit, void bool) delivery.Call {
	if u.Fingerprint == "" && !void {
		c := call(r.sql(f).insertPlain, u.Receipt, u.ID, r.LogIdentity, r.Retention.Milliseconds())
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
	return call(r.sql(f).insert, u.Receipt, u.ID, r.LogIdentity, v, r.retention(u).Milliseconds(), fingerprint, nil)
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
	rows, err := Ask(ctx, conn, r.sql(d.Flavor).read, id)
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
	kept, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.sql(d.Flavor).keep, keep.Milliseconds(), u.Receipt, f.UnitID))
	return others && kept == 0, err
}

// NoteTold notes in u's receipt, which is void, that the caller was told so and
// the entry removed: should a late write to the log bring the entry back, an
// operator has nothing to decide.
func NoteTold(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts) Outcome {
	if _, err := alone(ctx, d, conn, driver.TxOptions{}, call(r.sql(d.Flavor).told, u.Receipt)); err != nil {
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
	_, err := byIDs(ctx, d, conn, r.sql(d.Flavor).erase, ids)
	return err
}

// byIDs runs a statement that names receipts by their ids, after its own args,
// in transactions of not too many, and tells how many it changed.
func byIDs(ctx context.Context, d *delivery.Dialect, conn driver.Conn, s idsSQL, ids []string, args ...any) (rows int, err error) {
	isArray := d.Flavor == txlog.FlavorPostgres
	portion := receiptPortion
	if isArray {
		portion = receiptPageSize
	}
	for page := range slices.Chunk(ids, receiptPageSize) {
		var calls []delivery.Call
		for some := range slices.Chunk(page, portion) {
			text, values := s[0], slices.Clip(args)
			if isArray {
				values = append(values, ownsql.Array(some))
			} else {
				text += ownsql.List(len(some), `?`, `, `) + s[1]
				for _, id := range some {
					values = append(values, id)
				}
			}
			calls = append(calls, call(text, values...))
		}
		n, err := alone(ctx, d, conn, readCommitted(d), calls...)
		if rows += n; err != nil {
			return rows, err
		}
	}
	return rows, nil
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
	if n, ok := v.(int64); ok {
		return n
	}
	n, _ := strconv.ParseInt(text(v), 10, 64)
	return n
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
