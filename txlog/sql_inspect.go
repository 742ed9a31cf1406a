package txlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/tables"
)

// List implements [Storage].
func (s *SQLStorage) List(ctx context.Context, f Filter) ([]*Unit, error) {
	sh, args := f.list()
	return s.units(ctx, "listing units", func(ctx context.Context) ([]*Unit, error) {
		return firstRows(ctx, s.db, sh, args...)
	})
}

// units reads whole units for a caller that does not own them; first reads their first rows.
func (s *SQLStorage) units(ctx context.Context, what string, first func(ctx context.Context) ([]*Unit, error)) (all []*Unit, err error) {
	err = s.do(ctx, what, func(ctx context.Context) (err error) {
		if all, err = first(ctx); err == nil {
			err = errors.Join(loadStatements(ctx, s.db, all), loadOrder(ctx, s.db, all))
		}
		return err
	})
	return all, err
}

// unitsOf reads the first rows of the units with these ids.
func unitsOf(ctx context.Context, q runner, k kind, ids []string) (all []*Unit, err error) {
	err = chunks(ids, func(portion []any) error {
		found, err := firstRows(ctx, q, shape{kind: k, rows: len(portion)}, portion...)
		all = append(all, found...)
		return err
	})
	return all, err
}

// Get implements [Storage].
func (s *SQLStorage) Get(ctx context.Context, id string) (*Unit, error) {
	found, err := sqlLog{s}.Units(ctx, []string{entry.HeadID(id)})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 || !entry.HasRow(id, len(found[0].Statements)) {
		return nil, fmt.Errorf("%w: %q in %s", ErrNotFound, id, s.name())
	}
	return found[0], nil
}

func (s sqlLog) Units(ctx context.Context, ids []string) ([]*Unit, error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	ids = slices.DeleteFunc(ids, func(id string) bool { return !entry.IsHeadID(id) })
	return s.units(ctx, "reading units", func(ctx context.Context) ([]*Unit, error) {
		return unitsOf(ctx, s.db, selectUnits, ids)
	})
}

// States implements [Storage].
func (s *SQLStorage) States(ctx context.Context, ids ...string) ([]entry.State, error) {
	heads := make([]string, len(ids))
	for i, id := range ids {
		heads[i] = entry.HeadID(id)
	}
	there := map[string]entry.State{}
	err := s.do(ctx, "looking for units", func(ctx context.Context) error {
		found, err := unitsOf(ctx, s.db, selectUnits, slices.DeleteFunc(slices.Clone(heads), func(id string) bool { return !entry.IsHeadID(id) }))
		for _, u := range found {
			there[u.ID] = stateOf(u)
			if err == nil && u.Unstarted() {
				var parts []*Unit
				if parts, err = unitsOf(ctx, s.db, selectUnits, u.Undo.Units()); slices.ContainsFunc(parts, func(u *Unit) bool { return u.Parked }) {
					there[u.ID] = entry.StateParked
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// After the units: a unit leaves in the same transaction that records it as discarded.
	gone := slices.DeleteFunc(slices.Clone(heads), func(id string) bool { return there[id] != "" || !entry.IsHeadID(id) })
	ends, err := s.journal.Ends(ctx, gone)
	if err != nil {
		return nil, s.failed("looking for how units ended", err)
	}
	states := make([]entry.State, len(ids))
	for i, id := range heads {
		switch {
		case there[id] != "":
			states[i] = there[id]
		case ends[id] == journal.Discarded:
			states[i] = entry.StateDiscarded
		case ends[id] == journal.Delivered:
			states[i] = entry.StateDelivered
		default:
			states[i] = entry.StateUnknown
		}
	}
	return states, nil
}

// Missing implements [Storage].
func (s *SQLStorage) Missing(ctx context.Context, ids []string) (missing []string, err error) {
	var heads, receipts, keys []string
	for _, id := range ids {
		if head := entry.HeadID(id); entry.IsHeadID(head) {
			heads = append(heads, head)
		} else if strings.HasPrefix(id, entry.OrderPrefix) && entry.StorableKey(id) {
			keys = append(keys, id)
		} else if entry.StorableToken(id, entry.MaxReceipt) {
			receipts = append(receipts, id)
		}
	}
	there := map[string]bool{}
	err = s.do(ctx, "looking for units", func(ctx context.Context) error {
		return errors.Join(note(ctx, s.db, selectIDs, heads, there), note(ctx, s.db, selectReceipts, receipts, there), note(ctx, s.db, busyOrderKeys, keys, there))
	})
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if !there[entry.HeadID(id)] && !there[id] {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// decision is the name of a Decision and its statement.
type decision struct {
	what string
	kind kind
	// skip removes the unit from the order of its keys.
	skip bool
}

var decisions = map[entry.Decision]decision{entry.DecideRetry: {what: "retrying", kind: retryRows}, entry.DecideDiscard: {what: "discarding", kind: discardRows},
	entry.DecidePark: {what: "parking", kind: parkRows}, entry.DecideSkip: {what: "skipping", kind: parkRows, skip: true}}

// decideFor bounds a decision if the caller's context has no end.
const decideFor = time.Hour

// Retry implements [Storage].
func (s *SQLStorage) Retry(ctx context.Context, id string) error {
	return s.decide(ctx, entry.DecideRetry, id)
}

// Discard implements [Storage].
func (s *SQLStorage) Discard(ctx context.Context, id string) error {
	return s.decide(ctx, entry.DecideDiscard, id)
}

func (s *SQLStorage) decide(ctx context.Context, d entry.Decision, id string) error {
	u, err := s.Get(ctx, id)
	if err == nil {
		_, err = sqlLog{s}.Decide(ctx, d, []string{u.ID}, nil, nil)
	}
	return err
}

func (s sqlLog) Decide(ctx context.Context, d entry.Decision, ids []string, check func(*Unit) bool, also func(d entry.Decided, exec func(query string, args ...any) error) error) (entry.Decided, error) {
	return s.carryOut(ctx, decisions[d], ids, check, nil, also)
}

func (s sqlLog) Amend(ctx context.Context, as map[string]entry.Amendment, some bool, fits func(*Unit) error, also func(d entry.Decided, exec func(query string, args ...any) error) error) (entry.Decided, error) {
	for id, a := range as {
		if _, params := encode(&a.To); !entry.StorableText(params) || a.Receipt != "" && !entry.StorableToken(a.Receipt, entry.MaxReceipt) {
			return entry.Decided{}, fmt.Errorf("txlog: the parameters or the receipt for unit %s cannot be stored", id)
		}
	}
	locked := map[string]*Unit{}
	one := func(u *Unit) error { locked[u.ID] = u; return fits(u) }
	var check func(*Unit) bool
	if some {
		check = func(u *Unit) bool { return one(u) == nil }
	}
	return s.carryOut(ctx, decision{what: "amending", kind: parkRows}, slices.Collect(maps.Keys(as)), check, one, func(done entry.Decided, exec func(string, ...any) error) error {
		if err := also(done, exec); err != nil {
			return err
		}
		return s.amendRows(done.Changed, as, locked, exec)
	})
}

// amendRows writes amendments into the locked rows of units.
func (s *SQLStorage) amendRows(ids []string, as map[string]entry.Amendment, locked map[string]*Unit, exec func(string, ...any) error) error {
	for _, id := range ids {
		a, u := as[id], locked[id]
		text, params := encode(&a.To)
		if a.No == 0 {
			params = wrapList(orderStart, u.Order, wrapList(afterStart, u.After, params))
		}
		err := exec(shape{kind: amendRow}.text(s.db.backend.Flavor), text, params, entry.RowID(id, a.No))
		if err == nil && a.Receipt != "" {
			err = exec(shape{kind: amendUnit}.text(s.db.backend.Flavor), a.Receipt, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// carryOut implements Decide and Amend. It calls fits for units that change all together or
// not at all.
func (s *SQLStorage) carryOut(ctx context.Context, d decision, ids []string, check func(*Unit) bool, fits func(*Unit) error, also func(d entry.Decided, exec func(query string, args ...any) error) error) (entry.Decided, error) {
	if err := s.usable(); err != nil {
		return entry.Decided{}, err
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if i := slices.IndexFunc(ids, func(id string) bool { return !entry.IsHeadID(id) }); i >= 0 {
		return entry.Decided{}, fmt.Errorf("%w: %q", ErrNotFound, ids[i])
	}
	var done entry.Decided // what the last COMMIT that was sent comes to
	err := s.settle(ctx, d.what+" units", func(ctx context.Context, q runner, again bool) (made bool, refused, err error) {
		found, err := unitsOf(ctx, q, lockUnits, ids)
		if err != nil {
			return false, nil, err
		}
		if check == nil {
			refused = s.refusal(ids, found)
			if refused == nil && d.kind != retryRows {
				refused, err = grouped(ctx, q, found)
			}
			if refused == nil && err == nil && fits != nil {
				if err = loadStatements(ctx, q, found); err == nil {
					refused = fits(found[0])
				}
			}
			if refused == nil && err == nil && d.skip {
				refused = first(ctx, q, found)
			}
			if err != nil || refused != nil && !again {
				return false, refused, err
			}
		}
		if check != nil {
			if err := loadStatements(ctx, q, found); err != nil {
				return false, nil, err
			}
		}
		now := entry.Decided{Gone: len(ids) - len(found)}
		var rows []string
		var changed []*Unit
		for _, u := range found {
			if u.Leased || check != nil && (d.kind != retryRows && u.InGroup() || !check(u)) {
				now.Left++
				continue
			}
			now.Changed, changed = append(now.Changed, u.ID), append(changed, u)
			rows = append(rows, u.AllRowIDs()...)
		}
		if also != nil {
			err = also(now, execIn(ctx, q))
		}
		if made = again && (also == nil && d.kind == discardRows && now.Gone > 0 || dberr.Of(err).Duplicate()); made || err != nil || refused != nil {
			return made, refused, err
		}
		if d.kind == discardRows {
			if err := s.noteDiscarded(ctx, q, now.Changed); err != nil {
				return false, nil, err
			}
		}
		done = now
		if _, err := runIn(ctx, q, d.kind, nil, rows); err != nil {
			return false, nil, err
		}
		return false, nil, reorder(ctx, q, d, changed, s.orderless)
	})
	if err != nil {
		return entry.Decided{}, err
	}
	return done, nil
}

// settle runs f in one local transaction, and again after a COMMIT without an answer. f then
// returns made if its first run was committed. refused is the reason to change nothing.
func (s *SQLStorage) settle(ctx context.Context, what string, f func(ctx context.Context, q runner, again bool) (made bool, refused, err error)) error {
	var refused error
	inDoubt, err := s.retry.Do(ctx, time.Now().Add(decideFor), func(ctx context.Context, again bool) error {
		made := false
		carryOut := func(ctx context.Context, q runner) (err error) {
			made, refused, err = f(ctx, q, again)
			return cmp.Or(err, refused)
		}
		err := s.db.inTx(ctx, carryOut)
		if errors.Is(err, errNotNoted) {
			err = s.db.inTx(ctx, carryOut)
		}
		if made {
			refused = nil
		}
		if made || refused != nil {
			return nil
		}
		return err
	})
	return cmp.Or(s.ended(what, ErrUnconfirmed, inDoubt, err), refused)
}

// execIn returns the exec function for the statements of a decision.
func execIn(ctx context.Context, q runner) func(query string, args ...any) error {
	return func(query string, args ...any) error {
		_, err := q.ExecContext(ctx, query, args...)
		return err
	}
}

// noteDiscarded records for States that units are discarded.
func (s *SQLStorage) noteDiscarded(ctx context.Context, q runner, ids []string) error {
	switch err := s.writer.note(ctx, q, journal.Discarded, ids); {
	case err == nil, errors.Is(err, journal.ErrOff): // States says so
		return nil
	case journal.Lasting(err):
		return fmt.Errorf("%w: %w", errNotNoted, err)
	default:
		return fmt.Errorf("%s: %w", journal.Attempts, err)
	}
}

// refusal returns the error of an all-or-none decision; nil if all units may change.
func (s *SQLStorage) refusal(ids []string, found []*Unit) error {
	for i, id := range ids {
		switch {
		case i >= len(found) || found[i].ID != id:
			return fmt.Errorf("%w: %s in %s", ErrNotFound, id, s.name())
		case found[i].Leased:
			return fmt.Errorf("%w: %s", ErrLeased, id)
		}
	}
	return nil
}

// Complete implements [Storage]. The removal requires that the compensation has not started:
// Complete and Compensate exclude each other.
func (s *SQLStorage) Complete(ctx context.Context, k *Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if k == nil || k.Undo == nil {
		return errors.New("txlog: only the compensation of a group can be completed")
	}
	what := "completing group " + k.ID
	removed, stands := false, false
	unstarted := owned{id: k.ID, rows: max(1, min(len(k.Statements), entry.MaxStatements)), delivered: true} // Receipt is empty
	_ = s.writer.noteDelivered(ctx, s.db, []*owned{&unstarted})
	inDoubt, err := s.retry.Do(ctx, time.Now().Add(decideFor), func(ctx context.Context, again bool) (err error) {
		if removed, err = complete(ctx, s.db, k, &unstarted, s.orderless); err != nil || removed {
			return err
		}
		there, err := tokensOf(ctx, s.db, []string{k.ID})
		stands = len(there) > 0 || !again && !k.Lease.Over() // during its lease only this owner can complete it
		return err
	})
	switch {
	case err != nil:
		return s.ended(what, ErrUnconfirmed, inDoubt, err)
	case removed:
		return nil
	case stands:
		return fmt.Errorf("%w (%s)", ErrCompensated, k.ID)
	}
	if ends, err := s.journal.Ends(ctx, k.Undo.Units()); err == nil && slices.Contains(slices.Collect(maps.Values(ends)), journal.Discarded) {
		return fmt.Errorf("%w (%s)", ErrCompensated, k.ID)
	}
	return s.failed(what, fmt.Errorf("%w: group %s", ErrNotFound, k.ID))
}

// Compensate implements [Storage].
func (s *SQLStorage) Compensate(ctx context.Context, id string, lease time.Duration, cause string) (*Unit, error) {
	return sqlLog{s}.CompensateAlso(ctx, id, lease, cause, nil)
}

func (s sqlLog) CompensateAlso(ctx context.Context, id string, lease time.Duration, cause string, also func(exec func(query string, args ...any) error) error) (k *Unit, err error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	token := s.claimer.token()
	var deadline time.Time
	if err := s.settle(ctx, "turning group "+id+" back", func(ctx context.Context, q runner, again bool) (made bool, refused, err error) {
		deadline = time.Now().Add(lease)
		var found []*Unit
		if entry.IsHeadID(id) {
			found, err = unitsOf(ctx, q, lockUnits, []string{id})
		}
		switch {
		case err != nil:
			return false, nil, err
		case len(found) == 0 || found[0].Undo == nil:
			return false, noCompensation(id, s.name()), nil
		}
		k = found[0]
		if again {
			tokens, err := tokensOf(ctx, q, []string{id})
			if err == nil && tokens[id] == token {
				err = loadStatements(ctx, q, found)
				return err == nil, nil, err
			}
			if err != nil {
				return false, nil, err
			}
		}
		if k.Compensating() && k.Leased {
			return false, fmt.Errorf("%w: %s", ErrLeased, id), nil
		}
		if k.Unreadable == nil {
			err = loadStatements(ctx, q, found)
		}
		if k.Unreadable != nil {
			return false, fmt.Errorf("txlog: the compensation of group %s cannot be read: %w", id, k.Unreadable), nil
		}
		if err == nil && also != nil {
			err = also(execIn(ctx, q))
			made = again && dberr.Of(err).Duplicate()
		}
		if err == nil && !k.Compensating() {
			if found, err = unitsOf(ctx, q, lockUnits, k.Undo.Units()); err != nil {
				return made, nil, err
			}
			k.Start(cause, func(id string) bool { return slices.ContainsFunc(found, func(u *Unit) bool { return u.ID == id }) })
			err = s.noteDiscarded(ctx, q, append(k.Undo.Units(), k.ID))
		}
		if err != nil {
			return made, nil, err
		}
		return false, nil, startCompensation(ctx, q, k, token, lease, s.orderless)
	}); err != nil {
		return nil, err
	}
	k.Leased, k.AtOnce = lease > 0, lease <= 0
	if lease > 0 {
		k.Lease = entry.Lease{Token: token, Deadline: deadline}
	}
	return k, nil
}

// DataSources implements [Storage]. It looks into the index once per name, beyond the
// remains of claims, see reach.
func (s *SQLStorage) DataSources(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, "reading the data sources", func(ctx context.Context) error {
		names = []string{}
		find := func(k kind, args ...any) (string, error) {
			found, err := texts(ctx, s.db, shape{kind: k}, args...)
			return strings.Join(found, ""), err // at most one
		}
		begin, known := "", s.claimer.known(time.Now())
		for _, end := range append(slices.Sorted(maps.Keys(known)), lastName) {
			for {
				name, err := find(nextDataSource, begin, end)
				if err != nil {
					return err
				}
				if name == "" {
					break
				}
				names, begin = append(names, name), name
			}
			if end == lastName {
				break
			}
			for _, look := range [][2]int64{{known[end], math.MaxInt64}, {atOnce, atOnce}} {
				name, err := find(sameDataSource, end, look[0], look[1])
				if err != nil {
					return err
				}
				if name != "" {
					names = append(names, name)
					break
				}
			}
			begin = end
		}
		return nil
	})
	return names, err
}

// lastName sorts after all names.
const lastName = "\U0010FFFF"

// Stats implements [Storage]. It reads the whole table.
func (s *SQLStorage) Stats(ctx context.Context) (all []Stats, err error) {
	err = s.do(ctx, "counting units", func(ctx context.Context) error {
		all = []Stats{}
		return each(ctx, s.db, shape{kind: countUnits}, nil, func(rows *sql.Rows) error {
			var one Stats
			var total int
			var oldest int64
			err := rows.Scan(&one.DataSource, &one.Parked, &one.Leased, &total, &oldest)
			one.Waiting = total - one.Parked - one.Leased
			one.Oldest = time.UnixMilli(oldest)
			all = append(all, one)
			return err
		})
	})
	return all, err
}

// ReceiptSchema implements [Storage]. The schema is in the table bed_log.
func (s *SQLStorage) ReceiptSchema(ctx context.Context, dataSource string) (schema string, known bool, err error) {
	err = s.do(ctx, "reading the schema of the receipts of "+dataSource, func(ctx context.Context) (err error) {
		schema, err = s.db.fact(ctx, tables.ReceiptSchema(dataSource))
		if known = err == nil; errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return schema, known, err
}

// SetReceiptSchema implements [Storage].
func (s *SQLStorage) SetReceiptSchema(ctx context.Context, dataSource, schema string) error {
	if err := validateReceiptSchema(dataSource, schema); err != nil {
		return err
	}
	return s.do(ctx, "setting the schema of the receipts of "+dataSource, func(ctx context.Context) error {
		return s.db.addFact(ctx, tables.ReceiptSchema(dataSource), schema)
	})
}

func (s sqlLog) HealOrder(ctx context.Context, after string) (next string, healed int, err error) {
	err = s.do(ctx, "healing order keys", func(ctx context.Context) error {
		ids, more, err := s.orderKeys(ctx, after)
		if err != nil {
			return err
		}
		next, healed = more, 0
		stale, err := among(ctx, s.db, staleOrderKeys, ids)
		if err != nil {
			return err
		}
		for _, k := range slices.Sorted(maps.Keys(stale)) {
			err := s.db.inTx(ctx, func(ctx context.Context, q runner) error {
				state, _, err := lockKey(ctx, q, k)
				if err != nil || state.head == "" {
					return err
				}
				if there, err := among(ctx, q, selectIDs, []string{state.head}); err != nil || there[state.head] {
					return err // another process was faster
				}
				healed++
				return leave(ctx, q, k, state.head)
			})
			if err != nil && !timedOut(err) {
				return err
			}
		}
		return nil
	})
	return next, healed, err
}

// orderKeys returns some order keys after one, and the key to continue from.
func (s *SQLStorage) orderKeys(ctx context.Context, after string) (ids []string, next string, err error) {
	ids, err = texts(ctx, s.db, shape{kind: pageOrderKeys}, after, int64(maxRows))
	if len(ids) == maxRows {
		next = ids[len(ids)-1]
	}
	return ids, next, err
}

func (s sqlLog) PurgeOrder(ctx context.Context, keep time.Duration, after string) (next string, purged int, err error) {
	err = s.do(ctx, "purging order keys", func(ctx context.Context) error {
		ids, more, err := s.orderKeys(ctx, after)
		if err != nil {
			return err
		}
		next = more
		purged, err = runIn(ctx, s.db, purgeOrderKeys, nil, ids, entry.Millis(keep)*1000)
		return err
	})
	return next, purged, err
}
