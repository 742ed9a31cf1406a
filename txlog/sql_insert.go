package txlog

import (
	"context"
	"sync"
)

// row is a statement as its row of the table: a copy, so that a caller who is
// not waiting any more may write to its unit.
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

// inserting is what an INSERT is made of. It is used again, and with it the
// values that most rows have in common: to pass a value to database/sql takes
// memory of its own.
type inserting struct {
	rows []*row
	args []any

	source, text, settings, notReplayable, fingerprint, token common[string]
	lease                                                     common[int64]
}

var insertings = sync.Pool{New: func() any { return new(inserting) }}

// commonText is the longest text that is kept for the next row.
const commonText = 4 << 10

func (in *inserting) free() {
	clear(in.rows)
	clear(in.args)
	in.rows, in.args = in.rows[:0], in.args[:0]
	if len(in.text.value) > commonText {
		in.text = common[string]{}
	}
	insertings.Put(in)
}

// insert writes rows by one statement, but for PostgreSQL filled up by the
// smallest of them.
func (in *inserting) insert(ctx context.Context, q runner, f Flavor, rows []*row) error {
	if len(rows) > 1 && f == FlavorPostgres {
		return insertArrays(ctx, q, rows)
	}
	size := insertSize(len(rows))
	in.args = in.args[:0]
	least := rows[0]
	for _, r := range rows {
		in.add(r)
		if r.size < least.size {
			least = r
		}
	}
	for range size - len(rows) {
		in.add(least)
	}
	_, err := q.run(ctx, shape{kind: insertRows, rows: size}, in.args...)
	return err
}

// add appends the parameters of a row. Its ids are mostly the same.
func (in *inserting) add(r *row) {
	var id any = r.id
	transaction, receipt := id, id
	if r.transaction != r.id {
		transaction = r.transaction
	}
	if r.receipt != r.id {
		receipt = r.receipt
	}
	lease := in.lease.of(r.lease)
	in.args = append(in.args, id, in.source.of(r.source), in.text.of(r.text), r.params, transaction,
		int64(r.no), int64(r.count), in.settings.of(r.settings), in.notReplayable.of(r.notReplayable), receipt,
		in.fingerprint.of(r.fingerprint), lease, in.token.of(r.token), lease)
}

// common is a value as a parameter, which the next row mostly has too.
type common[T comparable] struct {
	value T
	arg   any
}

func (b *common[T]) of(value T) any {
	if b.arg == nil || b.value != value {
		b.value, b.arg = value, value
	}
	return b.arg
}
