package mysql

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/internal/dialects"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
	"github.com/go-sql-driver/mysql"
)

func TestAConfigurationIsReadAsItsDSN(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	target, err := Target(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
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
		want, _, wantErr := readDSN(plain)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("%q: %v", with, err)
			}
			return
		}
		if wantErr != nil || strings.Contains(params, dialects.DataSourceParam) {
			return
		}
		if strings.Contains(target.DataSource, secret) && !strings.Contains(want.Addr+want.DBName+want.Net, secret) {
			t.Fatalf("%q is named %q", with, target.DataSource)
		}
		got, _, err := readDSN(with)
		if err != nil {
			t.Fatalf("%q: %v", with, err)
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

func TestNameIsNotDerivedFromAnAddressThatAFunctionDecides(t *testing.T) {
	t.Parallel()
	dials := mysql.NewConfig()
	dials.Addr, dials.DBName = "127.0.0.1:3306", "orders"
	dials.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	tunnel := mysql.NewConfig()
	tunnel.Net, tunnel.Addr, tunnel.DBName = "ssh", "db:3306", "orders"
	for what, cfg := range map[string]*mysql.Config{"DialFunc": dials, "RegisterDialContext": tunnel} {
		for _, name := range []string{"", "orders"} {
			target, err := TargetOf(cfg, name)
			if err == nil {
				_, err = NewConnector(target, bedsql.Config{Storage: txlog.NewMemory()})
			}
			if (err == nil) != (name != "") || err != nil && !strings.Contains(err.Error(), "bedDataSource") {
				t.Errorf("%s, the name %q: %v", what, name, err)
			}
		}
	}
}

func TestConnectorThatLeadsElsewhereNeedsAName(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	to, calls := cfg.Addr, 0
	leads := mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) error { calls++; c.Addr = to; return nil })
	for _, c := range []struct {
		addr, name string
		connects   bool
	}{{"elsewhere.invalid:3306", "", false}, {"elsewhere.invalid:3306", "orders", true}, {to, "", true}} {
		cfg := cfg.Clone()
		cfg.Addr, calls = c.addr, 0
		if err := cfg.Apply(leads); err != nil {
			t.Fatal(err)
		}
		target, err := TargetOf(cfg, c.name)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := target.Connector.Connect(t.Context())
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != c.connects || err != nil && !strings.Contains(err.Error(), "bedDataSource") || calls != 1 {
			t.Errorf("from %s, the name %q: %v, after %d calls of the hook", c.addr, c.name, err, calls)
		}
		storage := txlog.NewMemory()
		connector, err := NewConnector(target, bedsql.Config{Storage: storage})
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		_, err = pool.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS a (id INT)")
		if err == nil {
			_, err = pool.ExecContext(t.Context(), "INSERT INTO a VALUES (1)")
		}
		left, lerr := storage.List(t.Context(), txlog.Filter{})
		if (err == nil) != c.connects || len(left) != 0 || lerr != nil {
			t.Errorf("from %s, the name %q: a write says %v, %d entries are left, %v", c.addr, c.name, err, len(left), lerr)
		}
		_ = pool.Close()
	}
}
