package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/cmd/bed-job/internal/doctor"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// secured is a server that takes connections only from clients with a certificate of the authority,
// for app.
type secured struct {
	driver, dsn string
	*testdb.Authority
	account string
}

// certified returns the files of a client's certificate of this name.
func (s *secured) certified(t *testing.T, name string, valid time.Duration) (cert, key string) {
	t.Helper()
	return s.Issue(t, s.account, name, valid)
}

// keys is tls in the configuration of a right client.
func (s *secured) keys(t *testing.T) map[string]string {
	t.Helper()
	cert, key := s.certified(t, "app", time.Hour)
	return map[string]string{"ca": s.CA, "cert": cert, "key": key, "serverName": "db.test"}
}

// line is the data source in the configuration.
func (s *secured) line(keys map[string]string) string {
	text, _ := json.Marshal(keys)
	return fmt.Sprintf("{driver: %s, dsn: %q, tls: %s}", s.driver, s.dsn, text)
}

// newSecured makes an authority and the files of a server, whose account reads them.
func newSecured(t *testing.T, driver, account string) (s *secured, cert, key string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a private server")
	}
	s = &secured{driver: driver, Authority: testdb.NewAuthority(t, account), account: account}
	cert, key = s.Issue(t, account, "server", time.Hour, "db.test")
	return s, cert, key
}

var securedServers = map[string]func(*testing.T) *secured{
	"mysql": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "mysql", "mysql")
		server := testdb.PrivateMariaDB(t, "--ssl-ca="+s.CA, "--ssl-cert="+cert, "--ssl-key="+key)
		db := server.DB(t)
		server.Exec("CREATE USER app@'%' REQUIRE X509", "GRANT ALL ON `"+db.Name+"`.* TO app@'%'", "CREATE TABLE `"+db.Name+"`.t (id INT PRIMARY KEY)")
		s.dsn = strings.Replace(db.DSN, "root@", "app@", 1)
		return s
	},
	"postgres": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "postgres", "postgres")
		rules := filepath.Join(s.Dir, "pg_hba.conf")
		write(t, rules, "host all postgres 127.0.0.1/32 trust\nhostssl all app 127.0.0.1/32 trust clientcert=verify-full\n")
		if err := os.Chmod(rules, 0o644); err != nil { //nolint:gosec // for the server's account
			t.Fatal(err)
		}
		server := testdb.PrivatePostgres(t, "ssl=on", "ssl_ca_file="+s.CA, "ssl_cert_file="+cert, "ssl_key_file="+key, "hba_file="+rules)
		db := server.DB(t)
		server.Exec("CREATE ROLE app LOGIN", "GRANT ALL ON DATABASE "+db.Name+" TO app", "ALTER DATABASE "+db.Name+" OWNER TO app")
		pool := db.Open(t)
		for _, text := range []string{"ALTER SCHEMA public OWNER TO app", "CREATE TABLE t (id INT PRIMARY KEY)", "ALTER TABLE t OWNER TO app"} {
			if _, err := pool.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		s.dsn = strings.NewReplacer("postgres@", "app@", "?sslmode=disable", "").Replace(db.DSN)
		return s
	},
	"nats": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "nats", "nats")
		server := testdb.PrivateNATS(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }", cert, key, s.CA))
		s.dsn = "nats://" + server.Addr()
		return s
	},
	"amqp": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "amqp", "rabbitmq")
		l, kept, err := testdb.Listen(20000)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kept.Close() })
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		testdb.PrivateRabbitMQ(t, fmt.Sprintf(`-rabbit ssl_listeners [{"127.0.0.1",%d}]`, port), fmt.Sprintf(
			`-rabbit ssl_options [{cacertfile,%q},{certfile,%q},{keyfile,%q},{verify,verify_peer},{fail_if_no_peer_cert,true}]`, s.CA, cert, key))
		s.dsn = fmt.Sprintf("amqps://guest:guest@127.0.0.1:%d/", port)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // it listens there last
			if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
				_ = conn.Close()
				return s
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	},
	"http": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "http", "root")
		s.dsn = newSecuredHTTP(t, s.CA, cert, key)
		return s
	},
	"kafka": func(t *testing.T) *secured {
		s, cert, key := newSecured(t, "kafka", "root")
		s.dsn = newSecuredKafka(t, s.CA, cert, key)
		return s
	},
}

// wantsCertificates configures a server that answers only clients with a certificate.
func wantsCertificates(t *testing.T, ca, cert, key string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// newSecuredKafka is a server of Kafka's protocol in this process.
func newSecuredKafka(t *testing.T, ca, cert, key string) (dsn string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"),
		kfake.TLS(wantsCertificates(t, ca, cert, key)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return "kafka://" + cluster.ListenAddrs()[0]
}

// looked runs check and doctor over a data source with one waiting entry.
func looked(t *testing.T, source string) (check, report string, status int) {
	t.Helper()
	dir := t.TempDir()
	log, err := txlog.Open(t.Context(), "sqlite", filepath.Join(dir, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	(&stage{log: log}).promise(t, "orders", "INSERT INTO t VALUES (1)")
	h := &harness{config: filepath.Join(dir, "bed-job.yaml"), app: app{Getenv: env(nil), Now: time.Now, Open: openLog}}
	write(t, h.config, fmt.Sprintf("targetDataSource:\n  orders: %s\ntransactionLogDataSource: {driver: sqlite, dsn: %q}\n", source, filepath.Join(dir, "log.db")))
	checked := h.run(t, "check")
	examined := h.run(t, "doctor", "-o", "json")
	var r doctor.Report
	if err := json.Unmarshal([]byte(examined.out), &r); err != nil {
		t.Fatalf("%v: %s%s", err, examined.out, examined.err)
	}
	for _, f := range r.Findings {
		if f.Where == "data source orders" && f.Check != "settings" { // a broker does not take the entry
			report += f.Check + ": " + f.What + " do: " + f.Remedy + "\n"
		}
	}
	return checked.out + checked.err, report, checked.status
}

func TestClientCertificatesReachEachKindOfServer(t *testing.T) {
	t.Parallel()
	for name, start := range securedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			keys := s.keys(t)
			if check, report, status := looked(t, s.line(keys)); status != 0 || report != "" {
				t.Errorf("with a certificate: status %d, %s\n%s", status, check, report)
			}
			without := map[string]string{"ca": s.CA}
			if check, report, status := looked(t, s.line(without)); status != checkCritical || report == "" {
				t.Errorf("without: status %d, %s\n%s", status, check, report)
			}
			wrongly := func(key, file string) map[string]string {
				other := maps.Clone(keys)
				other[key] = file
				return other
			}
			stranger := testdb.NewAuthority(t, s.account)
			_, unfit := s.certified(t, "other", time.Hour)
			old, oldKey := s.certified(t, "old", -time.Hour)
			expired := wrongly("cert", old)
			expired["key"] = oldKey
			broken := filepath.Join(s.Dir, "broken")
			write(t, broken, "no certificate")
			nameless := wrongly("serverName", "elsewhere.test")
			for _, c := range []struct {
				keys map[string]string
				want []string
			}{
				{wrongly("ca", stranger.CA), []string{"tls.ca " + stranger.CA, "does not vouch"}},
				{wrongly("ca", broken), []string{"tls.ca " + broken, "no certificate in PEM form"}},
				{wrongly("ca", s.Dir), []string{"tls.ca " + s.Dir, "is a directory"}},
				{wrongly("cert", filepath.Join(s.Dir, "none.crt")), []string{"tls.cert " + s.Dir + "/none.crt", "no such file"}},
				{wrongly("key", filepath.Join(s.Dir, "none.key")), []string{"tls.key " + s.Dir + "/none.key", "no such file"}},
				{wrongly("key", unfit), []string{"tls.key " + unfit, "does not fit"}},
				{expired, []string{"tls.cert " + old, "has expired"}},
				{nameless, []string{"tls.serverName elsewhere.test", "other names"}},
			} {
				check, report, status := looked(t, s.line(c.keys))
				for _, want := range c.want {
					if status != checkCritical || !strings.Contains(check, want) || !strings.Contains(report, want) || !strings.HasPrefix(report, "keys: ") {
						t.Errorf("%v: status %d, want %q in check:\n%s\nand in doctor:\n%s", c.keys, status, want, check, report)
					}
				}
			}
		})
	}
}

// The certificate may run out while the job runs, and be replaced in place.
func TestReplacedCertificatesAreReadByTheNextConnection(t *testing.T) {
	t.Parallel()
	for name, start := range securedServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			c := mustParse(t, "targetDataSource: {orders: "+s.line(s.keys(t))+"}\ntransactionLogDataSource: {driver: sqlite, dsn: \"file:/tmp/log.db\"}\n", nil, wholeFile)
			target, err := c.targets[0].target()
			if err != nil {
				t.Fatal(err)
			}
			dial := func(to driver.Connector) error {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				conn, err := to.Connect(ctx)
				if err == nil {
					err = attempt.Ping(ctx, conn)
					_ = conn.Close()
				}
				return err
			}
			for _, valid := range []time.Duration{time.Hour, -time.Hour, time.Hour} {
				s.certified(t, "app", valid)
				if err := dial(target.Connector); (err == nil) != (valid > 0) {
					t.Errorf("valid for %v: %v", valid, err)
				}
			}
			if target.With == nil {
				return
			}
			// A session with other settings, too.
			with, err := target.With(strings.TrimPrefix(target.Settings+map[string]string{"mysql": ";sql_safe_updates=1", "postgres": ";datestyle=German"}[name], ";"))
			if err != nil {
				t.Fatal(err)
			}
			for _, valid := range []time.Duration{-time.Hour, time.Hour} {
				s.certified(t, "app", valid)
				if err := dial(with.Connector); (err == nil) != (valid > 0) {
					t.Errorf("with other settings, valid for %v: %v", valid, err)
				}
			}
		})
	}
}

func TestExpiredServerIsNamed(t *testing.T) {
	t.Parallel()
	s, _, _ := newSecured(t, "kafka", "root")
	keys := s.keys(t)
	cert, key := s.Issue(t, "root", "server", -time.Hour, "db.test")
	s.dsn = newSecuredKafka(t, s.CA, cert, key)
	if check, report, status := looked(t, s.line(keys)); status != checkCritical || !strings.Contains(check+report, "the server's own certificate") || !strings.Contains(report, "expired") {
		t.Errorf("status %d, %s\n%s", status, check, report)
	}
	authority := testdb.NewAuthority(t, "root")
	keys["ca"] = authority.CA
	fresh, freshKey := s.Issue(t, "root", "server", time.Hour, "db.test")
	s.dsn = newSecuredKafka(t, s.CA, fresh, freshKey)
	if check, _, status := looked(t, s.line(keys)); status != checkCritical || !strings.Contains(check, authority.CA) {
		t.Errorf("another authority: status %d, %s", status, check)
	}
}

// The log takes the same keys, for run and for the commands of operators.
func TestLogTakesCertificates(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "postgres"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := securedServers[name](t)
			h := &harness{config: filepath.Join(t.TempDir(), "bed-job.yaml"), app: app{Getenv: env(nil), Now: time.Now, Open: openLog}}
			keys := s.keys(t)
			install := func(keys map[string]string) {
				write(t, h.config, fmt.Sprintf("targetDataSource: {orders: %s}\ntransactionLogDataSource: %s\n", s.line(keys), s.line(keys)))
			}
			install(keys)
			for _, command := range [][]string{{"run", "--once"}, {"list"}, {"stats"}, {"check"}, {"migrate", "--dry-run"}, {"doctor"}} {
				if r := h.run(t, command...); r.status != 0 {
					t.Errorf("%v: status %d: %s%s", command, r.status, r.out, r.err)
				}
			}
			keys["key"] = filepath.Join(s.Dir, "none.key")
			install(keys)
			for _, command := range [][]string{{"run", "--once"}, {"list"}, {"check"}, {"doctor"}} {
				if r := h.run(t, command...); r.status == 0 || !strings.Contains(r.out+r.err, "tls.key "+keys["key"]+": no such file") {
					t.Errorf("%v without a key's file: status %d: %s%s", command, r.status, r.out, r.err)
				}
			}
		})
	}
}

func TestPasswordsComeFromFilesAndCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	script := func(text string) string {
		path := filepath.Join(dir, fmt.Sprintf("c%d", len(text)))
		write(t, path, text+"\n")
		return "sh, " + path // run directly it may be busy: a child of another test can hold it open
	}
	read := func(keys string) (string, error) {
		c := mustParse(t, "targetDataSource: {orders: {driver: mysql, dsn: \"app@tcp(127.0.0.1)/d\", "+keys+"}}\ntransactionLogDataSource: {driver: sqlite, dsn: \"file:/tmp/log.db\"}\n", nil, wholeFile)
		return c.targets[0].access.Password(t.Context(), "")
	}
	write(t, file, "s3cr3t-Pa55\n")
	for _, keys := range []string{"passwordFile: " + file, "passwordCommand: [cat, " + file + "]", "passwordCommand: [" + script("echo noise >&2; printf s3cr3t-Pa55") + "]"} {
		if got, err := read(keys); err != nil || got != password {
			t.Errorf("%s: %q, %v", keys, got, err)
		}
	}
	for keys, want := range map[string]string{
		"passwordFile: " + filepath.Join(dir, "none"): "passwordFile " + filepath.Join(dir, "none") + ": no such file",
		"passwordFile: " + dir:                        "is a directory",
		"passwordFile: /dev/null":                     "holds no password",
		"passwordCommand: [/nowhere/token]":           "passwordCommand /nowhere/token: no such file",
		"passwordCommand: [token-of-no-path]":         "passwordCommand token-of-no-path: ",
		"passwordCommand: [" + script("echo s3cr3t-Pa55; echo s3cr3t-Pa55 >&2; exit 3") + "]":           "exit status 3",
		"passwordCommand: [" + script("printf 's3cr3t-Pa55\\nexpires: soon\\n'") + "]":                  "more than one line",
		"passwordCommand: [" + script("while :; do echo s3cr3t-Pa55s3cr3t-Pa55s3cr3t-Pa55; done") + "]": "printed more than 1048576 bytes",
		"passwordCommand: [\"true\"]": "holds no password",
	} {
		if got, err := read(keys); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), password) {
			t.Errorf("%s: %q, %v; want %q", keys, got, err, want)
		}
	}
	// A command that hangs, with a child that keeps its output open, is given up with the dial.
	c := mustParse(t, "targetDataSource: {orders: {driver: mysql, dsn: \"app@tcp(127.0.0.1)/d\", passwordCommand: ["+script("echo s3cr3t-Pa55; sleep 600 & sleep 600")+"]}}\ntransactionLogDataSource: {driver: sqlite, dsn: \"file:/tmp/log.db\"}\n", nil, wholeFile)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if got, err := c.targets[0].access.Password(ctx, ""); err == nil || !strings.Contains(err.Error(), "did not end in time") || time.Since(began) > 30*time.Second {
		t.Errorf("a command that hangs: %q, %v after %v", got, err, time.Since(began))
	}
}

// A command runs once for all connections of its time, and again before the end of that time.
func TestCommandIsRunAgainBeforeItsPasswordExpires(t *testing.T) {
	t.Parallel()
	runs := filepath.Join(t.TempDir(), "runs")
	password := func(ttl string) func() string {
		c := mustParse(t, "targetDataSource: {orders: {driver: mysql, dsn: \"app@tcp(127.0.0.1)/d\", passwordCommand: [sh, -c, 'echo x >> "+runs+"; wc -l < "+runs+"']"+ttl+"}}\ntransactionLogDataSource: {driver: sqlite, dsn: \"file:/tmp/log.db\"}\n", nil, wholeFile)
		return func() string {
			got, err := c.targets[0].access.Password(t.Context(), "")
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(got)
		}
	}
	each := password("")
	if a, b := each(), each(); a != "1" || b != "2" {
		t.Errorf("without a time it is run for each connection: %s, %s", a, b)
	}
	kept := password(", passwordTTLMillis: 3600000")
	got := make(chan string, 8)
	for range cap(got) {
		go func() { got <- kept() }()
	}
	for range cap(got) {
		if p := <-got; p != "3" {
			t.Errorf("within its time: %s, want 3", p)
		}
	}
	brief := password(", passwordTTLMillis: 200")
	began := time.Now()
	for deadline := began.Add(time.Minute); brief() != "5"; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not run again")
		}
	}
	if took := time.Since(began); took < 180*time.Millisecond {
		t.Errorf("it is run again after %v", took)
	}
}

// What a server makes of a password may come back in its error.
func TestReadPasswordIsHidden(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	c := mustParse(t, "targetDataSource: {orders: {driver: mysql, dsn: \"app@tcp(127.0.0.1)/d\", passwordFile: "+file+"}}\ntransactionLogDataSource: {driver: sqlite, dsn: \"file:/tmp/log.db\"}\n", nil, wholeFile)
	var out bytes.Buffer
	a := &app{Err: &out, logFormat: "json", logLevel: "info", access: []*access.Access{nil, c.targets[0].access}}
	log, err := a.logger()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"first-s3cr3t", "second-s3cr3t"} {
		write(t, file, p)
		if _, err := c.targets[0].access.Password(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	log.WithError(fmt.Errorf("no such login: first-s3cr3t")).Warn("second-s3cr3t is wrong")
	if strings.Contains(out.String(), "s3cr3t") || !strings.Contains(out.String(), "***") {
		t.Errorf("%s", out.String())
	}
}
