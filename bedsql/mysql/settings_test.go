package mysql

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/test/testdb"
)

func TestSettingsHoldNoSecretAddressOrAccount(t *testing.T) {
	t.Parallel()
	target, err := Target("user:secret@tcp(secrethost:1)/secretdb?" + strings.Join([]string{"allowAllFiles=true", "allowCleartextPasswords=true", "tls=skip-verify", "connectionAttributes=a:secret",
		"timeout=1s", "readTimeout=1s", "writeTimeout=1s", "parseTime=true", "maxAllowedPacket=5", "innodb_lock_wait_timeout=3", "@@session.Lock_Wait_Timeout=4", "compress=true", "bedDataSource=secret"}, "&"))
	if err != nil || target.Settings != "" {
		t.Errorf("the settings are %q (%v)", target.Settings, err)
	}
}

func TestSettingsCanBeAppliedToAnotherDSN(t *testing.T) {
	t.Parallel()
	for _, params := range []string{"", "charset=latin1,utf8mb4&collation=latin1_bin", "loc=Asia%2FTokyo", "interpolateParams=true&multiStatements=true&clientFoundRows=true", "timeTruncate=1s",
		"time_zone=%27%2B09:00%27&sql_mode=%27ANSI_QUOTES,NO_ZERO_DATE%27", "sql_mode=concat(@@sql_mode,%27,ANSI%27)", "foreign_key_checks=OFF", "@x=%27a;b%25=%26%2Fc%27", "time_zone=DEFAULT"} {
		writer, err := Target("u:p@tcp(h:1)/db?" + params)
		if err != nil {
			t.Fatal(err)
		}
		for _, dsn := range []string{"v:q@tcp(other:2)/orders", "v:q@unix(/a/b)/orders?loc=Europe%2FParis&time_zone=%27SYSTEM%27&charset=utf8&interpolateParams=true&sql_mode=%27%27&bedDataSource=" + url.QueryEscape("x/y")} {
			job, err := Target(dsn)
			if err != nil {
				t.Fatal(err)
			}
			got, err := job.With(writer.Settings)
			if err != nil || got.Settings != writer.Settings || got.DataSource != job.DataSource {
				t.Errorf("%s applied to %s: %v; named %q, with %q, want %q, %q", params, dsn, err, got.DataSource, got.Settings, job.DataSource, writer.Settings)
			}
			if back, err := got.With(job.Settings); err != nil || back.Settings != job.Settings {
				t.Errorf("and back: %q (%v), want %q", back.Settings, err, job.Settings)
			}
		}
	}
}

func TestUnusableSettingsAreNotApplied(t *testing.T) {
	t.Parallel()
	target, err := Target("u:secret@tcp(h:1)/db")
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{"=", "a", "a=%zz", ";", "timeout=3s", "tls=false", "loc=Nowhere/Land", "interpolateParams=perhaps", "autocommit=0", "a&b=c", "charset=a&autocommit=0", "loc=Local(+01:00,+02:00)", "strict=true"} {
		if got, err := target.With(settings); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q gives %q and %q (%v)", settings, got.DataSource, got.Settings, err)
		}
	}
}

// A password that changes comes from the application's hook, in each session.
func TestSessionsWithOtherSettingsHaveTheHook(t *testing.T) {
	t.Parallel()
	db := testdb.MySQL(t)
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	right, wrong := cfg.Passwd, rand.Text()
	password := ""
	cfg.User, cfg.Passwd = "u"+strings.ToLower(wrong[:12]), "old"
	admin := db.Open(t)
	account := cfg.User + "@'%'"
	must(t, admin, "CREATE USER "+account+" IDENTIFIED BY '"+right+"new'", "GRANT ALL ON `"+db.Name+"`.* TO "+account)
	t.Cleanup(func() { _, _ = admin.Exec("DROP USER " + account) })
	if err := cfg.Apply(mysql.BeforeConnect(func(_ context.Context, c *mysql.Config) error { c.Passwd = password; return nil })); err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{"", "sql_mode='ANSI_QUOTES'", "multiStatements=true;time_zone='+09:00'"} {
		target, err := TargetOf(cfg, "orders")
		if err == nil && settings != "" {
			target, err = target.With(settings)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{wrong, right + "new"} {
			password = p
			conn, err := target.Connector.Connect(t.Context())
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != (p != wrong) {
				t.Errorf("with the settings %q and the right password %v: %v", settings, p != wrong, err)
			}
		}
	}
}
