package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
)

func classIs(t *testing.T, what string, err error, want delivery.Class) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	} else if got := Classify(err); got != want {
		t.Errorf("%s: %T %v is %v, want %v", what, err, err, got, want)
	}
}

func must(t *testing.T, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if _, err := db.ExecContext(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func conn(t *testing.T, db *sql.DB) *sql.Conn {
	t.Helper()
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

const schema = `CREATE TABLE t (id INTEGER PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), u INT UNIQUE, i INT);
	CREATE TABLE child (id INTEGER PRIMARY KEY, t INT NOT NULL REFERENCES t (id));
	CREATE TABLE keyed (a TEXT, b TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID;
	CREATE TABLE strict (n INT) STRICT;
	CREATE TABLE strings (rowid_ INT);
	INSERT INTO t VALUES (1, 1, 1, 1); INSERT INTO keyed VALUES ('a', 'b'); INSERT INTO strings (rowid, rowid_) VALUES (1, 1);
	CREATE VIEW v AS SELECT 1 AS one;
	CREATE TRIGGER no BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'no'); END`

func TestSQLiteRefuses(t *testing.T) {
	t.Parallel()
	db := open(t, testdb.SQLite(t).DSN+"&_pragma=foreign_keys(1)")
	must(t, db, schema)
	for _, text := range []string{
		"INSRT INTO t",
		"UPDATE nowhere SET x = 1",
		"UPDATE t SET nothing = 1",
		"INSERT INTO t (id, n) VALUES (2)",
		"INSERT INTO t (id) VALUES (2)",
		"INSERT INTO t (id, n) VALUES (2, -1)",
		"INSERT INTO t (id, n) VALUES ('x', 1)",
		"INSERT INTO child VALUES (1, 99)",
		"INSERT INTO strict VALUES ('x')",
		"INSERT INTO t (id, n) VALUES (2, nofunction(1))",
		"UPDATE v SET one = 2",
		"DELETE FROM t",
		"INSERT INTO t (id, n, i) VALUES (2, 1, zeroblob(2000000000))",
	} {
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Refused)
	}
	for _, text := range []string{
		"INSERT INTO t (id, n) VALUES (1, 1)",
		"INSERT INTO t (id, n, u) VALUES (2, 1, 1)",
		"INSERT INTO keyed VALUES ('a', 'b')",
		"INSERT INTO strings (rowid, rowid_) VALUES (1, 2)",
	} {
		_, err := db.Exec(text)
		classIs(t, text, err, delivery.Duplicate)
	}
}

func TestArgumentsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t).Open(t)
	must(t, db, schema)
	for _, args := range [][]any{{1}, {sql.Named("a", 1)}, {uint64(1 << 63)}, {struct{}{}}} {
		_, err := db.Exec("INSERT INTO t (id, n) VALUES (@b, ?)", args...)
		classIs(t, "arguments", err, delivery.Refused)
	}
	c := conn(t, db)
	if err := c.Raw(func(dc any) error {
		_, err := dc.(driver.ExecerContext).ExecContext(context.Background(), "INSERT INTO t (id, n) VALUES (5, ?)",
			[]driver.NamedValue{{Ordinal: 1, Value: int32(1)}})
		classIs(t, "a type that is none of the driver's", err, delivery.Refused)
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
	classIs(t, "locked by another connection", err, delivery.Retryable)
	must(t, holder, "ROLLBACK")

	classIs(t, "no such directory", open(t, filepath.Join(t.TempDir(), "no", "x.db")).Ping(), delivery.Retryable)

	small := open(t, filepath.Join(t.TempDir(), "s.db"))
	small.SetMaxOpenConns(1)
	must(t, small, "CREATE TABLE b (b BLOB)", "PRAGMA max_page_count = 4")
	_, err = small.Exec("INSERT INTO b VALUES (zeroblob(100000))")
	classIs(t, "full", err, delivery.Retryable)
}

func TestAFileThatTakesNoWritesMayTakeThemLater(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.db")
	plain := open(t, path)
	must(t, plain, schema)
	for what, dsn := range map[string]string{"mode=ro": "file:" + path + "?mode=ro", "query_only": path + "?_query_only=1"} {
		db := open(t, dsn)
		_, err := db.Exec("INSERT INTO t (id, n) VALUES (7, 1)")
		classIs(t, what, err, delivery.Retryable)
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
		err = Dialect().Writable(t.Context(), dc.(driver.Conn))
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
	classIs(t, "NOTADB", err, delivery.Retryable)
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
		classIs(t, "cancelled", err, delivery.Unknown)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	classIs(t, "ErrBadConn", driver.ErrBadConn, delivery.Unreachable)
	classIs(t, "anything", errors.New("anything"), delivery.Unknown)
}

func TestCodesThatCannotBeProvoked(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]delivery.Class{
		10: delivery.Unknown, 778: delivery.Unknown, 4106: delivery.Unknown, // IOERR, _WRITE, _FSYNC
		517: delivery.Retryable, 261: delivery.Retryable, // BUSY_SNAPSHOT, BUSY_RECOVERY
		7: delivery.Retryable, 9: delivery.Retryable, 15: delivery.Retryable, 17: delivery.Retryable,
		787: delivery.Refused, 1299: delivery.Refused, 275: delivery.Refused, 1811: delivery.Refused, // FOREIGNKEY, NOTNULL, CHECK, TRIGGER
		23: delivery.Refused, 25: delivery.Refused, 1032: delivery.Retryable, 11: delivery.Retryable, 99: delivery.Retryable,
	} {
		if got := classifyCode(code); got != want {
			t.Errorf("%d is %v, want %v", code, got, want)
		}
	}
}
