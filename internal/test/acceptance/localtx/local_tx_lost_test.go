package localtx

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
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// waitsForLock reports whether a session of MySQL waits for a row's lock. It
// does not ask information_schema.innodb_trx, which stays as it is for as long
// as it is looked at more often than every 100 ms.
func waitsForLock(r *rig.Rig, session int64) bool {
	r.T.Helper()
	var kind, name, status string
	if err := r.Bare.QueryRow("SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &status); err != nil {
		r.T.Fatal(err)
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
func deadlock(r *rig.Rig, tx *sql.Tx, last func() error) error {
	r.T.Helper()
	conn, err := r.Bare.Conn(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var id int64
	if err := conn.QueryRowContext(context.Background(), "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		r.T.Fatal(err)
	}
	// MySQL's victim is the one that has changed least.
	for _, q := range []string{
		"BEGIN", "UPDATE account SET balance = balance + 100 WHERE id >= 2",
	} {
		if _, err := conn.ExecContext(context.Background(), q); err != nil {
			r.T.Fatal(err)
		}
	}
	r.Must(tx, rig.SetBalance, 10, 1)
	done := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(context.Background(), "UPDATE account SET balance = balance + 100 WHERE id = 1")
		done <- err
	}()
	rig.Eventually(r.T, "the other transaction waits for a lock", func() bool { return waitsForLock(r, id) })
	victim := last()
	if err := <-done; err != nil {
		r.T.Fatalf("the other transaction was the victim: %v", err)
	}
	if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
		r.T.Fatal(err)
	}
	return victim
}

func TestAfterADeadlockNothingMoreIsWritten(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.MySQL(t))
	r.Account(1, 2, 3, 4, 5, 6)
	tx := r.Begin()
	err := deadlock(r, tx, func() error {
		_, err := tx.Exec(rig.SetBalance, 20, 2)
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
		if err := r.Fails(tx, q); !errors.Is(err, bedsql.ErrTransactionLost) {
			t.Errorf("%s: the error is %v, want ErrTransactionLost", q, err)
		}
	}
	if _, err := tx.Query("INSERT INTO account VALUES (7, 7) RETURNING id"); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("a write through Query: the error is %v, want ErrTransactionLost", err)
	}
	if _, err := tx.ExecContext(bedsql.Unlogged(context.Background()), rig.SetBalance, 40, 4); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("a write under Unlogged: the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("Commit: the error is %v, want ErrTransactionLost", err)
	}
	r.WantBalances(1, 2, 3, 4, 5, 6)
	if n := r.Count("SELECT COUNT(*) FROM account"); n != 6 {
		t.Errorf("%d accounts, want 6", n)
	}
	r.WantNoLog()
	// The connection of the pool is usable and outside of any transaction.
	r.Must(r.Wrapped, rig.SetBalance, 50, 5)
	r.WantBalances(1, 2, 3, 4, 50, 6)
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
			r := rig.New(t, testdb.MySQL(t))
			r.Account(1, 2, 3, 4, 5, 6)
			tx := r.Begin()
			err := deadlock(r, tx, func() error {
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
			if err := r.Fails(tx, rig.SetBalance, 30, 3); !errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("the error is %v, want ErrTransactionLost", err)
			}
			if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("Commit: %v, want ErrTransactionLost", err)
			}
			r.WantBalances(1, 2, 3, 4, 5, 6)
			r.WantNoLog()
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
			r := rig.NewWithLog(t, server.DB(t), testdb.NewLog(t, testdb.DriverMySQL))
			r.Account(1, 2, 3)
			free := r.BlockRow(2)
			tx := r.Begin()
			r.Must(tx, rig.SetBalance, 10, 1)
			var my *mysql.MySQLError
			if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.As(err, &my) || my.Number != 1205 {
				t.Fatalf("the error is %v, want the driver's own lock timeout", err)
			}
			free()
			_, err := tx.Exec(rig.SetBalance, 30, 3)
			if c.whole != errors.Is(err, bedsql.ErrTransactionLost) {
				t.Errorf("the write behind it: %v", err)
			}
			err = tx.Commit()
			if c.whole {
				if !errors.Is(err, bedsql.ErrTransactionLost) {
					t.Errorf("Commit: %v", err)
				}
				r.WantBalances(1, 2, 3)
			} else {
				if err != nil {
					t.Errorf("Commit: %v", err)
				}
				r.WantBalances(10, 2, 30)
			}
			r.WantNoLog()
		})
	}
}

// SQLite rolls back the whole transaction when a write in it is interrupted.
func TestAfterAnInterruptedWriteNothingMoreIsWritten(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.SQLite(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if _, err := tx.ExecContext(ctx, rig.Endless); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the statement was to be interrupted: %v", err)
	}
	if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("Commit: %v, want ErrTransactionLost", err)
	}
	r.WantBalances(1, 2)
	r.WantNoLog()
	r.Must(r.Wrapped, rig.SetBalance, 12, 1)
	r.WantBalances(12, 2)
}

// An interrupted read leaves SQLite's transaction open.
func TestInterruptedReadKeepsTheCommitLogged(t *testing.T) {
	t.Parallel()
	logged := 0
	r := rig.New(t, testdb.SQLite(t), func(c *bedsql.Config) {
		c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error {
			logged++
			return nil
		}}
	})
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var n int
	err := tx.QueryRowContext(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n").Scan(&n)
	if err == nil {
		t.Fatal("the query was to be interrupted")
	}
	r.Must(tx, rig.SetBalance, 20, 2)
	if err := tx.Commit(); err != nil {
		t.Errorf("Commit: %v", err)
	}
	r.WantBalances(10, 20)
	if logged != 1 {
		t.Errorf("%d units were logged, want the one that was committed", logged)
	}
	r.WantNoLog()
}

func TestAnAbortedPostgresTransactionIsTheCallersOwn(t *testing.T) {
	t.Parallel()
	r := rig.New(t, testdb.Postgres(t))
	r.Account(1, 2)
	tx := r.Begin()
	r.Must(tx, rig.SetBalance, 10, 1)
	r.Fails(tx, "UPDATE account SET nosuch = 1")
	var pg *pgconn.PgError
	if err := r.Fails(tx, rig.SetBalance, 20, 2); !errors.As(err, &pg) || pg.Code != "25P02" {
		t.Errorf("the error is %v, want the driver's own: the transaction is aborted", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("Commit of an aborted transaction succeeded")
	}
	r.WantBalances(1, 2)
	r.WantNoLog()
}
