package driver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

// told runs writes on one connection and returns each answer, with the state of the session after
// it.
func told(t *testing.T, pool *sql.DB, session string, writes []string) (all []string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pool.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, text := range writes {
		var id, rows int64
		res, err := conn.ExecContext(ctx, text)
		if err == nil {
			id, _ = res.LastInsertId()
			rows, _ = res.RowsAffected()
		}
		var says string
		if err := conn.QueryRowContext(ctx, session).Scan(&says); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s: id %d, rows %d, %v; %s is %s", text, id, rows, err, session, says))
	}
	return all
}

func sameAsBare(t *testing.T, db func(testing.TB) testdb.DB, schema []string, session string, writes []string, read string) {
	t.Helper()
	bareDB, wrappedDB := db(t), db(t)
	bare, r := bareDB.Open(t), rig.New(t, wrappedDB, func(c *bedsql.Config) { c.Guarantee = bedsql.ExactlyOnce })
	for _, text := range schema {
		if _, err := bare.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	r.Exec(schema...)
	want, got := told(t, bare, session, writes), told(t, r.Wrapped, session, writes)
	for i := range want {
		if got[i] != strings.ReplaceAll(want[i], bareDB.Name, wrappedDB.Name) {
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
	if want, got := columnOf(t, bare, read), columnOf(t, r.Bare, read); !slices.Equal(want, got) {
		t.Errorf("%s gives %v, by the bare driver %v", read, got, want)
	}
}

func columnOf(t *testing.T, pool *sql.DB, query string) (all []string) {
	t.Helper()
	rows, err := pool.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s sql.NullString
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		all = append(all, s.String)
	}
	return all
}

func TestExactlyOnceKeepsTheSessionsFunctions(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		writes := []string{"INSERT INTO item (n) VALUES (1)", "UPDATE item SET n = 7", "INSERT OR IGNORE INTO item (id, n) VALUES (1, 2)",
			"INSERT INTO item (id, n) VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET n = 3", "INSERT INTO item (n) VALUES (4), (5), (6)", "DELETE FROM item WHERE id = 77"}
		for i := range 70 {
			writes = append(writes, fmt.Sprintf("UPDATE item SET n = %d WHERE id <= %d", i, i%4))
		}
		sameAsBare(t, testdb.SQLite, []string{"CREATE TABLE item (id INTEGER PRIMARY KEY, n INT)", "CREATE TABLE seen (id INT)",
			"CREATE TRIGGER see AFTER UPDATE ON item BEGIN INSERT INTO seen VALUES (last_insert_rowid()); END"},
			"SELECT last_insert_rowid() || ' and ' || changes()", writes, "SELECT id FROM seen ORDER BY rowid")
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		writes := []string{"INSERT INTO item (n) VALUES (1)", "INSERT INTO item (n) VALUES (2), (3)", "INSERT INTO plain VALUES (last())", "UPDATE item SET n = 9 WHERE id = 1",
			"INSERT INTO other (n) VALUES (1)", "INSERT INTO item (n) VALUES ('no number')", "INSERT INTO plain VALUES (5)", "INSERT IGNORE INTO unique_ (n) VALUES (1)",
			"INSERT IGNORE INTO unique_ (n) VALUES (1)", "INSERT INTO unique_ (n) VALUES (1)", "INSERT INTO plain VALUES (6)", "REPLACE INTO unique_ (n) VALUES (1)"}
		for range 5 { // prepared from some use on
			writes = append(writes, "INSERT INTO item (n) VALUES (8)", "INSERT INTO plain VALUES (7)")
		}
		sameAsBare(t, testdb.MySQL, []string{
			"CREATE TABLE item (id INT AUTO_INCREMENT PRIMARY KEY, n INT)", "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
			"CREATE TABLE unique_ (id INT AUTO_INCREMENT PRIMARY KEY, n INT UNIQUE)", "CREATE TABLE plain (n BIGINT)",
			"CREATE TABLE seen (at INT AUTO_INCREMENT PRIMARY KEY, id BIGINT)",
			"CREATE FUNCTION last() RETURNS BIGINT DETERMINISTIC RETURN LAST_INSERT_ID()",
			"CREATE TRIGGER item_seen BEFORE INSERT ON item FOR EACH ROW INSERT INTO seen (id) VALUES (LAST_INSERT_ID())",
			"CREATE TRIGGER plain_seen BEFORE INSERT ON plain FOR EACH ROW INSERT INTO seen (id) VALUES (LAST_INSERT_ID())",
		}, "SELECT LAST_INSERT_ID()", writes, "SELECT id FROM seen UNION ALL SELECT n FROM plain")
	})
}
