package txlog

import (
	"context"
	"math"
	"sync"
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

// usual reports whether r is what most rows are: the only statement of a unit
// that may be replayed, with the lease that this storage's first caller wanted.
func (r *row) usual(w *writer) bool {
	// One lease, so that there are no more shapes than can be prepared.
	return w.db.backend.Flavor == FlavorMySQL && r.count == 1 && r.notReplayable == "" && r.fingerprint == "" &&
		(w.lease.Load() == r.lease || w.lease.CompareAndSwap(0, r.lease)) && r.lease <= math.MaxInt>>usualLease
}

// insert writes rows by one statement, but for PostgreSQL filled up by the
// smallest of them.
func (in *inserting) insert(ctx context.Context, w *writer, q runner, rows []*row) error {
	if len(rows) > 1 && w.db.backend.Flavor == FlavorPostgres {
		return insertArrays(ctx, q, rows)
	}
	size := insertSize(len(rows))
	in.args = in.args[:0]
	least, usual := rows[0], true
	for _, r := range rows {
		usual = usual && r.usual(w)
		if r.size < least.size {
			least = r
		}
	}
	sh, add := shape{insertRows, size}, in.add
	if usual {
		// What is the same in all of them need not be a parameter.
		sh, add = shape{insertUsual, int(least.lease)<<usualLease | size}, in.addUsual
	}
	for _, r := range rows {
		add(r)
	}
	for range size - len(rows) {
		add(least)
	}
	_, err := q.run(ctx, sh, in.args...)
	return err
}

// add appends the parameters of a row of insertRows.
func (in *inserting) add(r *row) {
	id, transaction, receipt := r.ids()
	lease := in.lease.of(r.lease)
	in.args = append(in.args, id, in.source.of(r.source), in.text.of(r.text), r.params, transaction,
		int64(r.no), int64(r.count), in.settings.of(r.settings), in.notReplayable.of(r.notReplayable), receipt,
		in.fingerprint.of(r.fingerprint), lease, in.token.of(r.token), lease)
}

// addUsual appends those of a row of insertUsual.
func (in *inserting) addUsual(r *row) {
	id, transaction, receipt := r.ids()
	in.args = append(in.args, id, in.source.of(r.source), in.text.of(r.text), r.params, transaction,
		in.settings.of(r.settings), receipt, in.token.of(r.token))
}

// ids gives as parameters what mostly is the same id.
func (r *row) ids() (id, transaction, receipt any) {
	id = r.id
	same := func(s string) any {
		if s == r.id {
			return id
		}
		return s
	}
	return id, same(r.transaction), same(r.receipt)
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
