package mysql

import (
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/go-sql-driver/mysql"
)

func TestDataSourceNames(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"user:secret@tcp(127.0.0.1:3306)/orders": "127.0.0.1:3306/orders",
		"user:secret@tcp(127.0.0.1)/orders":      "127.0.0.1:3306/orders",
		"user:secret@/orders":                    "127.0.0.1:3306/orders",
		"/":                                      "127.0.0.1:3306/",
		"user:se@c/r?e:t@tcp([::1]:3307)/orders?parseTime=true":            "[::1]:3307/orders",
		"user:secret@unix(/run/mysqld/mysqld.sock)/orders":                 "/run/mysqld/mysqld.sock/orders",
		"user:secret@cloudsql(project:region)/orders":                      "cloudsql(project:region)/orders",
		"user:secret@tcp(h:1)/or%2Fders":                                   "h:1/or/ders",
		"user:secret@tcp(h:1)/orders?bedDataSource=main":                   "main",
		"user:secret@tcp(h:1)/orders?a=b&bedDataSource=a%2Fb+c":            "a/b c",
		"user:secret@tcp(h:1)/orders?bedDataSource=h:1/orders":             "h:1/orders",
		"user:secret@tcp(h:1)/orders?a=b&bedDataSource=h/o&parseTime=true": "h/o",
		"user:x?bedDataSource=y@tcp(h:1)/orders":                           "h:1/orders",
		"user:a/b?bedDataSource=y@tcp(h:1)/orders":                         "h:1/orders",
		"user:secret@tcp(h:1)/orders?bedDataSource=m&bedDataSource=m":      "m",
	} {
		got, err := Target(dsn)
		if err != nil || got.DataSource != want {
			t.Errorf("%s is named %q (%v), want %q", dsn, got.DataSource, err, want)
		}
	}
}

func TestStrippedDSNIsReadAsWithout(t *testing.T) {
	t.Parallel()
	for with, without := range map[string]string{
		"u:p@tcp(h:1)/o?bedDataSource=x":                    "u:p@tcp(h:1)/o",
		"u:p@tcp(h:1)/o?bedDataSource=x&loc=UTC":            "u:p@tcp(h:1)/o?loc=UTC",
		"u:p@tcp(h:1)/o?loc=UTC&bedDataSource=x":            "u:p@tcp(h:1)/o?loc=UTC",
		"u:p@tcp(h:1)/o?loc=UTC&bedDataSource=a/b&tls=true": "u:p@tcp(h:1)/o?loc=UTC&tls=true",
		"u:p@tcp(h:1)/o?bedDataSource=a/b&tls=true":         "u:p@tcp(h:1)/o?tls=true",
		"u:p@tcp(h:1)/o?bedDataSourceX=a":                   "u:p@tcp(h:1)/o?bedDataSourceX=a",
		"":                                                  "",
	} {
		if _, bare, err := splitDataSource(with); err != nil || bare != without {
			t.Errorf("%s leaves %q (%v), want %q", with, bare, err, without)
		}
	}
}

func TestDSNErrorsNeverQuoteTheDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"user:s3cret", "user:s3cret@tcp(h:1", "user:s3cret/db", "user:s3cret(x)/db", "user:p/s3cret%zz", "u:p@tcp(h:1)/db?loc=s3cret",
		"u:p@tcp(h:1)/db?tls=s3cret", "u:p@tcp(h:1)/db?timeout=s3cret", "u:p@tcp(h:1)/db?maxAllowedPacket=s3cret",
		"u:p@tcp(h:1)/db?parseTime=s3cret", "u:p@tcp(h:1)/db?x=s3cret%zz", "u:p@tcp(h:1)/db?strict=s3cret",
		"u:p@tcp(h:1)/db?serverPubKey=s3cret", "u:p@tcp(h:1)/db?bedDataSource=s3cret%zz", "u:s3cret@tcp(h:1)/db?bedDataSource=",
		"u:s3cret@tcp(h:1)/db?bedDataSource=a&bedDataSource=b", "u:p@h/db?timeTruncate=s3cret",
	} {
		_, err := Target(dsn)
		if err == nil {
			t.Errorf("%s was accepted", dsn)
			continue
		}
		if strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), "mysql: ") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	if _, err := Target("u:p@tcp(h:1)/db?parseTime=perhaps"); err == nil || !strings.Contains(err.Error(), "parseTime") {
		t.Errorf("the parameter is not named: %v", err)
	}
}

func TestSettings(t *testing.T) {
	t.Setenv("TZ", "")
	base := "u:p@tcp(h:1)/db"
	for _, same := range [][]string{
		{"", "loc=UTC", "interpolateParams=false", "timeTruncate=0s", "parseTime=true", "timeout=3s", "max_execution_time=1"},
		{"charset=utf8mb4"}, {"collation=utf8mb4_general_ci"},
		{"loc=Asia%2FTokyo"},
		{"time_zone=%27%2B02:00%27", "time_zone=%22%2B02%3A00%22", "Time_Zone=%27%2B02:00%27", "@@session.time_zone=%27%2B02:00%27"},
		{"time_zone=%27%2B01:00%27"},
		{"sql_mode=%27ANSI,STRICT_ALL_TABLES%27", "sql_mode=%27strict_all_tables,+ansi%27"},
		{"charset=latin1"}, {"collation=utf8mb4_bin"}, {"timeTruncate=1s", "timeTruncate=1000ms"},
		{"foreign_key_checks=0", "foreign_key_checks=OFF", "foreign_key_checks=false"},
		{"loc=Asia%2FTokyo&time_zone=%27%2B09:00%27", "time_zone=%27%2B09:00%27&loc=Asia%2FTokyo"},
	} {
		want, err := Target(base + "?" + same[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, params := range same {
			got, err := Target(base + "?bedDataSource=x&" + params)
			if err != nil || got.Settings != want.Settings {
				t.Errorf("%q gives %q (%v), %q gives %q", params, got.Settings, err, same[0], want.Settings)
			}
		}
	}
	seen := map[string]string{}
	for _, params := range []string{"", "charset=utf8mb4", "interpolateParams=true", "clientFoundRows=true", "multiStatements=true", "check_constraint_checks=0", "old_mode=%27%27", "anything=1", "loc=Asia%2FTokyo", "time_zone=%27%2B02:00%27", "time_zone=%27%2B01:00%27", "charset=latin1", "collation=utf8mb4_bin", "timeTruncate=1s", "sql_mode=%27ANSI%27"} {
		got, err := Target(base + "?" + params)
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[got.Settings]; ok {
			t.Errorf("%q and %q give the same settings %q", params, before, got.Settings)
		}
		seen[got.Settings] = params
	}
	got, err := Target(base + "?time_zone=%27%2B02:00%27&loc=Asia%2FTokyo&sql_mode=%27ANSI%27")
	if want := "loc=Asia/Tokyo;sql_mode=ANSI;time_zone=+02:00"; err != nil || got.Settings != want {
		t.Errorf("settings are %q (%v), want %q", got.Settings, err, want)
	}
}

func TestAutocommitOffInTheDSN(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]bool{"": false, "?autocommit=0": true, "?autocommit=OFF": true, "?autocommit=%27off%27": true, "?autocommit=1": false, "?AutoCommit=false": true} {
		got, err := Target("u:p@tcp(h:1)/db" + params)
		if err != nil || got.AutocommitOff != want {
			t.Errorf("%q: %v (%v), want %v", params, got.AutocommitOff, err, want)
		}
	}
}

func TestTargetDials(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	target, err := Target(withParam(db.DSN, "bedDataSource=a%2Fb"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := target.Connector.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	of, err := TargetOf(cfg, "")
	if err != nil || of.DataSource != db.Addr()+"/"+db.Name {
		t.Errorf("TargetOf names it %q (%v)", of.DataSource, err)
	}
	if of.Settings != target.Settings {
		t.Errorf("TargetOf reads the settings as %q, Target as %q", of.Settings, target.Settings)
	}
}

func FuzzDSN(f *testing.F) {
	for _, seed := range [][3]string{
		{"p@ss/w?rd", "tcp(h:1)", "loc=UTC"}, {"", "unix(/a/b)", ""}, {"a:b", "", "x=y&z=%20"}, {"?bedDataSource=x&", "tcp([::1]:2)", "a"},
		{"a/b?bedDataSource=n", "tcp(h)", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], "name/1")
	}
	const secret = "Zq9secretZq9"
	f.Fuzz(func(t *testing.T, password, addr, params, name string) {
		plain := "user:" + password + secret + "@" + addr + "/db"
		with := plain + "?bedDataSource=" + url.QueryEscape(name)
		if params != "" {
			plain += "?" + params
			with += "&" + params
		}
		target, err := Target(with)
		want, wantErr := mysqlParse(plain)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("%q: %v", with, err)
			}
			return
		}
		if wantErr != nil || strings.Contains(params, dataSourceParam) {
			return
		}
		if strings.Contains(target.DataSource, secret) && !strings.Contains(want.Addr+want.DBName+want.Net, secret) {
			t.Fatalf("%q is named %q", with, target.DataSource)
		}
		_, bare, err := splitDataSource(with)
		if err != nil {
			t.Fatal(err)
		}
		got, err := mysqlParse(bare)
		if err != nil {
			t.Fatalf("%q: %v", bare, err)
		}
		if strings.ContainsAny(params, "/") {
			return // the driver itself reads such a DSN otherwise than meant
		}
		if target.DataSource != name || !reflect.DeepEqual(got.FormatDSN(), want.FormatDSN()) {
			t.Fatalf("%q is named %q and read as %q, want %q and %q", with, target.DataSource, got.FormatDSN(), name, want.FormatDSN())
		}
		unnamed, err := Target(plain)
		if err == nil && strings.Contains(unnamed.DataSource, secret) && !strings.Contains(want.Addr+want.DBName+want.Net, secret) {
			t.Fatalf("%q is named %q", plain, unnamed.DataSource)
		}
	})
}

// mysqlParse is the driver's parser, without its panic.
func mysqlParse(dsn string) (cfg *mysql.Config, err error) { return parseDSN(dsn) }
