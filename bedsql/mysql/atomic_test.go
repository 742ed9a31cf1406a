package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// exactlyOnce is a database with the table of receipts and one connection to
// it.
type exactlyOnce struct {
	t      *testing.T
	target testdb.DB
	pool   *sql.DB
	d      *delivery.Dialect
	c      *sql.Conn
}

// receiptful makes the tables of a test. The test is skipped on a server that
// has no compound statements.
func receiptful(t *testing.T, param string, texts ...string) *exactlyOnce {
	t.Helper()
	target := testdb.MySQL(t)
	return receiptfulOn(t, target, target, param, texts...)
}

func receiptfulOn(t *testing.T, direct, target testdb.DB, param string, texts ...string) *exactlyOnce {
	t.Helper()
	ddl, err := attempt.ReceiptSchema(name)
	if err != nil {
		t.Fatal(err)
	}
	pool := direct.Open(t)
	var version string
	if err := pool.QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if !runsCompounds(version) {
		t.Skipf("%s has no compound statements outside of procedures", version)
	}
	must(t, pool, append([]string{ddl}, texts...)...)
	d := newDialect()
	param, prepared := strings.CutPrefix(param, asPrepared)
	if prepared {
		d = preparing()
	}
	if param = strings.TrimPrefix(param, "&"); param != "" {
		target.DSN = withParam(target.DSN, param)
	}
	pool = target.Open(t)
	e := &exactlyOnce{t: t, target: target, pool: pool, d: d, c: conn(t, pool)}
	e.greet()
	return e
}

func (e *exactlyOnce) greet() {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) {
		if _, err := e.d.Greet(e.t.Context(), dc); err != nil {
			e.t.Fatal(err)
		}
	})
}

// asPrepared, in front of the DSN's parameters, lets calls be run prepared from
// their first use on.
const asPrepared = "prepared"

// preparing is a dialect that keeps a session with each connection.
func preparing() *delivery.Dialect {
	d := dialectOf(&compounds{prepareFrom: 1})
	var sessions sync.Map
	atomic := d.Atomic
	d.Atomic = func(ctx context.Context, conn driver.Conn, calls []delivery.Call) ([]driver.Result, bool, error) {
		s, _ := sessions.LoadOrStore(conn, &attempt.Session{Conn: conn})
		return atomic(ctx, s.(*attempt.Session), calls)
	}
	return d
}

// bothWays runs a test with calls that are sent as they are, and prepared.
func bothWays(t *testing.T, test func(t *testing.T, way string)) {
	t.Parallel()
	for _, way := range []string{"", asPrepared} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

func call(text string, args ...any) delivery.Call {
	c := delivery.Call{SQL: text}
	for i, v := range args {
		c.Args = append(c.Args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c
}

const writeReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result) VALUES (?, ?, ?, ?, 1, 1 + ?, ?, ?)`

const writePlainReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, 1, creation_time + ?)`

func receipt(id string) delivery.Call { return plainReceipt(id, "log", 1000) }

func plainReceipt(id, log string, keep int64) delivery.Call {
	c := call(writePlainReceipt, id, "unit", log, keep)
	c.Fixed = 2
	return c
}

func raw(t *testing.T, c *sql.Conn, f func(driver.Conn)) {
	t.Helper()
	if err := c.Raw(func(dc any) error {
		f(dc.(driver.Conn))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func atomicOn(t *testing.T, d *delivery.Dialect, c *sql.Conn, calls ...delivery.Call) (results []driver.Result, handled bool, err error) {
	t.Helper()
	raw(t, c, func(dc driver.Conn) { results, handled, err = d.Atomic(context.Background(), dc, calls) })
	return results, handled, err
}

func (e *exactlyOnce) atomic(calls ...delivery.Call) ([]driver.Result, error) {
	e.t.Helper()
	results, handled, err := atomicOn(e.t, e.d, e.c, calls...)
	if !handled {
		e.t.Fatal("the calls were not handled")
	}
	return results, err
}

func (e *exactlyOnce) commitWith(calls ...delivery.Call) (handled bool, err error) {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) { handled, err = e.d.CommitWith(context.Background(), dc, calls) })
	return handled, err
}

func (e *exactlyOnce) int(query string) (n int64) {
	e.t.Helper()
	if err := e.c.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		e.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (e *exactlyOnce) is(query string, want int64) {
	e.t.Helper()
	if got := e.int(query); got != want {
		e.t.Errorf("%s is %d, want %d", query, got, want)
	}
}

func (e *exactlyOnce) settled() {
	e.t.Helper()
	e.is("SELECT @@in_transaction", 0)
}

const stock = "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), UNIQUE KEY only_n (n)) ENGINE=InnoDB"

func TestAtomicIsAllOrNothing(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"", "interpolateParams=true", "clientFoundRows=true", "tx_isolation='SERIALIZABLE'", "tx_isolation='READ-COMMITTED'", "completion_type=1", "autocommit=0", "sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "multiStatements=true",
		"prepared", "prepared&interpolateParams=true", "prepared&tx_isolation='SERIALIZABLE'", "prepared&completion_type=1", "prepared&autocommit=0", "prepared&sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"} {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			e := receiptful(t, param, stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
			good := []delivery.Call{
				receipt("r1"),
				call("UPDATE stock SET n = n + ? WHERE id = ? -- comment", int64(1), int64(1)),
				call("INSERT INTO stock VALUES (?, ?);", int64(3), int64(30)),
				call("DELETE FROM stock WHERE id = 2"),
			}
			bad := []delivery.Call{
				{},
				call("UPDATE stock SET n = n - ? WHERE id = ?", int64(1000), int64(1)),
				call("INSERT INTO stock VALUES (?, ?)", int64(1), int64(31)),
				call("DELETE FROM stock WHERE id = 2 AND nothing = 1"),
			}
			for i := 1; i < len(good); i++ {
				all := append([]delivery.Call(nil), good...)
				all[i] = bad[i]
				for _, calls := range [][]delivery.Call{all, {good[0], bad[i]}} {
					_, err := e.atomic(calls...)
					classes := []delivery.Class{0, delivery.Refused, delivery.Duplicate, delivery.Refused}
					classIs(t, fmt.Sprintf("call %d fails", i), err, classes[i])
					if isReceiptDuplicate(err, "r1") || isReceiptBusy(err) {
						t.Errorf("%v is said to be the receipt's", err)
					}
					e.settled()
					e.is("SELECT COUNT(*) FROM bed_receipt", 0)
					e.is("SELECT SUM(n) + COUNT(*) FROM stock", 32)
				}
			}
			results, err := e.atomic(good...)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if n, err := r.RowsAffected(); n != 1 || err != nil {
					t.Errorf("call %d: %d rows, %v", i, n, err)
				}
			}
			e.settled()
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
			e.is("SELECT COUNT(*) FROM bed_receipt WHERE id = 'r1' AND keep_until = 1001 AND result IS NULL", 1)
			e.settledAfterRead()

			for _, calls := range [][]delivery.Call{good, good[:2]} {
				_, err = e.atomic(calls...)
				classIs(t, "the receipt is there", err, delivery.Duplicate)
				if !isReceiptDuplicate(err, "r1") || isReceiptBusy(err) {
					t.Errorf("%v is not said to be the receipt's duplicate", err)
				}
				e.settled()
				e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
				e.settledAfterRead()
			}
		})
	}
}

// settledAfterRead ends what a read opened where autocommit is off.
func (e *exactlyOnce) settledAfterRead() {
	must(e.t, e.c, "COMMIT AND NO CHAIN")
	e.settled()
}

func TestAtomicAnswersAsTheDriverDoes(t *testing.T) {
	t.Parallel()
	tables := []string{
		"CREATE TABLE a (id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, k INT UNIQUE, s VARCHAR(20))",
		"CREATE TABLE p (id INT PRIMARY KEY, s VARCHAR(20), `Id 2` INT)",
		"CREATE TABLE seq (id INT PRIMARY KEY AUTO_INCREMENT)",
		"CREATE VIEW va AS SELECT * FROM a",
		"CREATE TABLE trg (s VARCHAR(20))",
		"CREATE TRIGGER count_trg AFTER INSERT ON trg FOR EACH ROW INSERT INTO seq VALUES ()",
		"CREATE TRIGGER count_p AFTER UPDATE ON p FOR EACH ROW INSERT INTO seq VALUES ()",
		"INSERT INTO a (id, k, s) VALUES (10, 1, 'x'), (20, 2, 'y'), (30, 3, 'z')",
		"INSERT INTO p VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)",
	}
	cases := []struct {
		text    string
		args    []any
		handled bool
	}{
		{"UPDATE p SET s = 'x'", nil, true},
		{"UPDATE p SET s = ? WHERE id < ?", []any{"w", int64(3)}, true},
		{"UPDATE p SET s = s", nil, true},
		{"update p join a on a.k = p.id set p.s = 'j', a.s = 'j'", nil, true},
		{"/* lead */ DELETE FROM p WHERE id <> 1 # trail", nil, true},
		{"DELETE p, a FROM p JOIN a ON a.k = p.id", nil, true},
		{"INSERT INTO a (k, s) VALUES (?, ?)", []any{int64(7), "é'?"}, true},
		{"INSERT INTO a (s) VALUES ('a;b'), ('?'), ('--')", nil, true},
		{"INSERT a SET s = 'set'", nil, true},
		{"INSERT INTO a () VALUES ()", nil, true},
		{"INSERT IGNORE INTO a (k, s) VALUES (1, 'dup')", nil, true},
		{"INSERT IGNORE INTO a (k, s) VALUES (1, 'dup'), (8, 'new'), (2, 'dup')", nil, true},
		{"INSERT IGNORE INTO a (k, s) VALUES (8, 'new'), (1, 'dup'), (9, 'new')", nil, true},
		{"INSERT INTO a (k, s) SELECT id + 100, s FROM p", nil, true},
		{"INSERT INTO a (k, s) SELECT id, s FROM p WHERE 1 = 0", nil, true},
		{"REPLACE INTO a (k, s) VALUES (1, 'new')", nil, true},
		{"REPLACE INTO a (k, s) VALUES (1, 'new'), (55, 'new')", nil, true},
		{"REPLACE INTO p VALUES (1, 'new', 1)", nil, true},
		{"INSERT INTO p VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE s = VALUES(s)", []any{int64(1), "q", int64(0)}, true},
		{"INSERT INTO p VALUES (1, 'x', 1), (9, 'x', 1) ON DUPLICATE KEY UPDATE s = s", nil, true},
		{"INSERT INTO p VALUES (4, 'x', 1), (5, 'x', 1)", nil, true},
		{"INSERT INTO trg VALUES ('t')", nil, true},
		{"INSERT INTO seq VALUES ()", nil, false},
		{"INSERT INTO seq () VALUES ()", nil, true},
		{"INSERT INTO a (id, s) VALUES (77, 'own')", nil, false},
		{"INSERT INTO a (`ID`, s) VALUES (77, 'own')", nil, false},
		{"INSERT INTO a (a.id, s) VALUES (77, 'own')", nil, false},
		{"INSERT INTO a (s, id) VALUES ('own', NULL)", nil, false},
		{"INSERT INTO a SET s = (SELECT s FROM p WHERE id = 1), id = 9", nil, false},
		{"INSERT INTO a VALUES (78, 78, 'own')", nil, false},
		{"INSERT INTO a SELECT id + 1000, id + 1000, s FROM p", nil, false},
		{"INSERT INTO a (k, s) VALUES (1, 'x') ON DUPLICATE KEY UPDATE s = 'changed'", nil, false},
		{"INSERT INTO va (k, s) VALUES (99, 'view')", nil, false},
		{"INSERT INTO a (s) VALUES ('x') RETURNING id", nil, false},
		{"INSERT INTO p (id, s) VALUES (LAST_INSERT_ID() + 50, 'x')", nil, false},
		{"INSERT INTO p (id, s) VALUES (60, @v)", nil, false},
		{"UPDATE p SET s = 'it\\'s'", nil, false},
		{"UPDATE /*! p */ SET s = 's'", nil, false},
		{"UPDATE p SET s = 'x'; DELETE FROM p", nil, false},
		{"UPDATE p SET s = 'x", nil, false},
		{"UPDATE p SET s = ?", []any{"x", "y"}, false},
		{"CALL nothing()", nil, false},
		{"", nil, false},
	}
	for _, param := range []string{"", "clientFoundRows=true", "interpolateParams=true", "prepared", "prepared&clientFoundRows=true", "prepared&interpolateParams=true"} {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			bare, e := receiptful(t, param, tables...), receiptful(t, param, tables...)
			for i, c := range cases {
				results, handled, err := atomicOn(t, e.d, e.c, receipt(fmt.Sprint("r", i)), call(c.text, c.args...))
				if handled != c.handled {
					t.Errorf("%s: handled is %t", c.text, handled)
				}
				if !handled {
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", c.text, err)
					continue
				}
				want, err := bare.c.ExecContext(context.Background(), c.text, c.args...)
				if err != nil {
					t.Errorf("%s: %v", c.text, err)
					continue
				}
				rows, _ := results[1].RowsAffected()
				id, _ := results[1].LastInsertId()
				wantRows, _ := want.RowsAffected()
				wantID, _ := want.LastInsertId()
				if rows != wantRows || id != wantID {
					t.Errorf("%s: %d rows and id %d, the driver's are %d and %d", c.text, rows, id, wantRows, wantID)
				}
				if got, want := e.int("SELECT LAST_INSERT_ID()"), bare.int("SELECT LAST_INSERT_ID()"); got != want {
					t.Errorf("%s: LAST_INSERT_ID() is %d, the driver's is %d", c.text, got, want)
				}
				for _, table := range []string{"a", "p", "seq", "trg"} {
					if got, want := e.contents(table), bare.contents(table); got != want {
						t.Errorf("%s: %s holds\n%s, want\n%s", c.text, table, got, want)
					}
				}
			}
		})
	}
}

func (e *exactlyOnce) contents(table string) string {
	e.t.Helper()
	rows, err := e.c.QueryContext(context.Background(), "SELECT * FROM "+table+" ORDER BY 1")
	if err != nil {
		e.t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		columns, _ := rows.Columns()
		row := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			e.t.Fatal(err)
		}
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

func TestAtomicGivesTheServersErrorUnchanged(t *testing.T) {
	bothWays(t, atomicGivesTheServersErrorUnchanged)
}

func atomicGivesTheServersErrorUnchanged(t *testing.T, way string) {
	e := receiptful(t, way, schema, "CREATE TABLE child (id INT PRIMARY KEY, t INT NOT NULL, FOREIGN KEY (t) REFERENCES t (id)) ENGINE=InnoDB",
		"INSERT INTO t (id, n, u) VALUES (1, 1, 1)", "INSERT INTO child VALUES (1, 1)",
		"CREATE TRIGGER no BEFORE DELETE ON child FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no', MYSQL_ERRNO = 4711")
	for _, text := range []string{
		"UPDATE nowhere SET x = 1",
		"UPDATE t SET nothing = 1",
		"INSERT INTO t (id, n) VALUES (1, 1)",
		"INSERT INTO t (id, n) VALUES (5, 1), (1, 1)",
		"INSERT INTO t (id, n, u) VALUES (2, 1, 1)",
		"INSERT INTO t (id) VALUES (2)",
		"INSERT INTO t (id, n) VALUES (2, NULL)",
		"INSERT INTO t (id, n) VALUES (2, -1)",
		"INSERT INTO t (id, n) VALUES (2, 99999999999)",
		"INSERT INTO t (id, n) VALUES (2, 'many')",
		"INSERT INTO t (id, n, s) VALUES (2, 1, 'ok'), (3, 1, 'long')",
		"INSERT INTO t (id, n, e) VALUES (2, 1, 'c')",
		"INSERT INTO t (id, n, g) VALUES (2, 1, 1)",
		"INSERT INTO t (id, n) VALUES (1)",
		"INSERT INTO child VALUES (2, 77)",
		"DELETE FROM t WHERE id = 1",
		"DELETE FROM child",
		"UPDATE t SET n = nofunction(1)",
		"UPDATE t SET n = (SELECT 1 UNION SELECT 2)",
	} {
		_, want := e.c.ExecContext(context.Background(), text)
		_, err := e.atomic(receipt("r"), call(text))
		got, ok := err.(*mysql.MySQLError)
		if !ok || *got != *want.(*mysql.MySQLError) {
			t.Errorf("%s: %v, the driver's is %v", text, err, want)
		}
		e.settled()
	}
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
}

// A mistake that the server cannot read past is left to be reported by the
// statement itself.
func TestAtomicLeavesSyntaxErrorsAlone(t *testing.T) { bothWays(t, atomicLeavesSyntaxErrorsAlone) }

func atomicLeavesSyntaxErrorsAlone(t *testing.T, way string) {
	e := receiptful(t, way, schema)
	for _, text := range []string{"UPDATE t SET", "INSERT INTO t (id,) VALUES (1)", "DELETE FROM t WHERE (id = 1"} {
		if _, handled, err := atomicOn(t, e.d, e.c, receipt("r"), call(text)); handled || err != nil {
			t.Errorf("%s: handled, %v", text, err)
		}
		e.settled()
	}
	must(t, e.c, "SET sql_mode = 'ORACLE'")
	if _, handled, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE t SET n = 1")); handled || err != nil {
		t.Errorf("in Oracle's mode it was handled: %v", err)
	}
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
}

func TestSecondWriterOfAReceiptWaitsAndFindsIt(t *testing.T) {
	bothWays(t, secondWriterOfAReceiptWaitsAndFindsIt)
}

func secondWriterOfAReceiptWaitsAndFindsIt(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", strings.NewReplacer("(?, ?, ?, ?, 1, 1 + ?, ?, ?)", "('r', 'u', 'l', 0, 1, 1, NULL, NULL)").Replace(writeReceipt))
	done := make(chan error, 1)
	id := e.int("SELECT CONNECTION_ID()")
	go func() {
		_, _, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = n - 1"))
		done <- err
	}()
	sessions.AwaitLock(t, e.pool, id)
	must(t, other, "COMMIT")
	if err := <-done; !isReceiptDuplicate(err, "r") {
		t.Errorf("the second writer got %v", err)
	}
	e.settled()
	e.is("SELECT n FROM stock", 10)
}

func TestManyWritersOfOneReceiptApplyItOnce(t *testing.T) {
	bothWays(t, manyWritersOfOneReceiptApplyItOnce)
}

func manyWritersOfOneReceiptApplyItOnce(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 0)")
	var wg sync.WaitGroup
	for range 4 {
		c := conn(t, e.pool)
		wg.Go(func() {
			for i := range 50 {
				id := fmt.Sprint("r", i)
				_, handled, err := atomicOn(t, e.d, c, receipt(id), call("UPDATE stock SET n = n + 1 WHERE id = ?", int64(1)))
				if !handled || err != nil && !isReceiptDuplicate(err, id) && !isReceiptBusy(err) {
					t.Errorf("handled %t: %v", handled, err)
				}
			}
		})
	}
	wg.Wait()
	e.is("SELECT n FROM stock", 50)
	e.is("SELECT COUNT(*) FROM bed_receipt", 50)
}

func TestWaitingForAReceiptIsToldFromWaitingForARow(t *testing.T) {
	bothWays(t, waitingForAReceiptIsToldFromWaitingForARow)
}

func waitingForAReceiptIsToldFromWaitingForARow(t *testing.T, way string) {
	e := receiptful(t, way+"&innodb_lock_wait_timeout=1", stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", strings.NewReplacer("(?, ?, ?, ?, 1, 1 + ?, ?, ?)", "('r', 'u', 'l', 0, 1, 1, NULL, NULL)").Replace(writeReceipt),
		"UPDATE stock SET n = 21 WHERE id = 2")
	_, err := e.atomic(receipt("r"), call("UPDATE stock SET n = n - 1 WHERE id = 1"))
	classIs(t, "the receipt is locked", err, delivery.Retryable)
	if !isReceiptBusy(err) {
		t.Errorf("%v is not said to be met on the receipt", err)
	}
	e.settled()
	_, err = e.atomic(receipt("r2"), call("UPDATE stock SET n = n - 1 WHERE id = 2"))
	classIs(t, "the row is locked", err, delivery.Retryable)
	if isReceiptBusy(err) {
		t.Errorf("%v is said to be met on the receipt", err)
	}
	e.settled()
	must(t, e.c, "BEGIN", "UPDATE stock SET n = 11 WHERE id = 1")
	_, err = e.commitWith(receipt("r"))
	if !isReceiptBusy(err) {
		t.Errorf("%v, met by a COMMIT, is not said to be met on the receipt", err)
	}
	e.settled()
	must(t, other, "ROLLBACK")
	e.is("SELECT n FROM stock WHERE id = 1", 10)
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
}

func TestCommitWith(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"", "interpolateParams=true", "completion_type=1", "autocommit=0"} {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			e := receiptful(t, param, stock, "INSERT INTO stock VALUES (1, 10)")
			must(t, e.c, "START TRANSACTION", "UPDATE stock SET n = 11")
			if handled, err := e.commitWith(receipt("r"), call("UPDATE bed_receipt SET result = ? WHERE id = ?", `{"rows": 1, "s": "it's"}`, "r")); err != nil || !handled {
				t.Fatal(handled, err)
			}
			e.settled()
			must(t, e.c, "ROLLBACK AND NO CHAIN")
			e.is("SELECT n FROM stock", 11)
			e.is("SELECT COUNT(*) FROM bed_receipt WHERE JSON_VALUE(result, '$.rows') = 1", 1)

			must(t, e.c, "ROLLBACK AND NO CHAIN", "START TRANSACTION", "UPDATE stock SET n = 12")
			_, err := e.commitWith(receipt("r2"), receipt("r"))
			if !isReceiptDuplicate(err, "r") {
				t.Errorf("the receipt is there: %v", err)
			}
			must(t, e.c, "ROLLBACK AND NO CHAIN")
			e.is("SELECT n FROM stock", 11)
			e.is("SELECT COUNT(*) FROM bed_receipt", 1)

			must(t, e.c, "ROLLBACK AND NO CHAIN")
			_, err = e.commitWith(receipt("r3"))
			classIs(t, "no transaction is open", err, delivery.Refused)
			e.settled()
			e.is("SELECT COUNT(*) FROM bed_receipt", 1)
		})
	}
}

func TestCommitWithAfterADriversTransaction(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "", stock, "INSERT INTO stock VALUES (1, 10)")
	e.pool.SetMaxOpenConns(2)
	for i := range 3 {
		raw(t, e.c, func(dc driver.Conn) {
			tx, err := attempt.BeginTx(context.Background(), dc, driver.TxOptions{Isolation: driver.IsolationLevel(sql.LevelSerializable)})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := attempt.Exec(context.Background(), dc, "UPDATE stock SET n = n + 1", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := e.d.CommitWith(context.Background(), dc, []delivery.Call{receipt(fmt.Sprint("r", i/2))}); (err != nil) != (i == 1) {
				t.Fatal(i, err)
			} else if err != nil {
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		})
		e.settled()
	}
	e.is("SELECT n FROM stock", 12)
}

// execution matches what asks the server to run the compound.
func execution(message []byte) bool {
	return testproxy.MySQLExecute(message) || testproxy.Text("NOT ATOMIC")(message) && message[4] == 0x03
}

func TestAtomicIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		param, text string
		args        []any
		messages    int
	}{
		{"", "UPDATE stock SET n = n + 1", nil, 1},
		{"", "UPDATE stock SET n = n + ?", []any{int64(1)}, 3}, // prepare, execute, close (which nobody waits for): as the driver alone
		{"interpolateParams=true", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1},
		{"", "INSERT INTO stock VALUES (FLOOR(RAND() * 1e9), FLOOR(RAND() * 1e9))", nil, 1},
		{"prepared", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1},
		{"prepared&interpolateParams=true", "UPDATE stock SET n = n + ?", []any{int64(1)}, 1},
		{"prepared", "INSERT INTO stock VALUES (1, 7) ON DUPLICATE KEY UPDATE n = n + ?", []any{int64(1)}, 1},
	} {
		direct := testdb.MySQL(t)
		proxy := testproxy.New(t, direct.Addr())
		e := receiptfulOn(t, direct, direct.Via(proxy.Addr()), test.param, stock, "INSERT INTO stock VALUES (1, 10)")
		if _, err := e.atomic(receipt("first"), call(test.text, test.args...)); err != nil {
			t.Fatal(err)
		}
		n := proxy.Count(func([]byte) bool { return true })
		if _, err := e.atomic(receipt("r"), call(test.text, test.args...)); err != nil {
			t.Fatal(err)
		}
		if got := n(); got != test.messages {
			t.Errorf("%s %s: %d messages, want %d", test.param, test.text, got, test.messages)
		}
		must(t, e.c, "ROLLBACK", "START TRANSACTION")
		n = proxy.Count(func([]byte) bool { return true })
		if _, err := e.commitWith(receipt("r2")); err != nil {
			t.Fatal(err)
		}
		if got := n(); got != 1 {
			t.Errorf("COMMIT: %d messages", got)
		}
	}
}

func TestAtomicWhoseConnectionBreaksIsInDoubt(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"", "interpolateParams=true", "prepared", "prepared&interpolateParams=true"} {
		for _, applied := range []bool{false, true} {
			direct := testdb.MySQL(t)
			proxy := testproxy.New(t, direct.Addr())
			e := receiptfulOn(t, direct, direct.Via(proxy.Addr()), param, stock, "INSERT INTO stock VALUES (1, 10)")
			if _, err := e.atomic(call("UPDATE stock SET n = n + 0")); err != nil {
				t.Fatal(err)
			}
			strike := proxy.CutBefore
			if applied {
				strike = proxy.CutAfter
			}
			strike(execution)
			results, handled, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = n - ?", int64(1)))
			if !handled || results != nil {
				t.Errorf("handled %t: %v", handled, results)
			}
			classIs(t, "cut", err, delivery.Unknown)
			e.c = conn(t, direct.Open(t))
			want := int64(0)
			if applied {
				want = 1
			}
			e.is("SELECT COUNT(*) FROM bed_receipt", want)
			e.is("SELECT n FROM stock", 10-want)
		}
	}
}

func TestPrepareThatBreaksSentNothing(t *testing.T) {
	t.Parallel()
	direct := testdb.MySQL(t)
	proxy := testproxy.New(t, direct.Addr())
	e := receiptfulOn(t, direct, direct.Via(proxy.Addr()), "", stock)
	if _, err := e.atomic(receipt("first"), call("UPDATE stock SET n = n - ?", int64(1))); err != nil {
		t.Fatal(err)
	}
	proxy.CutAfter(testproxy.Text("NOT ATOMIC"))
	_, _, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = n - ?", int64(1)))
	classIs(t, "cut while preparing", err, delivery.Unreachable)
}

func TestKilledCompoundLeavesNothingOpen(t *testing.T) { bothWays(t, killedCompoundLeavesNothingOpen) }

func killedCompoundLeavesNothingOpen(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", "UPDATE stock SET n = 11 WHERE id = 1")
	id := e.int("SELECT CONNECTION_ID()")
	must(t, e.c, "SET max_statement_time = 0.3")
	_, err := e.atomic(receipt("r"), call("UPDATE stock SET n = 12 WHERE id = 1"))
	classIs(t, "max_statement_time", err, delivery.Retryable)
	e.settled()
	must(t, e.c, "SET max_statement_time = 0")
	for _, inTx := range []bool{false, true} {
		done := make(chan error, 1)
		if inTx {
			must(t, e.c, "BEGIN", "INSERT INTO stock VALUES (2, 20)")
		}
		go func() {
			var err error
			if inTx {
				_, err = e.commitWith(receipt("r"), call("UPDATE stock SET n = 12 WHERE id = 1"))
			} else {
				_, _, err = atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = 12 WHERE id = 1"))
			}
			done <- err
		}()
		sessions.AwaitLock(t, e.pool, id)
		must(t, e.pool, fmt.Sprintf("KILL QUERY %d", id))
		classIs(t, "killed while it waited", <-done, delivery.Retryable)
		e.settled()
	}
	must(t, other, "ROLLBACK")
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	e.is("SELECT SUM(n) FROM stock", 10)
}

// What ends a compound at any place may have struck behind the COMMIT.
func TestStopWithNothingOpenIsInDoubtIfTheReceiptIsThere(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "")
	if _, err := e.atomic(receipt("there")); err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint16{1317, 1969} {
		killed := &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte("70100")), Message: "stopped"}
		for id, want := range map[string]delivery.Class{"there": delivery.Unknown, "absent": delivery.Retryable, "": delivery.Unknown} {
			var calls []delivery.Call
			if id != "" {
				calls = append(calls, receipt(id))
			}
			raw(t, e.c, func(dc driver.Conn) {
				err := settle(context.Background(), dc, calls, killed, false)
				classIs(t, "stopped, receipt "+id, err, want)
				if !errors.Is(err, killed) || err.Error() != killed.Error() {
					t.Errorf("it does not unwrap to the server's error: %v", err)
				}
			})
		}
	}
}

func TestAtomicDeadlockIsRetryable(t *testing.T) { bothWays(t, atomicDeadlockIsRetryable) }

func atomicDeadlockIsRetryable(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10), (2, 20), (3, 30), (4, 40)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", "UPDATE stock SET n = n + 1 WHERE id >= 2")
	id := e.int("SELECT CONNECTION_ID()")
	done := make(chan error, 1)
	go func() {
		_, _, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE stock SET n = id + 4 WHERE id <= 2 ORDER BY id"))
		done <- err
	}()
	sessions.AwaitLock(t, e.pool, id)
	_, otherErr := other.ExecContext(context.Background(), "UPDATE stock SET n = n + 1 WHERE id = 1")
	must(t, other, "ROLLBACK")
	err := <-done
	if otherErr == nil {
		classIs(t, "deadlock", err, delivery.Retryable)
		if isReceiptBusy(err) {
			t.Errorf("%v is said to be met on the receipt", err)
		}
		e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	} else if err != nil {
		t.Errorf("both were refused: %v, %v", err, otherErr)
	}
	e.settled()
}

func TestAtomicOfLargeValues(t *testing.T) { bothWays(t, atomicOfLargeValues) }

func atomicOfLargeValues(t *testing.T, way string) {
	e := receiptful(t, way+"&maxAllowedPacket=200000", "CREATE TABLE big (id INT, b LONGBLOB, s LONGTEXT)")
	b := make([]byte, 500000)
	for i := range b {
		b[i] = byte(i)
	}
	if _, err := e.atomic(receipt("r"), call("INSERT INTO big VALUES (?, ?, ?)", int64(1), b, strings.Repeat("é", 1000))); err != nil {
		t.Fatal(err)
	}
	e.is("SELECT LENGTH(b) + LENGTH(s) FROM big", 502000)
	var got []byte
	if err := e.c.QueryRowContext(context.Background(), "SELECT b FROM big").Scan(&got); err != nil || string(got) != string(b) {
		t.Error("the bytes changed", err)
	}
}

func TestAtomicKeepsParametersOfAllTypes(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"", "interpolateParams=true", "prepared", "prepared&interpolateParams=true"} {
		e := receiptful(t, param, "CREATE TABLE v (i BIGINT, u BIGINT UNSIGNED, f DOUBLE, b BOOL, s TEXT, y BLOB, t DATETIME(6), n INT) CHARACTER SET utf8mb4",
			"CREATE TABLE w LIKE v")
		args := []any{int64(-1 << 63), uint64(1<<64 - 1), 0.1, true, "é'\"\\`?;-- 世界", []byte{0, 255, '\'', '\\'}, time.Date(2024, 2, 29, 1, 2, 3, 456789000, time.UTC), nil}
		insert := "INSERT INTO %s (i, u, f, b, s, y, t, n) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
		if _, err := e.atomic(receipt("r"), call(fmt.Sprintf(insert, "v"), args...)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.c.ExecContext(context.Background(), fmt.Sprintf(insert, "w"), args...); err != nil {
			t.Fatal(err)
		}
		e.is("SELECT COUNT(*) FROM v JOIN w ON v.i = w.i AND v.u = w.u AND v.f = w.f AND v.b = w.b AND BINARY v.s = BINARY w.s AND v.y = w.y AND v.t = w.t AND v.n IS NULL", 1)
	}
}

func TestMySQLProperIsNotHandled(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"10.11.6-MariaDB-0+deb12u1": true, "11.4.2-MariaDB-ubu2404-log": true, "10.6.0-MariaDB": true,
		"10.5.99-MariaDB": false, "5.5.68-MariaDB": false, "8.0.36": false, "8.4.0-commercial": false, "5.7.44-log": false, "": false,
	} {
		if got := runsCompounds(version); got != want {
			t.Errorf("%s: %t", version, got)
		}
	}
}

func TestAtomicDoesNotTakeTooMuch(t *testing.T) {
	t.Parallel()
	c := &compounds{server: hasCompounds}
	many := make([]delivery.Call, maxCompoundCalls+1)
	for i := range many {
		many[i] = call("DELETE FROM t")
	}
	for name, calls := range map[string][]delivery.Call{
		"no call":    {},
		"many calls": many,
		"long texts": {call("DELETE FROM t WHERE s = '" + strings.Repeat("x", maxCompoundText) + "'")},
		"named":      {{SQL: "DELETE FROM t WHERE id = ?", Args: []driver.NamedValue{{Ordinal: 1, Name: "n", Value: int64(1)}}}},
	} {
		if _, handled, err := c.atomic(context.Background(), nil, calls); handled || err != nil {
			t.Errorf("%s: handled, %v", name, err)
		}
	}
}

func TestReceiptsDuplicateIsToldByItsKey(t *testing.T) { bothWays(t, receiptsDuplicateIsToldByItsKey) }

func receiptsDuplicateIsToldByItsKey(t *testing.T, way string) {
	key := "key-" + strings.Repeat("0123456789abcdef", 4) // of which MariaDB shows the beginning
	for name, alter := range map[string]string{
		"its primary key":             "DO 0",
		"the key of an older version": "ALTER TABLE bed_receipt DROP PRIMARY KEY, ADD UNIQUE KEY bed_receipt_id (id)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := receiptful(t, way, alter, "CREATE TABLE d (s VARCHAR(80) PRIMARY KEY, bed_receipt_id INT, UNIQUE KEY my_bed_receipt_id (bed_receipt_id))", "INSERT INTO d VALUES ('x'' for key ''bed_receipt_id', 1), ('o', 5)")
			for _, language := range []string{"en_US", "ja_JP", "de_DE", "hu_HU", "cs_CZ"} {
				must(t, e.c, "SET lc_messages = '"+language+"'", "DELETE FROM bed_receipt")
				if _, err := e.atomic(receipt("r"), receipt(key)); err != nil {
					t.Fatal(err)
				}
				for _, id := range []string{"r", key} {
					_, err := e.atomic(receipt(id))
					if !isReceiptDuplicate(err, id) {
						t.Errorf("%s: %v is not said to be the receipt's", language, err)
					}
				}
				for _, value := range []string{"('x'' for key ''bed_receipt_id', 2)", "('y', 1)", "('o', 6)"} {
					_, err := e.c.ExecContext(context.Background(), "INSERT INTO d VALUES "+value)
					classIs(t, value, err, delivery.Duplicate)
					if isReceiptDuplicate(err, "r") {
						t.Errorf("%s: %v is said to be the receipt's", language, err)
					}
				}
			}
		})
	}
	for message, want := range map[string]bool{
		"Duplicate entry 'r' for key 'bed_receipt.bed_receipt_id'":   true,
		"Duplicate entry 'r' for key 'bed_receipt_id'":               true,
		"Duplicate entry 'r' for key 'other.bed_receipt_id'":         false,
		"Duplicate entry 'r' for key 'bed_receipt_id2'":              false,
		"Duplicate entry '' for key 'bed_receipt_id'' for key 'k'":   false,
		"Duplicate entry 'bed_receipt_id' for key 'PRIMARY'":         false,
		"Doppelter Eintrag 'bed_receipt_id' für Schlüssel 'PRIMARY'": false,
		"Doppelter Eintrag 'r' für Schlüssel 'bed_receipt_id'":       true,
		"'r' は索引 'bed_receipt_id' で重複しています。":                         true,
		"'bed_receipt_id' は索引 'bed_receipt' で重複しています。":               false,
		// MySQL tells whose primary key it is, of MariaDB's the value does.
		"Duplicate entry 'r' for key 'bed_receipt.PRIMARY'":         true,
		"Duplicate entry 'r' for key 'PRIMARY'":                     true,
		"Duplicate entry 's' for key 'PRIMARY'":                     false,
		"Duplicate entry 'r' for key 'other.PRIMARY'":               false,
		"Duplicate entry 'r' for key 'bed_receipt2.PRIMARY'":        false,
		"Duplicate entry 'r' for key 'PRIMARY' for key 'PRIMARY'":   false,
		"Doppelter Eintrag 'r' für Schlüssel 'PRIMARY'":             true,
		"Doppelter Eintrag 's' für Schlüssel 'PRIMARY'":             false,
		"Doppelter Eintrag 'r' für Schlüssel 'bed_receipt.PRIMARY'": true,
		"": false,
	} {
		if got := isReceiptDuplicate(&mysql.MySQLError{Number: 1062, Message: message}, "r"); got != want {
			t.Errorf("%q: %t", message, got)
		}
	}
	for _, language := range []string{"Duplicate entry '%s' for key 'PRIMARY'", "Doppelter Eintrag '%s' für Schlüssel 'PRIMARY'"} {
		for value, want := range map[string]bool{key: true, key[:61] + "...": true, key[1:]: false, "key-...": false, "key-f" + key[5:61] + "...": false} {
			if got := isReceiptDuplicate(&mysql.MySQLError{Number: 1062, Message: fmt.Sprintf(language, value)}, key); got != want {
				t.Errorf(language+": %t", value, got)
			}
		}
	}
	if isReceiptDuplicate(&mysql.MySQLError{Number: 1064, Message: "Duplicate entry 'r' for key 'bed_receipt_id'"}, "r") || isReceiptDuplicate(errors.New("x"), "r") {
		t.Error("another error is said to be a duplicate")
	}
}

func TestReceiptsOfUnitsAreSpreadOverTheirKey(t *testing.T) {
	t.Parallel()
	d, begins, seen := newDialect(), map[string]bool{}, map[string]bool{}
	for range 2000 {
		unit := txlog.NewID()
		id := d.ReceiptID(unit)
		begins[id[:2]], seen[id] = true, true
		if !strings.HasSuffix(id, unit) || len(id) > 80 || !plainText(id) || id != d.ReceiptID(unit) {
			t.Fatalf("unit %s has the receipt %s", unit, id)
		}
	}
	if len(begins) < 200 || len(seen) != 2000 {
		t.Errorf("%d receipts begin in %d ways, want about 256", len(seen), len(begins))
	}
	if id := d.ReceiptID("short"); id != "short" {
		t.Errorf("a unit with another kind of id has the receipt %s", id)
	}
}
