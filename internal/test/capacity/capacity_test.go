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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const dataSource = "shop"

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
	s := testdb.PrivateMariaDB(t, "--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M")
	measure(t, s.DB(t), s.DB(t), mysql.Target, mysql.Register)
}

func TestCapacityOnPostgreSQL(t *testing.T) {
	s := testdb.PrivatePostgres(t, "shared_buffers=512MB", "max_wal_size=4GB")
	measure(t, s.DB(t), s.DB(t), postgres.Target, postgres.Register)
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func measure(t *testing.T, target, log testdb.DB, targetOf func(string) (delivery.Target, error), register func(string, bedsql.Config) error) {
	t.Helper()
	all, ctx := units(t), t.Context()
	bare := target.Open(t)
	if _, err := bare.Exec("CREATE TABLE line (id BIGINT PRIMARY KEY, n INT NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	dsn := target.DSN + "&bedDataSource=" + dataSource
	to, err := targetOf(dsn)
	if err != nil {
		t.Fatal(err)
	}
	storage, err := txlog.Open(ctx, log.Driver, log.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	name := "bed-capacity-" + target.Driver
	if err := register(name, bedsql.Config{Storage: storage, Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	app, err := sql.Open(name, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = app.Close() })

	quietly := latency(t, app, 1<<40, time.Second)
	rate := bareRate(t, bare)
	start := time.Now()
	fill(t, storage, to, all)
	t.Logf("%d units written in %v: %.0f/s", all, time.Since(start).Round(time.Millisecond), float64(all)/time.Since(start).Seconds())
	t.Logf("a write: %v", quietly)
	t.Logf("a bare INSERT by itself, %d at a time: %.0f/s", jobs, rate)
	time.Sleep(writerLease) // the units are the jobs' when it has run out
	drain(t, storage, to, app, all)
}

// jobs is how many drain side by side.
const jobs = 4

// bareRate is how many bare INSERTs a second the target takes from so many at a time.
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

// fill writes units that are due at once.
func fill(t *testing.T, storage *txlog.SQLStorage, to delivery.Target, all int) {
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
				list := make([]*txlog.Unit, 0, batch)
				for i := from; i < min(all, from+batch); i++ {
					list = append(list, &txlog.Unit{
						ID: txlog.NewID(), DataSource: dataSource, Settings: to.Settings,
						Statements: []txlog.Statement{{SQL: fmt.Sprintf("INSERT INTO line (id, n) VALUES (%d, 1)", i)}},
					})
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

// writerLease ends by itself: nobody delivers what was written.
const writerLease = 5 * time.Second

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

// drain has the jobs empty the log, and tells of each tenth.
func drain(t *testing.T, storage *txlog.SQLStorage, to delivery.Target, app *sql.DB, all int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var delivered, marks atomic.Int64
	done := make(chan struct{}, all)
	var wg sync.WaitGroup
	for range jobs {
		job, err := asyncjob.New(storage, asyncjob.Targets{dataSource: to}, asyncjob.Config{
			MaxDeliveryTryDelay: asyncjob.NoDelay, Logger: quiet(), TransactionLogFetchDataCount: 500,
			OnProgress: func() func(asyncjob.Report) {
				last := 0
				return func(r asyncjob.Report) {
					if r.Delivered < last { // a new round
						last = 0
					}
					delivered.Add(int64(r.Delivered - last))
					last = r.Delivered
					select {
					case done <- struct{}{}:
					default:
					}
				}
			}(),
		})
		if err != nil {
			t.Fatal(err)
		}
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
			claim, err := storage.Claim(ctx, txlog.ClaimRequest{DataSource: dataSource, Limit: 1, Lease: time.Second})
			if err != nil {
				t.Error(err)
			}
			cost := time.Since(began)
			for _, u := range claim {
				if err := storage.Release(ctx, u, txlog.Verdict{}); err != nil {
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
