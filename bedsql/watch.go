package bedsql

import (
	"context"
	"database/sql/driver"
	"io"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
)

// watchedRows are rows read inside a local transaction. The error at their end may mean that the
// transaction is gone. To database/sql they look like the driver's own.
type watchedRows struct {
	driver.Rows
	attempt.ColumnTypes
	c   *Conn
	ctx context.Context
	tx  *localTx
}

var (
	_ driver.RowsNextResultSet              = (*watchedRows)(nil)
	_ driver.RowsColumnTypeScanType         = (*watchedRows)(nil)
	_ driver.RowsColumnTypeDatabaseTypeName = (*watchedRows)(nil)
	_ driver.RowsColumnTypeLength           = (*watchedRows)(nil)
	_ driver.RowsColumnTypeNullable         = (*watchedRows)(nil)
	_ driver.RowsColumnTypePrecisionScale   = (*watchedRows)(nil)
)

// watch watches the rows of a query inside a local transaction, unless they are already complete.
// Only on MySQL can a failed query end its transaction and leave the session in autocommit.
func (t *localTx) watch(ctx context.Context, rows driver.Rows, err error) driver.Rows {
	if err != nil || rows == nil || t == nil || t.c.c.dialect.Flavor != sqltext.MySQL {
		return rows
	}
	if b, read := rows.(*attempt.Rows); read && b.Whole() {
		return rows
	}
	return &watchedRows{Rows: rows, ColumnTypes: attempt.ColumnTypes{Of: rows}, c: t.c, ctx: ctx, tx: t}
}

func (r *watchedRows) note(err error) error {
	if err != nil && err != io.EOF && r.c.tx == r.tx && r.tx.state != txLost { //nolint:errorlint // a wrapped one is the end of a connection
		r.c.failedInTx(r.ctx, err, false)
	}
	return err
}

func (r *watchedRows) Next(dest []driver.Value) error { return r.note(r.Rows.Next(dest)) }

// Close implements driver.Rows: it reads the remaining rows.
func (r *watchedRows) Close() error { return r.note(r.Rows.Close()) }

func (r *watchedRows) HasNextResultSet() bool {
	n, ok := r.Rows.(driver.RowsNextResultSet)
	return ok && n.HasNextResultSet()
}

func (r *watchedRows) NextResultSet() error {
	if n, ok := r.Rows.(driver.RowsNextResultSet); ok {
		r.Of = r.Rows // its columns are others
		return r.note(n.NextResultSet())
	}
	return io.EOF
}
