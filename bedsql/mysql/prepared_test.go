package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

// asTheDriver runs a write with a receipt on e and bare on another database, and reports
// differences.
func (e *exactlyOnce) asTheDriver(bare *exactlyOnce, id, text string, args []any, tables ...string) {
	e.t.Helper()
	what := fmt.Sprintf("%s %#v", text, args)
	results, handled, err := atomicOn(e.t, e.d, e.c, receipt(id), call(text, args...))
	want, wantErr := bare.c.ExecContext(context.Background(), text, args...)
	if !handled {
		// It is left to the driver.
		results = make([]driver.Result, 2)
		results[1], err = e.c.ExecContext(context.Background(), text, args...)
	}
	if message(err, e) != message(wantErr, bare) {
		e.t.Errorf("%s: %v, the driver's is %v", what, err, wantErr)
	}
	if err == nil && wantErr == nil {
		rows, _ := results[1].RowsAffected()
		wantRows, _ := want.RowsAffected()
		id, _ := results[1].LastInsertId()
		wantID, _ := want.LastInsertId()
		if rows != wantRows || id != wantID {
			e.t.Errorf("%s: %d rows and id %d, the driver's are %d and %d", what, rows, id, wantRows, wantID)
		}
	}
	for _, table := range tables {
		if got, want := e.contents(table), bare.contents(table); got != want {
			e.t.Errorf("%s: %s holds\n%q, want\n%q", what, table, got, want)
		}
	}
}

// message is an error's without the name of the database.
func message(err error, e *exactlyOnce) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), e.target.Name, "")
}

func TestPreparedValuesMeanTheSameToTheDriver(t *testing.T) {
	t.Parallel()
	tables := []string{"CREATE TABLE v (id INT PRIMARY KEY, i BIGINT, u BIGINT UNSIGNED, d DECIMAL(20,6), f DOUBLE, s VARCHAR(200), b BLOB, t DATETIME(6), j JSON, l VARCHAR(50) CHARACTER SET latin1) CHARACTER SET utf8mb4"}
	texts := []string{
		"s = ? / 3", "s = ? - 10", "s = -?", "s = ? * 1.10", "s = ?", "s = ? IN (1, 'a')", "s = ? BETWEEN 1 AND 3", "s = ? LIKE 'a%'", "s = ? > ?", "s = ? <=> NULL", "d = d + ?", "u = u - ?", "t = t + INTERVAL ? DAY",
		"s = CONCAT(?, s, ?)", "s = COALESCE(?, 'none')", "s = IFNULL(?, 1)", "s = IF(?, 'yes', 'no')", "d = GREATEST(d - ?, 0)", "s = LEAST(?, 'b')", "s = CASE ? WHEN 1 THEN ? ELSE 0.5 END",
		"s = JSON_OBJECT('a', ?)", "s = HEX(?)", "s = (SELECT ? UNION SELECT ? LIMIT 1)",
		"i = ?", "u = ?", "d = ?", "f = ?", "b = ?", "t = ?", "j = ?", "l = ?",
		"i = i + 1 WHERE id = ?", "i = i + 1 WHERE s = ?", "i = i + 1 WHERE l = ? OR t > ?", "i = i + 1 WHERE id IN (?, ?, 7)", "i = i + 1 WHERE ? IS NULL OR id = ?", "i = i + 1 WHERE s <> 'it''s é' AND s <> ?", "i = i + 1 ORDER BY id LIMIT ?",
	}
	for i := range texts {
		texts[i] = "UPDATE v SET " + texts[i]
	}
	texts = append(texts, "INSERT INTO v (id, d) VALUES (2, ?) ON DUPLICATE KEY UPDATE d = ?", "INSERT INTO v (id, s) VALUES (1, 'x') ON DUPLICATE KEY UPDATE s = CONCAT(s, ?)", "REPLACE INTO v (id, s) VALUES (1, ?)", "DELETE FROM v WHERE d <> ?")
	values := []any{
		"\xff\xfe", nil, int64(-7), int64(0), int64(1), int64(math.MaxInt64), int64(math.MinInt64), uint64(5), uint64(math.MaxUint64), true, false, 0.1, -2.5e30,
		"", "abc", "12abc", "0.5", "é世界", "it's \\ \"q\" ?", "😀", "2024-02-29", `{"a": 1}`, "\x00", []byte("abc"), []byte("\xff\x00'"),
		time.Date(2024, 2, 29, 1, 2, 3, 456789123, time.FixedZone("", 5400)), time.Time{}, time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	for _, param := range []string{"", "interpolateParams=true", "interpolateParams=true&charset=latin1&sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'&clientFoundRows=true"} {
		t.Run(param, func(t *testing.T) {
			t.Parallel()
			bare, e := receiptful(t, param, tables...), receiptful(t, "prepared&"+param, tables...)
			for i, text := range texts {
				for j, v := range values {
					for _, x := range []*exactlyOnce{bare, e} {
						must(t, x.c, "REPLACE INTO v VALUES (1, 5, 5, 1.5, 0.1, 'abc', 'x', '2024-02-29 00:00:00', '{}', 'abc')")
					}
					args := make([]any, strings.Count(text, "?"))
					for k := range args {
						args[k] = v
					}
					e.asTheDriver(bare, fmt.Sprint(i, ".", j), text, args, "v")
				}
			}
		})
	}
}

// The text of the prepared compound contains the usual values of a receipt. A receipt with others
// is written correctly, too.
func TestAPreparedReceiptIsWrittenAsItIs(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "prepared", "CREATE TABLE v (id INT PRIMARY KEY, n INT)", "INSERT INTO v VALUES (1, 0)")
	keyed := func(id, fingerprint string) dialect.Call {
		return call(writeReceipt, id, "unit", "log", int64(0), int64(1000), fingerprint, nil)
	}
	var want []string
	for i, c := range []struct {
		receipt dialect.Call
		holds   string
	}{
		{plainReceipt("a", "log", 1000), "a unit log 0 1 1001 NULL"},
		{plainReceipt("b", "log", 1000), "b unit log 0 1 1001 NULL"},
		{plainReceipt("c", "log", 5000), "c unit log 0 1 5001 NULL"},
		{plainReceipt("d", "other", 1000), "d unit other 0 1 1001 NULL"},
		{plainReceipt("e", "it's ?", 1000), "e unit it's ? 0 1 1001 NULL"},
		{keyed("f", "one"), "f unit log 0 1 1001 one"},
		{keyed("g", "two"), "g unit log 0 1 1001 two"},
		{plainReceipt("h", "log", 1000), "h unit log 0 1 1001 NULL"},
	} {
		results, err := e.atomic(c.receipt, call("UPDATE v SET n = n + ? WHERE id = ?", int64(1), int64(1)))
		if err != nil {
			t.Fatalf("receipt %d: %v", i, err)
		}
		if rows, _ := results[1].RowsAffected(); rows != 1 {
			t.Errorf("receipt %d: the write says %d rows, want 1", i, rows)
		}
		want = append(want, c.holds)
	}
	rows, err := e.c.QueryContext(t.Context(), "SELECT CONCAT_WS(' ', id, unit_id, log_id, void, creation_time, keep_until, IFNULL(fingerprint, 'NULL')) FROM bed_receipt ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var got []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		got = append(got, s)
	}
	if err := rows.Err(); err != nil || !slices.Equal(got, want) {
		t.Errorf("the receipts are %q (%v), want %q", got, err, want)
	}
	// A write whose fixed values have no textual form is prepared with parameters.
	other := receiptful(t, "prepared", "CREATE TABLE v (id INT PRIMARY KEY, n INT)", "INSERT INTO v VALUES (1, 0)")
	for _, id := range []string{"a", "b"} {
		if _, err := other.atomic(plainReceipt(id, "it's ?", 7), call("UPDATE v SET n = n + ? WHERE id = ?", int64(1), int64(1))); err != nil {
			t.Fatal(err)
		}
	}
	if got := other.contents("bed_receipt"); strings.Count(got, "it's ?") != 2 {
		t.Errorf("the receipts are %q", got)
	}
}

func TestPreparedWritesFollowTheirTables(t *testing.T) {
	t.Parallel()
	const create = "CREATE TABLE v (id INT PRIMARY KEY AUTO_INCREMENT, n INT DEFAULT 3, s VARCHAR(20) DEFAULT 'd')"
	tables := []string{create, "CREATE TABLE w LIKE v", "CREATE TABLE hist (id INT PRIMARY KEY AUTO_INCREMENT, n INT)", "CREATE VIEW vv AS SELECT * FROM v", "INSERT INTO v VALUES (1, 1, 'a'), (2, 2, 'b')", "INSERT INTO w VALUES (1, 1, 'a'), (3, 2, 'b')"}
	writes := []dialect.Call{
		call("UPDATE v SET n = n + ? WHERE id = ?", int64(1), int64(1)),
		call("UPDATE vv SET n = n + ?", int64(1)),
		call("INSERT INTO v (n, s) VALUES (?, ?)", int64(7), "n"),
		call("INSERT INTO v VALUES (?, ?, ?)", int64(501), int64(7), "s"),
		call("INSERT INTO vv (id, n) VALUES (?, ?)", int64(503), int64(7)),
		call("INSERT INTO v (id, n) VALUES (?, ?) ON DUPLICATE KEY UPDATE n = n + VALUES(n)", int64(1), int64(7)),
		call("REPLACE INTO v (id, n) VALUES (?, ?)", int64(2), int64(7)),
		call("DELETE v FROM v JOIN vv ON v.id = vv.id WHERE v.id > ?", int64(502)),
		call("DELETE FROM v WHERE id > ?", int64(100)),
	}
	bare, e := receiptful(t, "", tables...), receiptful(t, "prepared", tables...)
	for i, ddl := range []string{
		"DO 1",
		"ALTER TABLE v ADD COLUMN extra INT DEFAULT 5 FIRST", "ALTER TABLE v DROP COLUMN extra", "ALTER TABLE v MODIFY s VARCHAR(1) CHARACTER SET latin1", "ALTER TABLE v MODIFY n DECIMAL(20,5)",
		"ALTER TABLE v RENAME COLUMN n TO m", "ALTER TABLE v RENAME COLUMN m TO n",
		"RENAME TABLE v TO old, w TO v, old TO w", "DROP TABLE v", "CREATE TABLE v (id INT PRIMARY KEY, n INT, s VARCHAR(20))", "ALTER TABLE v MODIFY id INT AUTO_INCREMENT",
		"CREATE TRIGGER tr AFTER UPDATE ON v FOR EACH ROW INSERT INTO hist (n) VALUES (NEW.n), (OLD.n)", "DROP TRIGGER tr",
		"CREATE OR REPLACE VIEW vv AS SELECT id, n, s FROM w", "CREATE OR REPLACE VIEW vv AS SELECT id, s, n + 1 AS n FROM v", "DROP VIEW vv", "CREATE TABLE vv (id INT PRIMARY KEY, n INT)",
		"RENAME TABLE v TO old", "CREATE VIEW v AS SELECT * FROM w", "CREATE OR REPLACE VIEW v AS SELECT * FROM old", "DROP VIEW v", "RENAME TABLE old TO v",
		"CREATE TEMPORARY TABLE v (id INT PRIMARY KEY, n INT DEFAULT 0, s VARCHAR(20) DEFAULT 'tmp')", "DROP TEMPORARY TABLE v", "FLUSH TABLES v, w, vv, hist, bed_receipt",
		"ALTER TABLE bed_receipt ADD COLUMN more INT", "ALTER TABLE bed_receipt DROP COLUMN more",
	} {
		must(t, bare.c, ddl)
		must(t, e.c, ddl)
		compared := []string{"v", "w", "hist"}
		if _, err := bare.c.ExecContext(context.Background(), "DO (SELECT COUNT(*) FROM v)"); err != nil {
			compared = compared[1:]
		}
		for again := range 2 {
			for j, w := range writes {
				e.asTheDriver(bare, fmt.Sprint(i, ".", j, ".", again), w.SQL, values2any(w.Args), compared...)
			}
		}
	}
}

func values2any(args []driver.NamedValue) (values []any) {
	for _, a := range args {
		values = append(values, a.Value)
	}
	return values
}

// open is how many statements are prepared on the connection, by name or not.
func (e *exactlyOnce) open() int64 {
	e.t.Helper()
	return e.int("SELECT SUM(IF(VARIABLE_NAME = 'COM_STMT_PREPARE', VARIABLE_VALUE, -VARIABLE_VALUE)) FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME IN ('COM_STMT_PREPARE', 'COM_STMT_CLOSE')")
}

func TestPreparedStatementsAreBoundedOnAConnection(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "prepared", stock, "INSERT INTO stock VALUES (1, 0)")
	const texts = maxNoticed + 20
	for i := range 2 * texts {
		if _, err := e.atomic(receipt(fmt.Sprint("r", i)), call(fmt.Sprintf("UPDATE stock SET n = n + ? /* %d */", i%texts), int64(1))); err != nil {
			t.Fatal(err)
		}
		if want := 2 * min(int64(i+1), maxPrepared); i%8 == 0 && e.open() != want {
			t.Fatalf("after %d texts %d statements are open, want %d", i+1, e.open(), want)
		}
	}
	e.is("SELECT n FROM stock", 2*texts)
}

func TestWriteIsPreparedOnItsThirdUse(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "interpolateParams=true", stock, "INSERT INTO stock VALUES (1, 0)")
	for i := range 4 {
		if _, err := e.atomic(receipt(fmt.Sprint("bare", i)), call("UPDATE stock SET n = n + ?", int64(1))); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.open(); n != 0 {
		t.Errorf("%d statements are open", n)
	}
	raw(t, e.c, func(dc driver.Conn) {
		s := &attempt.Session{Conn: dc}
		for i := range 4 {
			calls := []dialect.Call{receipt(fmt.Sprint("r", i)), call("UPDATE stock SET n = n + ?", int64(1))}
			if _, handled, err := e.d.Atomic(context.Background(), s, calls); err != nil || !handled {
				t.Fatal(handled, err)
			}
			m, _ := s.Memory.(*memory)
			if want := i / 2; m == nil || m.prepared != want {
				t.Errorf("use %d: %+v, want %d prepared", i+1, m, want)
			}
		}
	})
	e.is("SELECT n FROM stock", 8)
}

func TestFullServerGetsItsRoomBack(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateMariaDB(t, "--max-prepared-stmt-count=8")
	db := server.DB(t)
	e := receiptfulOn(t, db, db, "prepared", stock, "INSERT INTO stock VALUES (1, 0)")
	other := conn(t, e.pool)
	add := func(c *sql.Conn, id string) error {
		_, _, err := atomicOn(t, e.d, c, receipt(id), call("UPDATE stock SET n = n + ? -- "+id, int64(1)))
		return err
	}
	for i := range 4 {
		if err := add(e.c, fmt.Sprint("r", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(e.c, "fifth"); err != nil {
		t.Errorf("the one that has the room: %v", err)
	}
	e.d = preparing(t, e.target.DSN)
	e.greet()
	for i := range 4 {
		if err := add(e.c, fmt.Sprint("s", i)); err != nil {
			t.Fatal(err)
		}
	}
	classIs(t, "another connection finds no room", add(other, "other"), dialect.Retryable)
	if err := add(e.c, "again"); err != nil {
		t.Error(err)
	}
	if err := add(other, "other"); err != nil {
		t.Errorf("after the room was given back: %v", err)
	}
	e.is("SELECT n FROM stock", 11)
}

func TestPreparedWriteWithEndedContextIsNotSent(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "prepared", stock, "INSERT INTO stock VALUES (1, 0)")
	add := call("UPDATE stock SET n = n + ?", int64(1))
	if _, err := e.atomic(receipt("r"), add); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	raw(t, e.c, func(dc driver.Conn) {
		_, _, err := e.d.Atomic(ctx, dc, []dialect.Call{receipt("r2"), add})
		classIs(t, "the context has ended", err, dialect.Unreachable)
	})
	e.is("SELECT n FROM stock", 1)
	if n := e.open(); n != 2 {
		t.Errorf("%d statements are open, want 2", n)
	}
}

func TestLostPreparedWriteIsSentUnprepared(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "prepared", stock, "INSERT INTO stock VALUES (1, 0)")
	for i := range 6 {
		if _, err := e.atomic(receipt(fmt.Sprint("r", i)), call("UPDATE stock SET n = n + ?", int64(1))); err != nil {
			t.Fatal(err)
		}
		e.noneOpen()
		switch i {
		case 1:
			must(t, e.c, "DEALLOCATE PREPARE bed_write_1")
		case 3:
			must(t, e.c, "PREPARE bed_write_2 FROM 'UPDATE stock SET n = 0'") // with other parameters
		}
		e.is("SELECT COUNT(*) FROM bed_receipt", int64(i+1))
	}
	e.is("SELECT n FROM stock", 6)
}

func TestKilledConnectionLosesItsPreparedWrites(t *testing.T) {
	t.Parallel()
	e := receiptful(t, "prepared", stock, "INSERT INTO stock VALUES (1, 0)")
	add := call("UPDATE stock SET n = n + ? WHERE id = 1", int64(1))
	if _, err := e.atomic(receipt("r"), add); err != nil {
		t.Fatal(err)
	}
	other := conn(t, e.pool)
	must(t, other, "BEGIN", "UPDATE stock SET n = 5 WHERE id = 1")
	id := e.int("SELECT CONNECTION_ID()")
	done := make(chan error, 1)
	go func() {
		_, _, err := atomicOn(t, e.d, e.c, receipt("r2"), add)
		done <- err
	}()
	sessions.AwaitLock(t, e.pool, id)
	must(t, e.pool, fmt.Sprintf("KILL CONNECTION %d", id))
	classIs(t, "killed while it waited", <-done, dialect.Unknown)
	must(t, other, "ROLLBACK")
	_, _, err := atomicOn(t, e.d, e.c, receipt("r3"), add)
	classIs(t, "on the dead connection", err, dialect.Unreachable)
	e.c = conn(t, e.pool)
	if _, err := e.atomic(receipt("r4"), add); err != nil {
		t.Error(err)
	}
	e.is("SELECT n FROM stock", 2)
	e.is("SELECT COUNT(*) FROM bed_receipt", 2)
}

func TestRepeatableWrites(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"UPDATE t SET n = (n + ?) * 2, s = CONCAT(s, ?) WHERE id IN (?, ?) AND (a = 1 OR b = NOW(3))": true,
		"UPDATE `t` SET `n`=? WHERE `id`=? LIMIT 1":                                                   true,
		"INSERT INTO `t` (`a`, b) VALUES (?, ?), (?, (? + 1)) ON DUPLICATE KEY UPDATE b = VALUES(b)":  true,
		"INSERT t VALUES (?)": true, "INSERT INTO db.t PARTITION (p) (a) VALUES (?)": true, "REPLACE INTO t SET a = ?": true, "INSERT INTO t () VALUES ()": true,
		"DELETE FROM t WHERE a NOT IN (?) AND NOT (b = ?)":  true,
		"INSERT INTO t SET a = JSON_OBJECT('a', ?)":         false,
		"INSERT INTO t (a) VALUES (JSON_OBJECT('a', ?))":    false,
		"INSERT INTO t VALUES (`f`(?))":                     false,
		"INSERT INTO t SELECT a FROM u WHERE b = ?":         false,
		"INSERT INTO t (a) VALUES ((SELECT 1))":             false,
		"UPDATE t SET n = f (?)":                            false,
		"UPDATE t JOIN u ON t.id = u.id SET t.n = ?":        false,
		"UPDATE t, u SET t.n = ? WHERE t.id = u.id":         false,
		"UPDATE t SET n = ? WHERE s REGEXP ?":               false,
		"UPDATE t SET n = 1 LIMIT ?":                        false,
		"UPDATE t SET n = NEXT VALUE FOR s":                 false,
		"DELETE t FROM t, u WHERE t.id = u.id AND t.id = ?": false,
		"DELETE FROM t USING t JOIN u WHERE t.id = ?":       false,
		"DELETE FROM t WHERE id = (SELECT MAX(id) FROM u)":  false,
	} {
		if w, ok := readWrite(text); !ok || w.repeatable != want {
			t.Errorf("%s: read %t, repeatable %+v, want %t", text, ok, w, want)
		}
	}
}
