package access

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/bedsql/bed/internal/test/testdb"
)

// pgx tries each address without TLS, too, unless sslmode forbids it.
func TestNoConnectionOfPostgresStaysPlain(t *testing.T) {
	t.Parallel()
	authority := testdb.NewAuthority(t, "root")
	cert, key := authority.Issue(t, "root", "app", time.Hour)
	a, err := New(Keys{TLS: &TLS{CA: authority.CA, Cert: cert, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	for dsn, want := range map[string]int{"host=a user=u": 1, "host=a,b,a port=1,2,1 user=u": 2, "postgres://u@a:1,b:2/d?target_session_attrs=read-write": 2} {
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		before := len(cfg.Fallbacks)
		if err := a.BeforeConnect(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if before < want || len(cfg.Fallbacks) != want-1 || cfg.TLSConfig == nil || cfg.TLSConfig.ServerName != "a" {
			t.Errorf("%s: %d other addresses, before %d", dsn, len(cfg.Fallbacks), before)
		}
		for _, f := range cfg.Fallbacks {
			if f.TLSConfig == nil || f.TLSConfig.ServerName != f.Host || len(f.TLSConfig.Certificates) != 1 {
				t.Errorf("%s: %s is reached without TLS", dsn, f.Host)
			}
		}
	}
}

func TestParametersOfADSNAreFound(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"host=h user=u": "", "host=h PASSWORD = x": "password", "host=h password='a sslmode=b'": "password sslmode", "sslcert=c": "sslcert",
		"postgres://u@h/d": "", "postgres://u:p@h/d": "password", "postgres://h/d?password=p": "password", "postgresql://h/d?sslmode=disable": "sslmode",
	} {
		got := ""
		for _, name := range parameters(dsn) {
			if got != "" {
				got += " "
			}
			got += name
		}
		if got != want {
			t.Errorf("%s: %q, want %q", dsn, got, want)
		}
	}
}
