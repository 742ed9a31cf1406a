package sqlite

import (
	"net/url"
	"strings"
	"testing"
)

func TestSettingsHoldNoSecretAddressOrAccount(t *testing.T) {
	t.Parallel()
	target, err := Target("file:/secret/secret.db?" + strings.Join([]string{"mode=rw", "cache=shared", "_txlock=immediate", "_pragma=busy_timeout(5)", "_pragma=key(%27secret%27)", "_pragma=HEXKEY+%3D+secret",
		"_journal=WAL", "_inttotime=1", "bedDataSource=" + url.QueryEscape("secret")}, "&"))
	if err != nil || target.Settings != "" {
		t.Errorf("the settings are %q (%v)", target.Settings, err)
	}
}

func TestSettingsCanBeAppliedToAnotherDSN(t *testing.T) {
	t.Parallel()
	for _, params := range []string{"", "_pragma=foreign_keys(1)&_pragma=case_sensitive_like(1)", "_fk=1", "_timezone=Asia%2FTokyo&_time_format=sqlite", "_time_integer_format=unix", "_dqs=0", "anything=a%3Bb%25&_pragma=recursive_triggers(1)"} {
		writer, err := Target("file:/a.db?" + params)
		if err != nil {
			t.Fatal(err)
		}
		for _, dsn := range []string{"b.db", "file:/b.db?mode=rw&_pragma=busy_timeout(5)&_pragma=foreign_keys(0)&_timezone=UTC&bedDataSource=x"} {
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
	target, err := Target("file:/secret.db")
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{"=", "a", "a=%zz", ";", "mode=memory", "vfs=memdb", "_pragma=busy_timeout(1)", "_txlock=deferred", "_timezone="} {
		if got, err := target.With(settings); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q gives %q and %q (%v)", settings, got.DataSource, got.Settings, err)
		}
	}
}
