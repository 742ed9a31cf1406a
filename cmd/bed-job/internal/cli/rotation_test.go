package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// rotating is an account whose password changes.
type rotating struct {
	name   string
	db     testdb.DB // as the account, without a password
	file   string    // for the job
	set    func(password string)
	hangUp func()

	mu   sync.Mutex
	now  string
	seen []string
}

func (r *rotating) password() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// change sets a new password on the server, which from then on refuses the old one, and ends its
// sessions. publish then gives the new one to application and job.
func (r *rotating) change(t *testing.T) (publish func()) {
	next := "s3cr3t-" + rand.Text()
	r.set(next)
	r.hangUp()
	return func() {
		r.mu.Lock()
		r.now, r.seen = next, append(r.seen, next)
		r.mu.Unlock()
		write(t, r.file+".new", next+"\n")
		if err := os.Rename(r.file+".new", r.file); err != nil {
			t.Error(err)
		}
	}
}

// before is the application's hook.
func (r *rotating) before(_ context.Context, cfg any) error {
	switch c := cfg.(type) {
	case *driver.Config:
		c.Passwd = r.password()
	case *pgx.ConnConfig:
		c.Password = r.password()
	}
	return nil
}

// target is the application's, with the driver's own hook.
func (r *rotating) target(t *testing.T) delivery.Target {
	t.Helper()
	if r.db.Driver == testdb.DriverPostgres {
		cfg, err := pgx.ParseConfig(r.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return postgres.TargetOf(cfg, "orders", stdlib.OptionBeforeConnect(func(ctx context.Context, c *pgx.ConnConfig) error { return r.before(ctx, c) }))
	}
	cfg, err := driver.ParseDSN(r.db.DSN)
	if err == nil {
		err = cfg.Apply(driver.BeforeConnect(func(ctx context.Context, c *driver.Config) error { return r.before(ctx, c) }))
	}
	if err != nil {
		t.Fatal(err)
	}
	to, err := mysql.TargetOf(cfg, "orders")
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// rotatingServers make databases on a server, each with an account of its own.
var rotatingServers = map[string]func(*testing.T) func() *rotating{
	"mariadb": func(t *testing.T) func() *rotating {
		return func() *rotating {
			db := testdb.MySQL(t)
			admin := db.Open(t)
			r := newRotating(t, db, "root@", func(text string) error { _, err := admin.Exec(text); return err },
				"CREATE USER NAME@'%'", "GRANT ALL ON `"+db.Name+"`.* TO NAME@'%'")
			account := r.name + "@'%'"
			t.Cleanup(func() { _, _ = admin.Exec("DROP USER " + account) })
			r.set = func(password string) {
				if _, err := admin.Exec("ALTER USER " + account + " IDENTIFIED BY '" + password + "'"); err != nil {
					t.Error(err)
				}
			}
			r.hangUp = func() { _, _ = admin.Exec("KILL USER " + account) }
			return r
		}
	},
	"postgres": func(t *testing.T) func() *rotating {
		dir, err := os.MkdirTemp("", "bed-hba-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		rules := filepath.Join(dir, "pg_hba.conf")
		write(t, rules, "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(rules, 0o644)); err != nil { //nolint:gosec // for the server's account
			t.Fatal(err)
		}
		server := testdb.PrivatePostgres(t, "hba_file="+rules)
		return func() *rotating {
			db := server.DB(t)
			admin := db.Open(t)
			r := newRotating(t, db, "postgres@", func(text string) error { _, err := admin.Exec(text); return err },
				"CREATE ROLE NAME LOGIN", "GRANT ALL ON SCHEMA public TO NAME")
			r.set = func(password string) {
				if _, err := admin.Exec("ALTER ROLE " + r.name + " PASSWORD '" + password + "'"); err != nil {
					t.Error(err)
				}
			}
			r.hangUp = func() {
				_, _ = admin.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + r.name + "'")
			}
			return r
		}
	},
}

func newRotating(t *testing.T, db testdb.DB, admin string, exec func(string) error, statements ...string) *rotating {
	t.Helper()
	r := &rotating{name: "r" + strings.ToLower(rand.Text()[:12]), db: db, file: filepath.Join(t.TempDir(), "password")}
	r.db.DSN = strings.Replace(db.DSN, admin, r.name+"@", 1)
	for _, text := range statements {
		if err := exec(strings.ReplaceAll(text, "NAME", r.name)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// rotations is how often each password changes.
const rotations = 10

// The passwords of a target and of the log change under load, the old ones are refused at once, and
// application and job learn the new ones late. Each accepted write arrives once, no entry is parked,
// and a refused log-in counts no try. (A delivery whose session is ended with the old password does.)
func TestRotationUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	for name, on := range rotatingServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("-short: needs a server")
			}
			rotate(t, on(t))
		})
	}
}

func rotate(t *testing.T, account func() *rotating) {
	target, log := account(), account()
	for _, r := range []*rotating{target, log} {
		r.change(t)()
	}
	storage, err := txlog.Open(t.Context(), log.db.Driver, log.db.DSN, txlog.WithBeforeConnect(log.before))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	open := func(logTimeout time.Duration) *sql.DB {
		connector, err := bedsql.NewConnector(target.target(t), bedsql.Config{
			Storage: storage, Logger: quiet, Guarantee: bedsql.ExactlyOnce, SyncMaxDeliveryTryTimes: 1, RetryTimeout: time.Second, LogTimeout: logTimeout, Lease: 3 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		pool := sql.OpenDB(connector)
		t.Cleanup(func() { _ = pool.Close() })
		return pool
	}
	pool := open(time.Second)
	if _, err := pool.Exec("CREATE TABLE hits (n INT NOT NULL)"); err != nil {
		t.Fatal(err)
	}

	// The job has a command for one and a file for the other.
	config := filepath.Join(t.TempDir(), "bed-job.yaml")
	write(t, config, fmt.Sprintf(`targetDataSource:
  orders: {driver: %[1]s, dsn: %[2]q, passwordCommand: [cat, %[3]q], passwordTTLMillis: 100}
transactionLogDataSource: {driver: %[1]s, dsn: %[4]q, passwordFile: %[5]q}
jobConfig: {cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 100, retryDelayMaxMillis: 200, maxDeliveryTryTimes: 4, concurrency: 2}
`, target.db.Driver, target.db.DSN, target.file, log.db.DSN, log.file))
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer // read when the job has ended
	r, w := io.Pipe()
	job := app{Getenv: env(nil), Now: time.Now, Open: openLog, Out: io.Discard, Err: w, In: strings.NewReader(""), logTimeout: time.Second}
	ended, waiting := make(chan int, 1), make(chan struct{}, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(io.TeeReader(r, &out)); lines.Scan(); {
			if strings.Contains(lines.Text(), "waiting for the transaction log") {
				select {
				case waiting <- struct{}{}:
				default:
				}
			}
		}
	})
	publish := log.change(t) // it begins while its password is refused
	go func() {
		ended <- job.run(ctx, []string{"run", "-c", config, "--log-format", "json"})
		_ = w.Close()
	}()
	select {
	case <-waiting:
	case status := <-ended:
		t.Fatalf("the job ended with status %d instead of waiting for the log", status)
	}
	publish()

	var next, delivered, failed, pending atomic.Int64
	var results sync.Map // of writes other than refused ones: their outcomes
	write := func(pool *sql.DB) bedsql.Outcome {
		n := next.Add(1)
		insert := map[string]string{"mysql": "INSERT INTO hits VALUES (?)", "postgres": "INSERT INTO hits VALUES ($1)"}[target.db.Driver]
		_, err := pool.Exec(insert, n)
		outcome := bedsql.OutcomeOf(err)
		results.Store(n, outcome)
		switch outcome {
		case bedsql.OutcomeDelivered:
			delivered.Add(1)
		case bedsql.OutcomeRefused:
			t.Errorf("write %d is refused: %v", n, err)
		default:
			failed.Add(1)
		}
		if outcome == bedsql.OutcomeAccepted {
			pending.Add(1)
		}
		for _, r := range []*rotating{target, log} {
			if err != nil && strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the password of %s is in an error: %v", r.name, err)
			}
		}
		return outcome
	}
	var writers sync.WaitGroup
	writing, stop := context.WithCancel(t.Context())
	for range 3 {
		writers.Go(func() {
			for writing.Err() == nil {
				write(pool)
				time.Sleep(2 * time.Millisecond) // a load, not a flood
			}
		})
	}
	wait := func(what string, count *atomic.Int64) {
		t.Helper()
		for before, deadline := count.Load(), time.Now().Add(2*time.Minute); count.Load() < before+3; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no write is %s", what)
			}
		}
	}
	for range rotations {
		publish := target.change(t)
		wait("left to the job while the target refuses the old password", &pending)
		if outcome := write(open(time.Minute)); outcome != bedsql.OutcomeAccepted {
			t.Errorf("the first write of a process that has the old password: %v", outcome)
		}
		left, _ := storage.List(t.Context(), txlog.Filter{})
		for _, u := range left {
			if u.Tries > 0 && (strings.Contains(u.LastError, "authentication failed") || strings.Contains(u.LastError, "Access denied")) {
				t.Errorf("a refused log-in counts as a try: %s", u.LastError)
			}
		}
		publish()
		wait("delivered with the new password of the target", &delivered)
		publish = log.change(t)
		wait("not accepted while the log refuses the old password", &failed)
		publish()
		wait("delivered with the new password of the log", &delivered)
	}
	stop()
	writers.Wait()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left, err := storage.List(t.Context(), txlog.Filter{})
		if err == nil && len(left) == 0 {
			break
		}
		for _, u := range left {
			if u.Parked {
				t.Fatalf("parked: %s", u.LastError)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d entries are left, %v", len(left), err)
		}
	}
	cancel()
	if status := <-ended; status != 0 {
		t.Errorf("the job ends with status %d", status)
	}
	reading.Wait()
	if text := out.String(); strings.Contains(text, "s3cr3t") {
		t.Errorf("a password is in the job's output:\n%s", text)
	}

	hits := map[int64]int{}
	bare := sql.OpenDB(target.target(t).Connector)
	defer bare.Close()
	found, err := bare.Query("SELECT n FROM hits")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var n int64
		if err := found.Scan(&n); err != nil {
			t.Fatal(err)
		}
		hits[n]++
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	counts := map[bedsql.Outcome]int{}
	for n := int64(1); n <= next.Load(); n++ {
		result, _ := results.Load(n)
		outcome := result.(bedsql.Outcome)
		counts[outcome]++
		switch got := hits[n]; outcome {
		case bedsql.OutcomeDelivered, bedsql.OutcomeAccepted:
			if got != 1 {
				t.Errorf("write %d, %v, has %d effects", n, outcome, got)
			}
		case bedsql.OutcomeUnknown:
			if got > 1 {
				t.Errorf("write %d of unknown outcome has %d effects", n, got)
			}
		default:
			if got != 0 {
				t.Errorf("write %d, %v, has %d effects", n, outcome, got)
			}
		}
	}
	t.Logf("%d rotations of each: %v", rotations, counts)
}
