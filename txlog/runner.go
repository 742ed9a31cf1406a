package txlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
)

// runner runs the log's statements: each by itself, or in a local transaction.
type runner interface {
	exec(ctx context.Context, text string, args ...any) (int64, error)
	run(ctx context.Context, sh shape, args ...any) (int64, error)
	query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error)
}

// single runs each statement by itself.
type single struct{ s *SQLStorage }

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (r single) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(r.s.db.ExecContext(ctx, text, args...))
}

func (r single) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	stmt, err := r.s.stmt(ctx, sh)
	if err != nil {
		return 0, err
	}
	return affected(stmt.ExecContext(ctx, args...))
}

func (r single) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	stmt, err := r.s.stmt(ctx, sh)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// within runs statements in a local transaction. It never prepares one on
// another connection: there may be none to spare.
type within struct {
	s  *SQLStorage
	tx *sql.Tx
}

func (r within) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(r.tx.ExecContext(ctx, text, args...))
}

func (r within) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	if stmt := r.s.prepared(sh); stmt != nil {
		return affected(r.tx.StmtContext(ctx, stmt).ExecContext(ctx, args...))
	}
	return r.exec(ctx, r.s.backend.Flavor.text(sh), args...)
}

func (r within) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	if stmt := r.s.prepared(sh); stmt != nil {
		return r.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...)
	}
	return r.tx.QueryContext(ctx, r.s.backend.Flavor.text(sh), args...)
}

// immediate runs statements on a connection of SQLite after BEGIN IMMEDIATE.
type immediate struct {
	s    *SQLStorage
	conn *sql.Conn
}

func (r immediate) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(r.conn.ExecContext(ctx, text, args...))
}

func (r immediate) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	return r.exec(ctx, r.s.backend.Flavor.text(sh), args...)
}

func (r immediate) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	return r.conn.QueryContext(ctx, r.s.backend.Flavor.text(sh), args...)
}

// inTx runs f in one local transaction.
func (s *SQLStorage) inTx(ctx context.Context, f func(context.Context, runner) error) error {
	if s.backend.Flavor == FlavorSQLite {
		return s.inImmediate(ctx, f)
	}
	var opts *sql.TxOptions
	if s.backend.Flavor == FlavorPostgres {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := s.db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	if err := f(ctx, within{s, tx}); err != nil {
		// Without COMMIT nothing is written, whatever became of the connection.
		_ = tx.Rollback()
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	return tx.Commit()
}

// inImmediate takes SQLite's write lock at once: a transaction that reads first
// and writes later fails when another one wrote in between.
func (s *SQLStorage) inImmediate(ctx context.Context, f func(context.Context, runner) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	if err := f(ctx, immediate{s, conn}); err != nil {
		s.rollback(ctx, conn)
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		s.rollback(ctx, conn)
		return err
	}
	return nil
}

// rollback ends the transaction even if ctx is done. A connection on which that
// fails does not go back to the pool: it may have no transaction left, or one.
func (s *SQLStorage) rollback(ctx context.Context, conn *sql.Conn) {
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}
