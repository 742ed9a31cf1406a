package txlog_test

import (
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestLogKeepsItsOwnIdentity(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		first := open(t, db).Identity()
		if again := open(t, db, txlog.WithoutCreate()).Identity(); first == "" || again != first {
			t.Errorf("the log was called %q, opened again %q", first, again)
		}
		if other := open(t, testdb.SQLite(t)).Identity(); other == first {
			t.Error("two logs have the same identity")
		}
	})
	if one, other := txlog.NewMemory(), txlog.NewMemory(); one.Identity() == other.Identity() {
		t.Error("two logs in memory have the same identity")
	}
}

func TestTablesMadeByHandAreGivenAnIdentity(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		schema, err := txlog.Schema(db.Driver)
		if err != nil {
			t.Fatal(err)
		}
		pool := db.Open(t)
		for text := range strings.SplitSeq(strings.TrimSuffix(schema, ";\n"), ";\n") {
			if _, err := pool.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		if open(t, db, txlog.WithoutCreate()).Identity() == "" {
			t.Error("the log has no identity")
		}
	})
}

func TestLogWithoutIdentityGetsItsTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		_ = open(t, db).Close()
		if _, err := db.Open(t).Exec("DROP TABLE bed_log"); err != nil {
			t.Fatal(err)
		}
		_, err := txlog.Open(t.Context(), db.Driver, db.DSN, txlog.WithoutCreate())
		if err == nil || !strings.Contains(err.Error(), "bed_log") || !strings.Contains(err.Error(), "schema.sql") {
			t.Errorf("got error %v, want one that names the table and says what to run", err)
		}
		given := open(t, db).Identity()
		if again := open(t, db, txlog.WithoutCreate()).Identity(); given == "" || again != given {
			t.Errorf("the log was called %q, opened again %q", given, again)
		}
	})
}

func TestAnIdentityThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		_ = open(t, db).Close()
		for _, value := range []string{"", "a b", strings.Repeat("x", 41)} {
			if _, err := db.Open(t).Exec("UPDATE bed_log SET value = '" + value + "'"); err != nil {
				t.Fatal(err)
			}
			if _, err := txlog.Open(t.Context(), db.Driver, db.DSN); err == nil || !strings.Contains(err.Error(), "bed_log") {
				t.Errorf("identity %q: got error %v, want one that names the table", value, err)
			}
		}
	})
}
