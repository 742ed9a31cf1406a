package attempt

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// DefaultRetention is how long receipts are kept by default.
const DefaultRetention = 7 * 24 * time.Hour

// Receipts describes how units write their receipts.
type Receipts struct {
	// LogIdentity names the transaction log (txlog.Storage.Identity) in the column log_id. Only
	// the jobs of that log purge its receipts.
	LogIdentity string
	// Retention is how long to keep a receipt that was not erased at once.
	Retention time.Duration
	// KeyRetention is the same for a receipt under a caller's idempotency key.
	KeyRetention time.Duration
	// Schema is the schema for receipts in the data source's settings
	// (delivery.Target.ReceiptSchema); empty if there is no such setting.
	Schema string
	// Place is the place of bed_receipt without Schema (see ReceiptPlace), for a session whose
	// unqualified names may lead elsewhere by now. Empty means where they lead.
	Place string
}

// Placed returns the name, in a statement, of a table that lies beside the receipts.
func (r Receipts) Placed(f sqltext.Flavor, table string) string {
	if r.Schema == "" {
		return table
	}
	return quoteSchema(f, r.Schema) + "." + table
}

// ReceiptID is the id of the receipt of a unit without a caller's key.
func ReceiptID(d *dialect.Dialect, unitID string) string {
	if d.Receipt == nil {
		return unitID
	}
	return d.Receipt(unitID)
}

// Insertion is the call that writes u's receipt.
func (r Receipts) Insertion(f sqltext.Flavor, u *entry.Unit, void bool) dialect.Call {
	if u.Fingerprint == "" && !void {
		return call(r.text(f, insertPlain), u.Receipt, u.Decides(), r.LogIdentity, r.Retention.Milliseconds())
	}
	var fingerprint any
	if u.Fingerprint != "" {
		fingerprint = storedFingerprint(u)
	}
	v := int64(0)
	if void {
		v = 1
	}
	return call(r.text(f, insertReceipt), u.Receipt, u.Decides(), r.LogIdentity, v, r.retention(u).Milliseconds(), fingerprint, nil)
}

// retention is how long u's receipt is kept.
func (r Receipts) retention(u *entry.Unit) time.Duration {
	if u.Fingerprint != "" {
		return r.KeyRetention
	}
	return r.Retention
}

// readCommitted is sql.LevelReadCommitted.
const readCommitted driver.IsolationLevel = 2

// EraseReceipts deletes existing receipts. It runs at READ COMMITTED: InnoDB's default level would
// lock the gaps between them, and every new receipt lands in these gaps.
func EraseReceipts(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, ids []string) error {
	_, err := byIDs(ctx, d, conn, r, eraseRows, ids)
	if err != nil {
		err = ReceiptRights(ctx, d, conn, r, err)
	}
	return err
}

// byIDs runs a statement that names receipts by their ids, after its own args. It does so in
// transactions of limited size, and returns the number of changed rows.
func byIDs(ctx context.Context, d *dialect.Dialect, conn driver.Conn, r Receipts, s rowsStatement, ids []string, args ...any) (rows int, err error) {
	opts := driver.TxOptions{Isolation: readCommitted}
	if d.Flavor == sqltext.SQLite {
		opts.Isolation = 0 // it has no levels
	}
	portion := receiptPortion
	if d.Flavor == sqltext.Postgres {
		portion = receiptPageSize
	}
	for page := range slices.Chunk(ids, receiptPageSize) {
		var calls []dialect.Call
		for some := range slices.Chunk(page, portion) {
			calls = append(calls, s.on(d.Flavor, r, some, slices.Clip(args)))
		}
		n, err := alone(ctx, d, conn, opts, calls...)
		if rows += n; err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// alone runs statements of our own as a local transaction, and returns how many
// rows they changed.
func alone(ctx context.Context, d *dialect.Dialect, conn driver.Conn, opts driver.TxOptions, calls ...dialect.Call) (rows int, err error) {
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

// receiptColumns are the columns of bed_receipt that an attempt writes.
const receiptColumns = "id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result"

// ReceiptSchema returns the statement that creates the table of receipts in a target: "mysql"
// (also for MariaDB), "postgres" or "sqlite".
func ReceiptSchema(database string) (string, error) {
	f, err := flavorOf(database)
	if err != nil {
		return "", err
	}
	return Receipts{}.text(f, createReceiptTable), nil
}

func flavorOf(database string) (sqltext.Flavor, error) {
	f, known := map[string]sqltext.Flavor{"mysql": sqltext.MySQL, "postgres": sqltext.Postgres, "sqlite": sqltext.SQLite}[database]
	if !known {
		return f, fmt.Errorf("bed: no schema of receipts for a database called %q: use mysql, postgres or sqlite", database)
	}
	return f, nil
}

// receiptRemark explains the table to a tool or a person who comes across it.
const receiptRemark = `made by bed (github.com/bedsql/bed), which tells by it what was applied: leave it out of migrations`

// receiptPageSize is how many receipts a purge looks at, and a transaction
// erases or marks, together.
const receiptPageSize = 500

// receiptPortion is how many ids a statement lists.
const receiptPortion = 128

// voidReported is the result in a void receipt if the unit's caller knows of the refusal.
const voidReported = "answered"

// voidAmended is the result in a void receipt if the unit has a new text from an operator, to be
// delivered under another receipt.
const voidAmended = "amended"

// voidCompensated is the result in a void receipt if the unit was applied and later compensated.
const voidCompensated = "undone"

// receiptRests is for how long, in ms, a purge leaves a new receipt alone: by
// then its writer has erased most.
const receiptRests = 60_000

// The states of a receipt on a page.
const (
	receiptNew   = iota // it is to be left alone
	receiptInLog        // its unit was in the log when a purge looked last, if any did
	receiptKept         // its unit was not
	receiptDue          // nor was it, and its retention is over
)

// receiptTable is the table's name.
const receiptTable = "bed_receipt"

// kind is one of our statements on the tables of receipts and of order keys. Its words in braces are those
// of [sqltext.Flavor.Text] and [Receipts.text].
type kind string

const (
	createReceiptTable kind = `CREATE TABLE IF NOT EXISTS {at}bed_receipt (
  id            VARCHAR(80){bytes} NOT NULL, -- the unit's, or the hash of a caller's key
  unit_id       VARCHAR(40){ascii} NOT NULL, -- the entry whose work this is, or the compensable group of a part
  log_id        VARCHAR(40){ascii} NOT NULL, -- the identity of the transaction log that holds the entry (bed_log)
  void          SMALLINT NOT NULL,    -- 1: the work was not done and never will be
  creation_time BIGINT NOT NULL,      -- ms since 1970-01-01 UTC
  keep_until    BIGINT NOT NULL,      -- not purged before
  fingerprint   VARCHAR(64) NULL,     -- of the request, under a caller's key
  result        {medium}TEXT NULL, -- the answer, under a caller's key
  log_gone      SMALLINT NOT NULL DEFAULT 0, -- 1: a purge found that the unit is not in the log any more
  {constraint}PRIMARY KEY (id)
){receipt options}`
	commentReceipts kind = `COMMENT ON TABLE {at}bed_receipt IS '` + receiptRemark + `'`
	probeReceipts   kind = `SELECT {columns}, log_gone FROM {at}bed_receipt WHERE 1 = 0`
	probeOlder      kind = `SELECT {columns} FROM {at}bed_receipt WHERE 1 = 0`
	addLogGone      kind = `ALTER TABLE {at}bed_receipt ADD COLUMN log_gone SMALLINT NOT NULL DEFAULT 0`

	insertReceipt kind = receiptInsertion + `{at}bed_receipt ({columns}) VALUES (?, ?, ?, ?, {now}, {now} + ?, ?, ?)`
	insertPlain   kind = receiptInsertion + `{at}bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, {now}, {created} + ?)`
	readReceipt   kind = `SELECT void, unit_id, fingerprint, result, keep_until - {now} FROM {at}bed_receipt WHERE id = ?`
	setResult     kind = `UPDATE {at}bed_receipt SET fingerprint = ?, result = ? WHERE id = ?`
	setReported   kind = `UPDATE {at}bed_receipt SET result = '` + voidReported + `' WHERE id = ? AND void = 1`
	setUndone     kind = `UPDATE {at}bed_receipt SET void = 1, result = '` + voidCompensated + `' WHERE id = ? AND void = 0`
	extendReceipt kind = `UPDATE {at}bed_receipt SET keep_until = {now} + ? WHERE id = ? AND unit_id = ?`
	readIdentity  kind = `SELECT unit_id{file} FROM {at}bed_receipt WHERE id = '` + identityReceipt + `'`

	// lockReceipt inserts a void receipt, or locks the row and returns it, on MySQL by readLocked.
	lockReceipt kind = receiptInsertion + `{at}bed_receipt ({columns}) VALUES (?, ?, ?, 1, {now}, {now} + {ms}, ?, NULL){or lock}`
	readLocked  kind = `SELECT void, unit_id, result, {now} FROM {at}bed_receipt WHERE id = ? FOR UPDATE`
	voidLocked  kind = `UPDATE {at}bed_receipt SET void = 1, result = '` + voidCompensated + `', keep_until = {later}(keep_until, {now} + {ms}) WHERE id = ? AND void = 0`
)

var pageReceipts = kind(`SELECT id, unit_id, CASE WHEN creation_time > {now} - ` + strconv.Itoa(receiptRests) + ` THEN ` + strconv.Itoa(receiptNew) + `
    WHEN log_gone = 0 THEN ` + strconv.Itoa(receiptInLog) + ` WHEN keep_until > {now} THEN ` + strconv.Itoa(receiptKept) + ` ELSE ` + strconv.Itoa(receiptDue) + ` END,
    CASE WHEN fingerprint IS NULL THEN 0 ELSE 1 END FROM {at}bed_receipt
  WHERE log_id = ? AND id > ? ORDER BY id LIMIT ` + strconv.Itoa(receiptPageSize))

// rowsStatement is a statement on the rows with some ids: what precedes WHERE, and more conditions.
type rowsStatement struct{ change, also kind }

var (
	eraseRows = rowsStatement{`{by key}DELETE FROM {at}bed_receipt`, ``}
	// An attempt may have met the receipt, and renewed it, since it was found due.
	purgeRows = rowsStatement{`{by key}DELETE FROM {at}bed_receipt`, ` AND log_gone = 1 AND keep_until <= {now}`}
	goneRows  = rowsStatement{`UPDATE {at}bed_receipt SET log_gone = 1, keep_until = {later}(keep_until, {now} + CASE WHEN fingerprint IS NULL THEN {ms} ELSE {ms} END)`, ` AND log_gone = 0`}
	backRows  = rowsStatement{`UPDATE {at}bed_receipt SET log_gone = 0`, ``}
)

// rowCount stands for the number of ids in a rowsStatement.
const rowCount = "{rows}"

// byKey ends a rowsStatement. With a LIMIT below the table's size MySQL's optimizer uses the key; else
// it may read a small table whole, and wait for the rows of other writers.
var byKey = sqltext.Texts{MySQL: ` LIMIT ` + rowCount, Postgres: ``, SQLite: ``}

// These look for tables of receipts. ledTo returns the place to which unqualified names lead, and
// schemaLedTo the schema of an existing table there. elsewhere finds tables in other places: the
// schema, and the GRANT that the account lacks there.
var (
	ledTo = sqltext.Texts{MySQL: `SELECT CONCAT('` + "`', REPLACE(DATABASE(), '`', '``'), '`" + `')`,
		Postgres: `SELECT quote_ident(current_database()) || '.' || quote_ident(COALESCE((SELECT n.nspname FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('bed_receipt')), current_schema()))`, SQLite: ``}
	schemaLedTo = sqltext.Texts{MySQL: `SELECT table_schema FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'bed_receipt'`,
		Postgres: `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('bed_receipt')`, SQLite: ``}
	elsewhere = sqltext.Texts{MySQL: "SELECT CONCAT('`', REPLACE(table_schema, '`', '``'), '`') AS place, '' FROM information_schema.tables\n" +
		`  WHERE table_name = 'bed_receipt' AND table_schema <> COALESCE(NULLIF(?, ''), DATABASE()) AND LOCATE(table_schema, @@init_connect) > 0 ORDER BY BINARY place`, Postgres: `SELECT quote_ident(n.nspname), CASE WHEN has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') THEN '' ELSE 'GRANT USAGE ON SCHEMA ' || quote_ident(n.nspname) || ' TO ' || quote_ident(current_user)
    || '; GRANT SELECT, INSERT, UPDATE, DELETE ON ' || quote_ident(n.nspname) || '.bed_receipt TO ' || quote_ident(current_user) END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relname = 'bed_receipt' AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
    AND c.oid IS DISTINCT FROM (SELECT o.oid FROM pg_class o JOIN pg_namespace m ON m.oid = o.relnamespace WHERE o.relname = 'bed_receipt'
      AND m.nspname = COALESCE(NULLIF($1::text, ''), (SELECT h.nspname FROM pg_class b JOIN pg_namespace h ON h.oid = b.relnamespace WHERE b.oid = to_regclass('bed_receipt'))))
  ORDER BY quote_ident(n.nspname) COLLATE "C"`, SQLite: ``}
)

// on returns the call for the rows with these ids. Its parameters begin with args.
func (s rowsStatement) on(f sqltext.Flavor, r Receipts, ids []string, args []any) dialect.Call {
	if f == sqltext.Postgres {
		return call(r.text(f, s.change+` WHERE id = ANY(?::text[])`+s.also), append(args, sqltext.Array(ids))...)
	}
	for _, id := range ids {
		args = append(args, id)
	}
	end := strings.ReplaceAll(r.text(f, s.also+kind(f.Pick(byKey))), rowCount, strconv.Itoa(len(ids)))
	return call(r.text(f, s.change)+` WHERE id IN (`+sqltext.List(len(ids), `?`, `, `)+`)`+end, args...)
}

// texts keeps the results of Receipts.text.
var texts sync.Map

type textKey struct {
	f             sqltext.Flavor
	schema, place string
	kind          kind
}

// text returns a statement for the database, on the tables at r's place.
func (r Receipts) text(f sqltext.Flavor, k kind) string {
	key := textKey{f, r.Schema, r.Place, k}
	if text, ok := texts.Load(key); ok {
		return text.(string)
	}
	options := func(remark string) string {
		return f.Pick(sqltext.Texts{MySQL: ` ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COMMENT='` + remark + `'`, Postgres: ``, SQLite: ` WITHOUT ROWID`})
	}
	const orLock = ` ON CONFLICT (id) DO UPDATE SET void = bed_receipt.void RETURNING `
	later := ` ON CONFLICT (id) DO UPDATE SET last = CASE WHEN bed_order.last < EXCLUDED.last THEN EXCLUDED.last END, keep_until = EXCLUDED.keep_until`
	text := f.Text(strings.NewReplacer(
		`{columns}`, receiptColumns,
		`{bytes}`, f.Pick(sqltext.Texts{MySQL: ` CHARACTER SET ascii COLLATE ascii_bin`, Postgres: ` COLLATE "C"`, SQLite: ``}),
		`{ascii}`, f.Pick(sqltext.Texts{MySQL: ` CHARACTER SET ascii COLLATE ascii_bin`, Postgres: ``, SQLite: ``}),
		`{medium}`, f.Pick(sqltext.Texts{MySQL: `MEDIUM`, Postgres: ``, SQLite: ``}),
		`{constraint}`, f.Pick(sqltext.Texts{MySQL: ``, Postgres: `CONSTRAINT bed_receipt_id `, SQLite: ``}),
		`{receipt options}`, options(receiptRemark), `{order options}`, options(orderRemark),
		// In MySQL and MariaDB a value may refer to an earlier column, which is quicker than
		// reading the clock twice.
		`{created}`, f.Pick(sqltext.Texts{MySQL: `creation_time`, Postgres: `{now}`, SQLite: `{now}`}),
		`{ms}`, f.Pick(sqltext.Texts{MySQL: `?`, Postgres: `?::bigint`, SQLite: `?`}),
		`{later}`, f.Pick(sqltext.Texts{MySQL: `GREATEST`, Postgres: `GREATEST`, SQLite: `MAX`}),
		`{file}`, f.Pick(sqltext.Texts{MySQL: ``, Postgres: ``, SQLite: ` || ' ' || (SELECT file FROM pragma_database_list WHERE name = 'main')`}),
		`{or lock}`, f.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE void = void`,
			Postgres: orLock + `bed_receipt.void, bed_receipt.unit_id, bed_receipt.result, {now}`, SQLite: orLock + `void, unit_id, result, {now}`}),
		`{unless later}`, f.Pick(sqltext.Texts{
			MySQL:    ` ON DUPLICATE KEY UPDATE last = CASE WHEN last < VALUES(last) THEN VALUES(last) ELSE 9223372036854775807 + last END, keep_until = VALUES(keep_until)`,
			Postgres: later, SQLite: later}),
	).Replace(string(k)))
	at := ""
	if r.Schema != "" {
		at = quoteSchema(f, r.Schema) + "."
	} else if r.Place != "" {
		at = r.Place + "."
	}
	text = strings.Replace(text, "{at}", at, 1)
	texts.Store(key, text)
	return text
}

const receiptInsertion = "INSERT INTO "

// ReceiptTable returns the table into which text inserts a receipt, or the number of an order key,
// as the text spells it. ok is false for any other statement.
func ReceiptTable(text string) (table string, ok bool) {
	rest, ok := strings.CutPrefix(text, receiptInsertion)
	if !ok {
		return "", false
	}
	if table, _, ok = strings.Cut(rest, " "); !ok {
		return "", false
	}
	name := table[strings.LastIndexByte(table, '.')+1:]
	quoted := len(table) == len(name) || strings.HasSuffix(table, "`."+name) || strings.HasSuffix(table, `".`+name)
	return table, quoted && (name == receiptTable || name == orderTable)
}

// IsReceipt reports whether ReceiptTable knows text.
func IsReceipt(text string) bool {
	_, ok := ReceiptTable(text)
	return ok
}
