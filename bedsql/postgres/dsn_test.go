package postgres

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

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
	if err != nil || got.DataSource != "elsewhere:5432/orders" || got.Settings != "search_path=a, b;timezone=Asia/Tokyo" {
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
	if err != nil || got.Settings != "search_path=a, b;timezone=Europe/Paris" {
		t.Errorf("settings %q (%v)", got.Settings, err)
	}
}

func TestAConfigurationIsNamedByItsAddress(t *testing.T) {
	t.Parallel()
	db := testdb.Postgres(t)
	if of := TargetOf(config(t, db), ""); of.DataSource != db.Addr()+"/"+db.Name && !strings.Contains(of.DataSource, ".s.PGSQL") {
		t.Errorf("TargetOf names it %q", of.DataSource)
	}
}

const secret = "Zq9secretZq9"

// sameConfig compares the driver's reading of two DSNs.
func sameConfig(t *testing.T, with, plain string) {
	t.Helper()
	got, _, _, err := readDSN(with)
	want, wantErr := pgx.ParseConfig(plain)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%q: %v, %q: %v", with, err, plain, wantErr)
	}
	if err != nil {
		return
	}
	if got.Host != want.Host || got.Port != want.Port || got.User != want.User || got.Password != want.Password || got.Database != want.Database ||
		len(got.Fallbacks) != len(want.Fallbacks) || !reflect.DeepEqual(got.RuntimeParams, want.RuntimeParams) {
		t.Fatalf("%q is not read like %q", with, plain)
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
		if target.DataSource != name {
			t.Fatalf("%q is named %q", with, target.DataSource)
		}
		sameConfig(t, with, plain)
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
		if target.DataSource != name {
			t.Fatalf("%q is named %q", with, target.DataSource)
		}
		sameConfig(t, with, plain)
	})
}

func TestNameIsNotDerivedFromAnAddressThatAFunctionDecides(t *testing.T) {
	t.Parallel()
	parse := func() *pgx.ConnConfig {
		cfg, err := pgx.ParseConfig("postgres://u@db:1/orders?connect_timeout=3")
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	dials, looks, own := parse(), parse(), parse()
	dials.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	looks.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	own.DialFunc = (&net.Dialer{KeepAlive: time.Minute}).DialContext
	open := func(target delivery.Target) error {
		_, err := NewConnector(target, bedsql.Config{Storage: txlog.NewMemory()})
		return err
	}
	for what, cfg := range map[string]*pgx.ConnConfig{"DialFunc": dials, "LookupFunc": looks} {
		if err := open(TargetOf(cfg, "")); err == nil || !strings.Contains(err.Error(), "bedDataSource") {
			t.Errorf("%s: %v, want an error that says how to give a name", what, err)
		}
		registered, err := Target(stdlib.RegisterConnConfig(cfg))
		if err == nil {
			err = open(registered)
		}
		if err == nil || !strings.Contains(err.Error(), "bedDataSource") {
			t.Errorf("%s, registered: %v, want an error that says how to give a name", what, err)
		}
		if target := TargetOf(cfg, "orders"); target.DataSource != "orders" || open(target) != nil {
			t.Errorf("%s: with a name: %q, %v", what, target.DataSource, open(target))
		}
	}
	if target := TargetOf(own, ""); target.DataSource != "db:1/orders" {
		t.Errorf("a dialer of the net package: %q", target.DataSource)
	}
}

func TestConnectorThatLeadsElsewhereNeedsAName(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(testdb.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	to := cfg.Host
	cfg.Host = "elsewhere.invalid"
	cfg.Fallbacks = nil
	leads := stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) error { c.Host = to; return nil })
	for _, name := range []string{"", "orders"} {
		conn, err := TargetOf(cfg, name, leads).Connector.Connect(t.Context())
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != (name != "") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
}
