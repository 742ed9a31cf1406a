package asyncjob

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/leaks"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaks.Patient(m)) }

// patience bounds waits for immediate events.
const patience = 30 * time.Second

// fakeDB is a database that fails as the test wants. The functions may be nil; they are called
// without its lock.
type fakeDB struct {
	onDial func(ctx context.Context) error
	onPing func(ctx context.Context) error
	onExec func(ctx context.Context, query string) error
	// onCommit gets the statements of the local transaction.
	onCommit func(queries []string) error
	onClose  func() error

	mu      sync.Mutex
	dials   int
	closes  int
	commits int
	sent    []string
	applied []string
}

func (f *fakeDB) target() delivery.Target {
	return delivery.Target{Connector: f, Dialect: &dialect.Dialect{Name: "fake", Classify: classifyFake}}
}

// answer is an error of the fake database with its class.
type answer struct {
	class dialect.Class
	text  string
}

func (a answer) Error() string { return a.text }

func classifyFake(err error) dialect.Class {
	var a answer
	if errors.As(err, &a) {
		return a.class
	}
	if errors.Is(err, driver.ErrBadConn) {
		return dialect.Unreachable
	}
	return dialect.Unknown
}

func (f *fakeDB) Connect(ctx context.Context) (driver.Conn, error) {
	f.mu.Lock()
	f.dials++
	f.mu.Unlock()
	if f.onDial != nil {
		if err := f.onDial(ctx); err != nil {
			return nil, err
		}
	}
	return &fakeConn{db: f}, nil
}

func (f *fakeDB) Driver() driver.Driver { return nil }

func (f *fakeDB) counts() (dials, sent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dials, len(f.sent)
}

func (f *fakeDB) appliedCopy() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.applied)
}

// fakeDML makes a test's word a write.
const fakeDML = "UPDATE "

type fakeConn struct {
	db *fakeDB
	// open means an open local transaction, and held its statements.
	open bool
	held []string
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("fake: no prepare") }
func (c *fakeConn) Begin() (driver.Tx, error)           { c.open = true; return c, nil }

func (c *fakeConn) Commit() error {
	held := c.held
	c.open, c.held = false, nil
	if c.db.onCommit != nil {
		if err := c.db.onCommit(held); err != nil {
			return err
		}
	}
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	c.db.commits++
	c.db.applied = append(c.db.applied, held...)
	return nil
}

func (c *fakeConn) Rollback() error {
	c.open, c.held = false, nil
	return nil
}

func (c *fakeConn) Close() error {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	c.db.closes++
	if c.db.onClose != nil {
		return c.db.onClose()
	}
	return nil
}

func (c *fakeConn) Ping(ctx context.Context) error {
	if c.db.onPing != nil {
		return c.db.onPing(ctx)
	}
	return nil
}

func (c *fakeConn) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	query = strings.TrimPrefix(query, fakeDML)
	c.db.mu.Lock()
	c.db.sent = append(c.db.sent, query)
	c.db.mu.Unlock()
	if c.db.onExec != nil {
		if err := c.db.onExec(ctx, query); err != nil {
			return nil, err
		}
	}
	if c.open {
		c.held = append(c.held, query)
		return driver.RowsAffected(1), nil
	}
	c.db.mu.Lock()
	c.db.applied = append(c.db.applied, query)
	c.db.mu.Unlock()
	return driver.RowsAffected(1), nil
}

// brittle is the configuration of most tests: no waiting, a quiet logger.
func brittle() Config {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return Config{MaxDeliveryTryDelay: NoDelay, RetryJitter: NoJitter, Logger: quiet}
}

// logged is brittle with the log lines to look at.
func logged() (Config, *logtest.Hook) {
	cfg := brittle()
	logger, hook := logtest.NewNullLogger()
	logger.SetLevel(logrus.DebugLevel)
	cfg.Logger = logger
	return cfg, hook
}

func newJob(t *testing.T, store txlog.Storage, targets Targets, cfg Config) *Job {
	t.Helper()
	j, err := New(store, targets, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return j
}

func newStore(t *testing.T) *txlog.Memory {
	t.Helper()
	s := txlog.NewMemory()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func runOnce(t *testing.T, j *Job) Report {
	t.Helper()
	r, err := j.RunOnce(t.Context())
	if err != nil {
		t.Fatalf("round: %v", err)
	}
	c := r.Counts
	if sum := c.Delivered + c.Failed + c.Parked + c.PushedBack + c.Refused + c.Lost; sum != c.Claimed {
		t.Errorf("%d units claimed, %d accounted for: %v", c.Claimed, sum, r)
	}
	return r
}

// add logs a unit as if its writer had given it up at once. change may be nil.
func add(t *testing.T, s txlog.Storage, dataSource, query string, change func(*entry.Unit)) *entry.Unit {
	t.Helper()
	id := entry.NewID()
	if sqltext.Classify(sqltext.ANSI, query).Kind != sqltext.DML {
		query = fakeDML + query
	}
	u := &entry.Unit{
		ID: id, TransactionID: id, DataSource: dataSource,
		Statements: []entry.Statement{{SQL: query}},
		Lease:      entry.Lease{Token: entry.NewID()},
	}
	inDoubt := false
	if change != nil {
		change(u)
		inDoubt = u.InDoubt
	}
	if err := s.Add(t.Context(), time.Minute, u); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), u, entry.Verdict{InDoubt: inDoubt}); err != nil {
		t.Fatal(err)
	}
	return u
}

func addMany(t *testing.T, s txlog.Storage, dataSource string, n int) {
	t.Helper()
	for i := range n {
		add(t, s, dataSource, fmt.Sprintf("row %d", i), nil)
	}
}

func get(t *testing.T, s txlog.Storage, u *entry.Unit) *entry.Unit {
	t.Helper()
	got, err := s.Get(t.Context(), u.ID)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func left(t *testing.T, s txlog.Storage) int {
	t.Helper()
	all, err := s.List(t.Context(), txlog.Filter{Limit: 100000})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for: %s", what)
	}
}

// spy counts the calls to the log and can replace their answers.
type spy struct {
	txlog.Storage
	claims, releases, removes counter
	onRelease                 func(u *entry.Unit, v entry.Verdict) error
	onRemove                  func() error
	onClaim                   func() ([]*entry.Unit, error)
	onRenew                   func() error
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) inc() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

func (c *counter) get() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (s *spy) Claim(ctx context.Context, r entry.ClaimRequest) ([]*entry.Unit, error) {
	s.claims.inc()
	if s.onClaim != nil {
		due, err := s.onClaim()
		if len(due) > 0 {
			due = r.Pick(due)
		}
		return due, err
	}
	return s.Storage.Claim(ctx, r)
}

func (s *spy) Release(ctx context.Context, u *entry.Unit, v entry.Verdict) error {
	s.releases.inc()
	if s.onRelease != nil {
		if err := s.onRelease(u, v); err != nil {
			return err
		}
	}
	return s.Storage.Release(ctx, u, v)
}

func (s *spy) Remove(ctx context.Context, units ...*entry.Unit) error {
	s.removes.inc()
	if s.onRemove != nil {
		if err := s.onRemove(); err != nil {
			return err
		}
	}
	return s.Storage.Remove(ctx, units...)
}

func (s *spy) Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) ([]*entry.Unit, error) {
	if s.onRenew != nil {
		if err := s.onRenew(); err != nil {
			return nil, err
		}
	}
	return s.Storage.Renew(ctx, lease, units...)
}
