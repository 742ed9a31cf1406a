package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/bedsql/bed/internal/sqltext"
)

// row runs a query for a single row.
func (s *Store) row(ctx context.Context, into []any, query string, args ...any) error {
	return s.fault(s.db.QueryRowContext(ctx, s.d.Text(query), args...).Scan(into...))
}

// now is the log's clock.
func (s *Store) now(ctx context.Context) (time.Time, error) {
	var now int64
	err := s.row(ctx, []any{&now}, `SELECT {now}`)
	return time.UnixMilli(now).UTC(), err
}

// in returns a condition that matches the given rows, and its arguments.
func in(ids []string) (condition string, args []any) {
	for _, id := range ids {
		args = append(args, id)
	}
	return `id IN (` + sqltext.List(len(ids), `?`, `, `) + `)`, args
}

// texts appends the only column of a query's rows.
func (s *Store) texts(ctx context.Context, to *[]string, query string, args ...any) error {
	return s.each(ctx, func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		*to = append(*to, text)
		return err
	}, query, args...)
}

// each runs a query and calls scan for each row. scan must not run queries: SQLite has one
// connection.
func (s *Store) each(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := s.db.QueryContext(ctx, s.d.Text(query), args...)
	if err != nil {
		return s.fault(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return s.fault(err)
		}
	}
	return s.fault(rows.Err())
}

// fault is an error of the log's database.
func (s *Store) fault(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ops: the transaction log: %w", err)
}

// Ping asks the log's database for an answer.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	return s.row(ctx, []any{&one}, `SELECT 1`)
}
