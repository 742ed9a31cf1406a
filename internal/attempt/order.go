package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// orderTable lets a target refuse a write under an order key after delivery of a later one. It
// lies beside the receipts.
const orderTable = "bed_order"

// TargetSchema returns the statements that create bed's tables in a target of exactly-once writes,
// for the databases of ReceiptSchema.
func TargetSchema(database string) (string, error) {
	f, err := flavorOf(database)
	if err != nil {
		return "", err
	}
	return Receipts{}.text(f, createReceiptTable) + ";\n\n" + Receipts{}.text(f, createOrderTable) + ";\n", nil
}

const (
	createOrderTable kind = `CREATE TABLE IF NOT EXISTS {at}bed_order (
  id         VARCHAR(80){bytes} NOT NULL, -- the hash of an order key
  log_id     VARCHAR(40){ascii} NOT NULL, -- the identity of the transaction log that numbers the writes (bed_log)
  last       BIGINT NOT NULL, -- the number of the last write delivered under it
  keep_until BIGINT NOT NULL, -- not purged before
  PRIMARY KEY (id)
){order options}`
	orderRemark = `made by bed (github.com/bedsql/bed), which keeps order by it: leave it out of migrations`

	probeOrder kind = `SELECT id FROM {at}bed_order WHERE 1 = 0`
	// insertFence fails if a later write was delivered, in a way that every session treats as an error.
	// The new number is NULL; in MySQL, which may store 0 for NULL, it exceeds the column's type.
	insertFence kind = receiptInsertion + `{at}bed_order (id, log_id, last, keep_until) VALUES (?, ?, ?, {now} + ?){unless later}`
	pageOrder   kind = `SELECT id FROM {at}bed_order WHERE log_id = ? AND id > ? AND keep_until <= {now} ORDER BY id LIMIT 500`
)

var purgeOrderRows = rowsStatement{`{by key}DELETE FROM {at}bed_order`, ` AND keep_until <= {now}`}

// fences returns the calls that follow u's receipt. Each refuses to go back behind a later write
// under one of u's order keys.
func (r Receipts) fences(f sqltext.Flavor, u *entry.Unit) []dialect.Call {
	calls := make([]dialect.Call, len(u.Order))
	for i, o := range u.Order {
		calls[i] = call(r.text(f, insertFence), o.Key, r.LogIdentity, o.Number, r.Retention.Milliseconds())
	}
	return calls
}

// Fence runs the fences of u in the open transaction. A failure leaves the transaction open.
func Fence(ctx context.Context, d *dialect.Dialect, conn driver.Conn, u *entry.Unit, r Receipts) Outcome {
	return onOrder(d, u, pass(ctx, d, conn, r.fences(d.Flavor, u)))
}

func pass(ctx context.Context, d *dialect.Dialect, conn driver.Conn, fences []dialect.Call) (out Outcome) {
	for _, c := range fences {
		if _, before, err := Exec(ctx, conn, c.SQL, c.Args); err != nil {
			out = Failed(d, err, before)
			out.OnReceipt = waited(ctx, before) || out.Class.Later() && dberr.Of(err).Contended()
			break
		}
	}
	return out
}

// EnsureOrder finds or creates the table bed_order, for a local transaction that could not do so
// before its COMMIT.
func EnsureOrder(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts) error {
	_, err := Ask(ctx, conn, r.text(d.Flavor, probeOrder))
	if !noTable(d, err, orderTable) {
		return err
	}
	create := r.text(d.Flavor, createOrderTable)
	if _, _, err = Exec(ctx, conn, create, nil); err != nil && d.Class(err).Answered() {
		return &dialect.ReceiptTableError{Statement: create, Err: err}
	}
	return err
}

// overtaken reports whether err comes from a fence.
func overtaken(d *dialect.Dialect, err error) bool {
	if err == nil || !strings.Contains(err.Error(), orderTable) {
		return false
	}
	code := dberr.Of(err)
	switch d.Flavor {
	case sqltext.MySQL:
		return code.Number == 1690 // ER_DATA_OUT_OF_RANGE
	case sqltext.Postgres:
		return code.State == "23502" // not_null_violation
	default:
		return strings.Contains(err.Error(), "NOT NULL constraint failed: "+orderTable+".last")
	}
}

// onOrder classifies an attempt of u that was rolled back: a fence in its way means that u was
// overtaken. u's receipt, inserted before the fence, was not there.
func onOrder(d *dialect.Dialect, u *entry.Unit, out Outcome) Outcome {
	if len(u.Order) > 0 && overtaken(d, out.Err) {
		out.Class, out.Err = dialect.Refused, dialect.ErrOvertaken
	}
	return out
}

// inTurn is Apply for a unit under order keys. If the table bed_order is missing, it creates the
// table and applies the unit again.
func inTurn(ctx context.Context, d *dialect.Dialect, conn driver.Conn, calls []dialect.Call, u *entry.Unit, r Receipts, rows bool) Outcome {
	run := func() Outcome { return onOrder(d, u, apply(ctx, d, conn, calls, u, r, rows, r.fences(d.Flavor, u))) }
	out := run()
	if !noTable(d, out.Err, orderTable) {
		return out
	}
	if out.ConnLost { // the next attempt creates it
		return Outcome{Class: dialect.Retryable, Err: out.Err, ConnLost: true}
	}
	create := r.text(d.Flavor, createOrderTable)
	_, _, err := Exec(ctx, conn, create, nil)
	if err != nil && !d.Class(err).Answered() {
		return Failed(d, err, true)
	}
	if again := run(); !noTable(d, again.Err, orderTable) {
		return again
	}
	return Outcome{Class: dialect.Retryable, Err: &dialect.ReceiptTableError{Statement: create, Err: fmt.Errorf("no table %s beside it: %w", orderTable, err)}}
}

// PurgeOrder erases rows of bed_order of the log r.LogIdentity, from the key after on. It erases a
// row after its retention if no unit in the log has its key. next means the same as for
// PurgeReceipts.
func PurgeOrder(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, after string, missing func(context.Context, []string) ([]string, error)) (next string, err error) {
	rows, err := askCommitted(ctx, d, conn, r.text(d.Flavor, pageOrder), r.LogIdentity, after)
	if noTable(d, err, orderTable) || d.Flavor == sqltext.MySQL && dberr.Of(err).Denied() {
		return "", nil // MySQL denies a table that is not there to an account without rights
	}
	if err != nil || len(rows) == 0 {
		return "", err
	}
	ids := make([]string, len(rows))
	for i, row := range rows {
		ids[i] = Text(row[0])
	}
	if len(rows) == receiptPageSize {
		next = ids[len(ids)-1]
	}
	idle, err := missing(ctx, ids)
	if err == nil && len(idle) > 0 {
		_, err = byIDs(ctx, d, conn, r, purgeOrderRows, idle)
	}
	return next, err
}
