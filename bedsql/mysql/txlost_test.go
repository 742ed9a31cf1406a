package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/go-sql-driver/mysql"
)

func lost(t *testing.T, c *sql.Conn, cause error) (lost bool) {
	t.Helper()
	if cause == nil {
		t.Fatal("there was no error")
	}
	if err := c.Raw(func(dc any) error {
		lost = newDialect(nil).TransactionLost(context.Background(), dc.(driver.Conn), cause)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return lost
}

// kept reports whether the row written before the error is still in the
// session's transaction.
func kept(t *testing.T, c *sql.Conn) (is bool) {
	t.Helper()
	if err := c.QueryRowContext(context.Background(), "SELECT COUNT(*) = 1 FROM t WHERE id = 10").Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}

func TestDeadlockTakesTheTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema, "INSERT INTO t (id, n) VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)")
	victim, other := conn(t, db), conn(t, db)
	var otherID int64
	if err := other.QueryRowContext(context.Background(), "SELECT CONNECTION_ID()").Scan(&otherID); err != nil {
		t.Fatal(err)
	}
	// The transaction with fewer changes becomes the victim.
	must(t, victim, "BEGIN", "INSERT INTO t (id, n) VALUES (10, 10)", "UPDATE t SET n = 9 WHERE id = 1")
	must(t, other, "BEGIN", "UPDATE t SET n = 9 WHERE id = 2", "UPDATE t SET n = 9 WHERE id = 3", "UPDATE t SET n = 9 WHERE id = 4", "INSERT INTO t (id, n) VALUES (11,1),(12,1),(13,1),(14,1)")
	done := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(context.Background(), "UPDATE t SET n = 8 WHERE id = 1")
		done <- err
	}()
	sessions.AwaitLock(t, db, otherID)
	_, err := victim.ExecContext(context.Background(), "UPDATE t SET n = 8 WHERE id = 2")
	if e := <-done; e != nil {
		t.Fatalf("the other session: %v", e)
	}
	if !lost(t, victim, err) {
		t.Errorf("after %v the transaction is said to live on", err)
	}
	must(t, other, "ROLLBACK")
	if kept(t, victim) {
		t.Error("the server kept what was written before the deadlock")
	}
}

func TestLockTimeoutTakesTheTransactionWhenConfigured(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	c := conn(t, db)
	var configured bool
	if err := c.QueryRowContext(context.Background(), "SELECT @@innodb_rollback_on_timeout").Scan(&configured); err != nil {
		t.Fatal(err)
	}
	timeout := &mysql.MySQLError{Number: 1205}
	if got := lost(t, c, timeout); got != configured {
		t.Errorf("lost is %v, the server is configured %v", got, configured)
	}
	if !newDialect(nil).TransactionLost(context.Background(), mute{}, timeout) {
		t.Error("a session that cannot be asked is taken for a safe one")
	}
}

func TestSnapshotConflictOfMariaDB(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema, "INSERT INTO t (id, n) VALUES (1, 1)")
	c := conn(t, db)
	_, err := c.ExecContext(context.Background(), "SET innodb_snapshot_isolation = 1")
	var unknown *mysql.MySQLError
	if errors.As(err, &unknown) && unknown.Number == 1193 {
		// MySQL has no such conflict; its 1020 undoes the statement alone.
		if lost(t, c, &mysql.MySQLError{Number: 1020}) {
			t.Error("lost without a transaction of MariaDB's kind")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	must(t, c, "BEGIN", "INSERT INTO t (id, n) VALUES (10, 10)")
	var n int
	if err := c.QueryRowContext(context.Background(), "SELECT n FROM t WHERE id = 1").Scan(&n); err != nil {
		t.Fatal(err)
	}
	must(t, db, "UPDATE t SET n = 2 WHERE id = 1")
	_, err = c.ExecContext(context.Background(), "UPDATE t SET n = n + 1 WHERE id = 1")
	if got, is := lost(t, c, err), !kept(t, c); got != is {
		t.Errorf("after %v lost is %v, in truth %v", err, got, is)
	}
}

func TestFailureBeforeImplicitCommitKeepsTransactionOpen(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema)
	for text, want := range map[string]bool{
		"CREATE TABEL x (i INT)":                              true,
		"CREATE TABLE x (a VARCHAR(9) CHARACTER SET nowhere)": true,
		"CREATE TABLE x (a DECIMAL(99, 2))":                   true,
		"DROP TABLE nowhere":                                  false,
		"CREATE TABLE t (i INT)":                              false,
	} {
		c := conn(t, db)
		must(t, c, "BEGIN", "INSERT INTO t (id, n) VALUES (10, 10)")
		_, err := c.ExecContext(context.Background(), text)
		if err == nil {
			t.Fatalf("%s: succeeded", text)
		}
		var open bool
		if err := c.Raw(func(dc any) error {
			open = newDialect(nil).AfterImplicitCommit(context.Background(), dc.(driver.Conn), err) == dialect.StillOpen
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		must(t, c, "ROLLBACK")
		if undone := !kept(t, c); open != want || undone != want {
			t.Errorf("%s: said to be open %t, rolled back %t; want %t", text, open, undone, want)
		}
		must(t, db, "DELETE FROM t")
	}
}

// mute is a connection that cannot run questions.
type mute struct{ driver.Conn }

func (mute) Prepare(string) (driver.Stmt, error) { return nil, errors.New("it takes no queries") }

func TestUnknownImplicitCommitIsInDoubt(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint16]dialect.TxState{1105: dialect.InDoubt, 1050: dialect.InDoubt, 1064: dialect.StillOpen, 1213: dialect.InDoubt} {
		if got := newDialect(nil).AfterImplicitCommit(context.Background(), mute{}, &mysql.MySQLError{Number: number}); got != want {
			t.Errorf("after %d the state is %v, want %v", number, got, want)
		}
	}
}

// An unlisted error may have ended the transaction: the session tells.
func TestUnlistedErrorIsAskedAbout(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t).Open(t)
	must(t, db, schema)
	c := conn(t, db)
	if _, err := c.ExecContext(context.Background(), "SELECT @@in_transaction"); err != nil {
		return // MySQL cannot be asked
	}
	for _, number := range []uint16{1105, 1020, 1180, 1181, 1317, 1969, 3058} {
		err := &mysql.MySQLError{Number: number}
		if !lost(t, c, err) {
			t.Errorf("after %d outside of any transaction it is said to live on", number)
		}
		must(t, c, "BEGIN", "INSERT INTO t (id, n) VALUES (10, 10)")
		if lost(t, c, err) || !kept(t, c) {
			t.Errorf("after %d the open transaction is said to be lost", number)
		}
		must(t, c, "ROLLBACK")
		if !newDialect(nil).TransactionLost(context.Background(), mute{}, err) {
			t.Errorf("after %d a session that cannot be asked is taken for a safe one", number)
		}
	}
	if !lost(t, c, &mysql.MySQLError{Number: 9999, SQLState: [5]byte{'4', '0', '0', '0', '1'}}) {
		t.Error("a serialization failure is said to leave the transaction")
	}
}
