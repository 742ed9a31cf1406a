package txlog

import (
	"context"
	"database/sql"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
)

// kind is one of the log's own statements. Its words in braces are those of [sqltext.Flavor.Text] and
// [shape.text].
type kind string

const (
	// Repeating an INSERT after a lost answer changes nothing.
	insertRows kind = `{insert} VALUES {rows}{unless the id exists}`
	// insertColumns is PostgreSQL's for any number of rows.
	insertColumns kind = `{insert}{arrays}{unless the id exists}`

	deleteOwned  kind = `{delete} WHERE {owned}`
	discardRows  kind = `{by key}DELETE FROM transaction_log WHERE {ids}`
	completeRows kind = discardRows + ` AND receipt = ?`
	// A DELETE with RETURNING accepts no hint.
	deleteReturned kind = `{by key}DELETE FROM transaction_log WHERE {owned} RETURNING id`
	// deleteArray names its rows by one array of ids.
	deleteArray kind = `DELETE FROM transaction_log WHERE id = ANY(?::text[]) AND lease_token = ? RETURNING id`
	// deleteByIndex has a plan of its own, which must not scan the table.
	deleteByIndex kind = deleteArray + ` /* by index */`

	renewOwned   kind = `UPDATE transaction_log{by id} SET next_try_time = {now} + ?, lease_until = {now} + ?, in_doubt = 1 WHERE {owned}`
	locateOwned  kind = `UPDATE transaction_log SET settings = ? WHERE {owned}`
	releaseOwned kind = `UPDATE transaction_log SET async_delivery_try_times = async_delivery_try_times + ?, in_doubt = ?,
  last_error = COALESCE(?, last_error), data_source = COALESCE(?, data_source), settings = COALESCE(?, settings), parked = ?, next_try_time = {now} + ?, lease_token = NULL, lease_until = NULL
  WHERE {owned}`

	// Without the hint MySQL may prefer to read, and lock, the whole table.
	selectDueUnlocked kind = `SELECT {unit} FROM transaction_log{by due}
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND (next_try_time > ? OR id > ?) AND next_try_time <= {least}({now}, ?) AND statement_no = 0
  AND (creation_time <= {now} - ? OR creation_time > {now} OR next_try_time = {at once})
  ORDER BY next_try_time, id LIMIT ?`
	selectDue kind = selectDueUnlocked + `{skip locked}`
	// The condition decides if the lock is ineffective: see claim.
	takeRows kind = `UPDATE transaction_log{by id} SET lease_token = ?, lease_until = ?, next_try_time = ?, in_doubt = 1 WHERE {ids} AND next_try_time <= ?`
	// Each call jumps to the next name in the index.
	nextDataSource kind = `SELECT data_source FROM transaction_log WHERE parked = 0 AND data_source > ? AND data_source < ? ORDER BY data_source LIMIT 1`
	sameDataSource kind = `SELECT data_source FROM transaction_log{by due}
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND next_try_time <= ? ORDER BY next_try_time LIMIT 1`

	selectRows   kind = `SELECT id, {sql}, parameters FROM transaction_log WHERE {ids}`
	selectTokens kind = `SELECT id, lease_token FROM transaction_log WHERE {ids}`
	selectIDs    kind = `SELECT id FROM transaction_log WHERE {ids}`
	selectUnits  kind = `SELECT {unit} FROM transaction_log WHERE {ids} ORDER BY id`
	lockUnits    kind = `SELECT {unit} FROM transaction_log{by id} WHERE {ids} ORDER BY id{for update}`
	// The index covers receipts under keys; in MySQL all others come first.
	selectReceipts kind = `SELECT receipt FROM transaction_log WHERE fingerprint > '' AND receipt IN ({list})`
	countUnits     kind = `SELECT data_source,
  SUM(CASE WHEN parked <> 0 THEN 1 ELSE 0 END),
  SUM(CASE WHEN parked = 0 AND lease_token IS NOT NULL AND next_try_time > {now} AND next_try_time < {waits} THEN 1 ELSE 0 END),
  COUNT(*), MIN(creation_time)
  FROM transaction_log WHERE statement_no = 0 GROUP BY data_source ORDER BY data_source`

	retryRows kind = `UPDATE transaction_log SET parked = 0, async_delivery_try_times = 0, next_try_time = {at once},
  lease_token = NULL, lease_until = NULL WHERE {ids}`
	parkRows  kind = `UPDATE transaction_log{by id} SET parked = 1, next_try_time = {now}, lease_token = NULL, lease_until = NULL WHERE {ids}`
	amendRow  kind = `UPDATE transaction_log SET {sql} = ?, parameters = ? WHERE id = ?`
	amendUnit kind = `UPDATE transaction_log SET receipt = ?, in_doubt = 0 WHERE id = ?`
	turnRows  kind = `UPDATE transaction_log{by id} SET data_source = ?, settings = ?, receipt = ?, last_error = ?,
  lease_token = ?, lease_until = ?, next_try_time = ?, async_delivery_try_times = 0, parked = 0, in_doubt = 1 WHERE {ids}`
	noteUndo  kind = `UPDATE transaction_log SET settings = ? WHERE id = ?`
	freeUnit  kind = `UPDATE transaction_log SET next_try_time = {at once}, lease_until = NULL WHERE id >= ? AND id <= ? AND next_try_time >= {waits}`
	blockUnit kind = `UPDATE transaction_log SET next_try_time = {waits} WHERE id >= ? AND id <= ?`

	selectFact kind = `SELECT value FROM bed_log WHERE name = ?`
	// Of several concurrent inserts one wins.
	insertFact kind = `INSERT INTO bed_log (name, value) VALUES (?, ?){unless the name exists}`

	// freeKeys is PostgreSQL's; the rows are locked in their order.
	freeKeys kind = `UPDATE bed_order_key SET head = '' FROM ` + patient + `(SELECT id FROM bed_order_key WHERE id = ANY(?::text[]) AND c.t <> '' ORDER BY id FOR UPDATE) AS k
  WHERE bed_order_key.id = k.id AND head = ANY(?::text[]) AND waiting = 0`
	lockOrderKey  kind = lockBriefly + `SELECT last, head, waiting FROM {locked key}`
	setOrderKey   kind = `UPDATE bed_order_key SET head = ?, waiting = ? WHERE id = ?`
	readOrderKeys kind = `SELECT id, head, waiting FROM bed_order_key WHERE {ids}`
	pageOrderKeys kind = `SELECT id FROM bed_order_key WHERE id > ? ORDER BY id LIMIT ?`
	// findOrderKeys reads all of them.
	findOrderKeys  kind = `SELECT id FROM bed_order_key WHERE head = ? UNION SELECT key_id FROM bed_order_queue WHERE unit_id = ?`
	staleOrderKeys kind = `SELECT id FROM bed_order_key WHERE {ids} AND head <> ''
  AND NOT EXISTS (SELECT 1 FROM transaction_log AS l WHERE l.id = bed_order_key.head)`
	// A skipped unit is still under its key.
	purgeOrderKeys kind = `{by key}DELETE FROM bed_order_key WHERE {ids} AND head = '' AND last < {now} * 1000 - ?
  AND NOT EXISTS (SELECT 1 FROM bed_order_queue AS q WHERE q.key_id = bed_order_key.id)`
	// Units behind a skipped one may have been delivered.
	busyOrderKeys kind = `SELECT id FROM bed_order_key WHERE {ids} AND (head <> '' OR EXISTS (SELECT 1 FROM bed_order_queue AS q WHERE q.key_id = bed_order_key.id))`
	addWaiting    kind = `INSERT INTO bed_order_queue (key_id, number, unit_id, skipped) VALUES (?, ?, ?, ?)`
	dropWaiting   kind = `DELETE FROM bed_order_queue WHERE key_id = ? AND unit_id = ? AND skipped = ?`
	nextWaiting   kind = `SELECT unit_id FROM bed_order_queue WHERE key_id = ? AND skipped = 0 ORDER BY number LIMIT 1`
	waitingUnits  kind = `SELECT unit_id FROM bed_order_queue WHERE skipped = 0 AND unit_{ids}`
)

// issueNumbers is PostgreSQL's; it waits for the row of a key for a second at most.
var issueNumbers = kind(issuing(sqltext.Postgres, "", `SELECT r.id, {now} * 1000 + r.n - 1, r.unit, r.n - 1 FROM (SELECT set_config('lock_timeout', '1s', true)) AS c,
  unnest(?::text[], ?::text[], ?::bigint[]) AS r (id, unit, n)`) + issued)

// patient begins a FROM of PostgreSQL's. The next item, which must name c.t, waits at most a
// second for a lock. Without that name PostgreSQL may lock before it changes the setting.
const patient = `(SELECT set_config('lock_timeout', '1s', true) AS t) AS c CROSS JOIN LATERAL `

// shape is a statement with all inputs of its text. There are few shapes, so each is
// prepared once.
type shape struct {
	kind kind
	// rows is the number of rows that it names or writes.
	rows int
}

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

// text returns the SQL for the database. {ids} names rows by primary key: InnoDB then locks these
// records and no gap between them. {owned} adds the condition that the caller owns them.
func (sh shape) text(f sqltext.Flavor) string {
	list := sqltext.List(max(1, sh.rows), "?", ", ")
	ids := `id IN (` + list + `)`
	if sh.rows == 1 {
		ids = `id = ?`
	}
	remove := `{by key}DELETE FROM transaction_log`
	switch {
	case f == sqltext.MySQL && sh.rows >= manyRows: // this form of DELETE accepts a hint
		remove = `DELETE transaction_log FROM transaction_log` + byID
	case sh.rows == 1:
		remove = `DELETE FROM transaction_log`
	}
	return f.Text(strings.NewReplacer(
		`{insert}`, insertInto, `{rows}`, sqltext.List(max(1, sh.rows), newRow, `, `), `{arrays}`, newRows,
		`{delete}`, remove, `{ids}`, ids, `{owned}`, ids+` AND lease_token = ?`, `{list}`, list, `{unit}`, unitColumns,
		`{at once}`, strconv.Itoa(atOnce), `{waits}`, strconv.Itoa(entry.WaitsFrom),
		`{unless the id exists}`, f.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE id = transaction_log.id`, Postgres: ` ON CONFLICT (id) DO NOTHING`, SQLite: ` ON CONFLICT (id) DO NOTHING`}),
		`{unless the name exists}`, f.Pick(sqltext.Texts{MySQL: ` ON DUPLICATE KEY UPDATE name = bed_log.name`, Postgres: ` ON CONFLICT (name) DO NOTHING`, SQLite: ` ON CONFLICT (name) DO NOTHING`}),
		`{by id}`, f.Pick(sqltext.Texts{MySQL: byID, Postgres: ``, SQLite: ``}),
		`{by due}`, f.Pick(sqltext.Texts{MySQL: ` FORCE INDEX (transaction_log_due)`, Postgres: ``, SQLite: ``}),
		`{least}`, f.Pick(sqltext.Texts{MySQL: `LEAST`, Postgres: `LEAST`, SQLite: `MIN`}),
		`{skip locked}`, f.Pick(sqltext.Texts{MySQL: ` FOR UPDATE SKIP LOCKED`, Postgres: ` FOR UPDATE SKIP LOCKED`, SQLite: ``}),
		`{for update}`, f.Pick(sqltext.Texts{MySQL: ` FOR UPDATE`, Postgres: ` FOR UPDATE`, SQLite: ``}),
		`{locked key}`, f.Pick(sqltext.Texts{
			MySQL:    `bed_order_key WHERE id = ? FOR UPDATE`,
			Postgres: patient + `(SELECT last, head, waiting FROM bed_order_key WHERE id = ? AND c.t <> '' FOR UPDATE) AS k`,
			SQLite:   `bed_order_key WHERE id = ?`}),
	).Replace(string(sh.kind)))
}

// list returns the statement for a filter, with its parameters.
func (f Filter) list() (sh shape, args []any) {
	where := ` WHERE statement_no = 0`
	add := func(condition string, values ...any) { where, args = where+condition, append(args, values...) }
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
	return shape{kind: kind(`SELECT {unit} FROM transaction_log` + where + ` ORDER BY id LIMIT ?`)}, append(args, f.limit())
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
	args := make([]any, roundUp(len(ids)))
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

// runIn runs a statement over the rows with these ids, in portions. Its parameters are before, the ids
// and after. It returns the number of affected rows.
func runIn(ctx context.Context, q runner, k kind, before []any, ids []string, after ...any) (affected int, err error) {
	err = chunks(ids, func(portion []any) error {
		n, err := run(ctx, q, shape{kind: k, rows: len(portion)}, slices.Concat(before, portion, after)...)
		affected += int(n)
		return err
	})
	return affected, err
}

// eachIn runs a query that names rows by ids, and calls f for each row.
func eachIn(ctx context.Context, q runner, k kind, ids []string, f func(*sql.Rows) error) error {
	return chunks(ids, func(portion []any) error { return each(ctx, q, shape{kind: k, rows: len(portion)}, portion, f) })
}
