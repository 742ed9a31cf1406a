package doctor

import (
	"strings"
	"testing"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
)

func TestBrokersPasswordWithoutTLSIsAFinding(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"kafka://user:p@127.0.0.1:9092,b:9092": true, "kafka://user:p@a:9092?tls=true": false, "kafka://a:9092": false,
		"amqp://user:p@rabbit/vhost": true, "amqp://user:p@127.0.0.1:5672/": false, "amqps://user:p@rabbit": false,
		"nats://user:p@nats:4222": true, "nats://token@nats:4222": false, "tls://user:p@nats": false,
	} {
		x := &examination{Installation: Installation{Redact: func(s string) string { return s }}, report: &Report{}}
		driver, _, _ := strings.Cut(dsn, ":")
		p := &patient{x: x, Database: Database{Driver: driver, DSN: dsn}, where: "data source events"}
		lookAtBroker(p)
		if found := len(x.report.Findings) > 0; found != want {
			t.Errorf("%s: %+v", dsn, x.report.Findings)
		}
		x.report = &Report{}
		p.Access, _ = access.New(access.Keys{PasswordFile: "password"}, "")
		lookAtBroker(p)
		loopback := strings.Contains(dsn, "@127.0.0.1:5672")
		if found := len(x.report.Findings) > 0; found != (want || dsn == "kafka://a:9092" || dsn == "nats://token@nats:4222") || loopback && found {
			t.Errorf("%s with a file of its password: %+v", dsn, x.report.Findings)
		}
		if disk := len(x.report.Notes) > 0; disk != (driver == "nats") {
			t.Errorf("%s: %v", dsn, x.report.Notes)
		}
		x.report = &Report{}
		p.Access, _ = access.New(access.Keys{PasswordFile: "password", TLS: &access.TLS{}}, "")
		if lookAtBroker(p); len(x.report.Findings) > 0 {
			t.Errorf("%s with tls: %+v", dsn, x.report.Findings)
		}
	}
}
