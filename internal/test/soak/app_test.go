package soak

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	_ "github.com/bedsql/bed/bedsql/sqlite" // a log in SQLite
	"github.com/bedsql/bed/txlog"
)

// Targets, by the names of their data sources.
const (
	bankM = "bank-m" // MariaDB
	bankP = "bank-p" // PostgreSQL
)

const (
	accounts = 20 // of each target
	workers  = 4  // of each process
	appEnv   = "BED_SOAK_APP"
)

// appOrder instructs a process of the application.
type appOrder struct {
	Name             string // of its journal and report
	Dir              string
	Seed             uint64
	Start            time.Time // of the run
	Targets          map[string]string
	LogDriver, Log   string
	Pause            time.Duration // of a worker between two requests
	Lease, Retention time.Duration
	Release          int // an odd one has other settings
	Guarantee        bedsql.Guarantee
	Contended        bool // a quarter of the writes to accounts touches one row
}

// appReport is a process's report at its orderly end.
type appReport struct {
	Build   string
	Release int
	// Early: it was to end before it had begun.
	Early bool
	// Goroutines are how many there are before anything is opened, at work, when
	// nothing is under way, and when all is closed.
	Goroutines [4]int
	HeapKiB    [2]uint64 // before and after
	Sockets    []string  // that are open when all is closed
	// Prepared is the largest number of prepared statements on an idle connection, by target.
	Prepared map[string]int
	Stacks   string `json:",omitempty"` // of too many goroutines
}

type app struct {
	appOrder
	pools   map[string]*sql.DB
	home    *sql.DB // see openHome
	log     *txlog.SQLStorage
	journal *os.File
}

// appMain is the process.
func appMain() int {
	a := &app{pools: map[string]*sql.DB{}}
	if err := json.Unmarshal([]byte(os.Getenv(appEnv)), &a.appOrder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	// Its parent holds the other end: it does not outlive the parent.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if err := a.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (a *app) run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if a.journal, err = os.OpenFile(filepath.Join(a.Dir, a.Name+".journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	r := appReport{Build: build, Release: a.Release, Prepared: map[string]int{}}
	r.Goroutines[0], r.HeapKiB[0] = runtime.NumGoroutine(), heapKiB()
	storage, err := a.openLog(ctx)
	if err != nil {
		if r.Early = ctx.Err() != nil; r.Early {
			return a.tell(r)
		}
		return err
	}
	a.log = storage
	if err := a.openTargets(storage); err != nil {
		return err
	}
	var wg sync.WaitGroup
	atWork := make(chan int, 1)
	for w := range workers {
		wg.Go(func() {
			h := fnv.New64a()
			fmt.Fprintf(h, "%s %d", a.Name, w)
			k := &worker{app: a, name: fmt.Sprintf("%s-%d", a.Name, w), rng: rand.New(rand.NewPCG(a.Seed, h.Sum64()))}
			k.work(ctx, func() {
				select {
				case atWork <- runtime.NumGoroutine():
				default:
				}
			})
		})
	}
	wg.Wait()
	select {
	case r.Goroutines[1] = <-atWork:
	default:
	}
	return a.report(r, storage)
}

// openLog opens the log, and waits for one that is down.
func (a *app) openLog(ctx context.Context) (*txlog.SQLStorage, error) {
	for {
		dial, cancel := context.WithTimeout(ctx, 5*time.Second)
		storage, err := txlog.Open(dial, a.LogDriver, a.Log)
		cancel()
		if err == nil {
			return storage, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (a *app) openTargets(storage txlog.Storage) error {
	logger := logrus.New() // to standard error, which is a file
	logger.SetLevel(logrus.WarnLevel)
	cfg := bedsql.Config{
		Storage: storage, Guarantee: a.Guarantee, Logger: logger,
		Lease: a.Lease, ReceiptRetention: a.Retention, RetryTimeout: 3 * time.Second, LogTimeout: 3 * time.Second,
	}
	if a.Release%2 == 1 {
		cfg.SyncMaxDeliveryTryTimes, cfg.RetryInitial, cfg.Removal = 1, 100*time.Millisecond, bedsql.RemovalBeforeReturn
	}
	for name, register := range map[string]func(string, bedsql.Config) error{bankM: mysql.Register, bankP: postgres.Register} {
		if err := register(name, cfg); err != nil {
			return err
		}
		pool, err := sql.Open(name, a.Targets[name])
		if err != nil {
			return err
		}
		pool.SetMaxOpenConns(workers + 1)
		a.pools[name] = pool
	}
	return a.openHome(cfg)
}

// report closes everything and reports leaks.
func (a *app) report(r appReport, storage txlog.Storage) error {
	r.Goroutines[2] = runtime.NumGoroutine()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for name, pool := range a.pools {
		n, err := preparedOn(ctx, pool, name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "statements that are prepared on", name, err)
		}
		r.Prepared[name] = n
		_ = pool.Close() // says so if a connection is gone already
	}
	_ = a.home.Close()
	if err := storage.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "closing the log:", err)
	}
	// After giving up a connection, pgx spends up to 15 s in the background on canceling its query.
	for range 800 {
		if r.Goroutines[3], r.Sockets = runtime.NumGoroutine(), sockets(); r.Goroutines[3] <= r.Goroutines[0] && len(r.Sockets) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if r.Goroutines[3] > r.Goroutines[0] || len(r.Sockets) > 0 {
		stacks := make([]byte, 1<<20)
		r.Stacks = string(stacks[:runtime.Stack(stacks, true)])
	}
	r.HeapKiB[1] = heapKiB()
	return a.tell(r)
}

func (a *app) tell(r appReport) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.Dir, a.Name+".report"), text, 0o600)
}

func heapKiB() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc >> 10
}

// sockets are this process's connections by remote address, if the system reports them.
func sockets() (all []string) {
	others := map[string]string{}
	table, _ := os.ReadFile("/proc/self/net/tcp")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 {
			others["socket:["+f[9]+"]"] = f[2] + " in state " + f[3]
		}
	}
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
			all = append(all, to+" to "+others[to])
		}
	}
	return all
}

// preparedOn asks each idle connection of a pool.
func preparedOn(ctx context.Context, pool *sql.DB, target string) (most int, err error) {
	query := "SELECT COUNT(*) FROM pg_prepared_statements"
	if target == bankM {
		query = "SELECT SUM(CASE WHEN VARIABLE_NAME = 'COM_STMT_PREPARE' THEN VARIABLE_VALUE ELSE -VARIABLE_VALUE END) " +
			"FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME IN ('COM_STMT_PREPARE', 'COM_STMT_CLOSE')"
	}
	for range pool.Stats().Idle {
		conn, dialErr := pool.Conn(ctx)
		if dialErr != nil {
			return most, dialErr
		}
		defer func() { _ = conn.Close() }()
		var n float64
		if err = conn.QueryRowContext(ctx, query).Scan(&n); err != nil {
			return most, err
		}
		most = max(most, int(n))
	}
	return most, nil
}

// note appends a line to the journal in one write, so that a kill cannot take it back.
func (a *app) note(l Line) {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = a.journal.Write(append(text, '\n'))
	}
	if err != nil {
		panic(err) // nothing that is done without it can be judged
	}
}
