package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

// TestNonDMLAddsNoAllocation is not parallel:
// allocations of other goroutines would be counted.
func TestNonDMLAddsNoAllocation(t *testing.T) {
	type nextStep struct {
		name string
		run  func(*sql.DB) func() error
	}
	query := func(args ...any) func(*sql.DB) func() error {
		return func(pool *sql.DB) func() error {
			return func() error {
				rows, err := pool.Query(readText, args...)
				if err != nil {
					return err
				}
				var n int64
				for rows.Next() {
					if err := rows.Scan(&n); err != nil {
						return err
					}
				}
				return rows.Close()
			}
		}
	}
	prepared := func(text string) func(*sql.DB) func() error {
		return func(pool *sql.DB) func() error {
			st, err := pool.Prepare(text)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = st.Close() })
			return func() error {
				rows, err := st.Query(1)
				if err != nil {
					return err
				}
				return rows.Close()
			}
		}
	}
	exec := func(text string) func(*sql.DB) func() error {
		return func(pool *sql.DB) func() error {
			return func() error {
				_, err := pool.Exec(text)
				return err
			}
		}
	}
	steps := []nextStep{
		{"query", query()},
		{"query with arguments", query(1, "a")},
		{"prepared query", prepared(readText)},
		{"SELECT FOR UPDATE", exec("SELECT n FROM t WHERE id = 1 FOR UPDATE")},
		{"DDL", exec(ddlText)},
		{"ping", func(pool *sql.DB) func() error { return pool.Ping }},
		{"skipped write", func(pool *sql.DB) func() error {
			ctx := bedsql.Unlogged(context.Background())
			return func() error {
				_, err := pool.ExecContext(ctx, writeText)
				return err
			}
		}},
	}
	for _, skips := range []bool{false, true} {
		f := &fakeDriver{conn: func(*fakeDriver) driver.Conn { return silentConn{skips: skips} }}
		bare := sql.OpenDB(f)
		defer func() { _ = bare.Close() }()
		s := newSetNamed(t, f, t.Name()+map[bool]string{true: "skips"}[skips])
		for _, step := range steps {
			want := allocations(t, step.run(bare))
			got := allocations(t, step.run(s.pool))
			if got != want {
				t.Errorf("%s (a driver that says ErrSkip: %t): %v allocations, %v with the bare driver", step.name, skips, got, want)
			}
		}
	}
}

func allocations(t *testing.T, run func() error) float64 {
	t.Helper()
	return testing.AllocsPerRun(100, func() {
		if err := run(); err != nil {
			t.Fatal(err)
		}
	})
}

// silentConn answers without recording, and with as few allocations of its
// own as it can. With skips it requires everything prepared.
type silentConn struct{ skips bool }

var (
	silentResult driver.Result = driver.RowsAffected(1)
	silentTx     driver.Tx     = fakeTx{&fakeDriver{}}
)

func (c silentConn) Prepare(string) (driver.Stmt, error) { return silentStmt{}, nil }
func (c silentConn) Close() error                        { return nil }
func (c silentConn) Begin() (driver.Tx, error)           { return silentTx, nil }
func (c silentConn) Ping(context.Context) error          { return nil }
func (c silentConn) PrepareContext(context.Context, string) (driver.Stmt, error) {
	return silentStmt{}, nil
}

func (c silentConn) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	if c.skips {
		return nil, driver.ErrSkip
	}
	return silentResult, nil
}

func (c silentConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	if c.skips {
		return nil, driver.ErrSkip
	}
	return new(fakeRows), nil
}

type silentStmt struct{}

func (silentStmt) Close() error                               { return nil }
func (silentStmt) NumInput() int                              { return -1 }
func (silentStmt) Exec([]driver.Value) (driver.Result, error) { return silentResult, nil }
func (silentStmt) Query([]driver.Value) (driver.Rows, error)  { return new(fakeRows), nil }
func (silentStmt) ExecContext(context.Context, []driver.NamedValue) (driver.Result, error) {
	return silentResult, nil
}

func (silentStmt) QueryContext(context.Context, []driver.NamedValue) (driver.Rows, error) {
	return new(fakeRows), nil
}
