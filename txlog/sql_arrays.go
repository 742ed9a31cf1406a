package txlog

import (
	"context"
	"strconv"
)

// insertArraysText inserts any number of rows into PostgreSQL, each column an
// array of the rows' values: one statement to prepare, and its parameters cost
// the server less than those of a list of rows. Where an array ends early its
// first value counts for the rows behind, or, if it is empty, their id.
const insertArraysText = ` SELECT r.id, '` + TransactionType + `',
  COALESCE(r.data_source, ($2::text[])[1]), COALESCE(r.text, ($3::text[])[1]), COALESCE(r.parameters, ($4::text[])[1]), {now}, 0,
  COALESCE(r.transaction_id, ($5::text[])[1], r.id), COALESCE(r.statement_no, ($6::int[])[1]), COALESCE(r.statement_count, ($7::int[])[1]),
  COALESCE(r.settings, ($8::text[])[1]), COALESCE(r.not_replayable, ($9::text[])[1]), COALESCE(r.receipt, ($10::text[])[1], r.id),
  COALESCE(r.fingerprint, ($11::text[])[1]), 1, {now} + COALESCE(r.lease, ($12::bigint[])[1]), NULL, 0,
  COALESCE(r.lease_token, ($13::text[])[1]), {now} + COALESCE(r.lease, ($12::bigint[])[1])
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::bigint[], $13::text[])
  AS r (id, data_source, text, parameters, transaction_id, statement_no, statement_count, settings, not_replayable, receipt,
  fingerprint, lease, lease_token)`

// columns are the rows' values in the order of insertArraysText.
var columns = []func(*row) string{
	func(r *row) string { return r.id },
	func(r *row) string { return r.source },
	func(r *row) string { return r.text },
	func(r *row) string { return r.params },
	func(r *row) string { return r.transaction },
	func(r *row) string { return strconv.Itoa(r.no) },
	func(r *row) string { return strconv.Itoa(r.count) },
	func(r *row) string { return r.settings },
	func(r *row) string { return r.notReplayable },
	func(r *row) string { return r.receipt },
	func(r *row) string { return r.fingerprint },
	func(r *row) string { return strconv.FormatInt(r.lease, 10) },
	func(r *row) string { return r.token },
}

// The columns that insertArraysText treats apart.
const (
	columnID          = 0
	columnTransaction = 4
	columnReceipt     = 9
)

// insertArrays writes rows by one statement.
func insertArrays(ctx context.Context, q runner, rows []*row) error {
	args := make([]any, len(columns))
	for column := range args {
		args[column] = arrayOf(rows, column)
	}
	_, err := q.run(ctx, shape{insertColumns, 0}, args...)
	return err
}

// arrayOf gives a column's values as PostgreSQL writes an array, which every
// driver can send: all of them, the one that all rows have, or none where each
// row has its id.
func arrayOf(rows []*row, column int) string {
	value := columns[column]
	first := value(rows[0])
	alike, ids := column != columnID, column == columnTransaction || column == columnReceipt
	size := len("{}")
	for _, r := range rows {
		v := value(r)
		alike = alike && v == first
		ids = ids && v == r.id
		size += len(v) + len(v)/8 + len(`"",`)
	}
	switch {
	case ids:
		return "{}"
	case alike:
		return string(append(appendElement([]byte{'{'}, first), '}'))
	}
	b := append(make([]byte, 0, size), '{')
	for i, r := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, value(r))
	}
	return string(append(b, '}'))
}

func appendElement(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
