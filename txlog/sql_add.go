package txlog

import (
	"context"
	"fmt"
	"time"
)

// row is a statement as its row of the table: a copy, so that a caller who is
// not waiting any more may write to his unit.
type row struct {
	size int
	args [rowArgs]any
}

// rowArgs is how many parameters a row of the INSERT has.
const rowArgs = 14

// rowOverhead is more than what a row takes besides its text.
const rowOverhead = 1 << 10

// Add implements [Storage]. It joins the writes of concurrent callers: what
// comes while a write is under way leaves as one INSERT when that is answered,
// see [WithWritesInFlight]. What waits is bounded (4096 rows, 32 MiB); beyond
// that Add waits for room. A caller whose context ends before his units left
// has written nothing. Units without a Lease.Token get a fresh one, units
// without a TransactionID their own id.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validateLease(lease); err != nil {
		return err
	}
	for _, u := range units {
		if err := validate(u); err != nil {
			return err
		}
	}
	if len(units) == 0 {
		return nil
	}
	r := request{ctx: ctx, lease: lease}
	if err := s.encode(&r, units); err != nil {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. Behind its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	switch inDoubt, err := s.adding.do(&r); {
	case inDoubt:
		return s.unknown("adding unit "+units[0].ID, ErrInDoubt, err)
	case err != nil:
		return s.failed("adding unit "+units[0].ID, err)
	}
	for _, u := range units {
		u.Lease.Deadline = r.deadline
		u.AddRepeated = r.repeated
	}
	return nil
}

// encode fills in the rows of the request.
func (s *SQLStorage) encode(r *request, units []*Unit) error {
	for _, u := range units {
		r.rows += len(u.Statements)
	}
	r.adds = make([]row, r.rows)
	var lease any = leaseMillis(r.lease)
	n := 0
	for _, u := range units {
		var id, token, transaction any = u.ID, u.Lease.Token, u.ID
		if u.TransactionID != u.ID {
			transaction = u.TransactionID
		}
		var source, settings, receipt any = u.DataSource, u.Settings, id
		if u.Receipt != u.ID {
			receipt = u.Receipt
		}
		for i := range u.Statements {
			text, params := encodeSQL(u.Statements[i].SQL), u.Statements[i].Params
			if i > 0 {
				id = rowID(u.ID, i)
			}
			row := &r.adds[n]
			row.size = len(text) + len(params) + len(u.Settings) + len(u.NotReplayable) + len(u.Receipt) + len(u.Fingerprint) + rowOverhead
			if s.maxPacket > 0 && row.size > s.maxPacket {
				return fmt.Errorf("txlog: statement %d of unit %s is too big for %s: its text and parameters take %d bytes, max_allowed_packet there is %d",
					i+1, u.ID, s.name(), row.size, s.maxPacket)
			}
			row.args = [rowArgs]any{id, source, text, params, transaction, i, len(u.Statements),
				settings, errorText(u.NotReplayable), receipt, u.Fingerprint, lease, token, lease}
			r.size += row.size
			n++
		}
	}
	r.alone = r.rows > maxRows || r.size > s.insertBytes()
	return nil
}

// insertBytes is about how large one INSERT may become when it could be split.
func (s *SQLStorage) insertBytes() int {
	const most = 4 << 20
	if s.maxPacket > 0 {
		return min(most, s.maxPacket/4)
	}
	return most
}

// insertJoined writes the rows of the requests by one statement, or by several
// in a local transaction.
func (s *SQLStorage) insertJoined(ctx context.Context, joined []*request, again bool) error {
	if again {
		for _, r := range joined {
			r.repeated = true
		}
	}
	rows := joined[0].adds
	if len(joined) > 1 {
		if s.backend.Flavor == FlavorSQLite {
			return s.insertEach(ctx, joined)
		}
		n := 0
		for _, r := range joined {
			n += len(r.adds)
		}
		rows = make([]row, 0, n)
		for _, r := range joined {
			rows = append(rows, r.adds...)
		}
	}
	if n := s.portion(rows); n < len(rows) {
		return s.inTx(ctx, func(ctx context.Context, q runner) error {
			for rest := rows; len(rest) > 0; {
				n := s.portion(rest)
				if err := s.insertPortion(ctx, q, rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		})
	}
	return s.insertPortion(ctx, single{s}, rows)
}

// insertEach writes the rows one by one, in a local transaction: within the
// process that is faster than one statement.
func (s *SQLStorage) insertEach(ctx context.Context, joined []*request) error {
	// Before the transaction takes a connection, see within.
	if _, err := s.stmt(ctx, shape{insertRows, 1}); err != nil {
		return err
	}
	return s.inBatch(ctx, func(ctx context.Context, q runner) error {
		for _, r := range joined {
			for i := range r.adds {
				if err := s.insertPortion(ctx, q, r.adds[i:i+1]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// portion is how many of the rows go into the next INSERT.
func (s *SQLStorage) portion(rows []row) int {
	size, limit := 0, s.insertBytes()
	for i := range rows {
		size += rows[i].size
		if i == maxRows || i > 0 && size > limit {
			return i
		}
	}
	return len(rows)
}

// insertPortion writes rows by one statement, but for PostgreSQL filled up by
// the smallest of them.
func (s *SQLStorage) insertPortion(ctx context.Context, q runner, rows []row) error {
	switch {
	case len(rows) == 1:
		_, err := q.run(ctx, shape{insertRows, 1}, rows[0].args[:]...)
		return err
	case s.backend.Flavor == FlavorPostgres:
		return insertArrays(ctx, q, rows)
	}
	size := insertSize(len(rows))
	args := make([]any, 0, size*rowArgs)
	least := &rows[0]
	for i := range rows {
		args = append(args, rows[i].args[:]...)
		if rows[i].size < least.size {
			least = &rows[i]
		}
	}
	for range size - len(rows) {
		args = append(args, least.args[:]...)
	}
	_, err := q.run(ctx, shape{insertRows, size}, args...)
	return err
}
