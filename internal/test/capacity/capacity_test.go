package capacity

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const dataSource = "shop"

// turn runs a test in parallel with others, unless it measures.
func turn(t *testing.T, variable string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Parallel()
	}
}

// units is how many wait.
func units(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BED_TEST_CAPACITY")
	if text == "" {
		return 2000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCapacityOnMariaDB(t *testing.T) {
	turn(t, "BED_TEST_CAPACITY")
	measure(t, onMariaDB(t, "512M"))
}

func TestCapacityOnPostgreSQL(t *testing.T) {
	turn(t, "BED_TEST_CAPACITY")
	measure(t, onPostgreSQL(t, "512MB"))
}

// kind is a target and a log in databases of a private server.
type kind struct {
	target, log testdb.DB
	targetOf    func(dsn string) (delivery.Target, error)
	register    func(name string, cfg bedsql.Config) error
}

func onMariaDB(t *testing.T, memory string) kind {
	t.Helper()
	s := testdb.PrivateMariaDB(t, "--innodb-buffer-pool-size="+memory, "--innodb-log-file-size="+memory)
	return kind{s.DB(t), s.DB(t), mysql.Target, mysql.Register}
}

func onPostgreSQL(t *testing.T, memory string, options ...string) kind {
	t.Helper()
	s := testdb.PrivatePostgres(t, append(options, "shared_buffers="+memory, "max_wal_size=4GB")...)
	return kind{s.DB(t), s.DB(t), postgres.Target, postgres.Register}
}

// storage opens the log.
func (k kind) storage(t *testing.T) *txlog.SQLStorage {
	t.Helper()
	s, err := txlog.Open(t.Context(), k.log.Driver, k.log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// table makes the target's table, and opens it with the bare driver.
func (k kind) table(t *testing.T) *sql.DB {
	t.Helper()
	bare := k.target.Open(t)
	if _, err := bare.Exec("CREATE TABLE line (id BIGINT PRIMARY KEY, n INT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return bare
}

// dsn names the target as a data source.
func (k kind) dsn() string { return k.target.DSN + "&bedDataSource=" + dataSource }

// open opens the target for jobs, and through the wrapper for an application.
func (k kind) open(t *testing.T, log txlog.Storage) (to delivery.Target, app *sql.DB) {
	t.Helper()
	to, err := k.targetOf(k.dsn())
	if err != nil {
		t.Fatal(err)
	}
	name := "bed-" + t.Name()
	if err := k.register(name, bedsql.Config{Storage: log, LogTimeout: time.Minute, Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	if app, err = sql.Open(name, k.dsn()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = app.Close() })
	return to, app
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func measure(t *testing.T, on kind) {
	t.Helper()
	all, bare, storage := units(t), on.table(t), on.storage(t)
	to, app := on.open(t, storage)

	quietly := latency(t, app, 1<<40, time.Second)
	rate := bareRate(t, bare)
	before, start := entry.NewID(), time.Now()
	fill(t, storage, to, 0, all)
	t.Logf("%d units written in %v: %.0f/s", all, time.Since(start).Round(time.Millisecond), float64(all)/time.Since(start).Seconds())
	t.Logf("a write: %v", quietly)
	t.Logf("a bare INSERT by itself, %d at a time: %.0f/s", jobs, rate)
	leave(t, storage, before)
	drain(t, storage, to, app, all)
}

// jobs is how many drain side by side.
const jobs = 4

// bareRate is how many bare INSERTs a second the target takes from jobs callers
// at a time.
func bareRate(t *testing.T, bare *sql.DB) float64 {
	t.Helper()
	var n atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for w := range jobs {
		wg.Go(func() {
			for i := 0; time.Since(start) < 2*time.Second; i++ {
				if _, err := bare.Exec(fmt.Sprintf("INSERT INTO line VALUES (%d, 1)", 1<<50+w<<32+i)); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(start).Seconds()
}

// fill writes units, numbered from first. Their writers own them until leave.
func fill(t *testing.T, storage *txlog.SQLStorage, to delivery.Target, first, all int) {
	t.Helper()
	const batch, writers = 200, 8
	var next atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for {
				from := int(next.Add(batch)) - batch
				if from >= all {
					return
				}
				list := make([]*entry.Unit, 0, batch)
				for i := from; i < min(all, from+batch); i++ {
					list = append(list, unit(to, int64(first+i)))
				}
				if err := storage.Add(t.Context(), writerLease, list...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// leave leaves the units written since an id to the jobs, as if the writers' lease were over.
func leave(t *testing.T, storage *txlog.SQLStorage, since string) {
	t.Helper()
	_, err := logdb.Journal(storage).DB().Exec(fmt.Sprintf("UPDATE transaction_log SET next_try_time = %[1]d, lease_until = %[1]d WHERE id > '%[2]s'", time.Now().UnixMilli(), since))
	if err != nil {
		t.Fatal(err)
	}
}

func unit(to delivery.Target, id int64) *entry.Unit {
	return &entry.Unit{
		ID: entry.NewID(), DataSource: dataSource, Settings: to.Settings,
		Statements: []entry.Statement{{SQL: fmt.Sprintf("INSERT INTO line (id, n) VALUES (%d, 1)", id)}},
	}
}

// writerLease does not end by itself.
const writerLease = time.Hour

// times are those of writes, in their order.
type times []time.Duration

func (l times) String() string {
	slices.Sort(l)
	return fmt.Sprintf("p50 %v, p99 %v (%d)", l[len(l)/2].Round(10*time.Microsecond), l[len(l)*99/100].Round(10*time.Microsecond), len(l))
}

// latency writes one after the other for a while.
func latency(t *testing.T, app *sql.DB, from int, d time.Duration) (took times) {
	t.Helper()
	for start, i := time.Now(), from; time.Since(start) < d || len(took) < 10; i++ {
		began := time.Now()
		if _, err := app.Exec(fmt.Sprintf("INSERT INTO line (id, n) VALUES (%d, 1)", i)); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	return took
}

// everySecond has a job begin a round each second.
const everySecond = "@every 1s"

// worker is a job that reports its deliveries.
func worker(t *testing.T, storage txlog.Storage, to delivery.Target, cfg asyncjob.Config, delivered func(n int64)) *asyncjob.Job {
	t.Helper()
	last := 0
	cfg.MaxDeliveryTryDelay, cfg.Logger = asyncjob.NoDelay, quiet()
	cfg.OnProgress = func(r asyncjob.Report) {
		if r.Delivered < last { // a new round
			last = 0
		}
		delivered(int64(r.Delivered - last))
		last = r.Delivered
	}
	job, err := asyncjob.New(storage, asyncjob.Targets{dataSource: to}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// drain has the jobs empty the log, and logs each tenth.
func drain(t *testing.T, storage *txlog.SQLStorage, to delivery.Target, app *sql.DB, all int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var delivered, marks atomic.Int64
	done := make(chan struct{}, all)
	var wg sync.WaitGroup
	for range jobs {
		job := worker(t, storage, to, asyncjob.Config{TransactionLogFetchDataCount: 500}, func(n int64) {
			delivered.Add(n)
			select {
			case done <- struct{}{}:
			default:
			}
		})
		wg.Go(func() {
			defer func() { _ = job.Close() }()
			for ctx.Err() == nil {
				if r, err := job.RunOnce(ctx); err == nil && r.Claimed == 0 && int(delivered.Load()) >= all {
					return
				}
			}
		})
	}
	start, tenth := time.Now(), time.Now()
	for range done {
		n := delivered.Load()
		if n >= (marks.Load()+1)*int64(all)/10 {
			marks.Add(1)
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			began := time.Now()
			claim, err := storage.Claim(ctx, entry.ClaimRequest{DataSource: dataSource, Limit: 1, Lease: time.Minute})
			if err != nil {
				t.Error(err)
			}
			cost := time.Since(began)
			for _, u := range claim {
				if err := storage.Release(ctx, u, entry.Verdict{}); err != nil {
					t.Error(err)
				}
			}
			t.Logf("%d drained, this tenth at %.0f/s, heap %d MiB, a claim takes %v", n, float64(all)/10/time.Since(tenth).Seconds(), m.HeapAlloc>>20, cost.Round(10*time.Microsecond))
			if marks.Load() == 5 {
				t.Logf("a write meanwhile: %v", latency(t, app, 1<<41, time.Second))
			}
			tenth = time.Now()
		}
		if n >= int64(all) {
			break
		}
	}
	t.Logf("drained %d units by %d jobs in %v: %.0f/s", all, jobs, time.Since(start).Round(time.Millisecond), float64(all)/time.Since(start).Seconds())
	cancel()
	wg.Wait()
}
