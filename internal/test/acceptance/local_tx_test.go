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
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

const setBalance = "UPDATE account SET balance = ? WHERE id = ?"

func TestCommitWithoutAnswerIsDeliveredByTheRetryAsAWhole(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"committed":     (*testproxy.Proxy).CutAfter,
			"not committed": (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db))
				r.account(1, 2)
				tx := r.begin()
				r.must(tx, setBalance, 10, 1)
				r.must(tx, setBalance, 20, 2)
				r.wantNoLog() // not before COMMIT
				cut(p, testproxy.Text("COMMIT"))
				if err := tx.Commit(); err != nil {
					t.Fatalf("Commit: %v", err)
				}
				r.wantBalances(10, 20)
				r.wantNoLog()
			})
		}
	})
}

func TestCommitWithoutAnswerIsDeliveredByTheJobAsAWhole(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, setBalance, 20, 2)
		p.CutBefore(testproxy.Text("COMMIT"))
		pending := wantPending(t, tx.Commit())
		u := r.wantOneLog()
		if u.ID != pending.LogID || len(u.Statements) != 2 || !u.InDoubt || u.NotReplayable != "" || u.Parked {
			t.Errorf("the log holds %+v, want the unit %s with both statements, in doubt and replayable", u, pending.LogID)
		}
		r.wantBalances(1, 2)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(10, 20)
		r.wantNoLog()
	})
}

func TestReplayIsAllOrNothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "INSERT INTO account VALUES (3, 3)")
		p.CutBefore(testproxy.Text("COMMIT"))
		wantPending(t, tx.Commit())
		// What the second statement needs is gone: the first must not stay alone.
		r.exec("ALTER TABLE account RENAME COLUMN balance TO amount",
			"ALTER TABLE account ADD balance INT", "ALTER TABLE account ADD CHECK (id < 3)")
		if report := r.runOnce(); report.Delivered != 0 || report.Parked != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if n := r.count("SELECT COUNT(*) FROM account WHERE balance = 10"); n != 0 {
			t.Error("the first statement of the unit was applied without the second")
		}
	})
}

func TestARolledBackTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		r.wantNoLog()
		// The connection of the pool holds no transaction: this is logged and committed.
		r.must(r.wrapped, setBalance, 11, 1)
		r.wantBalances(11)
		r.wantNoLog()
		if n := r.counters.Delivered.Load(); n != 1 {
			t.Errorf("%d writes were counted as delivered, want 1", n)
		}
	})
}

func TestRollbackToASavepointTruncatesTheUnit(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2, 3, 4, 5)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		r.must(tx, "SAVEPOINT sp0x1") // gorm's words
		r.must(tx, setBalance, 20, 2)
		r.must(tx, "ROLLBACK TO SAVEPOINT sp0x1")
		r.must(tx, setBalance, 30, 3)
		r.must(tx, "SAVEPOINT Outer_")
		r.must(tx, "SAVEPOINT inner_")
		r.must(tx, setBalance, 40, 4)
		r.must(tx, "ROLLBACK TO outer_")
		r.must(tx, "RELEASE SAVEPOINT outer_")
		r.must(tx, setBalance, 50, 5)
		p.CutBefore(testproxy.Text("COMMIT"))
		wantPending(t, tx.Commit())
		if u := r.wantOneLog(); len(u.Statements) != 3 || u.NotReplayable != "" {
			t.Errorf("the unit has %d statements and is not replayable because of %q, want 3 and replayable", len(u.Statements), u.NotReplayable)
		}
		r.runOnce()
		r.wantBalances(10, 2, 30, 4, 50)
		r.wantNoLog()
	})
}

func TestAnAbortedPostgresTransactionGoesOnFromItsSavepoint(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.Postgres(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "SAVEPOINT a")
	r.fails(tx, "UPDATE account SET nosuch = 1")
	r.must(tx, "ROLLBACK TO a")
	r.must(tx, setBalance, 20, 2)
	p.CutAfter(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want 2", len(u.Statements))
	}
}

func TestDDLCommitsTheUnitOnMySQL(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	r.wantBalances(10) // committed on the way
	r.wantNoLog()
	if n := r.counters.Delivered.Load(); n != 1 {
		t.Errorf("%d units were counted as delivered, want the one that the DDL committed", n)
	}
	r.must(tx, setBalance, 20, 2) // on its own now
	if n := r.counters.Delivered.Load(); n != 2 {
		t.Errorf("%d writes were counted as delivered, want the one behind the DDL on its own too", n)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.wantBalances(10, 20)
	r.wantNoLog()
}

func TestAWriteBehindDDLIsLoggedOnItsOwn(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.must(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	p.CutBefore(testproxy.MySQLExecute)
	wantPending(t, r.fails(tx, setBalance, 20, 2))
	if u := r.wantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want the one behind the DDL", len(u.Statements))
	}
	_ = tx.Rollback()
	r.runOnce()
	r.wantBalances(10, 20)
	r.wantNoLog()
}

func TestDDLThatFailsCommitsAllTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.fails(tx, "CREATE TABLE account (id INT)"); !errors.As(err, &my) || my.Number != 1050 {
		t.Errorf("the error is %v, want the driver's own: table exists", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	r.wantBalances(10)
	r.wantNoLog()
}

func TestASyntaxErrorInDDLEndsNothing(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	var my *mysql.MySQLError
	if err := r.fails(tx, "CREATE TABLE (((("); !errors.As(err, &my) || my.Number != 1064 {
		t.Errorf("the error is %v, want the driver's own: syntax", err)
	}
	r.wantBalances(1)
	r.wantNoLog()
	r.must(tx, setBalance, 20, 2)
	r.wantBalances(1, 2)
	p.CutBefore(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 2 {
		t.Errorf("the unit has %d statements, want both", len(u.Statements))
	}
}

// A DDL whose answer is lost is not delivered by anybody: only the unit that
// it was to commit is.
func TestDDLWithoutAnswerIsNoSuccessThoughItsUnitIsDelivered(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t))
	r.account(1)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	p.CutBefore(testproxy.Text("CREATE TABLE"))
	err := r.fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)")
	if errors.Is(err, bedsql.ErrPending) {
		t.Errorf("the error is %v, but the unit is delivered and nobody will create the table", err)
	}
	r.wantBalances(10)
	r.wantNoLog()
	// The session is gone: nothing of this transaction is written any more.
	r.fails(tx, setBalance, 11, 1)
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded")
	}
	r.wantBalances(10)
}

func TestDDLWhoseUnitCannotBeLoggedEndsTheTransaction(t *testing.T) {
	t.Parallel()
	r, p := newRigLogBehindProxy(t, testdb.MySQL(t))
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	p.Refuse()
	p.CutAll()
	if err := r.fails(tx, "CREATE TABLE other (id INT PRIMARY KEY)"); !errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("the error is %v, want ErrNotLogged", err)
	}
	p.Accept()
	// The session is outside of any transaction: what is written into the
	// transaction now would be committed on its own.
	if err := r.fails(tx, setBalance, 20, 2); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("the error is %v, want ErrTransactionLost", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("Commit succeeded though nothing was committed")
	}
	r.wantBalances(1, 2)
	r.must(r.wrapped, setBalance, 11, 1)
	r.wantBalances(11, 2)
	r.wantNoLog()
}

func TestBeginOverAnOpenTransactionWithoutAnswer(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t))
	r.account(1)
	conn := r.conn()
	r.must(conn, "BEGIN")
	r.must(conn, setBalance, 10, 1)
	p.CutBefore(testproxy.Text("START TRANSACTION"))
	if tx, err := conn.BeginTx(context.Background(), nil); err == nil {
		_ = tx.Rollback()
		t.Error("BeginTx succeeded on a connection that was cut")
	}
	r.wantBalances(10) // what it was to commit is delivered
	r.wantNoLog()
}

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
	if _, err := tx.ExecContext(bedsql.Skip(context.Background()), setBalance, 40, 4); !errors.Is(err, bedsql.ErrTransactionLost) {
		t.Errorf("a write under Skip: the error is %v, want ErrTransactionLost", err)
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
func TestADeadlockMetByALockingReadIsNotOverlooked(t *testing.T) {
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

func TestALockTimeoutRollsBackTheStatementOrTheTransaction(t *testing.T) {
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

func TestATransactionThatCannotBeLoggedIsRolledBack(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigLogBehindProxy(t, db)
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		p.Refuse()
		p.CutAll()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(1)
		p.Accept()
		r.must(r.wrapped, setBalance, 11, 1)
		r.wantBalances(11) // seen by others: there was no open transaction in the pool
		r.wantNoLog()
	})
}

func TestATransactionThatCannotBeLoggedIsRolledBackAsText(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigLogBehindProxy(t, db)
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		conn := r.conn()
		r.must(conn, "BEGIN")
		r.must(conn, setBalance, 10, 1)
		p.Refuse()
		p.CutAll()
		if err := r.fails(conn, "COMMIT"); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("COMMIT: %v, want ErrNotLogged", err)
		}
		_ = conn.Close()
		r.wantBalances(1)
		p.Accept()
		r.must(r.wrapped, setBalance, 11, 1)
		r.wantBalances(11)
		r.wantNoLog()
	})
}

func TestAClosedLogRollsBackOnEveryDatabase(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		tx := r.begin()
		r.must(tx, setBalance, 10, 1)
		_ = r.storage.Close()
		if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
			t.Errorf("Commit: %v, want ErrNotLogged", err)
		}
		r.wantBalances(1)
		if _, err := r.wrapped.ExecContext(bedsql.Skip(context.Background()), r.q(setBalance), 11, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(11)
	})
}

func TestTransactionControlAsTextMakesAUnit(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1, 2)
		conn := r.conn()
		r.must(conn, "begin")
		r.must(conn, setBalance, 10, 1)
		r.must(conn, setBalance, 20, 2)
		r.wantBalances(1, 2)
		r.wantNoLog()
		p.CutBefore(testproxy.Text("COMMIT"))
		wantPending(t, r.fails(conn, "/* the end */ Commit;"))
		if u := r.wantOneLog(); len(u.Statements) != 2 {
			t.Errorf("the unit has %d statements, want 2", len(u.Statements))
		}
		r.runOnce()
		r.wantBalances(10, 20)
		r.wantNoLog()
	})
}

func TestWithAutocommitOffEveryCommitIsAUnit(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.MySQL(t), noSyncRetry)
	r.account(1, 2, 3)
	conn := r.conn()
	r.must(conn, "SET autocommit = 0")
	r.must(conn, setBalance, 10, 1)
	r.must(conn, "COMMIT")
	r.wantBalances(10)
	r.must(conn, setBalance, 20, 2)
	r.must(conn, "ROLLBACK")
	r.must(conn, setBalance, 30, 3)
	r.must(conn, "SET autocommit = 1") // commits
	r.wantBalances(10, 2, 30)
	r.wantNoLog()
	if n := r.counters.Delivered.Load(); n != 2 {
		t.Errorf("%d units were counted as delivered, want 2", n)
	}
	r.must(conn, "SET autocommit = 0")
	r.must(conn, setBalance, 21, 2)
	p.CutBefore(testproxy.Text("autocommit"))
	wantPending(t, r.fails(conn, "SET autocommit = 1"))
	r.wantOneLog()
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
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
func TestAnInterruptedReadDoesNotMakeTheCommitUnlogged(t *testing.T) {
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
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

// An argument that does not fit fails in the driver: the server has heard
// nothing, and its transaction is as good as before.
func TestAnArgumentThatDoesNotFitDoesNotAbortTheUnit(t *testing.T) {
	t.Parallel()
	r, p := newRigBehindProxy(t, testdb.Postgres(t), noSyncRetry)
	r.account(1, 2)
	tx := r.begin()
	r.must(tx, setBalance, 10, 1)
	r.fails(tx, setBalance, int64(1)<<40, 2)
	p.CutAfter(testproxy.Text("COMMIT"))
	wantPending(t, tx.Commit())
	if u := r.wantOneLog(); len(u.Statements) != 1 {
		t.Errorf("the unit has %d statements, want 1", len(u.Statements))
	}
	r.wantBalances(10, 2)
}

// SQLite begins a transaction by a savepoint outside of one, and commits it
// when that savepoint is released.
func TestAnOutermostSavepointIsATransactionOnSQLite(t *testing.T) {
	t.Parallel()
	var logged []int
	r := newRig(t, testdb.SQLite(t), func(c *bedsql.Config) {
		c.Storage = &hookedStorage{Storage: c.Storage, onAdd: func(units []*txlog.Unit) error {
			logged = append(logged, len(units[0].Statements))
			return nil
		}}
	})
	r.account(1, 2, 3)
	conn := r.conn()
	r.must(conn, "SAVEPOINT outermost")
	r.must(conn, setBalance, 10, 1)
	r.must(conn, "SAVEPOINT b")
	r.must(conn, setBalance, 20, 2)
	r.must(conn, "ROLLBACK TO b")
	r.must(conn, "RELEASE b")
	r.must(conn, setBalance, 30, 3)
	if len(logged) != 0 {
		t.Errorf("units of %v statements were logged and called delivered inside an open transaction", logged)
	}
	r.wantBalances(1, 2, 3)
	r.must(conn, "RELEASE outermost")
	r.wantBalances(10, 2, 30)
	if len(logged) != 1 || logged[0] != 2 {
		t.Errorf("units of %v statements were logged, want one of 2", logged)
	}
	r.must(conn, "SAVEPOINT a")
	r.must(conn, setBalance, 11, 1)
	r.must(conn, "ROLLBACK")
	r.must(conn, setBalance, 21, 2)
	r.wantBalances(10, 21, 30)
	r.wantNoLog()
}

// A COMMIT that the caller's context forbade at the last moment is not sent,
// and the connection does not go back to the pool with its transaction.
func TestACommitAsTextUnderAnEndedContextLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		ctx, end := context.WithCancel(context.Background())
		defer end()
		r := newRig(t, db, func(c *bedsql.Config) {
			c.Storage = &hookedStorage{Storage: c.Storage, afterAdd: end}
		})
		r.wrapped.SetMaxOpenConns(1)
		r.account(1)
		conn := r.conn()
		r.must(conn, "BEGIN")
		r.must(conn, setBalance, 10, 1)
		_, err := conn.ExecContext(ctx, "COMMIT")
		wantPending(t, err)
		_ = conn.Close()
		r.wantBalances(1)
		// Outside of any transaction, so that others see it.
		if _, err := r.wrapped.ExecContext(bedsql.Skip(context.Background()), r.q(setBalance), 5, 1); err != nil {
			t.Fatal(err)
		}
		r.wantBalances(5)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job's round: %v", report)
		}
		r.wantBalances(10)
		r.wantNoLog()
	})
}
