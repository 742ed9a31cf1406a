package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/pgtext"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// DefaultRetention is how long receipts are kept unless something else is said.
const DefaultRetention = 7 * 24 * time.Hour

// Receipts says how receipts of units are written.
type Receipts struct {
	// LogID names the transaction log (txlog.Storage.Identity): only its own
	// job purges its receipts.
	LogID string
	// Retention is how long a receipt is kept that was not erased at once.
	Retention time.Duration
	// KeyRetention is the same for a receipt under a caller's idempotency key.
	KeyRetention time.Duration
	// Place is where bed_receipt is (see ReceiptPlace), for a session whose
	// unqualified names may lead elsewhere by now. Empty: where they lead.
	Place string
}

// at is one of the statements on bed_receipt at its place.
func (r Receipts) at(f txlog.Flavor, k receiptStatement, args ...any) delivery.Call {
	text := receiptText(f, k, 0)
	if r.Place != "" {
		text = strings.Replace(text, "bed_receipt", r.Place+".bed_receipt", 1)
	}
	return call(text, args...)
}

// insert is the call that writes u's receipt.
func (r Receipts) insert(f txlog.Flavor, u *txlog.Unit, void bool) delivery.Call {
	keep := r.retention(u).Milliseconds()
	if u.Fingerprint == "" && !void {
		c := r.at(f, receiptInsertPlain, u.Receipt, u.ID, r.LogID, keep)
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
	return r.at(f, receiptInsert, u.Receipt, u.ID, r.LogID, v, keep, fingerprint, nil)
}

// retention is how long u's receipt is kept.
func (r Receipts) retention(u *txlog.Unit) time.Duration {
	if u.Fingerprint != "" {
		return r.KeyRetention
	}
	return r.Retention
}

// call makes a Call of one of our own statements.
func call(text string, args ...any) delivery.Call {
	c := delivery.Call{SQL: text, Args: make([]driver.NamedValue, len(args))}
	for i, v := range args {
		c.Args[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return c
}

// EnsureReceipts finds the table of receipts on conn's database, or creates
// it. Where the account may not, the error holds the statement to run.
func EnsureReceipts(ctx context.Context, d *delivery.Dialect, conn driver.Conn) error {
	probe := receiptText(d.Flavor, receiptProbe, 0)
	err := drain(ctx, d, conn, call(probe))
	if err == nil || !d.Class(err).Answered() {
		return err
	}
	if d.Flavor != txlog.FlavorMySQL && denied(err) {
		// It is there. Another one, which the account could make in a schema of its
		// own, would not know of what is in this one.
		return ReceiptRights(ctx, d, conn, err)
	}
	ddl := receiptText(d.Flavor, receiptCreate, 0)
	_, _, cerr := Exec(ctx, conn, ddl, nil)
	if cerr != nil && !d.Class(cerr).Answered() {
		return cerr
	}
	if cerr == nil && d.Flavor == txlog.FlavorPostgres {
		// Who made the table may say so; for others it is said already.
		_, _, _ = Exec(ctx, conn, receiptText(d.Flavor, receiptComment, 0), nil)
	}
	// Somebody else may have created it at the same moment; or it is there, of an
	// older form.
	if err = drain(ctx, d, conn, call(probe)); err == nil || !d.Class(err).Answered() {
		return err
	}
	if denied(err) { // MySQL says so too of a table that is not there
		return ReceiptRights(ctx, d, conn, err)
	}
	if drain(ctx, d, conn, call(receiptText(d.Flavor, receiptProbeOlder, 0))) == nil {
		return &delivery.ReceiptTableError{Statement: receiptText(d.Flavor, receiptAdd, 0), Err: err}
	}
	if cerr == nil {
		cerr = err
	}
	if d.Class(cerr) == delivery.Retryable {
		return cerr // a lock, a server that is busy: the next write looks again
	}
	return &delivery.ReceiptTableError{Statement: ddl, Err: cerr}
}

// ReceiptPlace gives the database, and in PostgreSQL the schema, in which conn's
// session finds bed_receipt or would create it, quoted; empty if nowhere.
func ReceiptPlace(ctx context.Context, d *delivery.Dialect, conn driver.Conn) (place string, err error) {
	if d.Flavor == 0 {
		return "", nil
	}
	err = each(ctx, d, conn, call(receiptText(d.Flavor, receiptPlace, 0)), func(row []driver.Value) { place = text(row[0]) })
	return place, err
}

// Found is what a receipt says.
type Found struct {
	// Void: the work was not done and never will be.
	Void bool
	// Answered: Void, and the caller was told so.
	Answered bool
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
func ReadReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, id string) (*Found, error) {
	return readReceipt(ctx, d, conn, Receipts{}, id)
}

func readReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, r Receipts, id string) (*Found, error) {
	var found *Found
	err := each(ctx, d, conn, r.at(d.Flavor, receiptRead, id), func(row []driver.Value) {
		found = &Found{Void: number(row[0]) != 0, Answered: number(row[0]) != 0 && text(row[3]) == voidAnswered, UnitID: text(row[1]), Fingerprint: text(row[2]), Result: text(row[3]),
			Left: time.Duration(number(row[4])) * time.Millisecond}
	})
	return found, err
}

// keepReceipt gives u's receipt, which was met, another retention when part of
// the last one has passed: it counts from the end of the unit, and another
// attempt of it may have begun just now.
func keepReceipt(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts, f *Found) error {
	keep := r.retention(u)
	if f.UnitID != u.ID {
		// Another request's under the key: it counts from that one, but an
		// attempt of this one may come as late as any.
		keep = min(keep, r.Retention)
	}
	if f.Left > keep-keep/10 {
		return nil
	}
	c := r.at(d.Flavor, receiptKeep, keep.Milliseconds(), u.Receipt)
	return alone(ctx, d, conn, driver.TxOptions{}, nil, c)
}

// Answered notes in u's receipt, which is void, that the caller was told so and
// the log removed: should a write to the log that comes late bring it back,
// there is nothing in it for a person to decide.
func Answered(ctx context.Context, d *delivery.Dialect, conn driver.Conn, u *txlog.Unit, r Receipts) Outcome {
	if err := alone(ctx, d, conn, driver.TxOptions{}, nil, r.at(d.Flavor, receiptAnswered, u.Receipt)); err != nil {
		return Failed(d, err, false)
	}
	return Outcome{}
}

// alone runs statements of our own as a local transaction, which is rolled back
// if sure, which may be nil, gives an error before it commits.
func alone(ctx context.Context, d *delivery.Dialect, conn driver.Conn, opts driver.TxOptions, sure func() error, calls ...delivery.Call) error {
	tx, err := BeginTx(ctx, conn, opts)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if _, _, err := Exec(ctx, conn, c.SQL, c.Args); err != nil {
			_ = Rollback(ctx, d, conn, tx)
			return err
		}
	}
	if sure != nil {
		if err := sure(); err != nil {
			if undo := Rollback(ctx, d, conn, tx); undo != nil {
				return undo // the connection is not to be used again
			}
			return err
		}
	}
	if err := CommitTx(ctx, d, conn, tx); err != nil {
		return CommitFailed(ctx, d, conn, err).Err
	}
	return nil
}

// EraseReceipts deletes receipts that are known to exist. It runs at READ
// COMMITTED: on InnoDB's default level the gaps between them would be locked,
// in which every new receipt lands.
func EraseReceipts(ctx context.Context, d *delivery.Dialect, conn driver.Conn, ids []string) error {
	return byIDs(ctx, d, conn, receiptErase, nil, ids)
}

// byIDs runs a statement that names receipts by their ids, after its own args,
// in transactions of not too many. sure is as for alone.
func byIDs(ctx context.Context, d *delivery.Dialect, conn driver.Conn, k receiptStatement, sure func() error, ids []string, args ...any) error {
	portion := receiptPortion
	if d.Flavor == txlog.FlavorPostgres {
		portion = receiptPageSize
	}
	for page := range slices.Chunk(ids, receiptPageSize) {
		var calls []delivery.Call
		for some := range slices.Chunk(page, portion) {
			calls = append(calls, byIDsCall(d, k, some, args))
		}
		if err := alone(ctx, d, conn, readCommitted(d), sure, calls...); err != nil {
			return err
		}
	}
	return nil
}

func byIDsCall(d *delivery.Dialect, k receiptStatement, ids []string, args []any) delivery.Call {
	args = slices.Clip(args)
	if d.Flavor == txlog.FlavorPostgres {
		args = append(args, pgtext.Array(ids))
	} else {
		for _, id := range ids {
			args = append(args, id)
		}
	}
	return call(receiptText(d.Flavor, k, len(ids)), args...)
}

func readCommitted(d *delivery.Dialect) driver.TxOptions {
	if d.Flavor == txlog.FlavorSQLite {
		return driver.TxOptions{}
	}
	return driver.TxOptions{Isolation: 2} // sql.LevelReadCommitted
}

// drain runs a query and reads it to its end.
func drain(ctx context.Context, d *delivery.Dialect, conn driver.Conn, c delivery.Call) error {
	return each(ctx, d, conn, c, func([]driver.Value) {})
}

func each(ctx context.Context, d *delivery.Dialect, conn driver.Conn, c delivery.Call, f func([]driver.Value)) error {
	rows, _, err := Query(ctx, conn, c.SQL, c.Args)
	if err != nil {
		return err
	}
	buffered, err := Buffer(rows)
	if err != nil {
		return err
	}
	for _, row := range buffered.rows {
		f(row)
	}
	return nil
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
