package testproxy

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

// servers are the databases that a proxy can precede.
func servers(t *testing.T, f func(t *testing.T, db testdb.DB, direct *sql.DB)) {
	for driver, fresh := range map[string]func(testing.TB) testdb.DB{"mysql": testdb.MySQL, "postgres": testdb.Postgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db := fresh(t)
			direct := db.Open(t)
			if _, err := direct.Exec("CREATE TABLE orders (id INT PRIMARY KEY)"); err != nil {
				t.Fatal(err)
			}
			f(t, db, direct)
		})
	}
}

func rows(t *testing.T, direct *sql.DB) (n int) {
	t.Helper()
	if err := direct.QueryRow("SELECT count(*) FROM orders").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// commit inserts a row in a transaction and says whether it came as far as COMMIT.
func commit(pool *sql.DB, insert string) (sent bool, err error) {
	tx, err := pool.Begin()
	if err != nil {
		return false, err
	}
	// After a lost COMMIT it does nothing but end the transaction's goroutine.
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(insert); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

const (
	insertFirst  = "INSERT INTO orders VALUES (1)"
	insertSecond = "INSERT INTO orders VALUES (2)"
)

func TestCommitCutAfterSendingIsApplied(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		pool := db.Via(p.Addr()).Open(t)
		p.CutAfter(Text("COMMIT"))
		if sent, err := commit(pool, insertFirst); !sent || err == nil {
			t.Errorf("COMMIT sent: %v, the client's error: %v; want it sent and an error", sent, err)
		}
		if n := rows(t, direct); n != 1 {
			t.Errorf("%d rows, want the committed one", n)
		}
		if _, err := commit(pool, insertSecond); err != nil {
			t.Errorf("the next transaction, through a new connection: %v", err)
		}
	})
}

func TestFaultsSpareErasedReceiptsOnRequest(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		if _, err := direct.Exec("CREATE TABLE bed_receipt (id INT)"); err != nil {
			t.Fatal(err)
		}
		p := New(t, db.Addr())
		p.SpareErasing()
		pool := db.Via(p.Addr()).Open(t)
		p.CutAfter(Text("COMMIT"))
		tx, err := pool.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("DELETE FROM bed_receipt WHERE id = "+map[bool]string{true: "?", false: "$1"}[db.Driver == testdb.DriverMySQL], 1); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Errorf("the fault struck where receipts are erased: %v", err)
		}
		if sent, err := commit(pool, insertFirst); !sent || err == nil {
			t.Errorf("COMMIT sent: %v, the client's error: %v; want it sent and an error", sent, err)
		}
	})
}

func TestCommitCutBeforeSendingIsNotApplied(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		p.CutBefore(Text("COMMIT"))
		if sent, err := commit(db.Via(p.Addr()).Open(t), insertFirst); !sent || err == nil {
			t.Errorf("COMMIT sent: %v, the client's error: %v; want it sent and an error", sent, err)
		}
		if n := rows(t, direct); n != 0 {
			t.Errorf("%d rows, want none", n)
		}
	})
}

func TestAHeldCommitIsAppliedWhenReleased(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		pool := db.Via(p.Addr()).Open(t)
		reached, release := p.Hold(Text("COMMIT"))
		committed := make(chan error, 1)
		go func() {
			_, err := commit(pool, insertFirst)
			committed <- err
		}()
		<-reached
		if n := rows(t, direct); n != 0 {
			t.Errorf("%d rows before COMMIT arrived", n)
		}
		release()
		if err := <-committed; err != nil {
			t.Error(err)
		}
		if n := rows(t, direct); n != 1 {
			t.Errorf("%d rows after COMMIT, want 1", n)
		}
	})
}

func TestCutExecuteWithArgumentsIsApplied(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		pool := db.Via(p.Addr()).Open(t)
		query, match := "INSERT INTO orders VALUES (?)", MySQLExecute
		if db.Driver == testdb.DriverPostgres {
			query, match = "INSERT INTO orders VALUES ($1)", PostgresExecute
		}
		p.CutAfter(match)
		if _, err := pool.Exec(query, 1); err == nil {
			t.Error("the client learnt that it succeeded")
		}
		if n := rows(t, direct); n != 1 {
			t.Errorf("%d rows, want the inserted one", n)
		}
	})
}

// refusal is a possible error of the server for a command.
func refusal(driver string) []byte {
	if driver == testdb.DriverPostgres {
		return PostgresError("57P01", "not now", 'T')
	}
	return MySQLError(1047, "08S01", "not now")
}

func TestAnsweredCommitLeavesItsTransactionOpen(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		conn, err := db.Via(p.Addr()).Open(t).Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exec := func(text string) error {
			_, err := conn.ExecContext(t.Context(), text)
			return err
		}
		for _, text := range []string{"BEGIN", insertFirst} {
			if err := exec(text); err != nil {
				t.Fatal(err)
			}
		}
		p.Answer(Text("COMMIT"), refusal(db.Driver))
		if err := exec("COMMIT"); err == nil || !strings.Contains(err.Error(), "not now") {
			t.Errorf("COMMIT: %v", err)
		}
		if n := rows(t, direct); n != 0 {
			t.Errorf("%d rows after a COMMIT that the server never saw", n)
		}
		if err := errors.Join(exec("COMMIT"), conn.Close()); err != nil {
			t.Error(err)
		}
		if n := rows(t, direct); n != 1 {
			t.Errorf("%d rows after the second COMMIT", n)
		}
	})
}

func TestReplacedMessageRunsInstead(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		query := MySQLQuery
		if db.Driver == testdb.DriverPostgres {
			query = func(text string) []byte { return postgresMessage('Q', text+"\x00") }
		}
		p.Replace(Text("COMMIT"), query("ROLLBACK"), refusal(db.Driver))
		pool := db.Via(p.Addr()).Open(t)
		if sent, err := commit(pool, insertFirst); !sent || err == nil || !strings.Contains(err.Error(), "not now") {
			t.Errorf("COMMIT sent: %v, error %v", sent, err)
		}
		if n := rows(t, direct); n != 0 {
			t.Errorf("%d rows after a ROLLBACK", n)
		}
	})
}

func TestAMutedConnectionStaysOpenAndIsSilent(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		struck := p.Mute(Text("INSERT"))
		ctx, cancel := context.WithCancel(t.Context())
		pool := db.Via(p.Addr()).Open(t)
		go func() {
			<-struck
			for rows(t, direct) == 0 {
			}
			cancel()
		}()
		if _, err := pool.ExecContext(ctx, insertFirst); !errors.Is(err, context.Canceled) {
			t.Errorf("the client heard %v, want nothing", err)
		}
	})
}

func TestHoldRunHoldsExecutionNotPreparation(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, db testdb.DB, direct *sql.DB) {
		p := New(t, db.Addr())
		reached, release := p.HoldRun("INSERT INTO orders")
		pool := db.Via(p.Addr()).Open(t)
		text := "INSERT INTO orders VALUES (?)"
		if db.Driver == testdb.DriverPostgres {
			text = "INSERT INTO orders VALUES ($1)"
		}
		stmt, err := pool.Prepare(text)
		if err != nil {
			t.Fatal(err)
		}
		defer stmt.Close()
		select {
		case <-reached:
			t.Fatal("it was held when it was prepared")
		default:
		}
		ended := make(chan error, 1)
		go func() {
			_, err := stmt.Exec(1)
			ended <- err
		}()
		<-reached
		if n := rows(t, direct); n != 0 {
			t.Errorf("%d rows, want none before it is released", n)
		}
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := rows(t, direct); n != 1 {
			t.Errorf("%d rows, want the one", n)
		}
	})
}
