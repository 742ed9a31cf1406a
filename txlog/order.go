package txlog

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

// errHeld is the error of a shared write that meets locked order keys. Its callers then
// write separately, so that only the writers under these keys wait.
var errHeld = errors.New("txlog: an order key is locked by another transaction")

// timedOut reports whether err is a lock timeout.
func timedOut(err error) bool {
	code := dberr.Of(err)
	return code.Number == 1205 || code.State == "55P03"
}

// errAdopted ends the transaction of a repeated write whose rows are already there.
var errAdopted = errors.New("it is in the log already")

// writeOrdered is write for requests with units under order keys. Each write is one
// transaction, which locks the rows of its keys until its COMMIT: the numbers then rise in
// the order of the commits.
func (w *writer) writeOrdered(ctx context.Context, group []*request, again bool) error {
	rows, removals, err := gather(group, again)
	if err != nil {
		return err
	}
	var units []*Unit
	for _, r := range group {
		units = append(units, r.Body.orderly...)
	}
	quick := w.db.backend.Flavor != sqltext.SQLite
	for {
		err = w.inTx(ctx, removals, func(ctx context.Context, q runner) error {
			// Remove before inserting, so that successors do not queue behind units that are leaving.
			remove := w.removeOrdered
			if quick {
				remove = w.removeHeads
			}
			if len(removals) > 0 {
				if err := remove(ctx, q, removals); err != nil {
					return err
				}
			}
			if len(rows) > 0 {
				return w.insertOrdered(ctx, q, rows, units, again)
			}
			return nil
		})
		if !errors.Is(err, errNotHeads) {
			break
		}
		quick = false
	}
	switch {
	case errors.Is(err, errAdopted):
		return nil
	case timedOut(err) && len(group) > 1:
		return fmt.Errorf("%w: %w", errHeld, err)
	case timedOut(err):
		return fmt.Errorf("%w (a COMMIT of WithTx holds it, or the log is overloaded)", err)
	case err != nil:
		return err
	}
	return w.removed(ctx, removals, again)
}

// byKey returns the units under each order key. It forgets which units they wait for.
func byKey(units []*Unit) map[string][]*Unit {
	by := map[string][]*Unit{}
	for _, u := range units {
		u.Behind = ""
		for _, o := range u.Order {
			by[o.Key] = append(by[o.Key], u)
		}
	}
	return by
}

// keyState is the row of an order key.
type keyState struct {
	last    int64
	head    string
	waiting int64
}

// insertOrdered issues numbers to units and writes their rows.
func (w *writer) insertOrdered(ctx context.Context, q runner, rows []*row, units []*Unit, again bool) error {
	by := byKey(units)
	keys := slices.Sorted(maps.Keys(by))
	states, err := w.issue(ctx, q, keys, by)
	if err != nil {
		return err
	}
	if again {
		// The keys are locked now: an earlier attempt was committed, or never will be.
		if found, err := adopt(ctx, q, units, states); found || err != nil {
			return cmp.Or(err, errAdopted)
		}
	}
	if healed, err := heal(ctx, q, states, by); err != nil {
		return err
	} else if healed {
		return w.insertOrdered(ctx, q, rows, units, again)
	}
	var waits []any
	for _, k := range keys {
		number := states[k].last - int64(len(by[k]))
		for _, u := range by[k] {
			number++
			i := slices.IndexFunc(u.Order, func(o entry.Order) bool { return o.Key == k })
			if u.Order[i].Number = number; u.ID != states[k].head {
				u.Behind = cmp.Or(u.Behind, states[k].head)
				waits = append(waits, k, number, u.ID, int64(0))
			}
		}
	}
	of := map[string]*Unit{}
	for _, u := range units {
		of[u.ID] = u
	}
	rows = slices.Clone(rows)
	for i, r := range rows {
		u := of[entry.HeadID(r.id)]
		if u == nil || r.no > 0 && u.Behind == "" {
			continue
		}
		changed := *r
		if r.no == 0 {
			changed.params = wrapList(orderStart, u.Order, r.params)
		}
		if u.Behind != "" {
			changed.lease = entry.WaitsFrom
		}
		rows[i] = &changed
	}
	if err := w.insertPortions(ctx, q, rows); err != nil {
		return err
	}
	for row := range slices.Chunk(waits, 4) {
		if _, err := run(ctx, q, shape{kind: addWaiting}, row...); err != nil {
			return err
		}
	}
	return nil
}

// heal frees keys whose heads were deleted by hand, or by a version without order keys. It
// returns healed if there were any: issue the numbers anew then.
func heal(ctx context.Context, q runner, states map[string]keyState, by map[string][]*Unit) (healed bool, err error) {
	var heads []string
	for k, s := range states {
		if s.head != by[k][0].ID {
			heads = append(heads, s.head)
		}
	}
	if len(heads) == 0 {
		return false, nil
	}
	there, err := among(ctx, q, selectIDs, heads)
	if err != nil {
		return false, err
	}
	for k, s := range states {
		if s.head == by[k][0].ID || there[s.head] {
			continue
		}
		healed = true
		if _, err = run(ctx, q, shape{kind: setOrderKey}, s.head, s.waiting-int64(len(by[k])), k); err == nil {
			err = leave(ctx, q, k, s.head)
		}
		if err != nil {
			return true, err
		}
	}
	return healed, nil
}

// among returns the ids that a query of kind k finds.
func among(ctx context.Context, q runner, k kind, ids []string) (map[string]bool, error) {
	found := map[string]bool{}
	return found, note(ctx, q, k, ids, found)
}

// note adds the ids that a query of kind k finds to found.
func note(ctx context.Context, q runner, k kind, ids []string, found map[string]bool) error {
	return eachIn(ctx, q, k, ids, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		found[id] = true
		return err
	})
}

// adopt fills in units from the rows of an earlier attempt. It returns found if there are
// any.
func adopt(ctx context.Context, q runner, units []*Unit, states map[string]keyState) (found bool, err error) {
	ids := make([]string, len(units))
	for i, u := range units {
		ids[i] = u.ID
	}
	there, err := unitsOf(ctx, q, selectUnits, ids)
	if err != nil || len(there) == 0 {
		return false, err
	}
	waits, err := among(ctx, q, waitingUnits, ids) // an operator may have parked it since
	if err != nil {
		return false, err
	}
	for _, got := range there {
		u := units[slices.Index(ids, got.ID)]
		u.Order, u.Behind = got.Order, ""
		for _, o := range got.Order {
			if head := states[o.Key].head; waits[got.ID] && head != got.ID {
				u.Behind = head
			}
		}
	}
	return true, nil
}

// issue locks the rows of keys, in their order, and issues a number to each unit under them.
// The first unit under an idle key becomes its head.
func (w *writer) issue(ctx context.Context, q runner, keys []string, by map[string][]*Unit) (map[string]keyState, error) {
	states := make(map[string]keyState, len(keys))
	read := func(rows *sql.Rows) error {
		var id string
		var s keyState
		err := rows.Scan(&id, &s.last, &s.head, &s.waiting)
		states[id] = s
		return err
	}
	f := w.db.backend.Flavor
	var firsts, counts, values []string
	for _, k := range keys {
		first, waiting := by[k][0].ID, strconv.Itoa(len(by[k])-1) // behind the first, in this write
		firsts, counts = append(firsts, first), append(counts, strconv.Itoa(len(by[k])))
		values = append(values, "('"+k+"', "+f.Clock()+" * 1000 + "+waiting+", '"+first+"', "+waiting+")")
	}
	if f == sqltext.Postgres {
		err := each(ctx, q, shape{kind: issueNumbers}, []any{sqltext.Array(keys), sqltext.Array(firsts), sqltext.Array(counts)}, read)
		return states, err
	}
	text := lockBriefly + issuing(f, "", "VALUES "+strings.Join(values, ", "))
	if w.returning {
		text += issued
	} else if _, err := q.ExecContext(ctx, text); err != nil {
		return nil, err
	} else {
		text = "SELECT id, last, head, waiting FROM bed_order_key WHERE id IN ('" + strings.Join(keys, "', '") + "')"
	}
	rows, err := q.QueryContext(ctx, text) // not worth preparing
	return states, tables.Each(rows, err, read)
}

// lockBriefly makes MariaDB wait at most a second for the row of a key; for other databases
// it is a comment. [sessionSetup] sets how long MySQL waits.
const lockBriefly = "/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ "

// issued ends the INSERT of numbers in databases that can return rows.
const issued = " RETURNING id, last, head, waiting"

// issuing is the INSERT that locks the rows of order keys, in the schema with a trailing dot or in
// none, and issues numbers under them. rows selects or lists the values of new keys. For existing keys, MySQL
// assigns from left to right.
func issuing(f sqltext.Flavor, schema, rows string) string {
	now := func(column string) string {
		return f.Pick(sqltext.Texts{MySQL: "VALUES(" + column + ")", Postgres: "EXCLUDED." + column, SQLite: "EXCLUDED." + column})
	}
	return "INSERT INTO " + schema + "bed_order_key (id, last, head, waiting) " + rows +
		f.Pick(sqltext.Texts{MySQL: " ON DUPLICATE KEY UPDATE ", Postgres: " ON CONFLICT (id) DO UPDATE SET ", SQLite: " ON CONFLICT (id) DO UPDATE SET "}) +
		"waiting = bed_order_key.waiting + " + now("waiting") + " + CASE WHEN bed_order_key.head = '' THEN 0 ELSE 1 END, " +
		"head = CASE WHEN bed_order_key.head = '' THEN " + now("head") + " ELSE bed_order_key.head END, " +
		"last = " + f.Pick(sqltext.Texts{MySQL: "GREATEST", Postgres: "GREATEST", SQLite: "MAX"}) + "(bed_order_key.last + " + now("waiting") + " + 1, " + now("last") + ")"
}

// errNotHeads reports that units are not owned or have others waiting behind them, so that
// the removal removed no unit.
var errNotHeads = errors.New("others are waiting for them, or not all are owned")

// removeHeads removes all units, or no unit if others wait behind one of them.
func (w *writer) removeHeads(ctx context.Context, q runner, units []*owned) error {
	var keys, heads []string
	for _, u := range units {
		if keys = append(keys, u.keys...); len(u.keys) > 0 {
			heads = append(heads, u.id)
		}
	}
	slices.Sort(keys)
	slices.Sort(heads)
	var freed int64
	var err error
	if w.db.backend.Flavor == sqltext.Postgres {
		freed, err = run(ctx, q, shape{kind: freeKeys}, sqltext.Array(keys), sqltext.Array(heads))
	} else {
		text := lockBriefly + "UPDATE bed_order_key" + byID + " SET head = '' WHERE id IN ('" + strings.Join(keys, "', '") + "') AND head IN ('" + strings.Join(heads, "', '") + "') AND waiting = 0"
		var res sql.Result
		if res, err = q.ExecContext(ctx, text); err == nil {
			freed, err = res.RowsAffected()
		}
	}
	if err == nil && int(freed) != len(keys) {
		err = errNotHeads
	}
	if err == nil {
		err = w.removeFenced(ctx, q, units)
	}
	if err == nil && slices.ContainsFunc(units, func(u *owned) bool { return !u.found }) {
		err = errNotHeads
	}
	return err
}

// removeOrdered removes units and frees their successors.
func (w *writer) removeOrdered(ctx context.Context, q runner, units []*owned) error {
	// Lock the keys first, in the same order as writers that issue numbers.
	var keys []string
	for _, u := range units {
		keys = append(keys, u.keys...)
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		if _, _, err := lockKey(ctx, q, k); err != nil {
			return err
		}
	}
	if err := w.removeFenced(ctx, q, units); err != nil {
		return err
	}
	for _, u := range units {
		for i := 0; u.found && i < len(u.keys); i++ {
			if err := leave(ctx, q, u.keys[i], u.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// lockKey locks the row of a key.
func lockKey(ctx context.Context, q runner, key string) (s keyState, there bool, err error) {
	err = each(ctx, q, shape{kind: lockOrderKey}, []any{key}, func(rows *sql.Rows) error {
		there = true
		return rows.Scan(&s.last, &s.head, &s.waiting)
	})
	return s, there, err
}

// leave takes a unit out of the order of a key. The next unit becomes the head; it is due at
// once unless it still waits under another key.
func leave(ctx context.Context, q runner, key, unit string) error {
	s, there, err := lockKey(ctx, q, key)
	switch {
	case err != nil || !there:
		return err
	case s.head != unit:
		waited, err := run(ctx, q, shape{kind: dropWaiting}, key, unit, int64(0))
		if err == nil && waited > 0 {
			_, err = run(ctx, q, shape{kind: setOrderKey}, s.head, s.waiting-waited, key)
		}
		if err == nil {
			_, err = run(ctx, q, shape{kind: dropWaiting}, key, unit, int64(1))
		}
		return err
	}
	next := ""
	for next == "" && s.waiting > 0 {
		found, err := texts(ctx, q, shape{kind: nextWaiting}, key)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			s.waiting = 0
			break
		}
		if _, err := run(ctx, q, shape{kind: dropWaiting}, key, found[0], int64(0)); err != nil {
			return err
		}
		s.waiting--
		if there, err := free(ctx, q, found[0]); err != nil {
			return err
		} else if there { // and was not deleted by hand
			next = found[0]
		}
	}
	_, err = run(ctx, q, shape{kind: setOrderKey}, next, s.waiting, key)
	return err
}

// free makes a unit due that no longer waits. It returns there false if the unit is not in
// the log.
func free(ctx context.Context, q runner, unit string) (there bool, err error) {
	found, err := texts(ctx, q, shape{kind: selectIDs, rows: 1}, unit)
	if err != nil || len(found) == 0 {
		return false, err
	}
	if found, err = texts(ctx, q, shape{kind: waitingUnits, rows: 1}, unit); err == nil && len(found) == 0 {
		_, err = run(ctx, q, shape{kind: freeUnit}, unit, entry.RowID(unit, entry.MaxStatements-1))
	}
	return true, err
}

// keysOf returns the keys of a unit, even of an unreadable one.
func keysOf(ctx context.Context, q runner, u *Unit) ([]string, error) {
	if u.Unreadable == nil {
		return entry.KeysUnder(u), nil
	}
	return texts(ctx, q, shape{kind: findOrderKeys}, u.ID, u.ID)
}

// reorder updates the order of units after an operator's decision about them. With
// orderless, only the units with known order keys need it.
func reorder(ctx context.Context, q runner, d decision, units []*Unit, orderless bool) error {
	for _, u := range units {
		if orderless && len(u.Order) == 0 {
			continue
		}
		keys, err := keysOf(ctx, q, u)
		if err != nil {
			return err
		}
		slices.Sort(keys)
		for _, k := range keys {
			if d.kind == discardRows || d.skip {
				err = leave(ctx, q, k, u.ID)
			}
			if i := slices.IndexFunc(u.Order, func(o entry.Order) bool { return o.Key == k }); err == nil && d.skip && i >= 0 {
				_, err = run(ctx, q, shape{kind: addWaiting}, k, u.Order[i].Number, u.ID, int64(1))
			}
			if err != nil {
				return err
			}
		}
		if len(keys) > 0 && d.kind == retryRows {
			waits, err := texts(ctx, q, shape{kind: waitingUnits, rows: 1}, u.ID)
			if err == nil && len(waits) > 0 {
				_, err = run(ctx, q, shape{kind: blockUnit}, u.ID, entry.RowID(u.ID, entry.MaxStatements-1))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// first returns an error if one of the units cannot be skipped.
func first(ctx context.Context, q runner, units []*Unit) error {
	for _, u := range units {
		head := false
		for _, k := range entry.KeysUnder(u) {
			s, _, err := lockKey(ctx, q, k)
			if err != nil {
				return err
			}
			head = head || s.head == u.ID
		}
		if !head {
			return fmt.Errorf("%w: %s", ErrNotFirst, u.ID)
		}
	}
	return nil
}

// loadOrder reads which unit each of them waits for, and how many units wait behind it.
func loadOrder(ctx context.Context, q runner, all []*Unit) error {
	var ids, keys []string
	for _, u := range all {
		if len(u.Order) > 0 {
			ids, keys = append(ids, u.ID), append(keys, entry.KeysUnder(u)...)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	states := map[string]keyState{}
	waits, err := among(ctx, q, waitingUnits, ids)
	if err == nil {
		err = eachIn(ctx, q, readOrderKeys, keys, func(rows *sql.Rows) error {
			var id string
			var s keyState
			err := rows.Scan(&id, &s.head, &s.waiting)
			states[id] = s
			return err
		})
	}
	for _, u := range all {
		for _, o := range u.Order {
			switch head := states[o.Key].head; {
			case head == u.ID:
				u.Blocks += int(states[o.Key].waiting)
			case waits[u.ID]:
				u.Behind = cmp.Or(u.Behind, head)
			}
		}
	}
	return err
}
