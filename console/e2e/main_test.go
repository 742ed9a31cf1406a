package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	_ "github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// bedJob is the program, built once.
var bedJob string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "bed-e2e-")
	if err == nil {
		bedJob = filepath.Join(dir, "bed-job")
		build := exec.Command("go", "build", "-o", bedJob, "./cmd/bed-job")
		build.Dir, build.Stderr = filepath.Join("..", ".."), os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bed-job cannot be built:", err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// A stage is a log and a target on MariaDB, and bed-job with its console.
type stage struct {
	log     *sql.DB
	storage *txlog.SQLStorage
	target  *sql.DB
	config  string
	// way is the way to the log, kill ends bed-job as a crash does.
	way  *testproxy.Proxy
	kill func()
	// url is the console's, without a slash at its end.
	url string
}

// newStage makes the databases; bed-job is started by run.
func newStage(t *testing.T) *stage {
	t.Helper()
	logDB, targetDB := testdb.MySQL(t), testdb.MySQL(t)
	dsn, err := mysql.ParseDSN(logDB.DSN)
	if err != nil {
		t.Fatal(err)
	}
	way := testproxy.New(t, dsn.Addr)
	dsn.Net, dsn.Addr = "tcp", way.Addr()
	s := &stage{way: way, log: logDB.Open(t), target: targetDB.Open(t), config: filepath.Join(t.TempDir(), "bed-job.yaml")}
	if s.storage, err = txlog.Open(t.Context(), "mysql", logDB.DSN); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.storage.Close() })
	address := freeAddress(t)
	s.url = "http://" + address
	quote := func(dsn string) string { return fmt.Sprintf("%q", strings.ReplaceAll(dsn, "$", "$$")) }
	text := fmt.Sprintf(`targetDataSource:
  orders_3: {driver: mysql, dsn: %s}
  ledger: {driver: mysql, dsn: %s}
transactionLogDataSource: {driver: mysql, dsn: %s}
jobConfig: {cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0}
console: {listen: %q}
`, quote(targetDB.DSN), quote(targetDB.DSN), quote(dsn.FormatDSN()), address)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	exe(t, s.target, "CREATE TABLE orders (id BIGINT PRIMARY KEY, paid SMALLINT NOT NULL) ENGINE=InnoDB", "INSERT INTO orders SELECT n, 0 FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3) d")
	return s
}

func exe(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%.200s: %v", text, err)
		}
	}
}

func one(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// freeAddress is reserved until the test ends.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, kept, err := testdb.Listen(20000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	defer l.Close()
	return l.Addr().String()
}

// run starts bed-job until the end of the test, and waits until it is ready.
func (s *stage) run(t *testing.T) {
	t.Helper()
	cmd := exec.Command(bedJob, "run", "-c", s.config, "--log-level", "warning")
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); close(ended) }()
	s.kill = func() { _ = cmd.Process.Kill(); <-ended }
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
		}
		if t.Failed() {
			t.Logf("bed-job said:\n%s", out)
		}
	})
	eventually(t, "the console is ready", func() error {
		select {
		case err := <-ended:
			t.Fatalf("bed-job has ended: %v\n%s", err, out)
		default:
		}
		r, err := http.Get(s.url + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return nil
	})
}

// output is the output of a process.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// eventually waits for an event in another process.
func eventually(t *testing.T, what string, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within six minutes: %v", what, err)
		}
	}
}

// A crowd is entries of one kind.
type crowd struct {
	n          int
	dataSource string
	sql        string // with $N for the number of the entry
	args       []any
	err        string
	parked     bool
	leased     bool
	due        bool // the job may deliver it at once
}

// fill puts entries into the log: of each crowd one by the log's own means, and as many as it
// takes like it.
func (s *stage) fill(t *testing.T, crowds ...crowd) {
	t.Helper()
	exe(t, s.log, "CREATE TABLE digits (d INT)", "INSERT INTO digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)")
	for i, c := range crowds {
		params, err := entry.EncodeParams(named(c.args))
		if err != nil {
			t.Fatal(err)
		}
		u := &entry.Unit{ID: entry.NewID(), DataSource: c.dataSource, Statements: []entry.Statement{{SQL: c.sql, Params: params}}}
		u.TransactionID = u.ID
		if err := s.storage.Add(t.Context(), 24*time.Hour, u); err != nil {
			t.Fatal(err)
		}
		rest := 24 * time.Hour
		if c.due {
			rest = 0
		}
		if !c.leased {
			if err := s.storage.Release(t.Context(), u, entry.Verdict{Park: c.parked, Err: c.err, After: rest, CountTry: true}); err != nil {
				t.Fatal(err)
			}
		}
		// The rest is younger, by ids and times.
		exe(t, s.log, fmt.Sprintf(`INSERT INTO transaction_log
			SELECT v.id, t.transaction_type, t.data_source, REPLACE(t.`+"`sql`"+`, '$N', v.n), t.parameters, t.creation_time - 7200000 + v.n, t.async_delivery_try_times, v.id,
				t.statement_no, t.statement_count, t.settings, t.not_replayable, t.receipt, t.fingerprint, t.in_doubt, t.next_try_time, REPLACE(t.last_error, '$N', v.n), t.parked, t.lease_token, t.lease_until
			FROM transaction_log t, (
				SELECT n, CONCAT('01900000-%04x-7', LPAD(HEX(n DIV 65536), 3, '0'), '-8', LPAD(HEX(n %% 65536 DIV 16), 3, '0'), '-', LPAD(HEX(n), 9, '0'), '000') id
				FROM (SELECT a.d + 10*b.d + 100*c.d + 1000*e.d + 10000*f.d n FROM digits a, digits b, digits c, digits e, digits f) all_n WHERE n < %d
			) v WHERE t.id = '%s'`, i, c.n-1, u.ID),
			"UPDATE transaction_log SET `sql` = REPLACE(`sql`, '$N', '99999'), id = LOWER(id), transaction_id = LOWER(transaction_id) WHERE id = '"+u.ID+"'",
			fmt.Sprintf("UPDATE transaction_log SET id = LOWER(id), transaction_id = LOWER(transaction_id) WHERE id LIKE '01900000-%04x-%%'", i))
	}
}

// history puts an activity of some hours of data sources into the log, for the charts.
func (s *stage) history(t *testing.T, names ...string) {
	t.Helper()
	for i, name := range names {
		exe(t, s.log, fmt.Sprintf(`INSERT INTO bed_activity
			SELECT (UNIX_TIMESTAMP() DIV 60 - 2 - n) * 60000, '%s', 180 + 60 * SIN(n / 40 + %d) + n %% 7, IF(n %% 11 = 0, 9, 2), IF(n BETWEEN 60 AND 110, 40, 1), IF(n BETWEEN 90 AND 120, 60, 0), IF(n BETWEEN 100 AND 108, 15, 0), n %% 2
			FROM (SELECT a.d + 10*b.d + 100*c.d n FROM digits a, digits b, digits c) all_n WHERE n < 400`, name, i*2))
	}
	for i, origin := range []string{"caller", "sync retry", "async job"} {
		exe(t, s.log, fmt.Sprintf(`INSERT INTO bed_attempt SELECT id, CONCAT(LEFT(id, 35), '%d'), creation_time + %d, '%s', 'refused', last_error
			FROM transaction_log WHERE last_error LIKE 'Error 1062%%'`, i, 1500*i*i+40, origin))
	}
}

// command runs a command of bed-job on the stage's configuration.
func (s *stage) command(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(bedJob, append(args, "-c", s.config)...).CombinedOutput(); err != nil {
		t.Fatalf("bed-job %v: %v\n%s", args, err, out)
	}
}
