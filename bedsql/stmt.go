package bedsql

import (
	"context"
	"database/sql/driver"

	"github.com/bedsql/bed/internal/sqltext"
)

// Stmt is a wrapped prepared statement.
type Stmt struct {
	c *Conn
	statement
}

var (
	_ driver.Stmt              = (*Stmt)(nil)
	_ driver.StmtExecContext   = (*Stmt)(nil)
	_ driver.StmtQueryContext  = (*Stmt)(nil)
	_ driver.NamedValueChecker = (*Stmt)(nil)
)

// convertingStmt is a Stmt whose driver converts by column: an interface that
// a statement must not have when its driver has not.
type convertingStmt struct {
	*Stmt
	driver.ColumnConverter
}

// Close implements driver.Stmt.
func (s *Stmt) Close() error {
	if s.prepared == nil {
		return nil
	}
	return s.prepared.Close()
}

// NumInput implements driver.Stmt; -1 while the statement is still to be prepared.
func (s *Stmt) NumInput() int {
	if s.prepared == nil {
		return -1
	}
	return s.prepared.NumInput()
}

// CheckNamedValue implements driver.NamedValueChecker as database/sql would
// look for it: the statement's, else the connection's.
func (s *Stmt) CheckNamedValue(nv *driver.NamedValue) error {
	if n, ok := s.prepared.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(nv)
	}
	return s.c.CheckNamedValue(nv)
}

// ExecContext implements driver.StmtExecContext.
func (s *Stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if s.class.Kind == sqltext.DML {
		return s.c.execWrite(ctx, s.statement, args)
	}
	return s.c.execOther(ctx, s.statement, args)
}

// QueryContext implements driver.StmtQueryContext.
func (s *Stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if s.class.Kind == sqltext.DML {
		return s.c.queryWrite(ctx, s.statement, args)
	}
	return s.c.queryOther(ctx, s.statement, args)
}

// Exec implements driver.Stmt.
func (s *Stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), named(args))
}

// Query implements driver.Stmt.
func (s *Stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), named(args))
}

func named(args []driver.Value) []driver.NamedValue {
	out := make([]driver.NamedValue, len(args))
	for i, v := range args {
		out[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return out
}
