package tables

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/bedsql/bed/internal/sqltext"
)

const first = `CREATE TABLE IF NOT EXISTS a (
  id    INT NOT NULL PRIMARY KEY, -- the key; it stays
  "sql" TEXT NOT NULL,            -- text
  later INT NOT NULL,             -- a column of step 2
  last  TEXT NULL                 -- another
);
CREATE INDEX IF NOT EXISTS a_later ON a (later);

CREATE TABLE IF NOT EXISTS b (
  id INT NOT NULL,
  CONSTRAINT b_id PRIMARY KEY (id)
) WITHOUT ROWID;
`

// A step adds tables, columns and indexes; each step has what the steps before it lack.
func TestStepsAddTablesColumnsAndIndexes(t *testing.T) {
	t.Parallel()
	since := map[string]int{"a.later": 2, "a.last": 3, "a.a_later": 3, "b": 2}
	for _, tc := range []struct {
		flavor   sqltext.Flavor
		from, to int
		want     []string
	}{
		{sqltext.Postgres, 0, 1, []string{"CREATE TABLE IF NOT EXISTS a (\n  id    INT NOT NULL PRIMARY KEY,\n  \"sql\" TEXT NOT NULL\n)"}},
		{sqltext.Postgres, 1, 2, []string{
			"ALTER TABLE a ADD COLUMN later INT NOT NULL DEFAULT 0", "ALTER TABLE a ALTER COLUMN later DROP DEFAULT",
			"CREATE TABLE IF NOT EXISTS b (\n  id INT NOT NULL,\n  CONSTRAINT b_id PRIMARY KEY (id)\n) WITHOUT ROWID",
		}},
		{sqltext.SQLite, 2, 3, []string{"ALTER TABLE a ADD COLUMN last TEXT NULL", "CREATE INDEX IF NOT EXISTS a_later ON a (later)"}},
		{sqltext.Postgres, 3, 3, nil},
	} {
		if got := stepsOf(Of(tc.flavor, first), since, tc.from, tc.to); !slices.Equal(got, tc.want) {
			t.Errorf("from %d to %d: %q, want %q", tc.from, tc.to, got, tc.want)
		}
	}
	const inline = "CREATE TABLE IF NOT EXISTS a (\n  id INT NOT NULL,\n  `sql` TEXT NOT NULL,\n  PRIMARY KEY (id),\n  KEY a_sql (`sql`)\n) ENGINE=InnoDB;\n"
	for step, want := range map[int]string{
		1: "CREATE TABLE IF NOT EXISTS a (\n  id INT NOT NULL,\n  PRIMARY KEY (id)\n) ENGINE=InnoDB",
		2: "ALTER TABLE a ADD COLUMN `sql` TEXT NOT NULL",
		3: "ALTER TABLE a ADD KEY a_sql (sql)",
	} {
		inline := strings.ReplaceAll(inline, "(`sql`)", "(sql)")
		if got := stepsOf(Of(sqltext.MySQL, inline), map[string]int{"a.sql": 2, "a.a_sql": 3}, step-1, step); !slices.Equal(got, []string{want}) {
			t.Errorf("step %d on MySQL: %q, want %q", step, got, want)
		}
	}
}

func TestMigrationsAreAFileSystem(t *testing.T) {
	t.Parallel()
	files, err := Migrations(sqltext.Postgres, first, "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(files, "00001_x.up.sql"); err != nil {
		t.Error(err)
	}
	all, err := fs.Glob(files, "*")
	if err != nil || len(all) != 1 { // the second step has nothing of it
		t.Errorf("the files are %q, %v", all, err)
	}
}
