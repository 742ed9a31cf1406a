package tables_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

var update = flag.Bool("update", false, "add new steps to testdata")

var flavors = testdb.By[sqltext.Flavor]{MySQL: sqltext.MySQL, Postgres: sqltext.Postgres, SQLite: sqltext.SQLite}

// described returns the tables of a database's schemas.
func described(t *testing.T, driver string) []tables.Table {
	t.Helper()
	log, err := txlog.Schema(driver)
	if err != nil {
		t.Fatal(err)
	}
	targets, err := attempt.TargetSchema(driver)
	if err != nil {
		t.Fatal(err)
	}
	return append(tables.Of(flavors.For(driver), log), tables.Of(flavors.For(driver), targets)...)
}

func TestADatabaseHoldsWhatTheSchemaDescribes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		pool, f := db.Open(t), flavors.For(db.Driver)
		all := described(t, db.Driver)
		if len(all) != 10 {
			t.Fatalf("%d tables are described, want 10", len(all))
		}
		for _, table := range all {
			statements := table.Statements()
			if db.Driver != "sqlite" { // doctor's remedies are statements, and leave it as it is described
				for _, c := range table.Columns {
					statements = append(statements, table.Alter(table.Name, c))
				}
			}
			for _, statement := range statements {
				if _, err := pool.ExecContext(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			found, err := tables.Place{Flavor: f}.Read(t.Context(), pool, table.Name)
			if err != nil {
				t.Fatal(err)
			}
			if len(found.Columns) != len(table.Columns) || !table.HasKey(found.Indexes) || len(found.Indexes) != len(table.Indexes)+1 || found.Triggers != nil || found.Constraints != nil {
				t.Errorf("%s is described as %+v, and found as %+v", table.Name, table, found)
				continue
			}
			for i, c := range table.Columns {
				if is := found.Columns[i]; is.Name != c.Name || c.Differences(f, is) != "" {
					t.Errorf("%s.%s %s: %+v, found %+v", table.Name, c.Name, c.Differences(f, is), c, is)
				}
			}
		}
	})
}

func TestUnreadableSchemaLinePanics(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"CREATE VIEW v AS SELECT 1", "CREATE TABLE IF NOT EXISTS t (\n  id INT NOT NULL,\n  !\n)"} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "cannot be read") {
					t.Errorf("it panicked with %q", text)
				}
			}()
			tables.Of(sqltext.MySQL, text)
		}()
	}
}

// A tool that has applied a step never applies it again, so a released step does not change.
func TestReleasedStepsStay(t *testing.T) {
	t.Parallel()
	for database, f := range flavors.All() {
		log, err := txlog.Schema(database)
		if err != nil {
			t.Fatal(err)
		}
		targets, err := attempt.TargetSchema(database)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for step := 1; step <= tables.NewestStep; step++ {
			statements := append(tables.Steps(f, log, step-1, step), tables.Steps(f, targets, step-1, step)...)
			got += fmt.Sprintf("-- step %d\n\n%s;\n\n", step, strings.Join(statements, ";\n\n"))
		}
		path := "testdata/steps-" + database + ".sql"
		want, err := os.ReadFile(path)
		if *update && strings.HasPrefix(got, string(want)) {
			want, err = []byte(got), os.WriteFile(path, []byte(got), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: the steps are\n%s\nTo change tables, raise NewestStep, name the change in since, and add the new step with -update", database, got)
		}
	}
}
