package postgres

import (
	"net/url"
	"strings"
	"testing"
)

func TestSettingsHoldNoSecretAddressOrAccount(t *testing.T) {
	t.Parallel()
	target, err := Target("host=secrethost user=secret dbname=secretdb password=secret sslmode=require sslsni=0 application_name=secret connect_timeout=3 " +
		"options='-c statement_timeout=5' lock_timeout=5 keepalives=1 statement_cache_capacity=5 krbsrvname=secret target_session_attrs=any bedDataSource=secret")
	if err != nil || target.Settings != "" {
		t.Errorf("the settings are %q (%v)", target.Settings, err)
	}
}

func TestSettingsCanBeAppliedToAnotherDSN(t *testing.T) {
	t.Parallel()
	for _, params := range []string{"", "search_path='\"A b\", c'", "default_query_exec_mode=exec", "options='-c app.tenant=5\\\\ 0'", "app.tenant='a=b;c%3B'", "bytea_output=escape datestyle='ISO, DMY'",
		"standard_conforming_strings=off timezone=Asia/Tokyo", "default_query_exec_mode=simple_protocol role=writer", "options='-e'"} {
		writer, err := Target("host=h user=u password=secret dbname=db " + params)
		if err != nil {
			t.Fatal(err)
		}
		for _, dsn := range []string{"host=other user=v dbname=orders", "host=other user=v dbname=orders default_query_exec_mode=cache_describe timezone=UTC options='-c app.tenant=7 -c lock_timeout=3' application_name=job",
			"postgres://v:q@a:1,b:2/orders?bedDataSource=" + url.PathEscape("x/y")} {
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
	target, err := Target("host=h user=u password=secret dbname=db")
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{"=", "a", "a=%zz", ";", "host=other", "database=other", "user=postgres", "password=x", "lock_timeout=5", "default_query_exec_mode=any", "TimeZone=UTC"} {
		if got, err := target.With(settings); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q gives %q and %q (%v)", settings, got.DataSource, got.Settings, err)
		}
	}
}
