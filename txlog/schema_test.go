package txlog_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// sections cuts schema.sql at its marks.
func sections(t *testing.T) map[string]string {
	text, err := os.ReadFile("../schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	mark := regexp.MustCompile(`(?m)^-- ===== ([\w ]+): .* =====\n\n`)
	marks := mark.FindAllSubmatchIndex(text, -1)
	all := map[string]string{}
	for i, m := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		all[string(text[m[2]:m[3]])] = strings.TrimSpace(string(text[m[1]:end]))
	}
	return all
}

func TestOpenRunsTheTextOfSchemaSQL(t *testing.T) {
	t.Parallel()
	file := sections(t)
	if len(file) != 6 {
		t.Fatalf("schema.sql has %d sections, want 6", len(file))
	}
	for _, database := range []string{"mysql", "postgres", "sqlite"} {
		got, err := txlog.Schema(database)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(got) != file[database] {
			t.Errorf("%s: the section of schema.sql and txlog/schema/%s.sql differ", database, database)
		}
		if got, err = attempt.TargetSchema(database); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(got) != file["targets in "+database] {
			t.Errorf("%s: the section of schema.sql for targets and attempt.TargetSchema differ", database)
		}
	}
	if _, err := txlog.Schema("oracle"); err == nil {
		t.Error("there is a schema for a database that is not supported")
	}
}

func TestOpenRefusesATableWithoutItsKey(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		st, err := txlog.Open(t.Context(), db.Driver, db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		pool := db.Open(t)
		for _, statement := range (testdb.By[[]string]{
			MySQL:    []string{"ALTER TABLE transaction_log DROP PRIMARY KEY"},
			Postgres: []string{"ALTER TABLE transaction_log DROP CONSTRAINT transaction_log_pkey"},
			SQLite:   []string{"ALTER TABLE transaction_log RENAME TO old", "CREATE TABLE transaction_log AS SELECT * FROM old"},
		}).For(db.Driver) {
			if _, err := pool.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		_, err = txlog.Open(t.Context(), db.Driver, db.DSN)
		if !errors.Is(err, txlog.ErrUnusable) {
			t.Fatalf("opened: %v, want ErrUnusable", err)
		}
		_, statement, _ := strings.Cut(err.Error(), "run ")
		statement, _, _ = strings.Cut(statement, ", once")
		if _, err := pool.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("what it says to run, %q: %v", statement, err)
		}
		if st, err = txlog.Open(t.Context(), db.Driver, db.DSN); err != nil {
			t.Fatal(err)
		}
		_ = st.Close()
	})
}
