package txlog

import (
	"context"
	"fmt"
	"time"
)

// row is a statement as its row of the table.
type row struct {
	unit   *Unit
	no     int
	sql    string
	params string
}

// rowArgs is how many parameters a row of the INSERT has.
const rowArgs = 12

// rowOverhead is more than what a row takes besides its text.
const rowOverhead = 1 << 10

func (r *row) size() int {
	return len(r.sql) + len(r.params) + len(r.unit.Settings) + len(r.unit.NotReplayable) + rowOverhead
}

func (r *row) appendArgs(args []any, lease int64) []any {
	u := r.unit
	return append(args, rowID(u.ID, r.no), u.DataSource, r.sql, r.params, u.TransactionID, r.no, len(u.Statements),
		u.Settings, errorText(u.NotReplayable), lease, u.Lease.Token, lease)
}

// Add implements [Storage]. A unit of one statement takes one INSERT. Units
// without a Lease.Token get a fresh one, units without a TransactionID their
// own id.
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
	rows, err := s.rows(units)
	if err != nil {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. Behind its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	deadline := time.Now().Add(lease)
	what := "adding unit " + units[0].ID
	inDoubt, err := s.write(ctx, deadline, func(ctx context.Context, _ bool) error {
		return s.insert(ctx, rows, leaseMillis(lease))
	})
	switch {
	case inDoubt:
		return s.unknown(what, ErrInDoubt, err)
	case err != nil:
		return s.failed(what, err)
	}
	for _, u := range units {
		u.Lease.Deadline = deadline
	}
	return nil
}

func (s *SQLStorage) rows(units []*Unit) ([]row, error) {
	n := 0
	for _, u := range units {
		n += len(u.Statements)
	}
	rows := make([]row, 0, n)
	for _, u := range units {
		for i := range u.Statements {
			r := row{unit: u, no: i, sql: encodeSQL(u.Statements[i].SQL), params: u.Statements[i].Params}
			if s.maxPacket > 0 && r.size() > s.maxPacket {
				return nil, fmt.Errorf("txlog: statement %d of unit %s is too big for %s: its text and parameters take %d bytes, max_allowed_packet there is %d",
					i+1, u.ID, s.name(), r.size(), s.maxPacket)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// insertBytes is about how large one INSERT may become when it could be split.
func (s *SQLStorage) insertBytes() int {
	const most = 4 << 20
	if s.maxPacket > 0 {
		return min(most, s.maxPacket/4)
	}
	return most
}

// insert writes the rows by one statement, or by several in a local transaction.
func (s *SQLStorage) insert(ctx context.Context, rows []row, lease int64) error {
	if n := s.portion(rows); n < len(rows) {
		return s.inTx(ctx, func(ctx context.Context, q runner) error {
			for rest := rows; len(rest) > 0; {
				n := s.portion(rest)
				if err := insertPortion(ctx, q, rest[:n], lease); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		})
	}
	return insertPortion(ctx, single{s}, rows, lease)
}

// portion is how many of the rows go into the next INSERT.
func (s *SQLStorage) portion(rows []row) int {
	size, limit := 0, s.insertBytes()
	for i := range rows {
		size += rows[i].size()
		if i == maxRows || i > 0 && size > limit {
			return i
		}
	}
	return len(rows)
}

func insertPortion(ctx context.Context, q runner, rows []row, lease int64) error {
	args := make([]any, 0, len(rows)*rowArgs)
	for i := range rows {
		args = rows[i].appendArgs(args, lease)
	}
	_, err := q.run(ctx, shape{insertRows, len(rows)}, args...)
	return err
}
