package acceptance

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// waitsForLock reports whether a session of MySQL waits for a row's lock. It
// does not ask information_schema.innodb_trx, which stays as it is for as long
// as it is looked at more often than every 100 ms.
func (r *rig) waitsForLock(session int64) bool {
	r.t.Helper()
	var kind, name, status string
	if err := r.bare.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
		r.t.Fatal(err)
	}
	for trx := range strings.SplitSeq(status, "---TRANSACTION ") {
		if strings.Contains(trx, fmt.Sprintf("thread id %d,", session)) {
			return strings.Contains(trx, "LOCK WAIT")
		}
	}
	return false
}

// deadlock makes two transactions wait for each other and returns the error
// of the victim, which is the application's: last is its last step.
func (r *rig) deadlock(tx *sql.Tx, last func() error) error {
	r.t.Helper()
	conn, err := r.bare.Conn(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var id int64
	if err := conn.QueryRowContext(context.Background(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	// MySQL's victim is the one that has changed least.
	for _, q := range []string{
		"BEGIN", "UPDATE account SET balance = balance + 100 WHERE id >= 2",
	} {
		if _, err := conn.ExecContext(context.Background(), q); err != nil {
			r.t.Fatal(err)
		}
	}
	r.must(tx, setBalance, 10, 1)
	done := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(context.Background(), "UPDATE account SET balance = balance + 100 WHERE id = 1")
		done <- err
	}()
	eventually(r.t, "the other transaction waits for a lock", func() bool { return r.waitsForLock(id) })
	victim := last()
	if err := <-done; err != nil {
		r.t.Fatalf("the other transaction was the victim: %v", err)
	}
	if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
		r.t.Fatal(err)
	}
	return victim
}

func TestAfterADeadlockNothingMoreIsWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.account(1, 2, 3, 4, 5, 6)
	tx := r.begin()
	err := r.deadlock(tx, func() error {
		_, err := tx.Exec(setBalance, 20, 2)
		return err
	})
	var my *mysql.MySQLError
	if !errors.As(err, &my) || my.Number != 1213 {
		t.Fatalf("the victim's error is %v, want the driver's own deadlock", err)
	}
	if _, ok := err.(*mysql.MySQLError); !ok {
		t.Errorf("the victim's error is a %T, want the driver's own", err)
	}
	for _, q := range []string{
		"UPDATE account SET balance = 30 WHERE id = 3",
		"CREATE TABLE other (id INT)",
		"COMMIT",
		"SAVEPOINT a",
		"CALL nothing()",
		"UPDATE account SET balance = 31 WHERE id = 3; UPDATE account SET balance = 41 WHERE id = 4",
	} {
		if err := r.fails(tx, q); !errors.Is(err, bedsql.ErrTransactionLost) {
			t.Errorf("%s: the error is %v, want ErrTransactionLost", q, err)
		}
	}
	if _, err := tx.Query("INSERT INTO account VALUES (7, 7) RETURNING id"); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("a write through Query: the error is %v, want ErrTransactionLost", err)
	}
	if _, err := tx.ExecContext(bedsql.Unlogged(context.Background()), setBalance, 40, 4); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("a write under Unlogged: the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("Commit: the error is %v, want ErrTransactionLost", err)
	}
	r.wantBalances(1, 2, 3, 4, 5, 6)
	if n := r.count("SELECT COUNT(*) FROM account"); n != 6 {
		t.Errorf("%d accounts, want 6", n)
	}
	r.wantNoLog()
	// The connection of the pool is usable and outside of any transaction.
	r.must(r.wrapped, setBalance, 50, 5)
	r.wantBalances(1, 2, 3, 4, 50, 6)
}

// The server sends the columns of a locking read before it waits for the first
// lock, so that the deadlock is an error of the rows.
func TestDeadlockOfALockingReadIsNotOverlooked(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]func(*sql.Tx) (*sql.Rows, error){
		"text": func(tx *sql.Tx) (*sql.Rows, error) {
			return tx.Query("SELECT id, balance FROM account WHERE balance > 0 FOR UPDATE")
		},
		"with arguments": func(tx *sql.Tx) (*sql.Rows, error) {
			return tx.Query("SELECT id, balance FROM account WHERE balance > ? LOCK IN SHARE MODE", 0)
		},
		"prepared": func(tx *sql.Tx) (*sql.Rows, error) {
			st, err := tx.Prepare("SELECT id, balance FROM account WHERE balance > ? FOR UPDATE")
			if err != nil {
				return nil, err
			}
			return st.Query(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testdb.MySQL(t))
			r.account(1, 2, 3, 4, 5, 6)
			tx := r.begin()
			err := r.deadlock(tx, func() error {
				rows, err := query(tx)
				if err != nil {
					return err
				}
				defer func() { _ = rows.Close() }()
				for rows.Next() {
				}
				return rows.Err()
			})
			var my *mysql.MySQLError
			if !errors.As(err, &my) || my.Number != 1213 {
				t.Fatalf("the victim's error is %v, want the driver's own deadlock", err)
			}
			if err := r.fails(tx, setBalance, 30, 3); !errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("the error is %v, want ErrTransactionLost", err)
			}
			if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("Commit: %v, want ErrTransactionLost", err)
			}
			r.wantBalances(1, 2, 3, 4, 5, 6)
			r.wantNoLog()
		})
	}
}

func TestLockTimeoutRollsBackStatementOrTransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		option string
		whole  bool
	}{
		"the statement":   {"--innodb-rollback-on-timeout=OFF", false},
		"the transaction": {"--innodb-rollback-on-timeout=ON", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testdb.PrivateMariaDB(t, c.option, "--innodb-lock-wait-timeout=1")
			r := newRigWithLog(t, server.DB(t), testdb.MySQL(t))
			r.account(1, 2, 3)
			free := r.blockRow(2)
			tx := r.begin()
			r.must(tx, setBalance, 10, 1)
			var my *mysql.MySQLError
			if err := r.fails(tx, setBalance, 20, 2); !errors.As(err, &my) || my.Number != 1205 {
				t.Fatalf("the error is %v, want the driver's own lock timeout", err)
			}
			free()
			_, err := tx.Exec(setBalance, 30, 3)
			if c.whole != errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("the write behind it: %v", err)
			}
			err = tx.Commit()
			if c.whole {
				if !errors.Is(err, bedsql.ErrTransactionLost) {
					t.Errorf("Commit: %v", err)
				}
				r.wantBalances(1, 2, 3)
			} else {
				if err != nil {
					t.Errorf("Commit: %v", err)
				}
				r.wantBalances(10, 2, 30)
			}
			r.wantNoLog()
		})
	}
}

// endless is an UPDATE that runs until it is interrupted.
const endless = "UPDATE account SET balance = (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n) WHERE id = 2"

// SQLite rolls back the whole transaction when a write in it is interrupted.
func TestAfterAnInterruptedWriteNothingMoreIsWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.SQLite(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := tx.ExecContext(ctx, endless); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the statement was to be interrupted: %v", err)
	}
	if err := r.fails(tx, setBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("Commit: %v, want ErrTransactionLost", err)
	}
	r.wantBalances(1, 2)
	r.wantNoLog()
	r.must(r.wrapped, setBalance, 12, 1)
	r.wantBalances(12, 2)
}

// An interrupted read leaves SQLite's transaction open.
func TestInterruptedReadKeepsTheCommitLogged(t *testing.T) {
	t.Parallel()
	logged := 0
	r := newRig(t, testdb.SQLite(t), func(c *bedsql.Config) {
		c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func([]*txlog.Unit) error {
			logged++
			return nil
		}}
	})
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var n int
	err := tx.QueryRowContext(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n").Scan(&n)
	if err == nil {
		t.Fatal("the query was to be interrupted")
	}
	r.must(tx, setBalance, 20, 2)
	if err := tx.Commit(); err != nil {
		t.Errorf("Commit: %v", err)
	}
	r.wantBalances(10, 20)
	if logged != 1 {
		t.Errorf("%d units were logged, want the one that was committed", logged)
	}
	r.wantNoLog()
}

func TestAnAbortedPostgresTransactionIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.Postgres(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.fails(tx, "UPDATE account SET nosuch = 1")
	var pg *pgconn.PgError
	if err := r.fails(tx, setBalance, 20, 2); !errors.As(err, &pg) || pg.Code != "25P02" {
		t.Errorf("the error is %v, want the driver's own: the transaction is aborted", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("Commit of an aborted transaction succeeded")
	}
	r.wantBalances(1, 2)
	r.wantNoLog()
}
