package simulation

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/bedsql/bed/bedsql"
)

// This file has the writes with a required number of rows.

// need is the requirement of a write.
type need int

const (
	// anyRows: nothing.
	anyRows need = iota
	// oneRow is what it changes.
	oneRow
	// otherRows: it changes two rows, and must change one, or three and more.
	otherRows
	// theGate changes its own row and a shared one, and must change both. Only the first such write
	// on the data source changes the shared row.
	theGate
	// forbidden: a constraint refuses it.
	forbidden
)

// required are the ways to write so.
var required = []kind{
	{"write that must change a row", false, false, []int{0}, sendWrite, []need{oneRow}},
	{"write that must change a row, under a key", true, false, []int{0}, sendWrite, []need{oneRow}},
	{"write that changes other rows", false, false, []int{0}, sendWrite, []need{otherRows}},
	{"write that must be the first", false, false, []int{0}, sendWrite, []need{theGate}},
	{"local transaction that changes other rows", false, true, []int{0, 0}, inTxOfRows(false), []need{anyRows, otherRows}},
	{"local transaction that must be the first", false, true, []int{0, 0}, inTxOfRows(false), []need{oneRow, theGate}},
	{goesBack, false, true, []int{0, 0}, inTxOfRows(true), []need{anyRows, otherRows}},
	{"staged group of which a part changes other rows", false, false, []int{0, 0, 1}, sendStaged, []need{anyRows, otherRows, anyRows}},
	{"staged group of which a part must be the first", false, false, []int{0, 0, 1}, sendStaged, []need{anyRows, theGate, oneRow}},
}

const goesBack = "local transaction that goes back to before what changes other rows"

// aboutRows has such writers, and leaves the rest to chance.
var aboutRows = &focus{kinds: append(slices.Clone(required), kinds[0], kinds[2], kinds[7]), wide: true, begin: func(*world) {}}

// requires is ctx with the requirement of a part.
func (p *part) requires(ctx context.Context) context.Context {
	switch p.need {
	case oneRow:
		return bedsql.RequireRows(ctx, 1)
	case otherRows:
		if p.id%2 == 0 {
			return bedsql.AtLeastRows(ctx, 3)
		}
		return bedsql.RequireRows(ctx, 1)
	case theGate:
		return bedsql.RequireRows(ctx, 2)
	case anyRows, forbidden:
	}
	return ctx
}

// differs reports whether a write of a request may change other rows than it must.
func (r *request) differs() bool {
	return slices.ContainsFunc(r.parts, func(p *part) bool { return p.need > oneRow || p.undo != nil && p.undo.need > oneRow })
}

// isRows reports whether err is the refusal of a write for its rows.
func isRows(err error) bool {
	var rows *bedsql.RowsError
	return errors.As(err, &rows)
}

// refusesRows is the beginning of the error of an entry parked for its rows.
const refusesRows = "the write is refused: required"

// inTxOfRows commits a local transaction whatever its last write says of its rows. undoes:
// it goes back to a savepoint before.
func inTxOfRows(undoes bool) func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
	return func(ctx context.Context, pools []*sql.DB, r *request, s *sending) error {
		tx, err := pools[0].BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := write(ctx, tx, r.parts[0], s); err != nil {
			return err
		}
		if undoes {
			if _, err := tx.ExecContext(ctx, "SAVEPOINT here"); err != nil {
				return err
			}
		}
		if err := write(ctx, tx, r.parts[1], s); err != nil && !isRows(err) {
			return err
		} else if err == nil || !undoes {
			return tx.Commit()
		}
		if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT here"); err != nil {
			return err
		}
		return tx.Commit()
	}
}
