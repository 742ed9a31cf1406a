package entry

import (
	"context"
	"database/sql"
)

// DBTX runs statements in a local transaction of the application, like *sql.Tx, *sqlx.Tx
// and gorm's ConnPool, or a *sql.Conn after a BEGIN statement.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}
