package txlog

import (
	"context"
	"errors"

	"github.com/bedsql/bed/internal/ownsql"
)

// This file removes several units by one write, and finds out which of them their
// owners still owned.

// deleteSeveral removes the units of the requests and notes which of them were
// owned.
func (w *writer) deleteSeveral(ctx context.Context, group []*request) error {
	if w.returning && !w.many(group) {
		return w.deleteReturning(ctx, group)
	}
	err := w.deleteAll(ctx, group)
	if errors.Is(err, errNotAll) {
		err = w.deleteEach(ctx, group)
	}
	return err
}

// manyRows is the number of rows from which a local transaction is worth it. For
// MariaDB it is more work to return what a DELETE deleted than to undo it in case
// one row is not owned; PostgreSQL: see deleteByIndex.
const manyRows = 64

func (w *writer) many(group []*request) bool {
	rows := 0
	for _, r := range group {
		rows += r.Rows
	}
	return w.db.backend.Flavor == FlavorMySQL && rows >= manyRows
}

// each calls f for every unit of the requests.
func each(group []*request, f func(*removal) error) error {
	for _, r := range group {
		for i := range r.Body.removals {
			if err := f(&r.Body.removals[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteEach removes the units one by one in a local transaction.
func (w *writer) deleteEach(ctx context.Context, group []*request) error {
	// Before the transaction takes a connection, see within.
	if _, err := w.db.stmt(ctx, shape{kind: deleteOwned, rows: 1}); err != nil {
		return err
	}
	var found []*removal
	err := w.db.inTx(ctx, func(ctx context.Context, q runner) error {
		return each(group, func(h *removal) error {
			there, err := runFenced(ctx, q, deleteOwned, nil, h.id, h.token, h.rows)
			if there {
				found = append(found, h)
			}
			return err
		})
	})
	if err == nil {
		for _, h := range found {
			h.done = true
		}
	}
	return err
}

// fence gives the number of rows of the requests and the token of the first. As a
// rule all have the same one, this storage's.
func fence(group []*request) (rows int, token string, same bool) {
	token, same = group[0].Body.removals[0].token, true
	for _, r := range group {
		rows += r.Rows
		for i := range r.Body.removals {
			same = same && r.Body.removals[i].token == token
		}
	}
	return rows, token, same
}

// deleteShape gives the fenced ids of all rows, filled up to the size of a shape,
// and that shape. A token that all share is needed only once.
func deleteShape(k kind, group []*request) (sh shape, args []any, rows int) {
	rows, first, same := fence(group)
	size := roundUp(rows)
	args = make([]any, 0, 2*size)
	_ = each(group, func(h *removal) error {
		var token any = h.token
		for n := range h.rows {
			if args = append(args, rowID(h.id, n)); !same {
				args = append(args, token)
			}
		}
		return nil
	})
	if same {
		for range size - rows {
			args = append(args, args[rows-1])
		}
		return shape{kind: k, rows: size}, append(args, first), rows
	}
	for range size - rows {
		args = append(args, args[2*rows-2], args[2*rows-1])
	}
	return shape{kind: k, rows: size, form: byPairs}, args, rows
}

// deleteReturning removes the units by one statement that returns which ones
// there were.
func (w *writer) deleteReturning(ctx context.Context, group []*request) error {
	if w.db.backend.Flavor == FlavorPostgres {
		if rows, token, same := fence(group); same {
			return w.deleteArray(ctx, group, rows, token)
		}
	}
	sh, args, _ := deleteShape(deleteReturned, group)
	found, err := returned(ctx, w.db, sh, args, group)
	if err == nil {
		markRemoved(found)
	}
	return err
}

// deleteArray removes units on PostgreSQL: one statement for all sizes. Plans for
// lists, one for each size, are more often made, and kept, as scans of the whole
// table.
func (w *writer) deleteArray(ctx context.Context, group []*request, rows int, token string) error {
	ids := make([]string, 0, rows)
	_ = each(group, func(h *removal) error {
		for n := range h.rows {
			ids = append(ids, rowID(h.id, n))
		}
		return nil
	})
	args := []any{ownsql.Array(ids), token}
	if rows >= manyRows {
		return w.deleteByIndex(ctx, group, args)
	}
	found, err := returned(ctx, w.db, shape{kind: deleteReturned, form: byArray}, args, group)
	if err == nil {
		markRemoved(found)
	}
	return err
}

// deleteByIndex removes many units on PostgreSQL. A plan that was made while the
// log was small reads all of it, even when it has grown or is full of what was
// deleted, and is kept until the next VACUUM or ANALYZE.
func (w *writer) deleteByIndex(ctx context.Context, group []*request, args []any) error {
	sh := shape{kind: deleteReturned, form: byArrayAndIndex}
	// Before the transaction takes a connection, see within.
	if _, err := w.db.stmt(ctx, sh); err != nil {
		return err
	}
	var found []*removal
	err := w.db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
		if _, err := q.exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
			return err
		}
		found, err = returned(ctx, q, sh, args, group)
		return err
	})
	if err == nil {
		markRemoved(found)
	}
	return err
}

func markRemoved(found []*removal) {
	for _, h := range found {
		h.done = true
	}
}

// returned runs a DELETE that returns which rows there were.
func returned(ctx context.Context, q runner, sh shape, args []any, group []*request) (found []*removal, err error) {
	rows, err := q.query(ctx, sh, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	units := make(map[string]*removal, len(group))
	_ = each(group, func(h *removal) error {
		// Of two callers that remove the same unit, one has removed it.
		if units[h.id] == nil {
			units[h.id] = h
		}
		return nil
	})
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		if h := units[headID(id)]; h != nil {
			found = append(found, h)
		}
	}
	return found, rows.Err()
}

// errNotAll says that some of the units were not owned, and nothing was removed.
var errNotAll = errors.New("not all of the units are owned")

// deleteAll removes all the units, or none of them if one is not owned: MySQL
// does not say which one that is.
func (w *writer) deleteAll(ctx context.Context, group []*request) error {
	sh, args, rows := deleteShape(deleteOwned, group)
	if _, err := w.db.stmt(ctx, sh); err != nil {
		return err
	}
	err := w.db.inTx(ctx, func(ctx context.Context, q runner) error {
		n, err := q.run(ctx, sh, args...)
		if err == nil && n != int64(rows) {
			return errNotAll
		}
		return err
	})
	if err == nil {
		return each(group, func(h *removal) error { h.done = true; return nil })
	}
	return err
}

// markGone marks as removed what is gone after an attempt without an answer, as
// long as its lease lasts: nobody but that attempt can have removed it.
func (w *writer) markGone(ctx context.Context, group []*request) error {
	var doubtful []*removal
	var ids []string
	_ = each(group, func(h *removal) error {
		if !h.done {
			doubtful = append(doubtful, h)
			ids = append(ids, h.id)
		}
		return nil
	})
	if len(ids) == 0 {
		return nil
	}
	tokens, err := w.db.tokens(ctx, ids)
	if err != nil {
		return err
	}
	for _, h := range doubtful {
		if _, there := tokens[h.id]; !there && !(Lease{Deadline: h.deadline}).Over() {
			h.done = true
		}
	}
	return nil
}
