package txlog

import (
	"math/bits"
	"slices"
	"strconv"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/sqltext"
)

// kind is one of the log's own statements.
type kind uint8

const (
	insertRows kind = iota
	insertColumns
	deleteOwned
	deleteReturned
	renewOwned
	locateOwned
	releaseOwned
	selectDue
	selectDueUnlocked
	takeRows
	selectRows
	selectTokens
	selectUnits
	lockUnits
	listUnits
	nextDataSource
	sameDataSource
	retryRows
	parkRows
	amendRow
	amendUnit
	discardRows
	completeRows
	turnRows
	noteUndo
	countUnits
	selectIDs
	selectReceipts
	selectFact
	insertFact
	issueNumbers
	freeKeys
	lockOrderKey
	setOrderKey
	addWaiting
	dropWaiting
	nextWaiting
	waitingUnits
	freeUnit
	blockUnit
	findOrderKeys
	readOrderKeys
	pageOrderKeys
	staleOrderKeys
	purgeOrderKeys
	busyOrderKeys
	noteDelivered
	noteDiscarded
)

// shape is a statement with all inputs of its text. There are few shapes, so each is
// prepared once.
type shape struct {
	kind kind
	// rows is the number of rows that it names or writes.
	rows int
	// form is how a fenced statement names its rows.
	form form
	// where holds the conditions of listUnits.
	where string
}

// form is how a fenced statement names its rows.
type form uint8

const (
	// byList takes a list of ids, and one token.
	byList form = iota
	// byArray takes one array of ids, and one token.
	byArray
	// byArrayAndIndex is byArray for a statement whose plan must not scan the table.
	byArrayAndIndex
)

// maxRows is the maximum number of rows in one statement; more rows take several statements
// in one local transaction.
const maxRows = 256

// atOnce is the next_try_time of a unit that an operator retried. It is earlier than any
// clock, and makes the unit due whatever its age.
const atOnce = 0

// longAgo is a next_try_time before all others, even before times from an operator's own
// SQL. Every server accepts it as a number, unlike the least possible one.
const longAgo = -1 << 62

// byID is for MySQL's statements that name rows by their ids. Without it, MySQL reads and
// locks a whole table that is not much larger: claims then skip free rows, and the statement
// itself waits for rows of other writers. {by key} in sqltext.Flavor.Text covers the
// statements that do not allow it.
const byID = ` FORCE INDEX (PRIMARY)`

// text holds all SQL of the log.
func (sh shape) text(f sqltext.Flavor) string {
	var s string
	switch sh.kind {
	case insertRows:
		s = insert(f, ` VALUES `+sqltext.List(sh.rows, newRow, `, `))
	case insertColumns:
		s = insert(f, newRows)
	case deleteOwned:
		switch rows := sh.rows; {
		case f == sqltext.MySQL && rows >= manyRows:
			// This form of DELETE accepts a hint.
			s = `DELETE transaction_log FROM transaction_log` + byID + ` WHERE ` + sh.fence()
		case rows > 1:
			s = `{by key}DELETE FROM transaction_log WHERE ` + sh.fence()
		default:
			s = `DELETE FROM transaction_log WHERE ` + sh.fence()
		}
	case deleteReturned:
		// A DELETE with RETURNING accepts no hint.
		s = `{by key}DELETE FROM transaction_log WHERE ` + sh.fence() + ` RETURNING id`
	case renewOwned:
		s = `UPDATE transaction_log` + f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}) + ` SET next_try_time = {now} + ?, lease_until = {now} + ?, in_doubt = 1 WHERE ` + sh.fence()
	case locateOwned:
		s = `UPDATE transaction_log SET settings = ? WHERE ` + sh.fence()
	case releaseOwned:
		s = `UPDATE transaction_log SET async_delivery_try_times = async_delivery_try_times + ?, in_doubt = ?,
  last_error = COALESCE(?, last_error), data_source = COALESCE(?, data_source), settings = COALESCE(?, settings), parked = ?, next_try_time = {now} + ?, lease_token = NULL, lease_until = NULL
  WHERE ` + sh.fence()
	case selectDue, selectDueUnlocked:
		lock := f.Pick(sqltext.Texts{MySQL: ` FOR UPDATE SKIP LOCKED`, Postgres: ` FOR UPDATE SKIP LOCKED`, SQLite: ``})
		if sh.kind == selectDueUnlocked {
			lock = ``
		}
		// Without the hint MySQL may prefer to read, and lock, the whole table.
		s = `SELECT ` + unitColumns + ` FROM transaction_log` + f.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (transaction_log_due)`, Postgres: ``, SQLite: ``}) + `
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND (next_try_time > ? OR id > ?) AND next_try_time <= ` + f.Pick(sqltext.Texts{MySQL: `LEAST`, Postgres: `LEAST`, SQLite: `MIN`}) + `({now}, ?) AND statement_no = 0
  AND (creation_time <= {now} - ? OR creation_time > {now} OR next_try_time = ` + strconv.Itoa(atOnce) + `)
  ORDER BY next_try_time, id LIMIT ?` + lock
	case takeRows:
		// The condition decides if the lock is ineffective: see claim.
		s = `UPDATE transaction_log` + f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}) + ` SET lease_token = ?, lease_until = ?, next_try_time = ?, in_doubt = 1 WHERE ` + idIn(sh.rows) +
			` AND next_try_time <= ?`
	case selectRows:
		s = `SELECT id, {sql}, parameters FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectTokens:
		s = `SELECT id, lease_token FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE ` + idIn(sh.rows) + ` ORDER BY id`
	case lockUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log` + f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}) + ` WHERE ` + idIn(sh.rows) +
			` ORDER BY id` + f.Pick(sqltext.Texts{MySQL: ` FOR UPDATE`, Postgres: ` FOR UPDATE`, SQLite: ``})
	case listUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE statement_no = 0` + sh.where + ` ORDER BY id LIMIT ?`
	case nextDataSource:
		// Each call jumps to the next name in the index.
		s = `SELECT data_source FROM transaction_log WHERE parked = 0 AND data_source > ? AND data_source < ? ORDER BY data_source LIMIT 1`
	case sameDataSource:
		s = `SELECT data_source FROM transaction_log` + f.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (transaction_log_due)`, Postgres: ``, SQLite: ``}) + `
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND next_try_time <= ? ORDER BY next_try_time LIMIT 1`
	case retryRows:
		s = `UPDATE transaction_log SET parked = 0, async_delivery_try_times = 0, next_try_time = ` + strconv.Itoa(atOnce) + `,
  lease_token = NULL, lease_until = NULL WHERE ` + idIn(sh.rows)
	case parkRows:
		s = `UPDATE transaction_log` + f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}) + ` SET parked = 1, next_try_time = {now}, lease_token = NULL, lease_until = NULL WHERE ` + idIn(sh.rows)
	case amendRow:
		s = `UPDATE transaction_log SET {sql} = ?, parameters = ? WHERE id = ?`
	case amendUnit:
		s = `UPDATE transaction_log SET receipt = ?, in_doubt = 0 WHERE id = ?`
	case discardRows:
		s = `{by key}DELETE FROM transaction_log WHERE ` + idIn(sh.rows)
	case completeRows:
		s = `{by key}DELETE FROM transaction_log WHERE ` + idIn(sh.rows) + ` AND receipt = ?`
	case turnRows:
		s = `UPDATE transaction_log` + f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}) + ` SET data_source = ?, settings = ?, receipt = ?, last_error = ?,
  lease_token = ?, lease_until = ?, next_try_time = ?, async_delivery_try_times = 0, parked = 0, in_doubt = 1 WHERE ` + idIn(sh.rows)
	case noteUndo:
		s = `UPDATE transaction_log SET settings = ? WHERE id = ?`
	case countUnits:
		s = `SELECT data_source,
  SUM(CASE WHEN parked <> 0 THEN 1 ELSE 0 END),
  SUM(CASE WHEN parked = 0 AND lease_token IS NOT NULL AND next_try_time > {now} AND next_try_time < ` + strconv.Itoa(entry.WaitsFrom) + ` THEN 1 ELSE 0 END),
  COUNT(*), MIN(creation_time)
  FROM transaction_log WHERE statement_no = 0 GROUP BY data_source ORDER BY data_source`
	case selectIDs:
		s = `SELECT id FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectReceipts:
		// The index covers receipts under keys; in MySQL all others come first.
		s = `SELECT receipt FROM transaction_log WHERE fingerprint > '' AND receipt IN (` + sqltext.List(sh.rows, "?", ", ") + `)`
	case selectFact:
		s = `SELECT value FROM bed_log WHERE name = ?`
	case insertFact:
		// Of several concurrent inserts one wins.
		s = `INSERT INTO bed_log (name, value) VALUES (?, ?)` +
			f.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE name = bed_log.name`, Postgres: ` ON CONFLICT (name) DO NOTHING`, SQLite: ` ON CONFLICT (name) DO NOTHING`})
	case issueNumbers: // PostgreSQL's; it waits for the row of a key for a second at most
		s = issuing(f, "", `SELECT r.id, {now} * 1000 + r.n - 1, r.unit, r.n - 1 FROM (SELECT set_config('lock_timeout', '1s', true)) AS c,
  unnest(?::text[], ?::text[], ?::bigint[]) AS r (id, unit, n)`) + issued
	case freeKeys: // PostgreSQL's; the rows are locked in their order
		s = `UPDATE bed_order_key SET head = '' FROM ` + patient + `(SELECT id FROM bed_order_key WHERE id = ANY(?::text[]) AND c.t <> '' ORDER BY id FOR UPDATE) AS k
  WHERE bed_order_key.id = k.id AND head = ANY(?::text[]) AND waiting = 0`
	case lockOrderKey:
		s = f.Pick(sqltext.Texts{
			MySQL:    lockBriefly + `SELECT last, head, waiting FROM bed_order_key WHERE id = ? FOR UPDATE`,
			Postgres: `SELECT last, head, waiting FROM ` + patient + `(SELECT last, head, waiting FROM bed_order_key WHERE id = ? AND c.t <> '' FOR UPDATE) AS k`,
			SQLite:   `SELECT last, head, waiting FROM bed_order_key WHERE id = ?`})
	case setOrderKey:
		s = `UPDATE bed_order_key SET head = ?, waiting = ? WHERE id = ?`
	case addWaiting:
		s = `INSERT INTO bed_order_queue (key_id, number, unit_id, skipped) VALUES (?, ?, ?, ?)`
	case dropWaiting:
		s = `DELETE FROM bed_order_queue WHERE key_id = ? AND unit_id = ? AND skipped = ?`
	case nextWaiting:
		s = `SELECT unit_id FROM bed_order_queue WHERE key_id = ? AND skipped = 0 ORDER BY number LIMIT 1`
	case waitingUnits:
		s = `SELECT unit_id FROM bed_order_queue WHERE skipped = 0 AND unit_` + idIn(sh.rows)
	case freeUnit:
		s = `UPDATE transaction_log SET next_try_time = ` + strconv.Itoa(atOnce) + `, lease_until = NULL WHERE id >= ? AND id <= ? AND next_try_time >= ` + strconv.Itoa(entry.WaitsFrom)
	case blockUnit:
		s = `UPDATE transaction_log SET next_try_time = ? WHERE id >= ? AND id <= ?`
	case findOrderKeys: // reads all of them
		s = `SELECT id FROM bed_order_key WHERE head = ? UNION SELECT key_id FROM bed_order_queue WHERE unit_id = ?`
	case readOrderKeys:
		s = `SELECT id, head, waiting FROM bed_order_key WHERE ` + idIn(sh.rows)
	case pageOrderKeys:
		s = `SELECT id FROM bed_order_key WHERE id > ? ORDER BY id LIMIT ?`
	case staleOrderKeys:
		s = `SELECT id FROM bed_order_key WHERE ` + idIn(sh.rows) + ` AND head <> ''
  AND NOT EXISTS (SELECT 1 FROM transaction_log AS l WHERE l.id = bed_order_key.head)`
	case purgeOrderKeys:
		// A skipped unit is still under its key.
		s = `{by key}DELETE FROM bed_order_key WHERE ` + idIn(sh.rows) + ` AND head = '' AND last < {now} * 1000 - ?
  AND NOT EXISTS (SELECT 1 FROM bed_order_queue AS q WHERE q.key_id = bed_order_key.id)`
	case busyOrderKeys:
		// Units behind a skipped one may have been delivered.
		s = `SELECT id FROM bed_order_key WHERE ` + idIn(sh.rows) + ` AND (head <> '' OR EXISTS (SELECT 1 FROM bed_order_queue AS q WHERE q.key_id = bed_order_key.id))`
	case noteDelivered:
		s = journal.Delivered.Statement(f, sh.rows)
	case noteDiscarded:
		s = journal.Discarded.Statement(f, sh.rows)
	}
	return f.Text(s)
}

// patient begins a FROM of PostgreSQL's. The next item, which must name c.t, waits at most a
// second for a lock. Without that name PostgreSQL may lock before it changes the setting.
const patient = `(SELECT set_config('lock_timeout', '1s', true) AS t) AS c CROSS JOIN LATERAL `

// insert returns the INSERT of rows, which are a list or a SELECT.
func insert(f sqltext.Flavor, rows string) string {
	return insertInto + rows +
		// Repeating an INSERT after a lost answer changes nothing.
		f.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE id = transaction_log.id`, Postgres: ` ON CONFLICT (id) DO NOTHING`, SQLite: ` ON CONFLICT (id) DO NOTHING`})
}

// list returns the statement for a filter, with its parameters.
func (f Filter) list() (sh shape, args []any) {
	sh.kind = listUnits
	add := func(condition string, values ...any) { sh.where, args = sh.where+condition, append(args, values...) }
	if f.After != "" {
		add(` AND id > ?`, entry.HeadID(f.After))
	}
	if f.Parked {
		add(` AND parked = 1`)
	}
	if f.DataSource != "" {
		add(` AND data_source = ?`, f.DataSource)
	}
	if f.OlderThan > 0 {
		add(` AND creation_time <= {now} - ?`, entry.Millis(f.OlderThan))
	}
	return sh, append(args, f.limit())
}

// idIn names rows by primary key: InnoDB then locks these records and no gap between them.
func idIn(n int) string {
	if n == 1 {
		return `id = ?`
	}
	return `id IN (` + sqltext.List(n, "?", ", ") + `)`
}

// fence returns the condition that the caller owns the rows.
func (sh shape) fence() string {
	switch sh.form {
	case byArray:
		return `id = ANY(?::text[]) AND lease_token = ?`
	case byArrayAndIndex:
		// Another text has a plan of its own.
		return `id = ANY(?::text[]) AND lease_token = ? /* by index */`
	case byList:
	}
	return idIn(sh.rows) + ` AND lease_token = ?`
}

// roundUp returns the next power of two. Lists of ids are padded to it with the last id, so
// that few shapes are needed.
func roundUp(n int) int { return 1 << bits.Len(uint(n-1)) }

// insertSize returns the padded number of rows for an INSERT of n rows; the padding repeats
// a row, which adds nothing. A step is a quarter of a power of two: few shapes, little
// padding.
func insertSize(n int) int {
	step := max(1, roundUp(n)/8)
	return (n + step - 1) / step * step
}

// filled returns the ids as parameters, padded to the size of a shape.
func filled(ids []string) []any {
	size := roundUp(len(ids))
	args := make([]any, size, size+4)
	for i := range args {
		args[i] = ids[min(i, len(ids)-1)]
	}
	return args
}

// chunks calls f for ids in portions of at most maxRows, each padded.
func chunks(ids []string, f func(filled []any) error) error {
	for portion := range slices.Chunk(ids, maxRows) {
		if err := f(filled(portion)); err != nil {
			return err
		}
	}
	return nil
}
