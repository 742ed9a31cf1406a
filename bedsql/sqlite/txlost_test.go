package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"path/filepath"
	"testing"
	"time"
)

// lostIs checks the dialect's answer about the transaction against the truth.
func lostIs(t *testing.T, c *sql.Conn, cause error, want bool) {
	t.Helper()
	if cause == nil {
		t.Error("there was no error")
		return
	}
	if err := c.Raw(func(dc any) error {
		inner := dc.(driver.Conn)
		if got := sqliteDialect.TransactionLost(context.Background(), inner, cause); got != want {
			t.Errorf("after %v lost is %v, want %v", cause, got, want)
		}
		_, err := dc.(driver.ExecerContext).ExecContext(context.Background(), "COMMIT", nil)
		if none := err != nil; none != want {
			t.Errorf("after %v and the question COMMIT gives %v", cause, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTransactionThatSQLiteRolledBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	db := open(t, path+"?_pragma=busy_timeout(0)")
	must(t, db, schema, "CREATE TABLE b (b BLOB)")
	c := conn(t, db)
	exec := func(ctx context.Context, text string) error {
		_, err := c.ExecContext(ctx, text)
		return err
	}
	bg := context.Background()

	must(t, c, "BEGIN")
	other := conn(t, db)
	must(t, other, "BEGIN IMMEDIATE")
	lostIs(t, c, exec(bg, "INSERT INTO t (id, n) VALUES (11, 1)"), false)
	must(t, other, "ROLLBACK")
	other.Close()

	must(t, c, "PRAGMA max_page_count = 20", "BEGIN", "INSERT INTO t (id, n) VALUES (12, 1)")
	err := exec(bg, "INSERT INTO b VALUES (zeroblob(1000000))")
	lostIs(t, c, err, probe(t, c))
}

// probe asks whether the session is in autocommit mode by a way of its own: a
// savepoint outside a transaction would be one itself, and be seen by COMMIT.
func probe(t *testing.T, c *sql.Conn) bool {
	t.Helper()
	var n int
	if err := c.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM t WHERE id = 12").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n == 0
}

func TestInterruptedStatement(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "x.db"))
	must(t, db, schema)
	c := conn(t, db)
	must(t, c, "BEGIN", "INSERT INTO t (id, n) VALUES (12, 1)")
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.Raw(func(dc any) error {
		_, err := dc.(driver.ExecerContext).ExecContext(ctx,
			"WITH RECURSIVE c (x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM c) INSERT INTO t (id, n) SELECT x, 1 FROM c", nil)
		if err == nil {
			t.Error("the endless statement ended")
		}
		if !sqliteDialect.TransactionLost(ctx, dc.(driver.Conn), err) {
			t.Errorf("after %v the transaction is said to live on", err)
		}
		if _, err := dc.(driver.ExecerContext).ExecContext(context.Background(), "COMMIT", nil); err == nil {
			t.Error("there still was a transaction")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSessionThatCannotBeAskedIsLost(t *testing.T) {
	t.Parallel()
	if !sqliteDialect.TransactionLost(context.Background(), nil, context.Canceled) {
		t.Error("a session that cannot be asked is taken for a safe one")
	}
}
