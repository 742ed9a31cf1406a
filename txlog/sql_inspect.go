package txlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/logrow"
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

// Units reads the units with these ids, each that of its first row, in the order
// of their ids. Those that the log does not hold are left out.
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
		return s.unknown(what+" unit "+head, ErrOutcomeUnknown, err)
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

// decideFor bounds a decision for callers whose context has no end.
const decideFor = time.Hour

// Decide carries a decision out for all units with these ids (of their first
// rows), or for none, in one local transaction. also runs first in it what belongs
// to the decision, and inserts a row under a key: one whose COMMIT was not answered
// is repeated, and was made if that row is there. check, unless nil, is shown each unit once
// it is locked, in the order of the ids, and refuses it by an error. ErrNotFound and
// ErrLeased as for [Storage].Retry; ErrOutcomeUnknown if it could not be found out
// whether it was made.
func (s *SQLStorage) Decide(ctx context.Context, d Decision, ids []string, check func(*Unit) error, also func(exec func(query string, args ...any) error) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if i := slices.IndexFunc(ids, func(id string) bool { return !isHeadID(id) }); i >= 0 {
		return fmt.Errorf("%w: %q", ErrNotFound, ids[i])
	}
	var verdict error
	inDoubt, err := s.retry.Do(ctx, time.Now().Add(decideFor), func(ctx context.Context, again bool) error {
		verdict = nil
		made := false
		err := s.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
			if err := also(func(query string, args ...any) error {
				_, err := q.exec(ctx, query, args...)
				return err
			}); err != nil {
				made = again && dberr.Of(err).Duplicate()
				return err
			}
			if verdict, err = s.decideAll(ctx, q, decisions[d], ids, check); verdict != nil {
				return verdict
			}
			return err
		})
		if err != nil && !made && verdict == nil {
			return err
		}
		return nil
	})
	switch {
	case inDoubt:
		return s.unknown("deciding units", ErrOutcomeUnknown, err)
	case err != nil:
		return s.failed("deciding units", err)
	}
	return verdict
}

// decideAll locks the units, has each checked, and changes their rows. verdict is
// why they must not be changed.
func (s *SQLStorage) decideAll(ctx context.Context, q runner, k kind, ids []string, check func(*Unit) error) (verdict, err error) {
	err = chunks(ids, func(portion []any) error {
		found, err := units(ctx, q, shape{kind: lockUnits, rows: len(portion)}, portion...)
		if err != nil {
			return err
		}
		var rows []string
		there := map[any]bool{}
		for _, u := range found {
			there[u.ID] = true
			if check != nil {
				verdict = check(u.Unit)
			}
			if verdict == nil && u.Leased {
				verdict = fmt.Errorf("%w: %s", ErrLeased, u.ID)
			}
			if verdict != nil {
				return verdict
			}
			rows = append(rows, u.allRowIDs()...)
		}
		for _, id := range portion {
			if !there[id] {
				verdict = fmt.Errorf("%w: %s in %s", ErrNotFound, id, s.name())
				return verdict
			}
		}
		return chunks(rows, func(ids []any) error {
			_, err := q.run(ctx, shape{kind: k, rows: len(ids)}, ids...)
			return err
		})
	})
	return verdict, err
}

// allRowIDs gives the ids of all rows that may belong to the unit: if its first
// row does not say how many they are, all that are possible.
func (u stored) allRowIDs() []string {
	if u.rows == 1 && u.Unreadable != nil {
		return (&Unit{ID: u.ID, Statements: make([]Statement, MaxStatements)}).rowIDs()
	}
	return u.rowIDs()
}

// DataSources implements [Storage]: one look into the index for each name, past
// what claims have left there, see reach.
func (s *SQLStorage) DataSources(ctx context.Context) ([]string, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	names := []string{}
	begin := ""
	for _, known := range s.claimer.known(time.Now()) {
		between, err := s.dataSources(ctx, begin, known.name)
		if err != nil {
			return nil, err
		}
		names = append(names, between...)
		has, err := s.hasUnits(ctx, known)
		if err != nil {
			return nil, err
		}
		if has {
			names = append(names, known.name)
		}
		begin = known.name
	}
	rest, err := s.dataSources(ctx, begin, lastName)
	if err != nil {
		return nil, err
	}
	return append(names, rest...), nil
}

// lastName sorts after all names.
const lastName = "\U0010FFFF"

// dataSources gives the names between two, exclusively.
func (s *SQLStorage) dataSources(ctx context.Context, begin, end string) (names []string, err error) {
	for {
		begin, err = s.nextDataSource(ctx, shape{kind: nextDataSource}, begin, end)
		if err != nil || begin == "" {
			return names, err
		}
		names = append(names, begin)
	}
}

// hasUnits reports whether a data source has units where claims look for them.
func (s *SQLStorage) hasUnits(ctx context.Context, known emptied) (bool, error) {
	for _, reach := range [][2]int64{{known.from, math.MaxInt64}, {atOnce, atOnce}} {
		name, err := s.nextDataSource(ctx, shape{kind: sameDataSource}, known.name, reach[0], reach[1])
		if err != nil || name != "" {
			return name != "", err
		}
	}
	return false, nil
}

// nextDataSource gives the name that a statement finds; "" when there is none.
func (s *SQLStorage) nextDataSource(ctx context.Context, sh shape, args ...any) (string, error) {
	name, err := s.oneName(ctx, sh, args...)
	return name, s.failed("reading the data sources", err)
}

func (s *SQLStorage) oneName(ctx context.Context, sh shape, args ...any) (string, error) {
	rows, err := s.db.query(ctx, sh, args...)
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

// ReceiptSchema implements [Storage]. It stands in the table bed_log.
func (s *SQLStorage) ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error) {
	if err := s.usable(); err != nil {
		return "", false, err
	}
	err = s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		schema, err = s.db.fact(ctx, logrow.ReceiptSchema(dataSource))
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", false, nil
	}
	return schema, err == nil, s.failed("reading the schema of the receipts of "+dataSource, err)
}

// SetReceiptSchema implements [Storage].
func (s *SQLStorage) SetReceiptSchema(ctx context.Context, dataSource, schema string) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validateReceiptSchema(dataSource, schema); err != nil {
		return err
	}
	err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) error {
		return s.db.addFact(ctx, logrow.ReceiptSchema(dataSource), schema)
	})
	return s.failed("setting the schema of the receipts of "+dataSource, err)
}
