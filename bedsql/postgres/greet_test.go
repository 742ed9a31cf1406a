package postgres

import (
	"strings"
	"testing"
)

func TestServersThatOnlySpeakPostgreSQLAreUntested(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parameters map[string]string
		want       string
	}{
		{map[string]string{"server_version": "15.8 (Debian 15.8-0+deb12u1)"}, ""},
		{map[string]string{"server_version": "13.0.0", "crdb_version": "CockroachDB CCL v23.1.11"}, "CockroachDB"},
		{map[string]string{"server_version": "11.2-YB-2.18.1.0-b0"}, "YugabyteDB"},
	} {
		got := warning(func(name string) string { return c.parameters[name] })
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want one of %q", c.parameters, got, c.want)
		}
	}
}
