package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/dialect"
)

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
		e.noneOpen()
	}
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
}

// A syntax error that stops the parser is left for the statement itself to report.
func TestAtomicLeavesSyntaxErrorsAlone(t *testing.T) { bothWays(t, atomicLeavesSyntaxErrorsAlone) }

func atomicLeavesSyntaxErrorsAlone(t *testing.T, way string) {
	e := receiptful(t, way, schema)
	for _, text := range []string{"UPDATE t SET", "INSERT INTO t (id,) VALUES (1)", "DELETE FROM t WHERE (id = 1"} {
		if _, handled, err := atomicOn(t, e.d, e.c, receipt("r"), call(text)); handled || err != nil {
			t.Errorf("%s: handled, %v", text, err)
		}
		e.noneOpen()
	}
	must(t, e.c, "SET sql_mode = 'ORACLE'")
	if _, handled, err := atomicOn(t, e.d, e.c, receipt("r"), call("UPDATE t SET n = 1")); handled || err != nil {
		t.Errorf("in Oracle's mode it was handled: %v", err)
	}
	e.is("SELECT COUNT(*) FROM bed_receipt", 0)
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
					classIs(t, value, err, dialect.Duplicate)
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
		// MySQL names the table of the primary key; on MariaDB the value decides.
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
		for value, want := range map[string]bool{key: true, key[:61] + "...": true, key[:64]: true, key[:20]: false, key[1:]: false, "key-...": false, "key-f" + key[5:61] + "...": false} {
			if got := isReceiptDuplicate(&mysql.MySQLError{Number: 1062, Message: fmt.Sprintf(language, value)}, key); got != want {
				t.Errorf(language+": %t", value, got)
			}
		}
	}
	if isReceiptDuplicate(&mysql.MySQLError{Number: 1064, Message: "Duplicate entry 'r' for key 'bed_receipt_id'"}, "r") || isReceiptDuplicate(errors.New("x"), "r") {
		t.Error("another error is said to be a duplicate")
	}
}
