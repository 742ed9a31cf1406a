package txlog

import (
	"context"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/entry"
)

func noCompensation(id, where string) error {
	return fmt.Errorf("%w: no group %q to compensate in %s: it is delivered as a whole, or compensated already, or has no compensation", ErrNotFound, id, where)
}

// startCompensation starts the compensation k, whose row is locked. Its id sorts before those of the
// forward units, which are made later. Every writer that locks several units follows this
// order.
func startCompensation(ctx context.Context, q runner, k *Unit, token string, lease time.Duration, orderless bool) error {
	forward, err := unitsOf(ctx, q, lockUnits, k.Undo.Units())
	if err != nil {
		return err
	}
	k.Parked, k.Tries, k.InDoubt = false, 0, true
	until, owner := any(nil), any(nil)
	next := int64(atOnce)
	if lease > 0 {
		next = k.ReadAt.UnixMilli() + lease.Milliseconds() + leaseSlack
		until, owner, k.NextTry = next, token, time.UnixMilli(next)
	}
	args := []any{k.DataSource, encodeSettings(k), k.Receipt, k.LastError, owner, until, next}
	if _, err := runIn(ctx, q, turnRows, args, entry.RowIDs(k.ID, len(k.Statements))); err != nil {
		return err
	}
	return erase(ctx, q, forward, orderless)
}

// erase deletes forward units, even leased ones.
func erase(ctx context.Context, q runner, forward []*Unit, orderless bool) error {
	var rows []string
	for _, u := range forward {
		rows = append(rows, u.AllRowIDs()...)
	}
	if _, err := runIn(ctx, q, discardRows, nil, rows); err != nil {
		return err
	}
	return reorder(ctx, q, decision{kind: discardRows}, forward, orderless)
}

// complete removes the compensation k if it has not started, together with its remaining
// forward units, even leased ones. Without k their receipts are no longer kept, and only
// these would prove the delivery.
func complete(ctx context.Context, db *database, k *Unit, unstarted *owned, orderless bool) (removed bool, err error) {
	left, err := unitsOf(ctx, db, selectUnits, k.Undo.Units())
	switch {
	case err != nil:
		return false, err
	case len(left) == 0:
		return fenced(ctx, db, completeRows, nil, unstarted)
	}
	err = db.inTx(ctx, func(ctx context.Context, q runner) error {
		if removed, err = fenced(ctx, q, completeRows, nil, unstarted); err != nil || !removed {
			return err
		}
		return erase(ctx, q, left, orderless)
	})
	return removed && err == nil, err
}

// locateGroup is Locate for a forward unit. It also updates the compensation, and locks it
// first.
func locateGroup(ctx context.Context, db *database, head *owned, located *Unit) (found bool, err error) {
	err = db.inTx(ctx, func(ctx context.Context, q runner) error {
		back, err := unitsOf(ctx, q, lockUnits, []string{located.TransactionID})
		if err != nil {
			return err
		}
		for _, k := range back {
			if k.Undo == nil || !k.Undo.Locate(located.ID, located.Place, located.Session) {
				continue
			}
			if _, err := run(ctx, q, shape{kind: noteUndo}, encodeSettings(k), k.ID); err != nil {
				return err
			}
		}
		found, err = fenced(ctx, q, locateOwned, []any{encodeSettings(located)}, head)
		return err
	})
	return found, err
}

// grouped rejects an operation on single units if one of them belongs to a group whose
// compensation is in the log.
func grouped(ctx context.Context, q runner, units []*Unit) (refused, err error) {
	for _, u := range units {
		if !u.InGroup() {
			continue
		}
		back, err := tokensOf(ctx, q, []string{u.TransactionID})
		if err != nil {
			return nil, err
		}
		if len(back) > 0 {
			return fmt.Errorf("%w: entry %s of group %s", ErrGroup, u.ID, u.TransactionID), nil
		}
	}
	return nil, nil
}
