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

var families = []string{
	"CREATE TABLE parent (id INT PRIMARY KEY)",
	"CREATE TABLE child (id INT PRIMARY KEY, parent INT REFERENCES parent (id) ON DELETE CASCADE)",
}

// Foreign keys are switched as mappers and migrators do it, through the pool.
func TestPragmaHoldsForItsConnection(t *testing.T) {
	t.Parallel()
	steps := []string{
		"PRAGMA foreign_keys", "INSERT INTO child VALUES (1, 7)", "INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (2, 1)",
		"PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys", "DELETE FROM parent", "INSERT INTO child VALUES (3, 7)",
		"CREATE TABLE parent__temp (id INT PRIMARY KEY)", "DROP TABLE parent", "ALTER TABLE parent__temp RENAME TO parent",
		"DELETE FROM child", "PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 3000", "PRAGMA foreign_keys",
		"INSERT INTO parent VALUES (2)", "INSERT INTO child VALUES (4, 2)", "INSERT INTO child VALUES (5, 7)",
		"PRAGMA foreign_keys", "DELETE FROM parent",
	}
	run := func(pool *sql.DB) (said []string) {
		pool.SetMaxOpenConns(1)
		for _, step := range steps {
			line := step + ": "
			if step == "PRAGMA foreign_keys" {
				var on int
				err := pool.QueryRow(step).Scan(&on)
				line += fmt.Sprint(on, err)
			} else if res, err := pool.Exec(step); err != nil {
				line += err.Error()
			} else if n, _ := res.RowsAffected(); n != 0 && strings.Contains(step, "INTO") {
				line += fmt.Sprint(n)
			}
			said = append(said, line)
		}
		return said
	}
	for _, form := range []struct{ name, params, first string }{
		{"by the DSN", "&_pragma=foreign_keys(1)", "SELECT 1"},
		{"by the DSN's short form", "&_fk=1", "SELECT 1"},
		{"by a statement", "", "PRAGMA foreign_keys = ON"},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.SQLite(t))
			r.Exec(families...)
			bareDB := testdb.SQLite(t)
			bare, err := sql.Open("sqlite", bareDB.DSN+form.params)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bare.Close() }()
			wrapped := r.Open(r.DB.DSN + form.params)
			for _, text := range families {
				r.Must(bare, text)
			}
			r.Must(bare, form.first)
			r.Must(wrapped, form.first)
			want, got := run(bare), run(wrapped)
			if !slices.Equal(got, want) {
				t.Errorf("through bed:\n%s\nbare:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if n := r.Counters.PassedThrough.Load(); n != 0 || r.Counters.Delivered.Load() == 0 {
				t.Errorf("%d writes ran unlogged, %d were delivered; want none and some", n, r.Counters.Delivered.Load())
			}
			r.WantNoLog()
		})
	}
}

// A cascade happens wherever the entry is delivered.
func TestWriteIsDeliveredWithItsConnectionsSettings(t *testing.T) {
	t.Parallel()
	for _, form := range []struct{ name, params, first string }{
		{"by the DSN", "&_pragma=foreign_keys(1)", "SELECT 1"},
		{"by a statement", "", "PRAGMA foreign_keys = ON"},
	} {
		t.Run(form.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, testdb.SQLite(t), func(c *bedsql.Config) { c.NoSyncRetry = true })
			r.Exec(families...)
			r.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)")
			r.Exec("INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (1, 1), (2, 2)", "INSERT INTO account VALUES (1, 1)")
			pool := r.Open(r.DB.DSN + form.params + "&_pragma=busy_timeout(1)")
			pool.SetMaxOpenConns(1)
			r.Must(pool, form.first)

			ctx, soft, err := bedsql.Begin(t.Context(), bedsql.Staged())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pool.ExecContext(ctx, "DELETE FROM parent WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			if err := soft.End(context.Background()); err != nil {
				t.Fatal(err)
			}
			if n := r.Count("SELECT COUNT(*) FROM child"); n != 1 {
				t.Errorf("%d children are left after a staged delivery, want 1", n)
			}

			free := r.BlockRow(1)
			_, err = pool.Exec("DELETE FROM parent WHERE id = 2")
			rig.WantPending(t, err)
			if u := r.WantOneLog(); u.Settings != "_pragma=foreign_keys(1)" {
				t.Errorf("the entry has the settings %q", u.Settings)
			}
			free()
			if _, err := r.Job().RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := r.Count("SELECT COUNT(*) FROM child"); n != 0 {
				t.Errorf("%d children are left after the job, want none", n)
			}
		})
	}
}
