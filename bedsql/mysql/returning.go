package mysql

import (
	"context"
	"database/sql/driver"
	"strings"

	"github.com/bedsql/bed/internal/attempt"
)

// driverStmt lists the methods of the driver's prepared statements.
type driverStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
	driver.ColumnConverter //nolint:staticcheck // deprecated, but the driver has it
}

// returning is a prepared statement that may return rows. The driver can run such a
// statement by Exec only once: MariaDB sends the columns the first time, and later the
// driver takes rows for them and waits for ever.
type returning struct {
	driverStmt
	conn  driver.Conn
	query string
}

// reusable implements Dialect.Reusable. A RETURNING inside a value costs only a round trip.
func reusable(conn driver.Conn, query string, st driver.Stmt) driver.Stmt {
	if whole, ok := st.(driverStmt); ok && strings.Contains(strings.ToUpper(query), "RETURNING") {
		return &returning{driverStmt: whole, conn: conn, query: query}
	}
	return st
}

// ExecContext implements driver.StmtExecContext with a statement of its own.
func (s *returning) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	st, err := attempt.Prepare(ctx, s.conn, s.query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }()
	r, err := attempt.SendStmt(ctx, st, args, false)
	return r.Result, err
}
