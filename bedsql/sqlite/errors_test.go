package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestArgumentsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t).Open(t)
	must(t, db, schema)
	c := conn(t, db)
	if err := c.Raw(func(dc any) error {
		_, err := dc.(driver.ExecerContext).ExecContext(context.Background(), "INSERT INTO t (id, n) VALUES (5, ?)",
			[]driver.NamedValue{{Ordinal: 1, Value: int32(1)}})
		classIs(t, "a type that is none of the driver's", err, dialect.Refused)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestSQLiteMayDoBetterLater(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	db := open(t, path+"?_pragma=busy_timeout(0)")
	must(t, db, schema)
	holder, other := conn(t, db), conn(t, db)
	must(t, holder, "BEGIN IMMEDIATE")
	_, err := other.ExecContext(context.Background(), "INSERT INTO t (id, n) VALUES (7, 1)")
	classIs(t, "locked by another connection", err, dialect.Contention)
	must(t, holder, "ROLLBACK")

	classIs(t, "no such directory", open(t, filepath.Join(t.TempDir(), "no", "x.db")).Ping(), dialect.Retryable)

	small := open(t, filepath.Join(t.TempDir(), "s.db"))
	small.SetMaxOpenConns(1)
	must(t, small, "CREATE TABLE b (b BLOB)", "PRAGMA max_page_count = 4")
	_, err = small.Exec("INSERT INTO b VALUES (zeroblob(100000))")
	classIs(t, "full", err, dialect.Retryable)
}

func TestReadOnlyFileRefusesCallersAndStopsJobs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	plain := open(t, path)
	must(t, plain, schema)
	for what, dsn := range map[string]string{"mode=ro": "file:" + path + "?mode=ro", "query_only": path + "?_query_only=1"} {
		db := open(t, dsn)
		_, err := db.Exec("INSERT INTO t (id, n) VALUES (7, 1)")
		classIs(t, what, err, dialect.Refused)
		if !isReadOnly(err) {
			t.Errorf("%s: %v does not say that it takes no writes", what, err)
		}
		if err := takesWrites(t, db); !isReadOnly(err) {
			t.Errorf("%s: asked whether it takes writes it said %v", what, err)
		}
	}
	if err := takesWrites(t, plain); err != nil {
		t.Errorf("a file that takes writes said %v", err)
	}
	var left int
	if err := plain.QueryRow("SELECT COUNT(*) FROM sqlite_master WHERE name = 'bed_probe'").Scan(&left); err != nil || left != 0 {
		t.Errorf("the question left %d tables behind, %v", left, err)
	}
	holder := conn(t, plain)
	must(t, holder, "BEGIN IMMEDIATE")
	if err := takesWrites(t, open(t, path+"?_pragma=busy_timeout(0)")); err != nil {
		t.Errorf("a file that another connection writes to said %v", err)
	}
	must(t, holder, "ROLLBACK")
}

func takesWrites(t *testing.T, db *sql.DB) (err error) {
	t.Helper()
	_ = conn(t, db).Raw(func(dc any) error {
		err = sqliteDialect.Writable(t.Context(), dc.(driver.Conn))
		return nil
	})
	return err
}

func TestNoDatabaseIsRetryable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("this is no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, path).Exec("INSERT INTO t (id, n) VALUES (7, 1)")
	classIs(t, "NOTADB", err, dialect.Retryable)
}

func TestEndedContextIsUnknown(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t).Open(t)
	must(t, db, schema)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := conn(t, db)
	if err := c.Raw(func(dc any) error {
		_, err := dc.(driver.ExecerContext).ExecContext(ctx, "INSERT INTO t (id, n) VALUES (5, 1)", nil)
		classIs(t, "cancelled", err, dialect.Unknown)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
