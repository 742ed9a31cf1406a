package txlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

const (
	// maxShared is how many rows a transaction of SQLite writes and removes for
	// several callers.
	maxShared = 2 * maxRows
	// queueRows and queueBytes bound what waits to be written.
	queueRows  = 16 * maxRows
	queueBytes = 32 << 20
	// closeFor bounds how long Close waits for what was begun before it.
	closeFor = groupcommit.RepeatFor
	// pings are made at each measurement of the round trip.
	pings = 5
)

// The kinds of requests.
const (
	adding uint8 = iota
	removing
)

// request is what one caller wants added or removed, all or none of it.
type request = groupcommit.Request[content]

type content struct {
	adds     []row
	removals []removal
	one      [1]removal // what removals are, as a rule
	// repeated: an attempt without an answer was repeated.
	repeated bool
}

// row is a statement as its row of the table: a copy, so that a caller who no
// longer waits may write to its unit.
type row struct {
	size                                  int
	id, source, text, params, transaction string
	no, count                             int
	settings, notReplayable, receipt      string
	fingerprint                           string
	token                                 string
	lease                                 int64
}

// rowOverhead is more than what a row takes besides its text.
const rowOverhead = 1 << 10

// removal is a unit as its owner wants it removed: a copy, as row is.
type removal struct {
	id, token string
	rows      int
	deadline  time.Time
	done      bool
}

// writer makes one write of what a group of callers adds and removes.
type writer struct {
	db *database
	// maxPacket is the greatest number of bytes of one statement; 0 means any.
	maxPacket int
	// returning says that a DELETE can return what it deleted (MySQL's cannot,
	// MariaDB's can).
	returning bool
}

// learn asks the database what it can do.
func (w *writer) learn(ctx context.Context) error {
	switch w.db.backend.Flavor {
	case FlavorMySQL:
		var version string
		if err := w.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@version").Scan(&w.maxPacket, &version); err != nil {
			return err
		}
		product := dbserver.MySQLProduct(version)
		w.returning = product == "MariaDB"
		w.db.unlocked = product == "TiDB"
	case FlavorPostgres:
		w.returning = true
	case FlavorSQLite:
		// Only a wish: readers do not block writers. It is no failure if a file
		// system cannot do it, or another process is just opening the file.
		_, _ = w.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	}
	return nil
}

// errLeaseOver: somebody else may have delivered and removed what would be written
// again. As long as its machine slept, nothing else tells.
var errLeaseOver = errors.New("the lease may be over under which it was to be written")

// addition makes the request to add units under a lease. The log counts the lease
// from the moment at which an attempt arrives, so that it lasts at least from when
// that left.
func (w *writer) addition(lease time.Duration, units []*Unit) (*request, error) {
	r := &request{Kind: adding, For: lease}
	for _, u := range units {
		r.Rows += len(u.Statements)
	}
	r.Body.adds = make([]row, 0, r.Rows)
	ms := leaseMillis(lease)
	for _, u := range units {
		settings, notReplayable := u.encodeSettings(), errorText(u.NotReplayable)
		for i := range u.Statements {
			add := row{
				id: rowID(u.ID, i), source: u.DataSource, text: encodeSQL(u.Statements[i].SQL), params: u.Statements[i].encodeParams(),
				transaction: u.TransactionID, no: i, count: len(u.Statements),
				settings: settings, notReplayable: notReplayable, receipt: u.Receipt, fingerprint: u.Fingerprint,
				token: u.Lease.Token, lease: ms,
			}
			add.size = len(add.text) + len(add.params) + len(settings) + len(notReplayable) + len(u.Receipt) + len(u.Fingerprint) + rowOverhead
			if w.maxPacket > 0 && add.size > w.maxPacket {
				return nil, fmt.Errorf("txlog: statement %d of unit %s is too big for the log: its text and parameters take %d bytes, max_allowed_packet there is %d",
					i+1, u.ID, add.size, w.maxPacket)
			}
			r.Bytes += add.size
			r.Body.adds = append(r.Body.adds, add)
		}
	}
	r.Alone = r.Rows > maxRows || r.Bytes > w.insertBytes()
	return r, nil
}

// removalOf makes the request to remove the first n of the units, as many as one
// statement can, at least one; nil if nobody can own the first. The lease only
// says until when a unit is certainly its owner's; the fence decides.
func removalOf(units []*Unit) (r *request, n int) {
	r = &request{Kind: removing, For: groupcommit.RepeatFor}
	r.Body.removals = r.Body.one[:0]
	for _, u := range units {
		if u == nil || u.Lease.Token == "" {
			break
		}
		rows := max(1, min(len(u.Statements), MaxStatements))
		if n > 0 && r.Rows+rows > maxRows {
			break
		}
		r.Body.removals = append(r.Body.removals, removal{id: u.ID, token: u.Lease.Token, rows: rows, deadline: u.Lease.Deadline})
		if r.Rows += rows; n == 0 || u.Lease.Deadline.Before(r.Until) {
			r.Until = u.Lease.Deadline
		}
		n++
	}
	if n == 0 {
		return nil, 0
	}
	r.Alone = r.Rows > maxRows
	return r, n
}

// write makes one write of the requests: of those of one kind one statement, as
// a rule, and on SQLite a local transaction of several.
func (w *writer) write(ctx context.Context, group []*request, again bool) (err error) {
	if again {
		for _, r := range group {
			if r.Body.repeated = true; r.Kind == adding && (Lease{Deadline: r.End}).Over() {
				return errLeaseOver
			}
		}
	}
	first := group[0]
	several := len(group) > 1 || len(first.Body.removals) > 1
	switch {
	case several && w.db.backend.Flavor == FlavorSQLite:
		return w.writeShared(ctx, group, again)
	case first.Kind == adding:
		return w.insert(ctx, group)
	case several:
		err = w.deleteSeveral(ctx, group)
	default:
		err = w.deleteOne(ctx, &first.Body.removals[0])
	}
	if err == nil && again {
		err = w.markGone(ctx, group)
	}
	return err
}

// insertBytes is about how large one INSERT may become if it could be split.
func (w *writer) insertBytes() int {
	const most = 4 << 20
	if w.maxPacket > 0 {
		return min(most, w.maxPacket/4)
	}
	return most
}

// insert writes the rows of the requests by one statement. A request whose rows
// are too many or too large for that comes alone: it takes several, in a local
// transaction.
func (w *writer) insert(ctx context.Context, group []*request) error {
	rows := make([]*row, 0, len(group))
	for _, r := range group {
		for i := range r.Body.adds {
			rows = append(rows, &r.Body.adds[i])
		}
	}
	if len(rows) == 1 || !group[0].Alone {
		return w.insertRows(ctx, w.db, rows)
	}
	return w.db.inTx(ctx, func(ctx context.Context, q runner) error {
		for rest := rows; len(rest) > 0; {
			n := w.portion(rest)
			if err := w.insertRows(ctx, q, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	})
}

// portion is how many of the rows go into the next INSERT.
func (w *writer) portion(rows []*row) int {
	size, limit := 0, w.insertBytes()
	for i := range rows {
		size += rows[i].size
		if i == maxRows || i > 0 && size > limit {
			return i
		}
	}
	return len(rows)
}

func (w *writer) insertRows(ctx context.Context, q runner, rows []*row) error {
	switch {
	case len(rows) == 1:
		_, err := q.run(ctx, shape{kind: insertRows, rows: 1}, rows[0].args(nil)...)
		return err
	case w.db.backend.Flavor == FlavorPostgres:
		return insertArrays(ctx, q, rows)
	default:
		return insertList(ctx, q, rows)
	}
}

// insertList writes rows by one statement, padded with copies of the smallest.
func insertList(ctx context.Context, q runner, rows []*row) error {
	size, least := insertSize(len(rows)), rows[0]
	args := make([]any, 0, size*rowArgs)
	for _, r := range rows {
		args = r.args(args)
		if r.size < least.size {
			least = r
		}
	}
	for range size - len(rows) {
		args = least.args(args)
	}
	_, err := q.run(ctx, shape{kind: insertRows, rows: size}, args...)
	return err
}

// rowArgs is how many parameters a row has.
const rowArgs = 14

// args appends the parameters of the row. To pass a value to database/sql
// allocates, so what is the same as in the row before is passed again.
func (r *row) args(args []any) []any {
	last := args[max(0, len(args)-rowArgs):]
	same := func(column int, value string) any {
		if len(last) > 0 && last[column] == any(value) {
			return last[column]
		}
		return value
	}
	var id any = r.id
	transaction, receipt := id, id
	if r.transaction != r.id {
		transaction = r.transaction
	}
	if r.receipt != r.id {
		receipt = r.receipt
	}
	var lease any
	if len(last) > 0 && last[11] == any(r.lease) {
		lease = last[11]
	} else {
		lease = r.lease
	}
	return append(args, id, same(1, r.source), same(2, r.text), r.params, transaction, int64(r.no), int64(r.count),
		same(7, r.settings), r.notReplayable, receipt, r.fingerprint, lease, same(12, r.token), lease)
}

func (w *writer) deleteOne(ctx context.Context, h *removal) (err error) {
	found := false
	if h.rows <= maxRows {
		found, err = runFenced(ctx, w.db, deleteOwned, nil, h.id, h.token, h.rows)
	} else {
		err = w.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
			found, err = runFenced(ctx, q, deleteOwned, nil, h.id, h.token, h.rows)
			return err
		})
	}
	h.done = h.done || err == nil && found
	return err
}
