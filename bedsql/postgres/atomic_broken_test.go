package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestCommitAnsweredByRollbackIsAnError(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode)
		must(t, e.c, "BEGIN")
		if _, err := e.c.ExecContext(context.Background(), "SELECT 1 / 0"); err == nil {
			t.Fatal("no error")
		}
		handled, err := e.commitWith()
		if !handled || !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("handled %t, %v", handled, err)
		}
		classIs(t, "ROLLBACK", err, dialect.Retryable)
		e.inState('I')
	})
}

// carriesReceipt matches messages with the values of a receipt.
func carriesReceipt(message []byte) bool {
	return strings.Contains(string(message), "\x00\x04unit") || strings.Contains(string(message), "'unit'")
}

func TestAtomicWhoseConnectionBreaksIsInDoubt(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		proxy := testproxy.New(t, db.Addr())
		e := receiptful(t, db, proxy.Addr(), mode, stock, "INSERT INTO stock VALUES (1, 10)")
		around := conn(t, e.direct)
		for _, applied := range []bool{false, true} {
			for _, commit := range []bool{false, true} {
				must(t, around, "DELETE FROM bed_receipt; UPDATE stock SET n = 10")
				e.c = conn(t, e.pool)
				if commit {
					must(t, e.c, "BEGIN", "UPDATE stock SET n = n - 1")
				}
				strike := proxy.CutBefore
				if applied {
					strike = proxy.CutAfter
				}
				strike(carriesReceipt)
				update := call("UPDATE stock SET n = n - $1", int64(1))
				var err error
				if commit {
					_, err = e.commitWith(receipt("r"))
				} else {
					_, _, err = atomicOn(t, e.c, receipt("r"), update)
				}
				classIs(t, "cut", err, dialect.Unknown)
				_, handled, err := atomicOn(t, e.c, receipt("r"), update)
				if !handled {
					t.Error("a closed connection was not handled")
				}
				classIs(t, "closed", err, dialect.Unreachable)
				e.c = around
				want := int64(0)
				if applied {
					want = 1
				}
				e.is("SELECT COUNT(*) FROM bed_receipt", want)
				e.is("SELECT n FROM stock", 10-want)
			}
		}
	})
}

func TestPrepareThatBreaksSentNothing(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	for _, mode := range modes[:3] {
		proxy := testproxy.New(t, db.Addr())
		e := receiptful(t, db, proxy.Addr(), mode, stock)
		proxy.CutAfter(testproxy.Text("bed_receipt"))
		_, _, err := atomicOn(t, e.c, receipt("r"), call("UPDATE stock SET n = n - $1", int64(1)))
		classIs(t, "cut while preparing", err, dialect.Unreachable)
	}
}

func TestAtomicEndedByItsContext(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)")
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		update := call("UPDATE stock SET n = n - $1", int64(1))
		raw(t, e.c, func(dc driver.Conn) {
			_, _, err := postgresDialect.Atomic(ended, dc, []dialect.Call{receipt("r"), update})
			classIs(t, "ended before", err, dialect.Unreachable)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		e.inState('I')
		other := conn(t, e.pool)
		must(t, other, "BEGIN", "UPDATE stock SET n = 5")
		pid := sessions.SessionID(t, e.c)
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		done := make(chan error, 1)
		go func() {
			raw(t, e.c, func(dc driver.Conn) {
				_, _, err := postgresDialect.Atomic(ctx, dc, []dialect.Call{receipt("r"), update})
				done <- err
			})
		}()
		sessions.AwaitLock(t, e.pool, pid)
		leave()
		err := <-done
		classIs(t, "ended while it ran", err, dialect.Unknown)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		must(t, other, "ROLLBACK")
	})
}

func TestSessionThatIsTerminatedIsInDoubt(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)")
		var pid int64
		if err := e.c.QueryRowContext(context.Background(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		other := conn(t, e.pool)
		must(t, other, "BEGIN", lockReceipt)
		done := make(chan error, 1)
		go func() {
			_, _, err := atomicOn(t, e.c, receipt("r"), call("UPDATE stock SET n = n - $1", int64(1)))
			done <- err
		}()
		sessions.AwaitLock(t, e.pool, pid)
		must(t, e.pool, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
		classIs(t, "terminated", <-done, dialect.Unknown)
		must(t, other, "ROLLBACK")
	})
}

// The test runs more texts than the cache holds, and changes the type of a column under a cached
// description.
func TestDescriptionsAreRenewed(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	for _, mode := range modes[:2] {
		e := receiptful(t, db, "", mode, "CREATE TABLE w (n int, s text)")
		cfg := config(t, db)
		cfg.RuntimeParams["search_path"] = e.name
		cfg.DefaultQueryExecMode, cfg.StatementCacheCapacity, cfg.DescriptionCacheCapacity = mode, 3, 3
		e.c = conn(t, open(t, cfg))
		for round := range 3 {
			for i := range 6 {
				text := fmt.Sprintf("INSERT INTO w (n, s) VALUES ($1, $2) RETURNING n + %d", i)
				if _, err := e.atomic(receipt(fmt.Sprint(round, "-", i)), call(text, int64(i), "x"), call("UPDATE w SET n = n + $1", int64(0))); err != nil {
					t.Fatal(err)
				}
			}
		}
		raw(t, e.c, func(dc driver.Conn) {
			s, _, _ := openSession(dc, []dialect.Call{receipt("")})
			if len(s.statements) != 3 {
				t.Errorf("%d descriptions are kept", len(s.statements))
			}
		})
		if mode == pgx.QueryExecModeCacheStatement {
			e.is("SELECT CASE WHEN COUNT(*) <= 6 THEN 1 ELSE COUNT(*) END FROM pg_prepared_statements WHERE name LIKE 'bed\\_%'", 1)
		}
		wide := call("INSERT INTO w (n, s) VALUES ($1, $2) RETURNING *", int64(1), "x")
		if _, err := e.atomic(receipt("before"), wide); err != nil {
			t.Fatal(err)
		}
		must(t, e.c, "ALTER TABLE w ALTER n TYPE bigint")
		wide.Args[0].Value = int64(1 << 40)
		_, err := e.atomic(receipt("after"), wide)
		classIs(t, "an old description", err, dialect.Refused)
		if _, err := e.atomic(receipt("after"), wide); err != nil {
			t.Errorf("the description was not renewed: %v", err)
		}
		must(t, e.c, "ALTER TABLE w ADD more int", "DEALLOCATE ALL")
		for try := 0; ; try++ {
			_, err := e.atomic(receipt("discarded"), wide)
			if err == nil {
				break
			}
			if try == 2 {
				t.Fatalf("it does not recover: %v", err)
			}
			classIs(t, "an old plan", err, dialect.Retryable)
		}
	}
}
