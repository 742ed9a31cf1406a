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

func TestDataSourceIsTheAbsolutePath(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(wd, "a.db")
	for dsn, want := range map[string]string{
		"a.db":                              here,
		"./x/../a.db":                       here,
		here:                                here,
		"a.db?_pragma=foreign_keys(1)":      here,
		"file:a.db":                         here,
		"file:a.db?cache=shared":            here,
		"file:./a.db#fragment":              here,
		"file:" + here:                      here,
		"file://" + here:                    here,
		"file://localhost" + here:           here,
		"file:%61.db":                       here,
		"%61.db":                            filepath.Join(wd, "%61.db"),
		"file:with space.db":                filepath.Join(wd, "with space.db"),
		"a.db?bedDataSource=main":           "main",
		"a.db?x=1&bedDataSource=a%2Fb+c":    "a/b c",
		"file:a.db?bed%44ataSource=m&vfs=x": "m",
	} {
		got, err := Target(dsn)
		if err != nil || got.DataSource != want {
			t.Errorf("%s is named %q (%v), want %q", dsn, got.DataSource, err, want)
		}
		if strings.HasPrefix(want, "/") && got.File != want {
			t.Errorf("%s is in the file %q", dsn, got.File)
		}
		if got.NoSideConnection {
			t.Errorf("%s has no side connection", dsn)
		}
	}
	if _, err := Target("file://elsewhere/a.db"); err == nil {
		t.Error("a file: URI with a host was accepted")
	}
}

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

func TestStrippedDSNIsReadAsWithout(t *testing.T) {
	t.Parallel()
	for with, without := range map[string]string{
		"a.db?bedDataSource=x":                  "a.db",
		"a.db?bedDataSource=x&_txlock=deferred": "a.db?_txlock=deferred",
		"a.db?_pragma=a&bedDataSource=x":        "a.db?_pragma=a",
		"a.db?":                                 "a.db?",
		"?bedDataSource=x":                      "?bedDataSource=x", // a file of that name, to the driver
		"a.db?q=bedDataSource":                  "a.db?q=bedDataSource",
	} {
		if _, bare, err := splitDataSource(with); err != nil || bare != without {
			t.Errorf("%s leaves %q (%v), want %q", with, bare, err, without)
		}
	}
	for _, bad := range []string{"a.db?bedDataSource=", "a.db?bedDataSource=a&bedDataSource=b", "a.db?bedDataSource=%zz", "a.db?x=%zz", "a.db?vfs=a&vfs=b", "a.db?a;b"} {
		if _, err := Target(bad); err == nil || !strings.HasPrefix(err.Error(), "sqlite: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Setenv("TZ", "")
	for params, want := range map[string]string{
		"":                        "",
		"_pragma=foreign_keys(1)": "_pragma=foreign_keys(1)",
		"_pragma=foreign_keys(1)&_pragma=+busy_timeout+%3D+5&_pragma=Journal_Mode(WAL)&mode=rw&_txlock=immediate&_fk=1": "_fk=1;_pragma=foreign_keys(1)",
		"anything=a%3Bb":                "anything=a%3Bb",
		"_time_format=sqlite":           "_time_format=sqlite",
		"_timezone=UTC":                 "_timezone=UTC",
		"_timezone=Asia%2FTokyo&_dqs=1": "_timezone=Asia/Tokyo",
		"_dqs=0":                        "_dqs=false",
		"_dqs=f&_time_format=datetime":  "_dqs=false;_time_format=datetime",
		"_time_integer_format=unix":     "_time_integer_format=unix",
		"_time_integer_format=unix&_timezone=Asia%2FTokyo&_time_format=sqlite": "_time_integer_format=unix",
	} {
		got, err := Target("a.db?" + params)
		if err != nil || got.Settings != want {
			t.Errorf("%q gives %q (%v), want %q", params, got.Settings, err, want)
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
		_, bare, err := splitDataSource(with)
		if err != nil || bare != plain || target.DataSource != name {
			t.Fatalf("%q is named %q and leaves %q (%v), want %q and %q", with, target.DataSource, bare, err, name, plain)
		}
	})
}
