package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestAtomicIsAllOrNothing(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10), (2, 20)",
			"CREATE TABLE later (id int REFERENCES stock DEFERRABLE INITIALLY DEFERRED)")
		good := []dialect.Call{
			receipt("r1"),
			call("UPDATE stock SET n = n + $1 WHERE id = $2 -- comment", int64(1), int64(1)),
			call("INSERT INTO stock VALUES ($1, $2) RETURNING id, n;", int64(3), int64(30)),
			call("DELETE FROM stock WHERE id = 2"),
			call("INSERT INTO later VALUES (1)"),
		}
		bad := []dialect.Call{
			{},
			call("UPDATE stock SET n = n - $1 WHERE id = $2 RETURNING n", int64(1000), int64(1)),
			call("INSERT INTO stock VALUES ($1, $2)", int64(1), int64(31)),
			call("DELETE FROM stock WHERE id = 2 AND nothing = 1"),
			call("INSERT INTO later VALUES (9)"), // fails at the implicit commit
		}
		classes := []dialect.Class{0, dialect.Refused, dialect.Duplicate, dialect.Refused, dialect.Refused}
		for i := 1; i < len(good); i++ {
			calls := append([]dialect.Call(nil), good...)
			calls[i] = bad[i]
			_, err := e.atomic(calls...)
			classIs(t, fmt.Sprintf("call %d fails", i), err, classes[i])
			if _, ok := err.(*pgconn.PgError); !ok {
				t.Errorf("%T is not the driver's error", err)
			}
			if isReceiptDuplicate(err, "r") || isReceiptBusy(err) {
				t.Errorf("%v is said to be the receipt's", err)
			}
			e.inState('I')
			e.is("SELECT COUNT(*) FROM bed_receipt", 0)
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 32)
		}
		for range 2 {
			results, err := e.atomic(good...)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if n, err := r.RowsAffected(); n != 1 || err != nil {
					t.Errorf("call %d: %d rows, %v", i, n, err)
				}
				if _, err := r.LastInsertId(); err == nil {
					t.Error("there is an id, which pgx gives none of")
				}
			}
			e.inState('I')
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
			e.is("SELECT COUNT(*) FROM bed_receipt WHERE id = 'r1' AND keep_until = 1001 AND result IS NULL", 1)

			_, err = e.atomic(good...)
			classIs(t, "the receipt is there", err, dialect.Duplicate)
			if !isReceiptDuplicate(err, "r") || isReceiptBusy(err) {
				t.Errorf("%v is not said to be the receipt's duplicate", err)
			}
			e.inState('I')
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
			// This repeats it with all descriptions known.
			must(t, e.c, "DELETE FROM later; DELETE FROM bed_receipt; DELETE FROM stock; INSERT INTO stock VALUES (1, 10), (2, 20)")
		}
	})
}

func TestAtomicAnswersAsTheDriverDoes(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		tables := []string{stock, "INSERT INTO stock VALUES (1, 10), (2, 20)", "CREATE TABLE v (t timestamptz, j jsonb, a int[], s text, b bytea, f float8, n numeric, o bool, u uuid)"}
		bare, e := receiptful(t, db, "", mode, tables...), receiptful(t, db, "", mode, tables...)
		now := time.Date(2024, 2, 29, 1, 2, 3, 456789000, time.UTC)
		for i, c := range []dialect.Call{
			call("UPDATE stock SET n = n + 1"),
			call("UPDATE stock SET n = n + $1", int64(1)),
			call("UPDATE stock SET n = n WHERE id = $1", int64(99)),
			call("INSERT INTO stock SELECT id + $1, n + $2 FROM stock", int64(100), 1000),
			call("INSERT INTO stock VALUES ($1, $2) ON CONFLICT DO NOTHING", int64(1), int64(5)),
			call("WITH gone AS (DELETE FROM stock WHERE id > $1 RETURNING *) INSERT INTO stock SELECT id - 100, n FROM gone WHERE id > 102", int64(100)),
			call("MERGE INTO stock USING (VALUES (1), (7)) AS s (id) ON s.id = stock.id WHEN MATCHED THEN UPDATE SET n = n + 50 WHEN NOT MATCHED THEN INSERT VALUES (s.id, 70)"),
			call("INSERT INTO v VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING *", now, `{"a": [1, "it's"]}`, []int32{1, 2, 3}, "é'\\?$1;--", []byte{0, 255}, 0.1, "12345678901234567890.5", true, "0f0e0d0c-0b0a-0908-0706-050403020100"),
			call("INSERT INTO v (s, b) VALUES ($1, $2)", nil, nil),
			call("DELETE FROM stock"),
		} {
			if !testdb.Knows(t, e.direct, c.SQL) {
				continue
			}
			results, handled, err := atomicOn(t, e.c, receipt(fmt.Sprint("r", i)), c)
			if !handled || err != nil {
				t.Errorf("%s: handled %t, %v", c.SQL, handled, err)
				continue
			}
			want, err := bare.c.ExecContext(context.Background(), c.SQL, values(c.Args)...)
			if err != nil {
				t.Fatalf("%s: %v", c.SQL, err)
			}
			rows, _ := results[1].RowsAffected()
			if wantRows, _ := want.RowsAffected(); rows != wantRows {
				t.Errorf("%s: %d rows, the driver's are %d", c.SQL, rows, wantRows)
			}
			for _, query := range []string{"SELECT coalesce(string_agg(stock::text, ' ' ORDER BY id), '') FROM stock", "SELECT coalesce(string_agg(v::text, ' ' ORDER BY s), '') FROM v"} {
				var got, want string
				if err := errors.Join(e.c.QueryRowContext(context.Background(), query).Scan(&got), bare.c.QueryRowContext(context.Background(), query).Scan(&want)); err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s: the tables hold %s, want %s", c.SQL, got, want)
				}
			}
		}
	})
}

func TestAtomicArgumentsThatDoNotFitCostNothing(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock)
		const text = "INSERT INTO stock VALUES ($1, $2)"
		for _, args := range [][]any{{int64(1)}, {int64(1), int64(2), int64(3)}, {int64(1), "x"}, {int64(1), struct{ A chan int }{}}, {int64(1), int64(1 << 40)}, {int64(1), []byte(nil)}} {
			_, want := e.c.ExecContext(context.Background(), text, args...)
			_, err := e.atomic(receipt("r"), call(text, args...))
			classIs(t, fmt.Sprint(args...), err, dialect.Refused)
			if len(args) > 1 && err.Error() != want.Error() {
				t.Errorf("%v, the driver's is %v", err, want)
			}
			e.inState('I')
		}
		if _, err := e.atomic(receipt("r"), call(text, int64(1), int64(2))); err != nil {
			t.Error(err)
		}
		e.is("SELECT COUNT(*) FROM bed_receipt", 1)
	})
}

func TestAtomicLeavesAloneWhatPgxReadsOtherwise(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock)
		for _, c := range []dialect.Call{
			call("INSERT INTO stock VALUES ($1, $2)", pgx.QueryExecModeExec, int64(1), int64(2)),
			call("INSERT INTO stock VALUES (@id, @n)", pgx.NamedArgs{"id": 1, "n": 2}),
			call("INSERT INTO stock VALUES ($1, $2)", pgx.QueryResultFormats{0}, int64(1), int64(2)),
		} {
			if _, handled, err := atomicOn(t, e.c, receipt("r"), c); handled || err != nil {
				t.Errorf("%s: handled %t, %v", c.SQL, handled, err)
			}
		}
		for _, text := range []string{"INSERT INTO stock VALUES (1, 1); DELETE FROM stock", "INSERT INTO stock VALUES (1, 'x", "COMMIT"} {
			_, handled, err := atomicOn(t, e.c, receipt("r"), call(text))
			if handled && text != "COMMIT" {
				classIs(t, text, err, dialect.Refused)
			}
			must(t, e.c, "DELETE FROM bed_receipt")
		}
		must(t, e.c, "BEGIN")
		if _, handled, err := atomicOn(t, e.c, receipt("r")); handled || err != nil {
			t.Errorf("inside a transaction it was handled: %v", err)
		}
		must(t, e.c, "COMMIT")
		e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	})
	simple := receiptful(t, testdb.Postgres(t), "", pgx.QueryExecModeSimpleProtocol, stock)
	if _, handled, err := atomicOn(t, simple.c, receipt("r"), call("INSERT INTO stock VALUES ($1, $2)", int64(1), int64(2))); handled || err != nil {
		t.Errorf("in the simple protocol it was handled: %v", err)
	}
	if _, handled, err := atomic(context.Background(), otherConn{}, []dialect.Call{receipt("r")}); handled || err != nil {
		t.Errorf("another driver's connection was handled: %v", err)
	}
}

type otherConn struct{ driver.Conn }

func TestSecondReceiptWriterWaitsAndFindsIt(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)")
		other := conn(t, e.pool)
		must(t, other, "BEGIN", lockReceipt)
		var pid int64
		if err := e.c.QueryRowContext(context.Background(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, _, err := atomicOn(t, e.c, receipt("r"), call("UPDATE stock SET n = n - 1"))
			done <- err
		}()
		sessions.AwaitLock(t, e.pool, pid)
		must(t, other, "COMMIT")
		if err := <-done; !isReceiptDuplicate(err, "r") {
			t.Errorf("the second writer got %v", err)
		}
		e.inState('I')
		e.is("SELECT n FROM stock", 10)
	})
}

func TestManyWritersOfOneReceiptApplyItOnce(t *testing.T) {
	t.Parallel()
	e := receiptful(t, testdb.Postgres(t), "", pgx.QueryExecModeCacheStatement, stock, "INSERT INTO stock VALUES (1, 0)")
	var wg sync.WaitGroup
	for range 4 {
		c := conn(t, e.pool)
		wg.Go(func() {
			for i := range 50 {
				_, handled, err := atomicOn(t, c, receipt(fmt.Sprint("r", i)), call("UPDATE stock SET n = n + 1 WHERE id = $1", int64(1)))
				if !handled || err != nil && !isReceiptDuplicate(err, "r") {
					t.Errorf("handled %t: %v", handled, err)
				}
			}
		})
	}
	wg.Wait()
	e.is("SELECT n FROM stock", 50)
	e.is("SELECT COUNT(*) FROM bed_receipt", 50)
}

func TestReceiptWaitIsDistinguishedFromRowWait(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
		must(t, e.c, "SET lock_timeout = '100ms'")
		other := conn(t, e.pool)
		must(t, other, "BEGIN", lockReceipt, "UPDATE stock SET n = 21 WHERE id = 2")
		_, err := e.atomic(receipt("r"), call("UPDATE stock SET n = n - 1 WHERE id = 1"))
		classIs(t, "the receipt is locked", err, dialect.Contention)
		var server *pgconn.PgError
		if !isReceiptBusy(err) || !errors.As(err, &server) || server.Code != "55P03" {
			t.Errorf("%v is not said to be met on the receipt", err)
		}
		e.inState('I')
		_, err = e.atomic(receipt("r2"), call("UPDATE stock SET n = n - 1 WHERE id = 2"))
		classIs(t, "the row is locked", err, dialect.Contention)
		if isReceiptBusy(err) {
			t.Errorf("%v is said to be met on the receipt", err)
		}
		must(t, e.c, "BEGIN", "UPDATE stock SET n = 11 WHERE id = 1")
		if _, err = e.commitWith(receipt("r")); !isReceiptBusy(err) {
			t.Errorf("%v, met by a COMMIT, is not said to be met on the receipt", err)
		}
		e.inState('E')
		must(t, e.c, "ROLLBACK")
		must(t, other, "ROLLBACK")
		e.is("SELECT n FROM stock WHERE id = 1", 10)
		e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	})
}

func TestCommitWith(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)",
			"CREATE TABLE later (id int REFERENCES stock DEFERRABLE INITIALLY DEFERRED)")
		must(t, e.c, "BEGIN", "UPDATE stock SET n = 11")
		if handled, err := e.commitWith(receipt("r"), call("UPDATE bed_receipt SET result = $1 WHERE id = $2", `{"rows": 1, "s": "it's"}`, "r")); err != nil || !handled {
			t.Fatal(handled, err)
		}
		e.inState('I')
		e.is("SELECT n FROM stock", 11)
		e.is("SELECT COUNT(*) FROM bed_receipt WHERE result IS NOT NULL", 1)

		must(t, e.c, "BEGIN", "UPDATE stock SET n = 12")
		if _, err := e.commitWith(receipt("r2"), receipt("r")); !isReceiptDuplicate(err, "r") {
			t.Errorf("the receipt is there: %v", err)
		}
		e.inState('E')
		must(t, e.c, "ROLLBACK", "BEGIN", "UPDATE stock SET n = 12", "INSERT INTO later VALUES (9)")
		_, err := e.commitWith(receipt("r3"))
		classIs(t, "a deferred constraint", err, dialect.Refused)
		e.inState('I')

		must(t, e.c, "BEGIN", "UPDATE stock SET n = 12")
		if _, err := e.c.ExecContext(context.Background(), "SELECT 1 / 0"); err == nil {
			t.Fatal("no error")
		}
		_, err = e.commitWith(receipt("r4"))
		classIs(t, "the transaction is aborted", err, dialect.Retryable)
		e.inState('E')
		must(t, e.c, "ROLLBACK")

		_, err = e.commitWith(receipt("r5"))
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("no transaction is open: %v", err)
		}
		classIs(t, "no transaction is open", err, dialect.Refused)
		e.is("SELECT n FROM stock", 11)
		e.is("SELECT COUNT(*) FROM bed_receipt", 1)
	})
}

// The result of the driver's BeginTx is simply dropped.
// COMMIT is not reached after a call that changed too few rows, and the errors of entries are marked.
func TestCommitWithCountsRows(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
		writes := func(text string, n int64) error {
			must(t, e.c, "BEGIN", "UPDATE stock SET n = n + 1 WHERE id = 1")
			c := call(text)
			c.Required, c.Entries = entry.Exactly(n), "SELECT 1 FROM stock WHERE id = 3"
			handled, err := e.commitWith(c)
			if !handled {
				t.Fatal("not handled")
			}
			if err != nil {
				must(t, e.c, "ROLLBACK")
			}
			return err
		}
		for text, n := range map[string]int64{"INSERT INTO stock SELECT 3, 0 WHERE false": 1, "INSERT INTO stock VALUES (3, 0)": 2} {
			err := writes(text, n)
			var unmet *dialect.RowsError
			if !errors.As(err, new(*dialect.EntriesError)) || !errors.As(err, &unmet) || unmet.Got != n-1 {
				t.Errorf("%s says %v", text, err)
			}
		}
		if err := writes("INSERT INTO missing VALUES (2, 0)", 1); !errors.As(err, new(*dialect.EntriesError)) {
			t.Errorf("a missing table says %v", err)
		}
		e.is("SELECT SUM(n) FROM stock", 30)
		if err := writes("INSERT INTO stock VALUES (3, 0)", 1); err != nil {
			t.Error(err)
		}
		e.is("SELECT SUM(n) FROM stock", 31)
	})
}

func TestCommitWithAfterADriversTransaction(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		e := receiptful(t, db, "", mode, stock, "INSERT INTO stock VALUES (1, 10)")
		for i := range 3 {
			raw(t, e.c, func(dc driver.Conn) {
				tx, err := attempt.BeginTx(context.Background(), dc, driver.TxOptions{Isolation: driver.IsolationLevel(sql.LevelSerializable)})
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := attempt.Exec(context.Background(), dc, "UPDATE stock SET n = n + 1", nil); err != nil {
					t.Fatal(err)
				}
				if _, err := postgresDialect.CommitWith(context.Background(), dc, []dialect.Call{receipt(fmt.Sprint("r", i/2))}); (err != nil) != (i == 1) {
					t.Fatal(i, err)
				} else if err != nil {
					if err := tx.Rollback(); err != nil {
						t.Fatal(err)
					}
				}
				if err := dc.(driver.SessionResetter).ResetSession(context.Background()); err != nil {
					t.Errorf("the pool would drop it: %v", err)
				}
			})
			e.inState('I')
		}
		e.is("SELECT n FROM stock", 12)
	})
}

func TestAtomicIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode) {
		proxy := testproxy.New(t, db.Addr())
		e := receiptful(t, db, proxy.Addr(), mode, stock, "INSERT INTO stock VALUES (1, 10)")
		update := call("UPDATE stock SET n = n + $1", int64(1))
		if _, err := e.atomic(receipt("first"), update); err != nil {
			t.Fatal(err)
		}
		want := 1
		if mode == pgx.QueryExecModeDescribeExec {
			want = 2 // this mode asks for the description each time
		}
		n := proxy.Count(func([]byte) bool { return true })
		if _, err := e.atomic(receipt("r"), update, call("UPDATE stock SET n = n + 1")); err != nil {
			t.Fatal(err)
		}
		if got := n(); got != want {
			t.Errorf("%d messages, want %d", got, want)
		}
		must(t, e.c, "BEGIN")
		n = proxy.Count(func([]byte) bool { return true })
		if _, err := e.commitWith(receipt("r2")); err != nil {
			t.Fatal(err)
		}
		if got := n(); got != want {
			t.Errorf("COMMIT: %d messages, want %d", got, want)
		}
	})
}

func TestReceiptsDuplicateIsToldByItsConstraint(t *testing.T) {
	t.Parallel()
	e := receiptful(t, testdb.Postgres(t), "", pgx.QueryExecModeCacheStatement, "CREATE TABLE d (bed_receipt text CONSTRAINT d_bed_receipt_id UNIQUE)", "INSERT INTO d VALUES ('bed_receipt_id')",
		"CREATE SCHEMA other", "CREATE TABLE other.mine (id int, CONSTRAINT bed_receipt_id UNIQUE (id))", "INSERT INTO other.mine VALUES (1)")
	for _, text := range []string{"INSERT INTO d VALUES ('bed_receipt_id')", "INSERT INTO other.mine VALUES (1)"} {
		_, err := e.c.ExecContext(context.Background(), text)
		classIs(t, text, err, dialect.Duplicate)
		if isReceiptDuplicate(err, "r") {
			t.Errorf("%v is said to be the receipt's", err)
		}
	}
	for range 2 {
		_, err := e.c.ExecContext(context.Background(), lockReceipt)
		if err != nil && !isReceiptDuplicate(err, "r") {
			t.Errorf("%v is not said to be the receipt's", err)
		}
	}
	if isReceiptDuplicate(errors.New("x"), "r") || isReceiptBusy(errors.New("x")) {
		t.Error("another error is said to be the receipt's")
	}
}
