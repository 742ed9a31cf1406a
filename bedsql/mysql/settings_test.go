package mysql

import (
	"net/url"
	"strings"
	"testing"
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
