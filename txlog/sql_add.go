package txlog

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// row is a statement as its row of the table: a copy, so that a caller who is
// not waiting any more may write to his unit.
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

// Add implements [Storage]. It joins the writes of concurrent callers: what
// comes while a write is under way leaves as one INSERT when that is answered,
// see [WithWritesInFlight]. What waits is bounded (4096 rows, 32 MiB); beyond
// that Add waits for room. A caller whose context ends before his units left
// has written nothing. Units without a Lease.Token get the storage's own, units
// without a TransactionID their own id.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validateLease(lease); err != nil {
		return err
	}
	for _, u := range units {
		if err := validate(u, s.token); err != nil {
			return err
		}
	}
	if len(units) == 0 {
		return nil
	}
	r := newRequest(adding)
	defer r.free()
	r.lease = lease
	if err := s.encode(r, units); err != nil {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. Behind its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	switch inDoubt, err := s.writing.Do(ctx, r); {
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
		r.Rows += len(u.Statements)
	}
	r.adds = slices.Grow(r.adds[:0], r.Rows)[:r.Rows]
	lease := leaseMillis(r.lease)
	n := 0
	for _, u := range units {
		for i := range u.Statements {
			add := &r.adds[n]
			*add = row{
				id: rowID(u.ID, i), source: u.DataSource, text: encodeSQL(u.Statements[i].SQL), params: u.Statements[i].encodeParams(),
				transaction: u.TransactionID, no: i, count: len(u.Statements),
				settings: u.Settings, notReplayable: errorText(u.NotReplayable), receipt: u.Receipt, fingerprint: u.Fingerprint,
				token: u.Lease.Token, lease: lease,
			}
			add.size = len(add.text) + len(add.params) + len(u.Settings) + len(u.NotReplayable) + len(u.Receipt) + len(u.Fingerprint) + rowOverhead
			if s.maxPacket > 0 && add.size > s.maxPacket {
				return fmt.Errorf("txlog: statement %d of unit %s is too big for %s: its text and parameters take %d bytes, max_allowed_packet there is %d",
					i+1, u.ID, s.name(), add.size, s.maxPacket)
			}
			r.Bytes += add.size
			n++
		}
	}
	r.Alone = r.Rows > maxRows || r.Bytes > s.insertBytes()
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

// insertGroup writes the rows of the requests by one statement, or by several
// in a local transaction.
func (s *SQLStorage) insertGroup(ctx context.Context, group []*request, again bool) error {
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
	if n := s.portion(rows); n < len(rows) {
		return s.inTx(ctx, func(ctx context.Context, q runner) error {
			for rest := rows; len(rest) > 0; {
				n := s.portion(rest)
				if err := in.insert(ctx, s, q, rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		})
	}
	return in.insert(ctx, s, single{s}, rows)
}

// portion is how many of the rows go into the next INSERT.
func (s *SQLStorage) portion(rows []*row) int {
	size, limit := 0, s.insertBytes()
	for i := range rows {
		size += rows[i].size
		if i == maxRows || i > 0 && size > limit {
			return i
		}
	}
	return len(rows)
}
