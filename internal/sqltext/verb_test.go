package sqltext

import "testing"

func TestVerbIsTheMainStatements(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flavor     Flavor
		text, verb string
	}{
		{MySQL, "insert into t values (1) on duplicate key update n = 2", "INSERT"},
		{MySQL, "  -- a note\n/* DELETE */ REPLACE INTO t SET id = 1", "REPLACE"},
		{MySQL, "/*!50000 DELETE */ FROM t", "DELETE"},
		{SQLite, "REPLACE INTO t VALUES ('UPDATE')", "REPLACE"},
		{Postgres, "WITH gone AS (DELETE FROM t RETURNING *) INSERT INTO u SELECT * FROM gone", "INSERT"},
		{Postgres, "WITH made AS (INSERT INTO t VALUES (1) RETURNING id) SELECT id FROM made", "INSERT"},
		{Postgres, "WITH a AS (SELECT 1) UPDATE t SET n = 1", "UPDATE"},
		{Postgres, "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET n = 1 WHEN NOT MATCHED THEN INSERT VALUES (1)", "MERGE"},
		{Postgres, `UPDATE t SET "delete" = 'INSERT' WHERE id = $1`, "UPDATE"},
		{Postgres, "INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET n = 1", "INSERT"},
		{ANSI, "DELETE FROM t", "DELETE"},
		{MySQL, "SELECT 1", ""},
		{MySQL, "SELECT * FROM t FOR UPDATE", ""},
		{MySQL, "DROP TABLE t", ""},
		{MySQL, "-- base64 SU5TRVJU", ""},
		{MySQL, "", ""},
		{Messages, "PUBLISH INSERT", ""},
	} {
		if got := Verb(c.flavor, c.text); got != c.verb {
			t.Errorf("%v: %s: %q, want %q", c.flavor, c.text, got, c.verb)
		}
	}
}
