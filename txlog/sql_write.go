package txlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	// keptRows is how large a request is kept for the next caller.
	keptRows = 4
	// pings are made at each measurement of the round trip.
	pings = 5
)

// The kinds of requests.
const (
	adding uint8 = iota
	removing
)

// request is what one caller wants added or removed, all or none of it.
type request struct {
	groupcommit.Ticket
	adds     []row
	removals []removal

	// lease is that of what is added; deadline its end, from the moment at
	// which the attempt left that may have written it.
	lease    time.Duration
	deadline time.Time
	// repeated: an attempt without an answer was repeated.
	repeated bool
}

var requests = sync.Pool{New: func() any { return new(request) }}

func newRequest(kind uint8) *request {
	r := requests.Get().(*request)
	r.Kind = kind
	return r
}

// free returns the request to its pool, unless it may still be in flight.
func (r *request) free() {
	if !r.Reset() {
		return
	}
	adds, removals := r.adds, r.removals
	if cap(adds)+cap(removals) > keptRows {
		adds, removals = nil, nil
	}
	clear(adds)
	clear(removals)
	*r = request{Ticket: r.Ticket, adds: adds[:0], removals: removals[:0]}
	requests.Put(r)
}

// Leaves implements [groupcommit.Write]. The log counts the lease from the
// moment at which an attempt arrives, so that it lasts at least from when it
// left.
func (r *request) Leaves(now time.Time) (end time.Time) {
	if r.Kind == adding {
		r.deadline = now.Add(r.lease)
		return r.deadline
	}
	earliest := r.removals[0].deadline
	for i := range r.removals {
		if r.removals[i].deadline.Before(earliest) {
			earliest = r.removals[i].deadline
		}
	}
	return ownerEnd(earliest, now)
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

// write makes one write of the requests: of those of one kind one statement, as
// a rule, and on SQLite a local transaction of several.
func (w *writer) write(ctx context.Context, group []*request, again bool) error {
	if again {
		for _, r := range group {
			if r.repeated = true; r.Kind == adding && (Lease{Deadline: r.deadline}).Over() {
				return errLeaseOver
			}
		}
	}
	switch first := group[0]; {
	case w.db.backend.Flavor == FlavorSQLite && (len(group) > 1 || len(first.removals) > 1):
		return w.writeShared(ctx, group, again)
	case first.Kind == adding:
		return w.insertGroup(ctx, group)
	}
	return w.deleteGroup(ctx, group, again)
}

// encode fills in the rows of the request.
func (w *writer) encode(r *request, units []*Unit) error {
	for _, u := range units {
		r.Rows += len(u.Statements)
	}
	r.adds = slices.Grow(r.adds[:0], r.Rows)[:r.Rows]
	lease := leaseMillis(r.lease)
	n := 0
	for _, u := range units {
		settings := u.encodeSettings()
		for i := range u.Statements {
			add := &r.adds[n]
			*add = row{
				id: rowID(u.ID, i), source: u.DataSource, text: encodeSQL(u.Statements[i].SQL), params: u.Statements[i].encodeParams(),
				transaction: u.TransactionID, no: i, count: len(u.Statements),
				settings: settings, notReplayable: errorText(u.NotReplayable), receipt: u.Receipt, fingerprint: u.Fingerprint,
				token: u.Lease.Token, lease: lease,
			}
			add.size = len(add.text) + len(add.params) + len(settings) + len(u.NotReplayable) + len(u.Receipt) + len(u.Fingerprint) + rowOverhead
			if w.maxPacket > 0 && add.size > w.maxPacket {
				return fmt.Errorf("txlog: statement %d of unit %s is too big for the log: its text and parameters take %d bytes, max_allowed_packet there is %d",
					i+1, u.ID, add.size, w.maxPacket)
			}
			r.Bytes += add.size
			n++
		}
	}
	r.Alone = r.Rows > maxRows || r.Bytes > w.insertBytes()
	return nil
}

// insertBytes is about how large one INSERT may become if it could be split.
func (w *writer) insertBytes() int {
	const most = 4 << 20
	if w.maxPacket > 0 {
		return min(most, w.maxPacket/4)
	}
	return most
}

// insertGroup writes the rows of the requests by one statement, or by several
// in a local transaction.
func (w *writer) insertGroup(ctx context.Context, group []*request) error {
	in := insertings.Get().(*inserting)
	defer in.free()
	for _, r := range group {
		for i := range r.adds {
			in.rows = append(in.rows, &r.adds[i])
		}
	}
	rows := in.rows
	if n := w.portion(rows); n < len(rows) {
		return w.db.inTx(ctx, func(ctx context.Context, q runner) error {
			for rest := rows; len(rest) > 0; {
				n := w.portion(rest)
				if err := in.insert(ctx, q, w.db.backend.Flavor, rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		})
	}
	return in.insert(ctx, w.db, w.db.backend.Flavor, rows)
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

// inserting is what an INSERT is made of. It is used again, with the values that
// most rows have in common: passing a value to database/sql allocates.
type inserting struct {
	rows []*row
	args []any

	source, text, settings, notReplayable, fingerprint, token common[string]
	lease                                                     common[int64]
}

var insertings = sync.Pool{New: func() any { return new(inserting) }}

// commonText is the longest text that is kept for the next row.
const commonText = 4 << 10

func (in *inserting) free() {
	clear(in.rows)
	clear(in.args)
	in.rows, in.args = in.rows[:0], in.args[:0]
	if len(in.text.value) > commonText {
		in.text = common[string]{}
	}
	insertings.Put(in)
}

// insert writes rows by one statement, but for PostgreSQL filled up by the
// smallest of them.
func (in *inserting) insert(ctx context.Context, q runner, f Flavor, rows []*row) error {
	if len(rows) > 1 && f == FlavorPostgres {
		return insertArrays(ctx, q, rows)
	}
	size := insertSize(len(rows))
	in.args = in.args[:0]
	least := rows[0]
	for _, r := range rows {
		in.add(r)
		if r.size < least.size {
			least = r
		}
	}
	for range size - len(rows) {
		in.add(least)
	}
	_, err := q.run(ctx, shape{kind: insertRows, rows: size}, in.args...)
	return err
}

// add appends the parameters of a row. Its ids are mostly the same.
func (in *inserting) add(r *row) {
	var id any = r.id
	transaction, receipt := id, id
	if r.transaction != r.id {
		transaction = r.transaction
	}
	if r.receipt != r.id {
		receipt = r.receipt
	}
	lease := in.lease.of(r.lease)
	in.args = append(in.args, id, in.source.of(r.source), in.text.of(r.text), r.params, transaction,
		int64(r.no), int64(r.count), in.settings.of(r.settings), in.notReplayable.of(r.notReplayable), receipt,
		in.fingerprint.of(r.fingerprint), lease, in.token.of(r.token), lease)
}

// common is a value as a parameter, which the next row mostly shares.
type common[T comparable] struct {
	value T
	arg   any
}

func (b *common[T]) of(value T) any {
	if b.arg == nil || b.value != value {
		b.value, b.arg = value, value
	}
	return b.arg
}
