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

// appOrder tells a process of the application what to do.
type appOrder struct {
	Name             string // of its journal and report
	Dir              string
	Seed             uint64
	Start            time.Time // of the run
	Targets          map[string]string
	LogDriver, Log   string
	Pause            time.Duration // of a worker between two requests
	Lease, Retention time.Duration
}

// appReport is what a process says of itself when it ends in order.
type appReport struct {
	Goroutines, GoroutinesAtFirst int
	HeapKiB                       uint64
	Stacks                        string `json:",omitempty"` // of too many goroutines
}

type app struct {
	appOrder
	pools   map[string]*sql.DB
	journal *os.File
}

// appMain is the process.
func appMain() int {
	a := &app{pools: map[string]*sql.DB{}}
	if err := json.Unmarshal([]byte(os.Getenv(appEnv)), &a.appOrder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	// Who started it holds the other end: it does not outlive that one.
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
	storage, err := a.openLog(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	if err := a.openTargets(storage); err != nil {
		return err
	}
	var wg sync.WaitGroup
	atFirst := make(chan int, 1)
	for w := range workers {
		wg.Go(func() {
			h := fnv.New64a()
			fmt.Fprintf(h, "%s %d", a.Name, w)
			k := &worker{app: a, name: fmt.Sprintf("%s-%d", a.Name, w), rng: rand.New(rand.NewPCG(a.Seed, h.Sum64()))}
			k.work(ctx, func() {
				select {
				case atFirst <- runtime.NumGoroutine():
				default:
				}
			})
		})
	}
	wg.Wait()
	return a.report(atFirst)
}

// openLog waits for a log that is down.
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
		Storage: storage, Guarantee: bedsql.ExactlyOnce, Logger: logger,
		Lease: a.Lease, ReceiptRetention: a.Retention, RetryTimeout: 3 * time.Second, LogTimeout: 3 * time.Second,
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
	return nil
}

// report waits until nothing runs any more but what ran at first.
func (a *app) report(atFirst <-chan int) error {
	r := appReport{GoroutinesAtFirst: -1}
	select {
	case r.GoroutinesAtFirst = <-atFirst:
	default:
	}
	for range 200 {
		if r.Goroutines = runtime.NumGoroutine(); r.Goroutines <= r.GoroutinesAtFirst {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if r.Goroutines > r.GoroutinesAtFirst {
		stacks := make([]byte, 1<<20)
		r.Stacks = string(stacks[:runtime.Stack(stacks, true)])
	}
	for _, pool := range a.pools {
		_ = pool.Close() // says so if a connection is gone already
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.HeapKiB = m.HeapAlloc >> 10
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.Dir, a.Name+".report"), text, 0o600)
}

// note appends a line to the journal, in one write: a kill does not take back
// what was written.
func (a *app) note(l Line) {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = a.journal.Write(append(text, '\n'))
	}
	if err != nil {
		panic(err) // nothing that is done without it can be judged
	}
}
