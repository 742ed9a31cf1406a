package capacity

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/bedsql/postgres"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// The processes of an endurance run.
const (
	theApplication = "application"
	theJob         = "job"
)

// enduringEnv makes the test binary one of them, with an enduring in JSON.
const enduringEnv = "BED_TEST_ENDURING"

// enduring instructs a process.
type enduring struct {
	Role        string
	Driver      string // of target and log
	Target, Log string // DSNs
	Writes      int    // in all
	Rate        int    // of writes, a second
	// Every is how often a sample is taken.
	Every time.Duration
	// TryDelay is the job's MaxDeliveryTryDelay.
	TryDelay time.Duration
}

// sample is a process's report.
type sample struct {
	HeapKiB, RSSKiB     int // the heap just after a collection
	Goroutines, Sockets int
	// Delivered and Pending count the writes answered since the previous sample.
	Delivered, Pending int
	P50, P99           time.Duration // a write took
	Late               time.Duration // half of them began no later than this after their time
}

// endure is the process. It ends in order on SIGTERM, the application also when all
// is written.
func endure(text string) error {
	var o enduring
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	// The parent holds the other end, so that the process does not outlive it.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	storage, err := txlog.Open(ctx, o.Driver, o.Log)
	if err != nil {
		return err
	}
	logger := logrus.New() // to standard error
	logger.SetLevel(logrus.WarnLevel)
	run := o.apply
	if o.Role == theJob {
		run = o.deliver
	}
	return errors.Join(run(ctx, storage, logger), storage.Close())
}

func (o enduring) deliver(ctx context.Context, storage *txlog.SQLStorage, logger *logrus.Logger) error {
	targetOf := mysql.Target
	if o.Driver == testdb.DriverPostgres {
		targetOf = postgres.Target
	}
	to, err := targetOf(o.Target)
	if err != nil {
		return err
	}
	job, err := asyncjob.New(storage, asyncjob.Targets{dataSource: to}, asyncjob.Config{MaxDeliveryTryDelay: o.TryDelay, Logger: logger})
	if err != nil {
		return err
	}
	end := o.sampling(func(*sample) {})
	err = job.Run(ctx)
	end()
	return errors.Join(err, job.Close())
}

// apply writes at the rate, regardless of the results: each write has its time, and a late one is
// made at once.
func (o enduring) apply(ctx context.Context, storage *txlog.SQLStorage, logger *logrus.Logger) error {
	register, insert := mysql.Register, "INSERT INTO line (n) VALUES (?)"
	if o.Driver == testdb.DriverPostgres {
		register, insert = postgres.Register, "INSERT INTO line (n) VALUES ($1)"
	}
	const name = "bed-endurance"
	if err := register(name, bedsql.Config{Storage: storage, Guarantee: bedsql.ExactlyOnce, LogTimeout: time.Minute, Logger: logger}); err != nil {
		return err
	}
	app, err := sql.Open(name, o.Target)
	if err != nil {
		return err
	}
	// In an outage a write takes three retries with pauses, at most some 140 ms with the default
	// settings, and a few round trips to the log. There are enough callers to keep the rate even at
	// half a second a write. Without idle connections each write would dial.
	callers := max(o.Rate/2, 8)
	app.SetMaxIdleConns(callers)
	app.SetConnMaxIdleTime(30 * time.Second)

	var told outcomes
	end := o.sampling(told.since)
	var next atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= int64(o.Writes) {
					return
				}
				at := begun.Add(time.Duration(n) * time.Second / time.Duration(o.Rate))
				time.Sleep(time.Until(at))
				sent := time.Now()
				_, err := app.Exec(insert, n)
				told.add(time.Since(sent), sent.Sub(at), err)
			}
		})
	}
	all.Wait()
	end()
	_ = app.Close() // an idle connection that died in the outage says so
	return told.failed
}

// outcomes are those of the writes since the last sample.
type outcomes struct {
	mu                 sync.Mutex
	took, late         []time.Duration
	delivered, pending int
	failed             error // the first that was neither
}

func (o *outcomes) add(took, late time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.took, o.late = append(o.took, took), append(o.late, late)
	switch {
	case err == nil:
		o.delivered++
	case errors.Is(err, bedsql.ErrPending):
		o.pending++
	case o.failed == nil:
		o.failed = err
	}
}

func (o *outcomes) since(s *sample) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.Delivered, s.Pending = o.delivered, o.pending
	o.delivered, o.pending = 0, 0
	if n := len(o.took); n > 0 {
		slices.Sort(o.took)
		slices.Sort(o.late)
		s.P50, s.P99, s.Late = o.took[n/2], o.took[n*99/100], o.late[n/2]
	}
	o.took, o.late = o.took[:0], o.late[:0]
}

// sampling tells standard output of the process at once, every so often, and when it
// is ended. add completes a sample.
func (o enduring) sampling(add func(*sample)) (end func()) {
	out := json.NewEncoder(os.Stdout)
	tell := func() {
		s := look()
		add(&s)
		if err := out.Encode(s); err != nil {
			panic(err) // nobody would judge it
		}
	}
	tell()
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(o.Every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				tell()
				return
			case <-tick.C:
				tell()
			}
		}
	})
	return func() {
		close(stop)
		done.Wait()
	}
}

// look samples this process. Figures available only on Linux are 0 elsewhere.
func look() (s sample) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	s.HeapKiB, s.Goroutines = int(m.HeapAlloc>>10), runtime.NumGoroutine()
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident int
		if _, err := fmt.Fscan(bytes.NewReader(text), &size, &resident); err == nil {
			s.RSSKiB = resident * os.Getpagesize() >> 10
		}
	}
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
			s.Sockets++
		}
	}
	return s
}
