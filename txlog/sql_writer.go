package txlog

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// writer makes one write of what a group of callers add and remove.
type writer struct {
	db *database
	// maxPacket is how many bytes one statement may have; 0 means any.
	maxPacket int
	// tells: a DELETE can tell what it deleted (MySQL's cannot, MariaDB's can).
	tells bool
}

// learn asks the database what it can do.
func (w *writer) learn(ctx context.Context) error {
	switch w.db.backend.Flavor {
	case FlavorMySQL:
		var version string
		if err := w.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@version").Scan(&w.maxPacket, &version); err != nil {
			return err
		}
		w.tells = strings.Contains(version, "MariaDB")
	case FlavorPostgres:
		w.tells = true
	case FlavorSQLite:
		// A wish: readers do not block writers. A file system that cannot do
		// it, or another process that is just opening the file, is no failure.
		_, _ = w.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	}
	return nil
}

// writeAlike makes one write of requests of the same kind.
func (w *writer) writeAlike(ctx context.Context, group []*request, again bool) error {
	if group[0].Kind == adding {
		return w.insertGroup(ctx, group, again)
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

// insertBytes is about how large one INSERT may become when it could be split.
func (w *writer) insertBytes() int {
	const most = 4 << 20
	if w.maxPacket > 0 {
		return min(most, w.maxPacket/4)
	}
	return most
}

// insertGroup writes the rows of the requests by one statement, or by several
// in a local transaction.
func (w *writer) insertGroup(ctx context.Context, group []*request, again bool) error {
	if again {
		for _, r := range group {
			r.repeated = true
		}
	}
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
