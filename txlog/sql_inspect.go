package txlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

// List implements [Storage].
func (s *SQLStorage) List(ctx context.Context, f Filter) ([]*Unit, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	sh := shape{kind: listUnits}
	var args []any
	if f.After != "" {
		sh.where |= listAfter
		args = append(args, headID(f.After))
	}
	if f.Parked {
		sh.where |= listParked
	}
	if f.DataSource != "" {
		sh.where |= listDataSource
		args = append(args, f.DataSource)
	}
	if f.OlderThan > 0 {
		sh.where |= listOlder
		args = append(args, millis(f.OlderThan))
	}
	all, err := s.read(ctx, sh, append(args, f.limit())...)
	return all, s.failed("listing units", err)
}

// read gives units to somebody who does not own them.
func (s *SQLStorage) read(ctx context.Context, sh shape, args ...any) ([]*Unit, error) {
	found, err := units(ctx, s.db, sh, args...)
	if err != nil {
		return nil, err
	}
	if err := loadStatements(ctx, s.db, found); err != nil {
		return nil, err
	}
	all := make([]*Unit, len(found))
	for i, u := range found {
		all[i] = u.Unit
	}
	return all, nil
}

// Get implements [Storage].
func (s *SQLStorage) Get(ctx context.Context, id string) (*Unit, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	head := headID(id)
	if !isHeadID(head) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	found, err := s.read(ctx, shape{kind: selectUnit}, head)
	if err != nil {
		return nil, s.failed("reading unit "+head, err)
	}
	if len(found) == 0 || !hasRow(id, len(found[0].Statements)) {
		return nil, fmt.Errorf("%w: %s in %s", ErrNotFound, id, s.name())
	}
	return found[0], nil
}

// Units reads the units with these ids, each the one of its first row, in the
// order of their ids. Those that the log does not hold are left out.
func (s *SQLStorage) Units(ctx context.Context, ids []string) ([]*Unit, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	all := make([]*Unit, 0, len(ids))
	err := chunks(slices.DeleteFunc(ids, func(id string) bool { return !isHeadID(id) }), func(portion []any) error {
		found, err := s.read(ctx, shape{kind: selectUnits, rows: len(portion)}, portion...)
		all = append(all, found...)
		return err
	})
	return all, s.failed("reading units", err)
}

// Missing implements [Storage].
func (s *SQLStorage) Missing(ctx context.Context, ids []string) ([]string, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	var heads, receipts []string
	for _, id := range ids {
		if head := headID(id); isHeadID(head) {
			heads = append(heads, head)
		} else if storableToken(id, maxReceipt) {
			receipts = append(receipts, id)
		}
	}
	there := map[string]bool{}
	note := func(k kind) func([]any) error {
		return func(portion []any) error { return s.note(ctx, there, k, portion) }
	}
	if err := errors.Join(chunks(heads, note(selectIDs)), chunks(receipts, note(selectReceipts))); err != nil {
		return nil, s.failed("looking for units", err)
	}
	var missing []string
	for _, id := range ids {
		if !there[headID(id)] && !there[id] {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// note marks those of the ids that are there.
func (s *SQLStorage) note(ctx context.Context, there map[string]bool, k kind, ids []any) error {
	rows, err := s.db.query(ctx, shape{kind: k, rows: len(ids)}, ids...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		there[id] = true
	}
	return rows.Err()
}

// Retry implements [Storage].
func (s *SQLStorage) Retry(ctx context.Context, id string) error {
	return s.decide(ctx, "retrying", id, retryRows)
}

// Discard implements [Storage].
func (s *SQLStorage) Discard(ctx context.Context, id string) error {
	return s.decide(ctx, "discarding", id, discardRows)
}

// decide runs an operator's decision on a unit that nobody is delivering.
func (s *SQLStorage) decide(ctx context.Context, what, id string, k kind) error {
	if err := s.usable(); err != nil {
		return err
	}
	head := headID(id)
	if !isHeadID(head) {
		return fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	var verdict error
	inDoubt, err := s.retry.Do(ctx, time.Now().Add(groupcommit.RepeatFor), func(ctx context.Context, again bool) error {
		verdict = nil
		return s.db.inTx(ctx, func(ctx context.Context, q runner) error {
			found, err := units(ctx, q, shape{kind: lockUnit}, head)
			if err != nil {
				return err
			}
			switch {
			case len(found) == 0 && again && k == discardRows:
				// An attempt whose answer was lost discarded it.
			case len(found) == 0 || !hasRow(id, found[0].rows):
				verdict = fmt.Errorf("%w: %s in %s", ErrNotFound, id, s.name())
			case found[0].Leased:
				verdict = fmt.Errorf("%w: %s", ErrLeased, head)
			default:
				return chunks(found[0].allRowIDs(), func(ids []any) error {
					_, err := q.run(ctx, shape{kind: k, rows: len(ids)}, ids...)
					return err
				})
			}
			return nil
		})
	})
	if inDoubt {
		return s.unknown(what+" unit "+head, nil, err)
	}
	if err != nil {
		return s.failed(what+" unit "+head, err)
	}
	return verdict
}

// Decision is what an operator decides for units.
type Decision uint8

// The decisions.
const (
	// DecideRetry and DecideDiscard are [Storage].Retry and Discard.
	DecideRetry Decision = iota + 1
	DecideDiscard
	// DecidePark leaves units for an operator.
	DecidePark
)

var decisions = map[Decision]kind{DecideRetry: retryRows, DecideDiscard: discardRows, DecidePark: parkRows}

// Decide carries a decision out for all units with these ids (of their first
// rows), or for none, in one local transaction. check, unless nil, is shown each
// once it is locked, in the order of the ids, and refuses it by an error; also,
// unless nil, runs what belongs to the decision in the same transaction. ErrNotFound and
// ErrLeased as for [Storage].Retry; after any other error than these and those of
// check and also it may be done or not.
func (s *SQLStorage) Decide(ctx context.Context, d Decision, ids []string, check func(*Unit) error, also func(exec func(query string, args ...any) error) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if i := slices.IndexFunc(ids, func(id string) bool { return !isHeadID(id) }); i >= 0 {
		return fmt.Errorf("%w: %q", ErrNotFound, ids[i])
	}
	var verdict error
	for try, start := 0, time.Now(); ; try++ {
		err := s.db.inTx(ctx, func(ctx context.Context, q runner) error {
			verdict = s.decideAll(ctx, q, decisions[d], ids, check)
			if verdict == nil && also != nil {
				verdict = also(func(query string, args ...any) error {
					_, err := q.exec(ctx, query, args...)
					return err
				})
			}
			return verdict
		})
		switch {
		case err == nil:
			return nil
		case verdict != nil && !s.db.backend.passing(verdict):
			return verdict
		case verdict == nil && !s.db.backend.definite(err), !s.retry.Again(ctx, err, try, start):
			return s.failed("deciding units", err)
		}
	}
}

// decideAll locks the units, has each checked, and changes their rows.
func (s *SQLStorage) decideAll(ctx context.Context, q runner, k kind, ids []string, check func(*Unit) error) error {
	return chunks(ids, func(portion []any) error {
		found, err := units(ctx, q, shape{kind: lockUnits, rows: len(portion)}, portion...)
		if err != nil {
			return err
		}
		var rows []string
		there := map[any]bool{}
		for _, u := range found {
			there[u.ID] = true
			if check != nil {
				if err := check(u.Unit); err != nil {
					return err
				}
			}
			if u.Leased {
				return fmt.Errorf("%w: %s", ErrLeased, u.ID)
			}
			rows = append(rows, u.allRowIDs()...)
		}
		for _, id := range portion {
			if !there[id] {
				return fmt.Errorf("%w: %s in %s", ErrNotFound, id, s.name())
			}
		}
		return chunks(rows, func(ids []any) error {
			_, err := q.run(ctx, shape{kind: k, rows: len(ids)}, ids...)
			return err
		})
	})
}

// allRowIDs gives the ids of all rows that may belong to the unit: when its
// first row does not say how many they are, all that there can be.
func (u stored) allRowIDs() []string {
	if u.rows == 1 && u.Unreadable != nil {
		return (&Unit{ID: u.ID, Statements: make([]Statement, MaxStatements)}).rowIDs()
	}
	return u.rowIDs()
}

// DataSources implements [Storage]: one look into the index for each name.
func (s *SQLStorage) DataSources(ctx context.Context) ([]string, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	names := []string{}
	for last := ""; ; {
		name, err := s.nextDataSource(ctx, last)
		if err != nil {
			return nil, s.failed("reading the data sources", err)
		}
		if name == "" {
			return names, nil
		}
		names = append(names, name)
		last = name
	}
}

// nextDataSource gives the name behind last; "" when there is none.
func (s *SQLStorage) nextDataSource(ctx context.Context, last string) (string, error) {
	rows, err := s.db.query(ctx, shape{kind: nextDataSource}, last)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	var name sql.NullString
	if rows.Next() {
		if err := rows.Scan(&name); err != nil {
			return "", err
		}
	}
	return name.String, rows.Err()
}

// Stats implements [Storage]. It reads the whole table.
func (s *SQLStorage) Stats(ctx context.Context) ([]Stats, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	all, err := s.stats(ctx)
	return all, s.failed("counting units", err)
}

func (s *SQLStorage) stats(ctx context.Context) ([]Stats, error) {
	rows, err := s.db.query(ctx, shape{kind: countUnits})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := []Stats{}
	for rows.Next() {
		var one Stats
		var total int
		var name sql.NullString
		var oldest sql.NullInt64
		if err := rows.Scan(&name, &one.Parked, &one.Leased, &total, &oldest); err != nil {
			return nil, err
		}
		one.DataSource = name.String
		one.Waiting = total - one.Parked - one.Leased
		if oldest.Valid {
			one.Oldest = time.UnixMilli(oldest.Int64)
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
