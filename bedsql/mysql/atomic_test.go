package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestAtomicIsAllOrNothing(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"", "interpolateParams=true", "clientFoundRows=true", "tx_isolation='SERIALIZABLE'", "tx_isolation='READ-COMMITTED'", "completion_type=1", "autocommit=0", "sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "multiStatements=true",
		"prepared", "prepared&interpolateParams=true", "prepared&tx_isolation='SERIALIZABLE'", "prepared&completion_type=1", "prepared&autocommit=0", "prepared&sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"} {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			e := receiptful(t, param, stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
			good := []dialect.Call{
				receipt("r1"),
				call("UPDATE stock SET n = n + ? WHERE id = ? -- comment", int64(1), int64(1)),
				call("INSERT INTO stock VALUES (?, ?);", int64(3), int64(30)),
				call("DELETE FROM stock WHERE id = 2"),
			}
			bad := []dialect.Call{
				{},
				call("UPDATE stock SET n = n - ? WHERE id = ?", int64(1000), int64(1)),
				call("INSERT INTO stock VALUES (?, ?)", int64(1), int64(31)),
				call("DELETE FROM stock WHERE id = 2 AND nothing = 1"),
			}
			for i := 1; i < len(good); i++ {
				all := append([]dialect.Call(nil), good...)
				all[i] = bad[i]
				for _, calls := range [][]dialect.Call{all, {good[0], bad[i]}} {
					_, err := e.atomic(calls...)
					classes := []dialect.Class{0, dialect.Refused, dialect.Duplicate, dialect.Refused}
					classIs(t, fmt.Sprintf("call %d fails", i), err, classes[i])
					if isReceiptDuplicate(err, "r1") || isReceiptBusy(err) {
						t.Errorf("%v is said to be the receipt's", err)
					}
					e.noneOpen()
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
			e.noneOpen()
			e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
			e.is("SELECT COUNT(*) FROM bed_receipt WHERE id = 'r1' AND keep_until = 1001 AND result IS NULL", 1)
			e.readEnded()

			for _, calls := range [][]dialect.Call{good, good[:2]} {
				_, err = e.atomic(calls...)
				classIs(t, "the receipt is there", err, dialect.Duplicate)
				if !isReceiptDuplicate(err, "r1") || isReceiptBusy(err) {
					t.Errorf("%v is not said to be the receipt's duplicate", err)
				}
				e.noneOpen()
				e.is("SELECT SUM(n) + COUNT(*) FROM stock", 43)
				e.readEnded()
			}
		})
	}
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
			e.noneOpen()
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
			classIs(t, "no transaction is open", err, dialect.Refused)
			e.noneOpen()
			e.is("SELECT COUNT(*) FROM bed_receipt", 1)
		})
	}
}

// COMMIT is not reached after a call that changed too few rows, and the errors of entries are marked.
func TestCommitWithCountsRows(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "", stock, "INSERT INTO stock VALUES (1, 10), (2, 20)")
	check := ""
	writes := func(text string, n int64) error {
		must(t, e.c, "START TRANSACTION", "UPDATE stock SET n = n + 1 WHERE id = 1")
		c := call(text)
		c.Check = check
		c.Required, c.Entries = entry.Exactly(n), "SELECT 1 FROM stock WHERE id = 3"
		handled, err := e.commitWith(c)
		if !handled {
			t.Fatal("not handled")
		}
		e.noneOpen()
		return err
	}
	for text, n := range map[string]int64{"INSERT INTO stock SELECT 3, 0 FROM DUAL WHERE 1 = 0": 1, "INSERT INTO stock VALUES (3, 0)": 2} {
		err := writes(text, n)
		var unmet *dialect.RowsError
		if !errors.As(err, new(*dialect.EntriesError)) || !errors.As(err, &unmet) || unmet.Got != -1 {
			t.Errorf("%s says %v", text, err)
		}
	}
	check = "SELECT 1 FROM stock WHERE id = 9"
	var unmet *dialect.RowsError
	if err := writes("INSERT INTO stock VALUES (3, 0)", 1); !errors.As(err, new(*dialect.EntriesError)) || !errors.As(err, &unmet) || unmet.Got != 0 {
		t.Errorf("the check without a row says %v", err)
	}
	check = "SELECT 1 FROM stock WHERE id = 1"
	var server *mysql.MySQLError
	if err := writes("INSERT INTO stock VALUES (2, 0)", 1); !errors.As(err, new(*dialect.EntriesError)) || !errors.As(err, &server) || server.Number != 1062 || strings.Contains(server.Message, "bed_") {
		t.Errorf("a duplicate says %v", err)
	}
	e.is("SELECT SUM(n) FROM stock", 30)
	if err := writes("INSERT INTO stock VALUES (3, 0)", 1); err != nil {
		t.Error(err)
	}
	e.is("SELECT SUM(n) FROM stock", 31)
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
			if _, err := e.d.CommitWith(context.Background(), dc, []dialect.Call{receipt(fmt.Sprint("r", i/2))}); (err != nil) != (i == 1) {
				t.Fatal(i, err)
			} else if err != nil {
				if err := tx.Rollback(); err != nil {
					t.Fatal(err)
				}
			}
		})
		e.noneOpen()
	}
	e.is("SELECT n FROM stock", 12)
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
		must(t, e.c, "DO 0") // comes after what nobody waits for
		n := proxy.Count(func([]byte) bool { return true })
		if _, err := e.atomic(receipt("r"), call(test.text, test.args...)); err != nil {
			t.Fatal(err)
		}
		must(t, e.c, "DO 0")
		if got := n() - 1; got != test.messages {
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
			classIs(t, "cut", err, dialect.Unknown)
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
	classIs(t, "cut while preparing", err, dialect.Unreachable)
}

func TestKilledCompoundLeavesNothingOpen(t *testing.T) { bothWays(t, killedCompoundLeavesNothingOpen) }

func killedCompoundLeavesNothingOpen(t *testing.T, way string) {
	e := receiptful(t, way, stock, "INSERT INTO stock VALUES (1, 10)")
	other := conn(t, e.pool)
	must(t, other, "BEGIN", "UPDATE stock SET n = 11 WHERE id = 1")
	id := e.int("SELECT CONNECTION_ID()")
	must(t, e.c, "SET max_statement_time = 1")
	_, err := e.atomic(receipt("r"), call("UPDATE stock SET n = 12 WHERE id = 1"))
	classIs(t, "max_statement_time", err, dialect.Retryable)
	e.noneOpen()
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
		classIs(t, "killed while it waited", <-done, dialect.Retryable)
		e.noneOpen()
	}
	must(t, other, "ROLLBACK")
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
	e.is("SELECT SUM(n) FROM stock", 10)
}

// An interruption of the compound may have come after the COMMIT.
func TestStopIsInDoubtIfTheReceiptExists(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "")
	if _, err := e.atomic(receipt("there")); err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint16{1317, 1969} {
		killed := &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte("70100")), Message: "stopped"}
		for id, want := range map[string]dialect.Class{"there": dialect.Unknown, "absent": dialect.Retryable, "": dialect.Unknown} {
			var calls []dialect.Call
			if id != "" {
				calls = append(calls, receipt(id))
			}
			raw(t, e.c, func(dc driver.Conn) {
				err := leaveNoneOpen(context.Background(), dc, calls, killed, false)
				classIs(t, "stopped, receipt "+id, err, want)
				if !errors.Is(err, killed) || err.Error() != killed.Error() {
					t.Errorf("it does not unwrap to the server's error: %v", err)
				}
			})
		}
	}
}

// A Galera node cut off from its cluster gives this answer to each statement of a compound. It even
// gives it to the ROLLBACK of the handler, after a COMMIT that the other nodes apply.
func TestCutOffNodeLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "")
	notReady := &mysql.MySQLError{Number: 1047, SQLState: [5]byte([]byte("08S01")), Message: "WSREP has not yet prepared node for application use"}
	raw(t, e.c, func(dc driver.Conn) {
		err := leaveNoneOpen(t.Context(), dc, []dialect.Call{receipt("absent")}, notReady, false)
		classIs(t, "cut off", err, dialect.Unknown)
		if !errors.Is(err, notReady) || err.Error() != notReady.Error() {
			t.Errorf("it does not unwrap to the server's error: %v", err)
		}
	})
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
	c := new(compounds)
	c.known.Store(true)
	many := make([]dialect.Call, maxCompoundCalls+1)
	for i := range many {
		many[i] = call("DELETE FROM t")
	}
	for name, calls := range map[string][]dialect.Call{
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

func TestReceiptsOfUnitsAreSpreadOverTheirKey(t *testing.T) {
	t.Parallel()
	d, begins, seen := newDialect(nil), map[string]bool{}, map[string]bool{}
	for range 2000 {
		unit := entry.NewID()
		id := d.Receipt(unit)
		begins[id[:2]], seen[id] = true, true
		if !strings.HasSuffix(id, unit) || len(id) > 80 || !plainText(id) || id != d.Receipt(unit) {
			t.Fatalf("unit %s has the receipt %s", unit, id)
		}
	}
	if len(begins) < 200 || len(seen) != 2000 {
		t.Errorf("%d receipts begin in %d ways, want about 256", len(seen), len(begins))
	}
	if id := d.Receipt("short"); id != "short" {
		t.Errorf("a unit with another kind of id has the receipt %s", id)
	}
}
