package sqltext

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// SQLite gives the second opinion. A text that writes, or changes tables, must not be classed as a
// read. A text that leaves a transaction open must be classed as beginning one.
func FuzzWhatSQLiteWritesIsNoRead(f *testing.F) {
	for i, fl := range flavors {
		if fl.flavor == SQLite {
			for _, text := range texts(f, i) {
				f.Add(text)
			}
		}
	}
	for _, text := range []string{
		"WITH x AS (SELECT 1) UPDATE t SET n = 2", "EXPLAIN UPDATE t SET n = 2", "/**/ (DELETE FROM t)", "SELECT 1; DELETE FROM t", "VALUES (1)", "REPLACE INTO t VALUES (1, 2)",
		"\ufeffDELETE FROM t", "EXPLAIN QUERY PLAN DELETE FROM t", "PRAGMA user_version = 4", "INSERT INTO t VALUES (9, 9) RETURNING n", "END", "SAVEPOINT s", "SELECT '--', \"/*\", `;`, [;]; -- x",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		upper := strings.ToUpper(text)
		if len(text) > 2000 || strings.Contains(upper, "ATTACH") || strings.Contains(upper, "VACUUM") || strings.Contains(upper, "PRAGMA") {
			return // it may reach beyond this database
		}
		db, err := sql.Open("sqlite", ":memory:")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := db.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.ExecContext(ctx, "PRAGMA hard_heap_limit = 67108864; CREATE TABLE t (id INTEGER PRIMARY KEY, n INT); INSERT INTO t VALUES (1, 1), (2, 2); CREATE VIEW v AS SELECT * FROM t"); err != nil {
			t.Fatal(err)
		}
		state := func() (s [2]int64) {
			if err := c.QueryRowContext(context.Background(), "SELECT total_changes(), (SELECT schema_version FROM pragma_schema_version)").Scan(&s[0], &s[1]); err != nil {
				t.Skip("its answer cannot be read any more:", err)
			}
			return s
		}
		before := state()
		short, stop := context.WithTimeout(ctx, time.Second)
		_, err = c.ExecContext(short, text)
		stop()
		after := state()
		_, begun := c.ExecContext(context.Background(), "BEGIN")
		kind := Classify(SQLite, text).Kind
		switch reads := kind == Read || kind == Empty; {
		case reads && before != after:
			t.Fatalf("%q is classed as %v; SQLite wrote (changes, schema): %v, then %v; %v", text, kind, before, after, err)
		case kind == DML && before[1] != after[1]:
			t.Fatalf("%q is classed as a DML; SQLite changed its schema; %v", text, err)
		case (reads || kind == DML) && begun != nil && strings.Contains(begun.Error(), "within a transaction"):
			t.Fatalf("%q is classed as %v; SQLite began a transaction; %v", text, kind, err)
		}
	})
}
