package txlog

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

// undoFor bounds the undoing of a half-written statement after the caller's context may have
// ended.
const undoFor = 5 * time.Second

// schemaOf returns the schema of the log's tables, as other sessions of its server name it.
// It queries the database once.
func schemaOf(ctx context.Context, db *database) (string, error) {
	if known := db.inSchema.Load(); known != nil {
		return *known, nil
	}
	query := db.backend.Flavor.Pick(sqltext.Texts{
		MySQL: `SELECT DATABASE()`,
		Postgres: `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = to_regclass('transaction_log') AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('bed_log'))`,
		SQLite: ``})
	name := "main"
	if query != "" {
		if err := db.QueryRowContext(ctx, query).Scan(&name); err != nil {
			return "", err
		}
	}
	quote := db.backend.Flavor.Pick(sqltext.Texts{MySQL: "`", Postgres: `"`, SQLite: `"`})
	name = quote + strings.ReplaceAll(name, quote, quote+quote) + quote
	db.inSchema.Store(&name)
	return name, nil
}

// own is a statement of the log with its parameters, for an application's session.
type own struct {
	text string
	args []any
}

// size returns its approximate size in bytes.
func (o *own) size() int {
	size := len(o.text)
	for _, a := range o.args {
		if s, ok := a.(string); ok {
			size += len(s)
		}
	}
	return size
}

// visitor writes into a transaction of the application. Its statements do not depend on that
// session's character set, SQL mode or search path.
type visitor struct {
	db     *database
	tx     entry.DBTX
	schema string
	// literal puts values into the text.
	literal bool
	// tells is set if @@in_transaction shows whether a transaction is open (MariaDB). After a
	// deadlock there is none, and an INSERT would commit by itself.
	tells bool
}

// errNoTransaction is the error of an entry that would commit by itself.
var errNoTransaction = errors.New("txlog: no transaction is open there: its database has rolled it back, or none was begun")

func (w *visitor) exec(ctx context.Context, o own) (int64, error) {
	res, err := w.tx.ExecContext(ctx, o.text, o.args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// add runs the INSERT of a row.
func (w *visitor) add(ctx context.Context, insert own, prove bool) error {
	rows, err := w.exec(ctx, insert)
	switch {
	case err != nil:
		return w.elsewhere(err, prove)
	case rows != 1 && w.tells && !w.isOpen(ctx):
		return errNoTransaction
	case rows != 1:
		return fmt.Errorf("%w: its session sees another log there", ErrLogElsewhere)
	}
	return nil
}

// elsewhere turns err into an ErrLogElsewhere, with prove, if err shows that the transaction does
// not reach the log.
func (w *visitor) elsewhere(err error, prove bool) error {
	if prove && isElsewhere(w.db.backend.Flavor, err) {
		return fmt.Errorf("%w: %w", ErrLogElsewhere, err)
	}
	return err
}

// guarded runs f behind a savepoint. It rolls back to the savepoint if f or the release
// fails, so that the transaction stays usable.
func (w *visitor) guarded(ctx context.Context, guard bool, f func() error) error {
	if !guard {
		return f()
	}
	if _, err := w.tx.ExecContext(ctx, "SAVEPOINT bed_home"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = w.tx.ExecContext(ctx, "RELEASE SAVEPOINT bed_home")
	}
	if err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoFor)
	defer cancel()
	_, uerr := w.tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT bed_home")
	if uerr == nil {
		// Its error may say that the server has rolled everything back.
		_, uerr = w.tx.ExecContext(ctx, "RELEASE SAVEPOINT bed_home")
	}
	if uerr != nil {
		return fmt.Errorf("%w; roll back, the entry could not be undone: %w", err, uerr)
	}
	return err
}

// issue issues u's missing order numbers, and makes u wait if it is not the first under a
// key. The transaction then holds the rows of these keys locked.
func (w *visitor) issue(ctx context.Context, u *Unit) error {
	f := w.db.backend.Flavor
	u.Order = slices.Clone(u.Order)
	for i := range u.Order {
		o := &u.Order[i]
		if o.Number != 0 {
			continue
		}
		e := w.begin("SELECT ")
		e.text(o.Key)
		e.sql(", " + f.Clock() + " * 1000, ")
		e.text(u.ID)
		e.sql(", 0" + f.Pick(sqltext.Texts{MySQL: " FROM DUAL", Postgres: "", SQLite: " WHERE 1 = 1"}))
		if w.tells {
			e.sql(" WHERE @@in_transaction = 1")
		}
		issue := e.done()
		issue.text = issuing(f, w.schema+".", issue.text)
		if n, err := w.exec(ctx, issue); err != nil {
			return err
		} else if n == 0 && w.tells {
			return errNoTransaction
		}
		e = w.begin("SELECT last, head FROM " + w.schema + ".bed_order_key WHERE id = ")
		e.text(o.Key)
		head, ask := "", e.done()
		rows, err := w.tx.QueryContext(ctx, ask.text, ask.args...)
		if err != nil {
			return err
		}
		for rows.Next() && err == nil {
			err = rows.Scan(&o.Number, &head)
		}
		if err = errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
		if head == u.ID {
			continue
		}
		u.Behind = cmp.Or(u.Behind, head)
		e = w.begin("INSERT INTO " + w.schema + ".bed_order_queue (key_id, number, unit_id, skipped) SELECT ")
		e.text(o.Key)
		e.sql(", ")
		e.number(o.Number)
		e.sql(", ")
		e.text(u.ID)
		e.sql(", 0")
		if _, err := w.exec(ctx, e.done()); err != nil {
			return err
		}
	}
	return nil
}

// isElsewhere reports whether err means that the log's tables are missing, different or not
// writable.
func isElsewhere(f sqltext.Flavor, err error) bool {
	code := dberr.Of(err)
	switch code.State {
	case "42P01", "3F000", "42703", "42501", "25006", "42S02", "42S22": // no table, schema or column; no right; read-only
		return true
	}
	switch code.Number {
	case 1049, 1146, 1054, 1290, 1792, 1836: // MySQL's: no database, table or column; read-only
		return true
	}
	return code.Denied() || f == sqltext.SQLite && (strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "has no column") || code.Number&0xff == 8)
}

// grow increments the statement count in the unit's first row if it is n. It returns the
// resulting count.
func (w *visitor) grow(ctx context.Context, u *Unit, n int) (there int, err error) {
	switch rows, err := w.count(ctx, u, n, n+1); {
	case err != nil:
		return n, err
	case rows == 1:
		return n + 1, nil
	}
	if there, err = w.written(ctx, u); err != nil || there > n {
		return n, err
	}
	return there, nil
}

// written returns how many statements of u the transaction holds.
func (w *visitor) written(ctx context.Context, u *Unit) (int, error) {
	e := w.begin("SELECT statement_count FROM " + w.schema + ".transaction_log WHERE id = ")
	e.text(u.ID)
	return w.ask(ctx, e.done())
}

// ask runs a query for one number; 0 without a row.
func (w *visitor) ask(ctx context.Context, o own) (n int, err error) {
	rows, err := w.tx.QueryContext(ctx, o.text, o.args...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&n); err != nil {
			return 0, err
		}
	}
	return n, rows.Err()
}

// open checks on MySQL, which has no @@in_transaction, for an open transaction: outside of
// one a savepoint is not kept.
func (w *visitor) open(ctx context.Context) error {
	if w.db.backend.Flavor != sqltext.MySQL || w.tells {
		return nil
	}
	if _, err := w.tx.ExecContext(ctx, "SAVEPOINT bed_open"); err != nil {
		return err
	}
	_, err := w.tx.ExecContext(ctx, "RELEASE SAVEPOINT bed_open")
	if dberr.Of(err).Number == 1305 { // there is no such savepoint
		return errNoTransaction
	}
	return err
}

func (w *visitor) isOpen(ctx context.Context) bool {
	open, err := w.ask(ctx, own{text: "SELECT @@in_transaction"})
	return err == nil && open != 0
}

// untaken matches rows that have not been claimed since AddWithin. Append the token.
var untaken = " AND parked = 0 AND next_try_time IN (" + strconv.Itoa(atOnce) + ", " + strconv.Itoa(entry.WaitsFrom) + ") AND lease_token = "

// shrink reverts grow after err kept the counted row from being written.
func (w *visitor) shrink(ctx context.Context, u *Unit, n int, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoFor)
	defer cancel()
	if _, cerr := w.count(ctx, u, n+1, n); cerr != nil {
		return fmt.Errorf("%w; roll back, the entry counts a write that is not in it: %w", err, cerr)
	}
	return err
}

// count changes the statement count in the first row of u from before to now.
func (w *visitor) count(ctx context.Context, u *Unit, before, now int) (int64, error) {
	e := w.begin("UPDATE " + w.schema + ".transaction_log SET statement_count = ")
	e.number(int64(now))
	e.sql(", fingerprint = ")
	e.text(u.Fingerprint)
	if u.Undo != nil {
		e.sql(", settings = ")
		e.text(encodeSettings(u))
	}
	if len(u.Order) > 0 { // a statement may have brought another key
		_, params := encode(&u.Statements[0])
		e.sql(", parameters = ")
		e.text(wrapOrder(u.Order, wrapAfter(u.After, params)))
		if u.Behind != "" {
			e.sql(", next_try_time = " + strconv.Itoa(entry.WaitsFrom))
		}
	}
	e.sql(" WHERE id = ")
	e.text(u.ID)
	e.sql(" AND statement_count = ")
	e.number(int64(before))
	// After an implicit commit, any job may have claimed it.
	e.sql(untaken)
	e.text(u.Lease.Token)
	if w.tells {
		e.sql(" AND @@in_transaction = 1")
	}
	return w.exec(ctx, e.done())
}

// mark rewrites the group's columns in row r of u.
func (w *visitor) mark(ctx context.Context, r *row) error {
	e := w.begin("UPDATE " + w.schema + ".transaction_log SET in_doubt = " + r.homeDoubt() + ", parameters = ")
	e.text(r.params)
	e.sql(", settings = ")
	e.text(r.settings)
	e.sql(", receipt = ")
	e.text(r.receipt)
	e.sql(" WHERE id = ")
	e.text(r.id)
	e.sql(untaken)
	e.text(r.token)
	_, err := w.exec(ctx, e.done())
	return err
}

// insert returns the INSERT of a row, with the same columns as the log's own. With an
// identity it inserts only if the session sees the log of that identity. The ON clause never
// fires; it makes a missing UPDATE right fail now and not later.
func (w *visitor) insert(r *row, identity string) own {
	f := w.db.backend.Flavor
	e := w.begin("INSERT INTO ")
	e.b.Grow(2 * rowOverhead)
	e.sql(w.schema)
	e.sql(".transaction_log")
	e.sql(columnNames[f])
	before := " SELECT "
	for i := range columns {
		c := &columns[i]
		e.sql(before)
		before = ", "
		switch {
		case c.within != nil:
			e.sql(c.within(r))
		case c.text != nil:
			e.text(c.text(r))
		case c.number != nil:
			e.number(c.number(r))
		case c.time:
			e.sql(f.Clock())
		default:
			e.sql(c.fixed)
		}
	}
	open := ""
	if w.tells && r.no == 0 {
		open = "@@in_transaction = 1"
	}
	switch {
	case identity == "" && open != "":
		e.sql(" FROM DUAL WHERE " + open)
	case identity != "":
		e.sql(" FROM " + w.schema + ".bed_log WHERE name = ")
		e.text(tables.Identity)
		e.sql(" AND value = ")
		e.text(identity)
		if open != "" {
			e.sql(" AND " + open)
		}
		e.sql(f.Pick(sqltext.Texts{
			MySQL:    " ON DUPLICATE KEY UPDATE statement_count = " + w.schema + ".transaction_log.statement_count",
			Postgres: " ON CONFLICT (id) DO UPDATE SET statement_count = transaction_log.statement_count",
			SQLite:   ""}))
	}
	return e.done()
}

// writing is a statement under construction.
type writing struct {
	*visitor
	b    strings.Builder
	args []any
}

func (w *visitor) begin(text string) *writing {
	e := &writing{visitor: w}
	e.b.WriteString(text)
	return e
}

func (e *writing) done() own { return own{e.b.String(), e.args} }

func (e *writing) sql(text string) { e.b.WriteString(text) }

// param returns the placeholder of the next parameter.
func (e *writing) param(v any, kind string) string {
	e.args = append(e.args, v)
	if e.db.backend.Flavor == sqltext.Postgres {
		return "$" + strconv.Itoa(len(e.args)) + "::" + kind
	}
	return "?"
}

func (e *writing) number(n int64) {
	if e.literal {
		e.sql(strconv.FormatInt(n, 10))
	} else {
		e.sql(e.param(n, "bigint"))
	}
}

// text writes a text independently of the session's character set and SQL mode: only
// printable ASCII without a backslash appears literally.
func (e *writing) text(s string) {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < 0x7f && s[i] != '\\' || s[i] == '\n' || s[i] == '\t'
	}
	switch f := e.db.backend.Flavor; {
	case e.literal && plain:
		e.sql("'" + strings.ReplaceAll(s, "'", "''") + "'")
	case e.literal:
		e.sql("_utf8mb4 x'" + hex.EncodeToString([]byte(s)) + "'")
	case plain || f == sqltext.SQLite:
		e.sql(e.param(s, "text"))
	case f == sqltext.MySQL:
		e.sql("CONVERT(UNHEX(" + e.param(hex.EncodeToString([]byte(s)), "text") + ") USING utf8mb4)")
	default:
		e.sql("convert_from(decode(" + e.param(hex.EncodeToString([]byte(s)), "text") + ", 'hex'), 'UTF8')")
	}
}
