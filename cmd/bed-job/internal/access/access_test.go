package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"
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
	a, err := New(Keys{TLS: &TLS{CA: authority.CA, Cert: cert, Key: key}}, "")
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
			if f.TLSConfig == nil || f.TLSConfig.ServerName != f.Host || f.TLSConfig.GetClientCertificate == nil {
				t.Errorf("%s: %s is reached without TLS", dsn, f.Host)
			}
		}
	}
}

// The server's own certificate is never taken without a name.
func TestSocketNeedsTheServersName(t *testing.T) {
	t.Parallel()
	a, err := New(Keys{TLS: &TLS{}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Config("").VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}); err == nil || !strings.Contains(err.Error(), "tls.serverName") {
		t.Errorf("got %v", err)
	}
}

// A DSN that says the same as the keys is refused, and no other.
func TestWhatADSNSaysItselfIsFound(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]string{
		"u@tcp(h:3306)/d?parseTime=true": "", "u:p@tcp(h)/d": "password", "u@tcp(h)/d?timeout=1s&tls=skip-verify": "tls", "tcp(h:3306)/d?x=a@b": "", "u@unix(/a:b/c)/d": "",
		"host=h user=u": "", "host=h PASSWORD = x": "password", "host=h  sslcert=c": "sslcert", "host=h application_name=tls": "",
		"postgres://u@h:5432/d": "", "postgres://u:p@h/d": "password", "postgres://h:5432/d?password=p": "password", "postgresql://h/d?sslmode=disable": "sslmode",
		"postgres://h:5432/d?application_name=a@b": "", "nats://h:4222,h:4223": "", "nats://h?credentials=f": "credentials", "tls://h": "",
		"amqp://u@h": "amqp://", "amqps://u@h:5671/v?certfile=c": "certfile", "amqps://u@h/": "", "kafka://u@h:9092,b:9092?sasl=plain": "", "kafka://u@h?tls=true": "tls",
	} {
		_, errTLS := New(Keys{TLS: &TLS{}}, dsn)
		_, errPassword := New(Keys{PasswordFile: "f"}, dsn)
		got := errors.Join(errTLS, errPassword)
		if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
			t.Errorf("%s: %v, want %q", dsn, got, want)
		}
	}
}
