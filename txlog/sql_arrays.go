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

// The arguments of a row that insertArraysText treats apart.
const (
	argID          = 0
	argTransaction = 4
	argReceipt     = 9
	// argUntil is the lease once more.
	argUntil = rowArgs - 1
)

// insertArrays writes rows by one statement.
func insertArrays(ctx context.Context, q runner, rows []row) error {
	var args [argUntil]any
	for column := range args {
		args[column] = arrayOf(rows, column)
	}
	_, err := q.run(ctx, shape{insertColumns, 0}, args[:]...)
	return err
}

// arrayOf gives a column's values as PostgreSQL writes an array, which every
// driver can send: all of them, the one that all rows have, or none where each
// row has its id.
func arrayOf(rows []row, column int) string {
	first := rows[0].args[column]
	alike, ids := column != argID, column == argTransaction || column == argReceipt
	for i := range rows {
		alike = alike && rows[i].args[column] == first
		ids = ids && rows[i].args[column] == rows[i].args[argID]
	}
	switch {
	case ids:
		return "{}"
	case alike:
		rows = rows[:1]
	}
	size := len("{}")
	for i := range rows {
		text, _ := rows[i].args[column].(string)
		size += len(text) + len(text)/8 + len(`"",`)
	}
	b := append(make([]byte, 0, size), '{')
	for i := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, rows[i].args[column])
	}
	return string(append(b, '}'))
}

func appendElement(b []byte, v any) []byte {
	switch v := v.(type) {
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	default:
		text, _ := v.(string)
		b = append(b, '"')
		for i := range len(text) {
			if text[i] == '"' || text[i] == '\\' {
				b = append(b, '\\')
			}
			b = append(b, text[i])
		}
		return append(b, '"')
	}
}
