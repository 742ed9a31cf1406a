package dbserver

import (
	"strings"
	"testing"

	"github.com/bedsql/bed/internal/test/testdb"
)

func TestProductsAreToldByTheirVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"10.11.6-MariaDB-0+deb12u1": "MariaDB", "8.0.36": "MySQL", "8.4.0-commercial": "MySQL", "5.7.25-TiDB-v6.1.0": "TiDB", "8.0.11-TiDB-v7.5.1": "TiDB",
	} {
		if got := MySQLProduct(version); got != want {
			t.Errorf("%s is %s, want %s", version, got, want)
		}
	}
	for version, want := range map[string]string{
		"PostgreSQL 15.8 (Debian 15.8-0+deb12u1) on x86_64-pc-linux-gnu":           "PostgreSQL",
		"CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27)":         "CockroachDB",
		"PostgreSQL 11.2-YB-2.18.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang": "YugabyteDB",
		"PostgreSQL 15.2-YB-2.25.0.0-b0 on x86_64-pc-linux-gnu, compiled by clang": "YugabyteDB",
	} {
		got := PostgresProduct(version)
		if got != want || (Untested(got) != "") != (want != "PostgreSQL") {
			t.Errorf("%s is %s, want %s; %s", version, got, want, Untested(got))
		}
	}
}

func TestTestServersCauseNoWarning(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		if warnings, err := Warnings(t.Context(), db.Open(t), db.Driver); err != nil || len(warnings) != 0 {
			t.Errorf("%q, %v", warnings, err)
		}
	})
}

func TestAGaleraNodeIsWarnedOfBySettings(t *testing.T) {
	t.Parallel()
	careless := map[string]string{"wsrep_on": "ON", "innodb_flush_log_at_trx_commit": "0", "wsrep_sync_wait": "0"}
	careful := map[string]string{"wsrep_on": "ON", "innodb_flush_log_at_trx_commit": "1", "wsrep_sync_wait": "1"}
	if w := galera(careless); len(w) != 3 || !strings.Contains(w[0], "innodb_flush_log_at_trx_commit=0") {
		t.Errorf("%q", w)
	}
	if w := galera(careful); len(w) != 1 || !strings.HasPrefix(w[0], "the log is on a Galera cluster") {
		t.Errorf("%q", w)
	}
	if w := galera(map[string]string{"wsrep_on": "OFF", "innodb_flush_log_at_trx_commit": "2"}); w != nil {
		t.Errorf("%q", w)
	}
}

func TestVersionsAreComparedByRole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		product, version string
		log, older       bool
		least            string
	}{
		{"MySQL", "5.6.24", true, true, "8.0"}, {"MySQL", "5.6.24", false, false, "5.6"}, {"MySQL", "5.5.62", false, true, "5.6"},
		{"MySQL", "5.7.44-log", true, true, "8.0"}, {"MySQL", "8.0.36", true, false, "8.0"}, {"MySQL", "9.1.0", true, false, "8.0"},
		{"MariaDB", "10.5.29-MariaDB", true, true, "10.6"}, {"MariaDB", "5.5.5-10.6.1-MariaDB", true, false, "10.6"}, {"MariaDB", "10.11.6-MariaDB", false, false, "10.6"},
		{"PostgreSQL", "9.4", true, true, "9.5"}, {"PostgreSQL", "18beta1", true, false, "9.5"}, {"TiDB", "5.7.25-TiDB-v6.1.0", true, false, ""},
	} {
		if older, least := Older(c.product, c.version, c.log); older != c.older || least != c.least {
			t.Errorf("%s %s, log %t: %t, %q", c.product, c.version, c.log, older, least)
		}
	}
}
