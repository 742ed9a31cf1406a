package bedsql

import (
	"context"
	"database/sql/driver"
	"slices"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
)

// stmt is a wrapped prepared statement.
type stmt struct {
	c *Conn
	statement
	// whole is the convertingStmt around s; nil once it is closed.
	whole *convertingStmt
}

var (
	_ driver.StmtExecContext   = (*stmt)(nil)
	_ driver.StmtQueryContext  = (*stmt)(nil)
	_ driver.NamedValueChecker = (*stmt)(nil)
	_ driver.ColumnConverter   = (*convertingStmt)(nil) //nolint:staticcheck // deprecated, but drivers have it
)

// convertingStmt is a stmt whose driver converts by column. Other statements must not have its
// interface.
type convertingStmt struct {
	stmt
	columns driver.ColumnConverter //nolint:staticcheck // deprecated, but drivers have it
}

func (s *convertingStmt) ColumnConverter(i int) driver.ValueConverter {
	return s.columns.ColumnConverter(i)
}

// Close implements driver.Stmt. s must not be used after it: the connection's
// next statement is made of it.
func (s *stmt) Close() error {
	c, w, prepared := s.c, s.whole, s.Stmt
	if w == nil {
		return nil
	}
	if i := slices.Index(c.stmts, s); i >= 0 {
		c.stmts = slices.Delete(c.stmts, i, i+1)
	}
	*w = convertingStmt{stmt: stmt{c: c}}
	c.spare = w
	if prepared == nil {
		return nil
	}
	return prepared.Close()
}

// NumInput implements driver.Stmt; -1 while the statement is still to be prepared.
func (s *stmt) NumInput() int {
	if s.Stmt == nil {
		return -1
	}
	return s.Stmt.NumInput()
}

// CheckNamedValue implements driver.NamedValueChecker as database/sql would
// look for it: the statement's, else the connection's.
func (s *stmt) CheckNamedValue(nv *driver.NamedValue) error {
	if n, ok := s.Stmt.(driver.NamedValueChecker); ok {
		return n.CheckNamedValue(nv)
	}
	return s.c.CheckNamedValue(nv)
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	r, err := s.c.route(ctx, scopeOf(ctx), s.with(args, false))
	return r.Result, err
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	r, err := s.c.route(ctx, scopeOf(ctx), s.with(args, true))
	return r.Rows, err
}

// with is the statement as it stands: only a write may still have to be prepared.
func (s *stmt) with(args []driver.NamedValue, rows bool) statement {
	st := s.statement
	st.Args, st.rows = args, rows
	if st.Stmt == nil && st.class.Kind == sqltext.DML {
		st.late = s
	}
	return st
}

// prepareLate prepares a statement that could not be prepared at the application's request. It
// serves writes that go straight to the driver, on a dialled connection. A logged write runs by
// its text, because its preparation is part of the attempt.
func (s *statement) prepareLate(ctx context.Context) error {
	if s.late == nil {
		return nil
	}
	if s.late.Stmt == nil {
		st, err := s.late.c.prepare(ctx, s.SQL)
		if err != nil {
			return err
		}
		s.late.Stmt = st
	}
	s.Stmt = s.late.Stmt
	return attempt.CheckCount(s.Stmt, s.Args)
}

func (s *stmt) Exec(args []driver.Value) (driver.Result, error) {
	return s.ExecContext(context.Background(), attempt.Numbered(args))
}

func (s *stmt) Query(args []driver.Value) (driver.Rows, error) {
	return s.QueryContext(context.Background(), attempt.Numbered(args))
}
