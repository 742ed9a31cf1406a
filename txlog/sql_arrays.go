package txlog

import (
	"context"

	"github.com/bedsql/bed/internal/ownsql"
)

// insertArraysText inserts any number of rows into PostgreSQL, each column an
// array of the rows' values: there is one statement to prepare, and its
// parameters cost the server less than those of a list of rows. Where an array
// ends early its first value stands for the remaining rows, or, if it is empty,
// their id.
const insertArraysText = ` SELECT r.id, '` + transactionType + `',
  COALESCE(r.data_source, ($2::text[])[1]), COALESCE(r.text, ($3::text[])[1]), COALESCE(r.parameters, ($4::text[])[1]), {now}, 0,
  COALESCE(r.transaction_id, ($5::text[])[1], r.id), COALESCE(r.statement_no, ($6::int[])[1]), COALESCE(r.statement_count, ($7::int[])[1]),
  COALESCE(r.settings, ($8::text[])[1]), COALESCE(r.not_replayable, ($9::text[])[1]), COALESCE(r.receipt, ($10::text[])[1], r.id),
  COALESCE(r.fingerprint, ($11::text[])[1]), 1, {now} + COALESCE(r.lease, ($12::bigint[])[1]), NULL, 0,
  COALESCE(r.lease_token, ($13::text[])[1]), {now} + COALESCE(r.lease, ($12::bigint[])[1])
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::bigint[], $13::text[])
  AS r (id, data_source, text, parameters, transaction_id, statement_no, statement_count, settings, not_replayable, receipt,
  fingerprint, lease, lease_token)`

// insertArrays writes rows by one statement.
func insertArrays(ctx context.Context, q runner, rows []*row) error {
	text := func(of func(*row) string) any { return arrayOf(rows, of, ownsql.AppendElement) }
	number := func(of func(*row) int64) any { return arrayOf(rows, of, appendInt) }
	none := func(of func(*row) string) any {
		for _, r := range rows {
			if of(r) != r.id {
				return text(of)
			}
		}
		return "{}"
	}
	_, err := q.run(ctx, shape{kind: insertColumns},
		arrayOfAll(rows, func(r *row) string { return r.id }, ownsql.AppendElement),
		text(func(r *row) string { return r.source }),
		text(func(r *row) string { return r.text }),
		text(func(r *row) string { return r.params }),
		none(func(r *row) string { return r.transaction }),
		number(func(r *row) int64 { return int64(r.no) }),
		number(func(r *row) int64 { return int64(r.count) }),
		text(func(r *row) string { return r.settings }),
		text(func(r *row) string { return r.notReplayable }),
		none(func(r *row) string { return r.receipt }),
		text(func(r *row) string { return r.fingerprint }),
		number(func(r *row) int64 { return r.lease }),
		text(func(r *row) string { return r.token }))
	return err
}

// arrayOf gives a column's values in PostgreSQL's notation of an array, which
// every driver can send: all values, or the one that all rows share.
func arrayOf[T comparable](rows []*row, of func(*row) T, add func([]byte, T) []byte) string {
	first := of(rows[0])
	for _, r := range rows[1:] {
		if of(r) != first {
			return arrayOfAll(rows, of, add)
		}
	}
	return arrayOfAll(rows[:1], of, add)
}

func arrayOfAll[T any](rows []*row, of func(*row) T, add func([]byte, T) []byte) string {
	var stack [2 << 10]byte
	b := append(stack[:0], '{')
	for i, r := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = add(b, of(r))
	}
	return string(append(b, '}'))
}
