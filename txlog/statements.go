package txlog

import (
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/ownsql"
	"github.com/bedsql/bed/internal/sqltext"
)

// kind is one of the log's own statements.
type kind uint8

const (
	insertRows kind = iota
	insertColumns
	insertAt
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
	selectUnit
	selectUnits
	lockUnit
	lockUnits
	listUnits
	nextDataSource
	sameDataSource
	retryRows
	parkRows
	discardRows
	countUnits
	selectIDs
	selectReceipts
	selectFact
	insertFact
)

// shape is a statement with all that its text depends on. There are few shapes,
// so each is prepared once.
type shape struct {
	kind kind
	// rows is how many rows it names or writes.
	rows int
	// form is how a fenced statement names them.
	form form
	// where are the conditions of listUnits.
	where condition
}

// form is how a fenced statement names its rows.
type form uint8

const (
	// byList: a list of ids, and one token.
	byList form = iota
	// byPairs names each id with its token, for units of several owners.
	byPairs
	// byArray: one array of ids, and one token.
	byArray
	// byArrayAndIndex is byArray for a statement that is planned without scans
	// of the table.
	byArrayAndIndex
)

// condition is a set of what listUnits asks for.
type condition uint8

const (
	listAfter condition = 1 << iota
	listParked
	listDataSource
	listOlder
)

// maxRows is how many rows one statement names; more take several, in one
// local transaction.
const maxRows = 256

// atOnce is the next_try_time of what an operator retried. It is before any
// clock, and means that the age does not count.
const atOnce = 0

// longAgo is a next_try_time before all others, also before those that only an
// operator's own SQL sets. Every server takes it as a number, unlike the least
// possible one.
const longAgo = -1 << 62

// unitColumns are read for every unit, from its first row.
const unitColumns = `id, data_source, {sql}, parameters, creation_time, async_delivery_try_times, transaction_id,
  statement_count, settings, not_replayable, receipt, fingerprint, in_doubt, next_try_time, last_error, parked,
  lease_token, {now}`

// byID is for statements of MySQL that name rows by their ids. Without it a table
// with not many more rows is read, and locked, as a whole: claims then skip rows
// that nobody owns, and the statement itself waits for rows that others are
// writing. For where it is not allowed see {by key} in ownsql.Dialect.Text.
const byID = ` FORCE INDEX (PRIMARY)`

// text is the one place where the log's SQL is written.
func (f Flavor) text(sh shape) string {
	var s string
	switch sh.kind {
	case insertRows:
		s = f.insert(` VALUES ` + ownsql.List(sh.rows, `(?, '`+transactionType+`', ?, ?, ?, {now}, 0, ?, ?, ?, ?, ?, ?, ?, 1, {now} + ?, NULL, 0, ?, {now} + ?)`, `, `))
	case insertColumns:
		s = f.insert(insertArraysText)
	case insertAt:
		s = f.insert(` VALUES ` + ownsql.List(sh.rows, `(?, '`+transactionType+`', ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, 1, ?, NULL, 0, ?, ?)`, `, `))
	case deleteOwned:
		switch rows := sh.rows; {
		case f == FlavorMySQL && rows >= manyRows:
			// The form of DELETE that takes a hint.
			s = `DELETE transaction_log FROM transaction_log` + byID + ` WHERE ` + sh.fence()
		case rows > 1:
			s = `{by key}DELETE FROM transaction_log WHERE ` + sh.fence()
		default:
			s = `DELETE FROM transaction_log WHERE ` + sh.fence()
		}
	case deleteReturned:
		// A DELETE that returns rows takes none.
		s = `{by key}DELETE FROM transaction_log WHERE ` + sh.fence() + ` RETURNING id`
	case renewOwned:
		s = `UPDATE transaction_log` + f.Pick(byID, ``, ``) + ` SET next_try_time = {now} + ?, lease_until = {now} + ? WHERE ` + sh.fence()
	case locateOwned:
		s = `UPDATE transaction_log SET settings = ? WHERE ` + sh.fence()
	case releaseOwned:
		s = `UPDATE transaction_log SET async_delivery_try_times = async_delivery_try_times + ?, in_doubt = ?,
  last_error = COALESCE(?, last_error), parked = ?, next_try_time = {now} + ?, lease_token = NULL, lease_until = NULL
  WHERE ` + sh.fence()
	case selectDue, selectDueUnlocked:
		lock := f.Pick(` FOR UPDATE SKIP LOCKED`, ` FOR UPDATE SKIP LOCKED`, ``)
		if sh.kind == selectDueUnlocked {
			lock = ``
		}
		// Without the hint MySQL may prefer to read, and lock, the whole table.
		s = `SELECT ` + unitColumns + ` FROM transaction_log` + f.Pick(` FORCE INDEX (transaction_log_due)`, ``, ``) + `
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND next_try_time <= ` + f.Pick(`LEAST`, `LEAST`, `MIN`) + `({now}, ?) AND statement_no = 0
  AND (creation_time <= {now} - ? OR creation_time > {now} OR next_try_time = ` + strconv.Itoa(atOnce) + `)
  ORDER BY next_try_time, id LIMIT ?` + lock
	case takeRows:
		// The condition decides where the lock is not effective: see claim.
		s = `UPDATE transaction_log` + f.Pick(byID, ``, ``) + ` SET lease_token = ?, lease_until = ?, next_try_time = ?, in_doubt = 1 WHERE ` + idIn(sh.rows) +
			` AND next_try_time <= ?`
	case selectRows:
		s = `SELECT id, {sql}, parameters FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectTokens:
		s = `SELECT id, lease_token FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectUnit:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE id = ?`
	case selectUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE ` + idIn(sh.rows) + ` ORDER BY id`
	case lockUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log` + f.Pick(byID, ``, ``) + ` WHERE ` + idIn(sh.rows) +
			` ORDER BY id` + f.Pick(` FOR UPDATE`, ` FOR UPDATE`, ``)
	case lockUnit:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE id = ?` + f.Pick(` FOR UPDATE`, ` FOR UPDATE`, ``)
	case listUnits:
		s = `SELECT ` + unitColumns + ` FROM transaction_log WHERE statement_no = 0` +
			when(sh.where&listAfter != 0, ` AND id > ?`) +
			when(sh.where&listParked != 0, ` AND parked = 1`) +
			when(sh.where&listDataSource != 0, ` AND data_source = ?`) +
			when(sh.where&listOlder != 0, ` AND creation_time <= {now} - ?`) +
			` ORDER BY id LIMIT ?`
	case nextDataSource:
		// Each call jumps to the next name in the index.
		s = `SELECT data_source FROM transaction_log WHERE parked = 0 AND data_source > ? AND data_source < ? ORDER BY data_source LIMIT 1`
	case sameDataSource:
		s = `SELECT data_source FROM transaction_log` + f.Pick(` FORCE INDEX (transaction_log_due)`, ``, ``) + `
  WHERE parked = 0 AND data_source = ? AND next_try_time >= ? AND next_try_time <= ? ORDER BY next_try_time LIMIT 1`
	case retryRows:
		s = `UPDATE transaction_log SET parked = 0, async_delivery_try_times = 0, next_try_time = ` + strconv.Itoa(atOnce) + `,
  lease_token = NULL, lease_until = NULL WHERE ` + idIn(sh.rows)
	case parkRows:
		s = `UPDATE transaction_log` + f.Pick(byID, ``, ``) + ` SET parked = 1, next_try_time = {now}, lease_token = NULL, lease_until = NULL WHERE ` + idIn(sh.rows)
	case discardRows:
		s = `{by key}DELETE FROM transaction_log WHERE ` + idIn(sh.rows)
	case countUnits:
		s = `SELECT data_source,
  SUM(CASE WHEN parked <> 0 THEN 1 ELSE 0 END),
  SUM(CASE WHEN parked = 0 AND lease_token IS NOT NULL AND next_try_time > {now} THEN 1 ELSE 0 END),
  COUNT(*), MIN(creation_time)
  FROM transaction_log WHERE statement_no = 0 GROUP BY data_source ORDER BY data_source`
	case selectIDs:
		s = `SELECT id FROM transaction_log WHERE ` + idIn(sh.rows)
	case selectReceipts:
		// The index lists those under keys; in MySQL all others come before them.
		s = `SELECT receipt FROM transaction_log WHERE fingerprint > '' AND receipt IN (` + ownsql.List(sh.rows, "?", ", ") + `)`
	case selectFact:
		s = `SELECT value FROM bed_log WHERE name = ?`
	case insertFact:
		// Of several who insert at the same moment one wins.
		s = `INSERT INTO bed_log (name, value) VALUES (?, ?)` +
			f.Pick(` ON DUPLICATE KEY UPDATE name = bed_log.name`, ` ON CONFLICT (name) DO NOTHING`, ` ON CONFLICT (name) DO NOTHING`)
	}
	return f.finish(s)
}

// insert gives the INSERT of rows, which are a list or a SELECT.
func (f Flavor) insert(rows string) string {
	return `INSERT INTO transaction_log (id, transaction_type, data_source, {sql}, parameters, creation_time,
  async_delivery_try_times, transaction_id, statement_no, statement_count, settings, not_replayable,
  receipt, fingerprint, in_doubt, next_try_time, last_error, parked, lease_token, lease_until)` + rows +
		// Repeating an INSERT whose answer was lost changes nothing.
		f.Pick(` ON DUPLICATE KEY UPDATE id = transaction_log.id`, ` ON CONFLICT (id) DO NOTHING`, ` ON CONFLICT (id) DO NOTHING`)
}

// Clock gives the SQL expression for the database's own clock in milliseconds
// since the epoch. MySQL's is taken in UTC and not from UNIX_TIMESTAMP(), which
// is ambiguous for an hour a year; PostgreSQL's stands in a subquery so that it
// is read once and an index can be compared with it.
func (f Flavor) Clock() string {
	return f.Pick(
		`(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)`,
		`(SELECT (extract(epoch from clock_timestamp()) * 1000)::bigint)`,
		`CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)`)
}

// finish puts the flavor's own words in.
func (f Flavor) finish(s string) string {
	s = strings.ReplaceAll(s, "{sql}", f.Pick("`sql`", `"sql"`, `"sql"`))
	return f.dialect().Text(s)
}

// Pick gives the text for the flavor; SQLite's, the plainest, for standard SQL. It
// panics for a flavor that it does not know.
func (f Flavor) Pick(mysql, postgres, sqlite string) string {
	return sqltext.Flavor(f).Pick(mysql, postgres, sqlite)
}

// dialect is how bed's own statements are written for the flavor.
func (f Flavor) dialect() ownsql.Dialect {
	return ownsql.Dialect{Flavor: sqltext.Flavor(f), Now: f.Clock()}
}

func when(condition bool, s string) string {
	if condition {
		return s
	}
	return ""
}

// Rows are always named by primary key: InnoDB then locks these records and no
// gap between them.
func idIn(n int) string {
	if n == 1 {
		return `id = ?`
	}
	return `id IN (` + ownsql.List(n, "?", ", ") + `)`
}

// fence gives the condition of a statement about rows of which the caller says
// that it owns them.
func (sh shape) fence() string {
	switch sh.form {
	case byPairs:
		return ownsql.List(sh.rows, `(id = ? AND lease_token = ?)`, " OR ")
	case byArray:
		return `id = ANY(?::text[]) AND lease_token = ?`
	case byArrayAndIndex:
		// Another text has a plan of its own.
		return `id = ANY(?::text[]) AND lease_token = ? /* by index */`
	case byList:
	}
	return idIn(sh.rows) + ` AND lease_token = ?`
}

// roundUp gives the next power of two: lists of ids are filled up to it by
// repeating the last one, so that few shapes are needed.
func roundUp(n int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return size
}

// insertSize gives the number of rows to which an INSERT of n rows is filled up
// by repeating one of them, which adds nothing. The steps are a quarter of a
// power of two, so that there are few shapes and little is repeated.
func insertSize(n int) int {
	step := max(1, roundUp(n)/8)
	return (n + step - 1) / step * step
}

// chunks calls f for ids in portions of at most maxRows, each filled up.
func chunks(ids []string, f func(filled []any) error) error {
	for len(ids) > 0 {
		n := min(len(ids), maxRows)
		filled := make([]any, roundUp(n), roundUp(n)+4)
		for i := range filled {
			filled[i] = ids[min(i, n-1)]
		}
		if err := f(filled); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}
