package postgres

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

func TestDataSourceNames(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"postgres://user:secret@127.0.0.1:5432/orders":                         "127.0.0.1:5432/orders",
		"postgresql://user:secret@db/orders":                                   "db:5432/orders",
		"postgres://user:se?c%2Fret@db:1/orders?sslmode=disable":               "db:1/orders",
		"postgres://user:secret@[::1]:1/orders":                                "[::1]:1/orders",
		"postgres://user:secret@a:1,b:2/orders":                                "a:1,b:2/orders",
		"postgres://user:secret@db:1/":                                         "db:1/user",
		"postgres://user:secret@%2Frun%2Fpostgresql/orders":                    "/run/postgresql/.s.PGSQL.5432/orders",
		"host=/run/postgresql user=u password=secret dbname=orders":            "/run/postgresql/.s.PGSQL.5432/orders",
		`host=db port=1 user=u password='a\' b=c' dbname = orders`:             "db:1/orders",
		"postgres://user:secret@db/orders?bedDataSource=main":                  "main",
		"postgres://user:secret@db/orders?sslmode=disable&bedDataSource=a%2Fb": "a/b",
		"postgres://user:secret@db/orders?bed%44ataSource=127.0.0.1:5432/o":    "127.0.0.1:5432/o",
		"postgres://user:x?bedDataSource=y@db/orders":                          "db:5432/orders",
		"host=db user=u password='bedDataSource=x' dbname=o":                   "db:5432/o",
		`host=db bedDataSource='my \'own\' name' user=u dbname=o`:              "my 'own' name",
		"bedDataSource = x host=db user=u":                                     "x",
		"host='db'bedDataSource='x'user=u":                                     "x",
	} {
		got, err := Target(dsn)
		if err != nil || got.DataSource != want {
			t.Errorf("%s is named %q (%v), want %q", dsn, got.DataSource, err, want)
		}
	}
}

func TestDSNErrorsNeverQuoteTheDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://user:s3cret@db:port/x", "postgres://user:s3cret%zz@db/x", "postgres://user:pa/s3cret@db/x?y", "postgres://u:s3:s3cret@h:x:y",
		"host=db password=s3cret s3cret", "password='s3cret", "host=db s3cret pass=x", "host=db port=s3cret", "host=db service=s3cret",
		"host=db sslrootcert=/s3cret", "host=db connect_timeout=s3cret", "host=db target_session_attrs=s3cret", "host=a,b,c port=1,2 password=s3cret",
		"postgres://u:s3cret@db/x?bedDataSource=", "postgres://u:s3cret@db/x?bedDataSource=a&bedDataSource=b", "postgres://u:p@db/x?bedDataSource=s3cret%zz",
		"host=db bedDataSource=a bedDataSource=b password=s3cret", "host=db password=s3cret default_query_exec_mode=x", "host=db min_protocol_version=s3cret",
		"registeredConnConfig999 bedDataSource=s3cret", "registeredConnConfig999 s3cret",
	} {
		_, err := Target(dsn)
		if err == nil {
			t.Errorf("%s was accepted", dsn)
			continue
		}
		if strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), "postgres: ") || errors.Unwrap(err) != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func TestRegisteredConfiguration(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	cfg := config(t, db)
	cfg.RuntimeParams["TimeZone"] = "Asia/Tokyo"
	registered := stdlib.RegisterConnConfig(cfg)
	t.Cleanup(func() { stdlib.UnregisterConnConfig(registered) })
	for dsn, want := range map[string]string{
		registered:                          dataSource(&cfg.Config),
		registered + " bedDataSource=main":  "main",
		registered + "?bedDataSource=a%2Fb": "a/b",
	} {
		target, err := Target(dsn)
		if err != nil || target.DataSource != want || target.Settings != "timezone=Asia/Tokyo" {
			t.Fatalf("%s is named %q with %q (%v), want %q", dsn, target.DataSource, target.Settings, err, want)
		}
		pool := sql.OpenDB(target.Connector)
		var zone string
		if err := pool.QueryRow("SHOW timezone").Scan(&zone); err != nil || zone != "Asia/Tokyo" {
			t.Errorf("%s: %s, %v", dsn, zone, err)
		}
		pool.Close()
	}
}

func TestServiceFileAndEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services")
	if err := os.WriteFile(file, []byte("[main]\nhost=elsewhere\ndbname=orders\nuser=u\npassword=secret\nTimeZone=Asia/Tokyo\n\n[named]\nhost=elsewhere\nuser=u\nbedDataSource=from the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGSERVICEFILE", file)
	t.Setenv("PGOPTIONS", `-c search_path=a,\ b`)
	got, err := Target("service=main")
	if err != nil || got.DataSource != "elsewhere:5432/orders" || got.Settings != "search_path=a,b;timezone=Asia/Tokyo" {
		t.Errorf("named %q with %q (%v)", got.DataSource, got.Settings, err)
	}
	got, err = Target("service=named")
	if err != nil || got.DataSource != "from the file" {
		t.Errorf("named %q (%v)", got.DataSource, err)
	}
	got, err = Target("service=named bedDataSource=mine")
	if err != nil || got.DataSource != "mine" {
		t.Errorf("named %q (%v)", got.DataSource, err)
	}
	t.Setenv("PGTZ", "Europe/Paris")
	got, err = Target("host=db user=u")
	if err != nil || got.Settings != "search_path=a,b;timezone=Europe/Paris" {
		t.Errorf("settings %q (%v)", got.Settings, err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	base := "host=db user=u "
	for _, same := range [][]string{
		{"", "standard_conforming_strings=on", "client_encoding=utf-8", "application_name=x", "statement_timeout=5", "options='-c standard_conforming_strings=on'"},
		{"timezone=Asia/Tokyo", "TimeZone=Asia/Tokyo", "options='-c TimeZone=Asia/Tokyo'", "options='-ctimezone=Asia/Tokyo'", "options=--timezone=Asia/Tokyo", "options='-c timezone=UTC' timezone=Asia/Tokyo"},
		{"search_path=a,b", "search_path='A, b'", `options='-c search_path=a,\\ b'`, "options='--search-path=a,b'"},
		{`search_path='"A",b'`}, {"role=writer"}, {"datestyle='ISO, DMY'", "DateStyle=dmy,iso"}, {"intervalstyle=iso_8601", "IntervalStyle=ISO_8601"},
		{"standard_conforming_strings=off", "standard_conforming_strings=false"}, {"session_replication_role=replica"},
	} {
		want, err := Target(base + same[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, params := range same {
			got, err := Target(base + params + " bedDataSource=x")
			if err != nil || got.Settings != want.Settings {
				t.Errorf("%s gives %q (%v), %s gives %q", params, got.Settings, err, same[0], want.Settings)
			}
		}
		if same[0] != "" && want.Settings == "" {
			t.Errorf("%s gives no settings", same[0])
		}
	}
}

func TestTargetDials(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	dsn := db.DSN + " bedDataSource=x"
	if strings.Contains(db.DSN, "://") {
		sep := "?"
		if strings.Contains(db.DSN, "?") {
			sep = "&"
		}
		dsn = db.DSN + sep + "bedDataSource=x"
	}
	target, err := Target(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := target.Connector.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if of := TargetOf(config(t, db), ""); of.DataSource != db.Addr()+"/"+db.Name && !strings.Contains(of.DataSource, ".s.PGSQL") {
		t.Errorf("TargetOf names it %q", of.DataSource)
	}
}

const secret = "Zq9secretZq9"

// sameConfig compares what the driver reads from two DSNs.
func sameConfig(t *testing.T, stripped, plain string) {
	t.Helper()
	got, err := pgx.ParseConfig(stripped)
	want, wantErr := pgx.ParseConfig(plain)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, %q: %v", stripped, err, plain, wantErr)
	}
	if err != nil {
		return
	}
	if got.Host != want.Host || got.Port != want.Port || got.User != want.User || got.Password != want.Password || got.Database != want.Database ||
		len(got.Fallbacks) != len(want.Fallbacks) || !reflect.DeepEqual(got.RuntimeParams, want.RuntimeParams) {
		t.Fatalf("%q is not read like %q", stripped, plain)
	}
}

func FuzzURL(f *testing.F) {
	for _, seed := range [][3]string{{"p?x", "a:1,b:2", "sslmode=disable"}, {"a:b%2F", "[::1]:5", ""}, {"/x?bedDataSource=y", "h", "TimeZone=a%20b"}} {
		f.Add(seed[0], seed[1], seed[2], "name/1")
	}
	f.Fuzz(func(t *testing.T, password, host, params, name string) {
		if strings.Contains(params, "service") || strings.Contains(params, "%") || strings.Contains(params, "bed") || strings.Contains(host, "bed") || strings.Contains(params, "ssl") {
			return
		}
		plain := "postgres://user:" + password + secret + "@" + host + "/db"
		with := plain + "?bedDataSource=" + url.PathEscape(name)
		if params != "" {
			plain += "?" + params
			with += "&" + params
		}
		target, err := Target(with)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("%q: %v", with, err)
			}
			return
		}
		cfg, err := pgx.ParseConfig(plain)
		if err != nil || !strings.Contains(cfg.Password, secret) || strings.Contains(host, "?") {
			return // a DSN whose password is somewhere else than meant
		}
		_, bare, err := splitDataSource(with)
		if err != nil || target.DataSource != name {
			t.Fatalf("%q is named %q (%v)", with, target.DataSource, err)
		}
		sameConfig(t, bare, plain)
		unnamed, err := Target(plain)
		if err != nil || strings.Contains(unnamed.DataSource, secret) {
			t.Fatalf("%q is named %q (%v)", plain, unnamed.DataSource, err)
		}
	})
}

func FuzzKeywords(f *testing.F) {
	for _, seed := range [][2]string{{"host=a", "port=1 "}, {`x='a\'b' `, " y = z"}, {"a='b'", "c='d'"}, {`a=b\ c `, ""}} {
		f.Add(seed[0], seed[1], "name/1")
	}
	f.Fuzz(func(t *testing.T, before, after, name string) {
		if strings.Contains(before+after, "bed") || strings.Contains(before+after, "service") || strings.Contains(before+after, "ssl") || strings.Contains(before, "://") || strings.HasPrefix(before, registeredPrefix) || name == "" {
			return
		}
		quoted := "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(name) + "'"
		plain := before + " password=" + secret + " " + after
		with := before + " bedDataSource=" + quoted + " password=" + secret + " " + after
		target, err := Target(with)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("%q: %v", with, err)
			}
			return
		}
		cfg, err := pgx.ParseConfig(plain)
		if err != nil || cfg.Password != secret {
			return
		}
		got, bare, err := splitDataSource(with)
		if err != nil || got != name || target.DataSource != name {
			t.Fatalf("%q is named %q and %q (%v)", with, got, target.DataSource, err)
		}
		sameConfig(t, bare, plain)
	})
}
