package sqlite

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"modernc.org/sqlite"
)

// Whether a second connection reaches the same database is asked of SQLite.
func TestNoSideConnectionInMemory(t *testing.T) {
	t.Parallel()
	for dsn, private := range map[string]bool{
		":memory:":                               true,
		":memory:?_pragma=foreign_keys(1)":       true,
		"file::memory:":                          true,
		"file:alone?mode=memory":                 true,
		"":                                       true,
		"file:":                                  true,
		"file:?x=y":                              true,
		"file::memory:?cache=private":            true,
		"file:side1?mode=memory&cache=shared":    false,
		"file:/side2?vfs=memdb":                  false,
		"file::memory:?cache=shared":             false,
		filepath.Join(t.TempDir(), "on_disk.db"): false,
	} {
		target, err := Target(dsn)
		if err != nil {
			t.Fatalf("%s: %v", dsn, err)
		}
		db := sql.OpenDB(target.Connector)
		defer db.Close()
		one, two := conn(t, db), conn(t, db)
		must(t, one, "CREATE TABLE seen (i INT)")
		_, err = two.ExecContext(context.Background(), "INSERT INTO seen VALUES (1)")
		if really := err != nil; really != private || target.NoSideConnection != private {
			t.Errorf("%q: NoSideConnection is %v, in truth %v, want %v (%v)", dsn, target.NoSideConnection, really, private, err)
		}
		if private && target.File != "" || !strings.HasPrefix(target.DataSource, ":") && target.File == "" {
			t.Errorf("%q is named %q, in the file %q", dsn, target.DataSource, target.File)
		}
	}
}

func TestTargetDials(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	target, err := Target(db.DSN + "&bedDataSource=x")
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(target.Connector)
	defer pool.Close()
	must(t, pool, "CREATE TABLE t (i INT)")
	if _, err := os.Stat(db.Name); err != nil || target.File != db.Name {
		t.Errorf("%v; the file is said to be %s", err, target.File)
	}
}

func FuzzDSN(f *testing.F) {
	for _, seed := range [][2]string{{"a.db", "x=y"}, {"file:a%20b", ""}, {"file:///x", "_pragma=a&_pragma=b"}, {":memory:", ""}, {"a#b", "c#d"}} {
		f.Add(seed[0], seed[1], "name/1")
	}
	f.Fuzz(func(t *testing.T, path, params, name string) {
		if path == "" || strings.Contains(path+params, "?") || strings.Contains(params, "bed") || strings.Contains(params, "%") {
			return
		}
		plain, with := path, path+"?bedDataSource="+url.QueryEscape(name)
		if params != "" {
			plain += "?" + params
			with += "&" + params
		}
		target, err := Target(with)
		_, wantErr := sqlite.NewConnector(plain)
		if err != nil {
			if wantErr == nil && name != "" && !strings.HasPrefix(path, "file:") {
				t.Fatalf("%q: %v", with, err)
			}
			return
		}
		_, bare, _, err := readDSN(with)
		if err != nil || bare != plain || target.DataSource != name {
			t.Fatalf("%q is named %q and leaves %q (%v), want %q and %q", with, target.DataSource, bare, err, name, plain)
		}
	})
}
