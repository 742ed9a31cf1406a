package cluster

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// full: everything is run, and for longer.
var full = os.Getenv("BED_TEST_CLUSTER") == "full"

// patience bounds a wait for an inevitable event.
const patience = 3 * time.Minute

const (
	dataSource = "shop"
	accounts   = 4
	lease      = 5 * time.Second
)

// place is a database as a node, or whatever is in front of it, is reached.
type place struct{ target, log testdb.DB }

// site is an application, or a job, on one node.
type site struct {
	t       testing.TB
	number  int
	target  delivery.Target
	storage *txlog.SQLStorage
	pool    *sql.DB
}

var registered atomic.Int64

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	if os.Getenv("BED_TEST_CLUSTER_LOG") != "" {
		l.SetOutput(os.Stderr)
	}
	return l
}

// named adds the name of the data source to a DSN.
func named(db testdb.DB) string {
	if db.Driver == testdb.DriverPostgres && !strings.HasPrefix(db.DSN, "postgres") {
		return db.DSN + " bedDataSource=" + dataSource
	}
	if strings.Contains(db.DSN, "?") {
		return db.DSN + "&bedDataSource=" + dataSource
	}
	return db.DSN + "?bedDataSource=" + dataSource
}

func newSite(t testing.TB, p place, change ...func(*bedsql.Config)) *site {
	t.Helper()
	s := &site{t: t}
	storage, err := txlog.Open(t.Context(), p.log.Driver, p.log.DSN, txlog.WithLogger(quiet()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	s.storage = storage
	register, targetOf := mysql.Register, mysql.Target
	if p.target.Driver == testdb.DriverPostgres {
		register, targetOf = postgres.Register, postgres.Target
	}
	if s.target, err = targetOf(named(p.target)); err != nil {
		t.Fatal(err)
	}
	cfg := bedsql.Config{
		Storage: storage, Logger: quiet(), Guarantee: bedsql.ExactlyOnce, Lease: lease,
		RetryInitial: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond, RetryTimeout: 2 * time.Second, LogTimeout: 2 * time.Second,
	}
	for _, f := range change {
		f(&cfg)
	}
	name := fmt.Sprintf("bed-cluster-%d", registered.Add(1))
	if err := register(name, cfg); err != nil {
		t.Fatal(err)
	}
	if s.pool, err = sql.Open(name, named(p.target)); err != nil {
		t.Fatal(err)
	}
	s.pool.SetMaxOpenConns(4)
	t.Cleanup(func() { _ = s.pool.Close() })
	return s
}

// job makes a job over the site's log and target.
func (s *site) job() *asyncjob.Job {
	s.t.Helper()
	job, err := asyncjob.New(s.storage, asyncjob.Targets{dataSource: s.target}, asyncjob.Config{
		MaxDeliveryTryDelay: asyncjob.NoDelay, RetryDelay: asyncjob.NoDelay, Logger: quiet(), Lease: lease,
		DeliveryTimeout: 4 * time.Second, ProbeTimeout: 2 * time.Second, MaxDeliveryTryTimes: 100,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = job.Close() })
	return job
}

// tally is the answers to applications for their increments of each account.
type tally struct {
	told [accounts]atomic.Int64
	// open counts writes known by their callers to be possibly applied, or possibly not logged
	// because the log gave no answer.
	open      [accounts]atomic.Int64
	doubts    atomic.Int64
	delivered atomic.Int64
	pending   atomic.Int64
	rejected  sync.Map // the text of an error, to *atomic.Int64
	lines     atomic.Int64
	written   sync.Map // a line of the journal, to told
}

// note notes the answer to an increment of some accounts.
func (n *tally) note(err error, ids ...int) {
	switch {
	case err == nil:
		n.delivered.Add(1)
	case errors.Is(err, bedsql.ErrPending), errors.Is(err, txlog.ErrInDoubt):
		n.pending.Add(1)
	default:
		text := err.Error()
		count, _ := n.rejected.LoadOrStore(text[:min(len(text), 90)], new(atomic.Int64))
		count.(*atomic.Int64).Add(1)
		return
	}
	counts := &n.told
	if errors.Is(err, txlog.ErrInDoubt) {
		n.doubts.Add(1)
		counts = &n.open
	}
	for _, id := range ids {
		counts[id-1].Add(1)
	}
}

func (n *tally) String() string {
	counts := map[string]int64{}
	n.rejected.Range(func(k, v any) bool { counts[k.(string)] = v.(*atomic.Int64).Load(); return true })
	out := fmt.Sprintf("%d delivered, %d pending, of which %d may not be in the log", n.delivered.Load(), n.pending.Load(), n.doubts.Load())
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		out += fmt.Sprintf("\n\t%d × %s", counts[text], text)
	}
	return out
}

const increment = "UPDATE account SET balance = balance + 1 WHERE id = "

// entry returns the statement that writes a line of the journal, and counts it.
func (s *site) entry(line int64) string {
	clause := "ON DUPLICATE KEY UPDATE n = n + 1"
	if s.target.Dialect.Name == testdb.DriverPostgres {
		clause = "ON CONFLICT (id) DO UPDATE SET n = journal.n + 1"
	}
	return fmt.Sprintf("INSERT INTO journal (id, n) VALUES (%d, 1) %s", line, clause)
}

// write increments an account, or writes a line of the journal, or does both in a
// local transaction, once.
func (s *site) write(ctx context.Context, n *tally) {
	account, line := 1+rand.IntN(accounts), n.lines.Add(1)
	switch rand.IntN(3) {
	case 0:
		_, err := s.pool.ExecContext(ctx, fmt.Sprint(increment, account))
		n.note(err, account)
		return
	case 1:
		_, err := s.pool.ExecContext(ctx, s.entry(line))
		n.note(err)
		n.journal(line, err, s, "alone")
		return
	}
	tx, err := s.pool.BeginTx(ctx, nil)
	if err == nil {
		for _, text := range []string{s.entry(line), fmt.Sprint(increment, account)} {
			if _, err = tx.ExecContext(ctx, text); err != nil {
				_ = tx.Rollback()
				break
			}
		}
		if err == nil {
			err = tx.Commit()
		}
	}
	n.note(err, account)
	n.journal(line, err, s, "in a transaction")
}

// told is the answer to the writer of a line.
type told struct {
	there, open bool
	how         string
}

func (n *tally) journal(line int64, err error, s *site, kind string) {
	unknown := errors.Is(err, bedsql.ErrUnknownOutcome)
	t := told{err == nil || unknown || errors.Is(err, bedsql.ErrPending), unknown || errors.Is(err, txlog.ErrInDoubt), fmt.Sprintf("%s on site %d at %s: %v", kind, s.number, time.Now().UTC().Format("15:04:05.000"), err)}
	n.written.Store(line, t)
}

// world is a target and a log as several sites reach them.
type world struct {
	t     *testing.T
	sites []*site
	// bare asks an always available node, after all is recovered.
	bare      *sql.DB
	recovered func()
	tally     tally
}

const ddl = "CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL)"

// newWorld has a site for each place; bare is a pool of the bare driver.
func newWorld(t *testing.T, bare *sql.DB, places []place) *world {
	t.Helper()
	w := &world{t: t, bare: bare, recovered: func() {}}
	statements := []string{ddl, "CREATE TABLE journal (id BIGINT PRIMARY KEY, n INT NOT NULL)"}
	for id := range accounts {
		statements = append(statements, fmt.Sprintf("INSERT INTO account VALUES (%d, 0)", id+1))
	}
	for _, s := range statements {
		if _, err := bare.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range places {
		s := newSite(t, p)
		s.number = len(w.sites) + 1
		w.sites = append(w.sites, s)
	}
	// The table of receipts is made before it storms.
	_, err := w.sites[0].pool.ExecContext(t.Context(), increment+"1")
	if w.tally.note(err, 1); err != nil {
		t.Fatal(err)
	}
	return w
}

// storm has writers on every site, and jobs on every site, at work while the
// fault happens, and then drains the log.
func (w *world) storm(fault func()) {
	w.t.Helper()
	const writersEach = 3
	ctx, stop := context.WithCancel(context.Background())
	jobs, stopJobs := context.WithCancel(context.Background())
	var writers, workers sync.WaitGroup
	for _, s := range w.sites {
		for range writersEach {
			writers.Go(func() {
				for ctx.Err() == nil {
					// This context lets writes finish at the end: the caller of an interrupted one
					// would not know its outcome.
					bounded, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					s.write(bounded, &w.tally)
					cancel()
				}
			})
		}
		for range 2 {
			job := s.job()
			workers.Go(func() {
				for jobs.Err() == nil {
					_, _ = job.RunOnce(jobs)
				}
			})
		}
	}
	fault()
	stop()
	writers.Wait()
	w.drain()
	stopJobs()
	workers.Wait()
	w.check()
}

// units returns the log's content, from the first site that answers.
func (w *world) units() (units []*entry.Unit, err error) {
	for _, s := range w.sites {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		units, err = s.storage.List(ctx, txlog.Filter{Limit: 100})
		cancel()
		if err == nil {
			return units, nil
		}
	}
	return nil, err
}

// drain waits until the jobs have emptied the log.
func (w *world) drain() {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		units, err := w.units()
		if err == nil && len(units) == 0 {
			return
		}
		for _, u := range units {
			if u.Parked {
				w.t.Fatalf("parked: %s: %s\n%v", u.ID, u.LastError, &w.tally)
			}
		}
		if time.Now().After(deadline) {
			last := ""
			if len(units) > 0 {
				last = units[0].LastError
			}
			w.t.Fatalf("the log is not empty: %d units, %v: %s\n%v", len(units), err, last, &w.tally)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check compares the accounts with the answers.
func (w *world) check() {
	w.t.Helper()
	w.recovered()
	for i := range accounts {
		var balance int64
		if err := w.bare.QueryRow(fmt.Sprint("SELECT balance FROM account WHERE id = ", i+1)).Scan(&balance); err != nil {
			w.t.Fatal(err)
		}
		least := w.tally.told[i].Load()
		if most := least + w.tally.open[i].Load(); balance < least || balance > most {
			w.t.Errorf("account %d holds %d, the callers know of %d to %d", i+1, balance, least, most)
		}
	}
	w.checkJournal()
	w.t.Log(&w.tally)
	if w.tally.delivered.Load() == 0 {
		w.t.Error("nothing was delivered")
	}
}

// checkJournal looks for each line known to an application, exactly once.
func (w *world) checkJournal() {
	w.t.Helper()
	rows, err := w.bare.Query("SELECT id, n FROM journal")
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	there := map[int64]int{}
	for rows.Next() {
		var line int64
		var n int
		if err := rows.Scan(&line, &n); err != nil {
			w.t.Fatal(err)
		}
		there[line] = n
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	wrong := 0
	w.tally.written.Range(func(k, v any) bool {
		line, told := k.(int64), v.(told)
		want := 0
		if told.there {
			want = 1
		}
		if n := there[line]; n != want && !(told.open && n == 0) {
			if wrong++; wrong <= 10 {
				w.t.Errorf("line %d is there %d times, want %d: written %s", line, n, want, told.how)
			}
		}
		return true
	})
}

// pause keeps up the load for a while before and after a fault. The tests wait for the fault itself
// by other means.
func pause() {
	d := 1500 * time.Millisecond
	if full {
		d = 5 * time.Second
	}
	time.Sleep(d)
}
