package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// fakeDriver is a driver that records its calls. A test chooses the optional interfaces of its
// connections and statements by conn and stmt.
type fakeDriver struct {
	// conn makes a connection. Default: one with every context interface.
	conn func(*fakeDriver) driver.Conn
	// stmt makes a statement. Default: one with the context interfaces.
	stmt func(*fakeDriver) driver.Stmt
	// fail returns the error of a call, by the call's recorded name.
	fail func(call string) error
	// numInput is every statement's number of parameters. Default -1.
	numInput func(query string) int

	mu    sync.Mutex
	calls []string
	args  [][]driver.NamedValue
}

var (
	_ driver.Driver    = (*fakeDriver)(nil)
	_ driver.Connector = (*fakeDriver)(nil)
)

func (f *fakeDriver) call(name string) error {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	fail := f.fail
	f.mu.Unlock()
	if fail != nil {
		return fail(name)
	}
	return nil
}

func (f *fakeDriver) received(args []driver.NamedValue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.args = append(f.args, slices.Clone(args))
}

// recorded returns the calls so far and forgets them.
func (f *fakeDriver) recorded() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// lastArg returns the first argument of the last execution.
func (f *fakeDriver) lastArg(t *testing.T) driver.Value {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.args) == 0 || len(f.args[len(f.args)-1]) == 0 {
		t.Fatal("no argument reached the driver")
	}
	return f.args[len(f.args)-1][0].Value
}

func (f *fakeDriver) Open(string) (driver.Conn, error) { return f.Connect(context.Background()) }

func (f *fakeDriver) Driver() driver.Driver { return f }

func (f *fakeDriver) Connect(context.Context) (driver.Conn, error) {
	if err := f.call("dial"); err != nil {
		return nil, err
	}
	if f.conn != nil {
		return f.conn(f), nil
	}
	return &modernConn{plainConn{f}, execer{f}, queryer{f}, preparer{f}, beginner{f}, pinger{f}}, nil
}

func (f *fakeDriver) prepare(query string) (driver.Stmt, error) {
	if err := f.call("prepare"); err != nil {
		return nil, err
	}
	if f.stmt != nil {
		return f.stmt(f), nil
	}
	want := -1
	if f.numInput != nil {
		want = f.numInput(query)
	}
	return &fakeStmt{plainStmt{f, want}}, nil
}

// modernConn is a connection as today's drivers have it, but for checks of
// parameters and of the session.
type modernConn struct {
	plainConn
	execer
	queryer
	preparer
	beginner
	pinger
}

// plainConn has only the mandatory methods of a connection.
type plainConn struct{ f *fakeDriver }

func (c plainConn) Prepare(query string) (driver.Stmt, error) { return c.f.prepare(query) }
func (c plainConn) Close() error                              { return c.f.call("close conn") }
func (c plainConn) Begin() (driver.Tx, error) {
	if err := c.f.call("begin"); err != nil {
		return nil, err
	}
	return fakeTx(c), nil
}

type execer struct{ f *fakeDriver }

func (c execer) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.f.call("exec"); err != nil {
		return nil, err
	}
	c.f.received(args)
	return &fakeResult{query: query}, nil
}

// legacyExecer is the interface that ExecerContext replaced.
type legacyExecer struct{ f *fakeDriver }

func (c legacyExecer) Exec(query string, _ []driver.Value) (driver.Result, error) {
	if err := c.f.call("legacy exec"); err != nil {
		return nil, err
	}
	return &fakeResult{query: query}, nil
}

type queryer struct{ f *fakeDriver }

func (c queryer) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.f.call("query"); err != nil {
		return nil, err
	}
	c.f.received(args)
	return &fakeRows{f: c.f}, nil
}

type preparer struct{ f *fakeDriver }

func (c preparer) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return c.f.prepare(query)
}

type beginner struct{ f *fakeDriver }

func (c beginner) BeginTx(_ context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.f.call(fmt.Sprintf("begin tx %d %t", opts.Isolation, opts.ReadOnly)); err != nil {
		return nil, err
	}
	return fakeTx(c), nil
}

type pinger struct{ f *fakeDriver }

func (c pinger) Ping(context.Context) error { return c.f.call("ping") }

type resetter struct{ f *fakeDriver }

func (c resetter) ResetSession(context.Context) error { return c.f.call("reset session") }

type validator struct{ f *fakeDriver }

func (c validator) IsValid() bool { return c.f.call("is valid") == nil }

// connChecker and stmtChecker mark a parameter as theirs.
type connChecker struct{ f *fakeDriver }

func (c connChecker) CheckNamedValue(nv *driver.NamedValue) error {
	nv.Value = fmt.Sprintf("conn(%v)", nv.Value)
	return nil
}

type stmtChecker struct{ f *fakeDriver }

func (c stmtChecker) CheckNamedValue(nv *driver.NamedValue) error {
	nv.Value = fmt.Sprintf("stmt(%v)", nv.Value)
	return nil
}

// columnConverter is the old way of a statement to convert its parameters.
type columnConverter struct{ f *fakeDriver }

func (c columnConverter) ColumnConverter(int) driver.ValueConverter { return convertToColumn{} }

type convertToColumn struct{}

func (convertToColumn) ConvertValue(v any) (driver.Value, error) {
	return fmt.Sprintf("column(%v)", v), nil
}

// plainStmt has only the mandatory methods of a statement.
type plainStmt struct {
	f    *fakeDriver
	want int
}

func (s plainStmt) Close() error  { return s.f.call("close stmt") }
func (s plainStmt) NumInput() int { return s.want }
func (s plainStmt) Exec(args []driver.Value) (driver.Result, error) {
	if err := s.f.call("legacy stmt exec"); err != nil {
		return nil, err
	}
	return &fakeResult{}, nil
}

func (s plainStmt) Query(args []driver.Value) (driver.Rows, error) {
	if err := s.f.call("legacy stmt query"); err != nil {
		return nil, err
	}
	return &fakeRows{f: s.f}, nil
}

type fakeStmt struct{ plainStmt }

func (s *fakeStmt) ExecContext(_ context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.f.call("stmt exec"); err != nil {
		return nil, err
	}
	s.f.received(args)
	return &fakeResult{}, nil
}

func (s *fakeStmt) QueryContext(_ context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.f.call("stmt query"); err != nil {
		return nil, err
	}
	s.f.received(args)
	return &fakeRows{f: s.f}, nil
}

type fakeTx struct{ f *fakeDriver }

func (t fakeTx) Commit() error   { return t.f.call("commit") }
func (t fakeTx) Rollback() error { return t.f.call("rollback") }

type fakeResult struct{ query string }

func (*fakeResult) LastInsertId() (int64, error) { return 41, nil }
func (*fakeResult) RowsAffected() (int64, error) { return 42, nil }

// fakeRows is one row with one column, 7.
type fakeRows struct {
	f    *fakeDriver
	done bool
}

var fakeColumns = []string{"n"}

func (*fakeRows) Columns() []string { return fakeColumns }
func (*fakeRows) Close() error      { return nil }
func (r *fakeRows) Next(dest []driver.Value) error {
	if r.done {
		return io.EOF
	}
	r.done = true
	dest[0] = int64(7)
	return nil
}

// set is an application's set-up over a fake driver: a log in memory and a
// hook that collects log lines.
type set struct {
	f       *fakeDriver
	storage *spyStorage
	lines   *logtest.Hook
	cfg     bedsql.Config
	pool    *sql.DB
}

var names atomic.Int64

// fresh makes a driver name for a test that no earlier run has used.
func fresh(name string) string { return fmt.Sprintf("%s %d", name, names.Add(1)) }

// newSet registers f, wrapped, under the test's own name and opens it.
func newSet(t *testing.T, f *fakeDriver, change ...func(*bedsql.Config)) *set {
	t.Helper()
	return newSetNamed(t, f, t.Name(), change...)
}

func newSetNamed(t *testing.T, f *fakeDriver, name string, change ...func(*bedsql.Config)) *set {
	t.Helper()
	name = fresh(name)
	s := &set{f: f, storage: &spyStorage{Memory: txlog.NewMemory()}}
	s.cfg, s.lines = testConfig(s.storage)
	for _, c := range change {
		c(&s.cfg)
	}
	parse := func(string) (delivery.Target, error) {
		return delivery.Target{Connector: f, Dialect: fakeDialect, DataSource: "orders"}, nil
	}
	if err := bedsql.RegisterDriver(name, parse, s.cfg); err != nil {
		t.Fatal(err)
	}
	pool, err := sql.Open(name, "dsn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	s.pool = pool
	return s
}

var fakeDialect = &dialect.Dialect{Name: "fake", ReceiptDuplicate: func(error, string) bool { return false }}

func testConfig(s txlog.Storage) (bedsql.Config, *logtest.Hook) {
	logger, hook := logtest.NewNullLogger()
	return bedsql.Config{
		Storage: s, Logger: logger, Counters: new(bedsql.Counters),
		RetryInitial: time.Millisecond, RetryMax: 2 * time.Millisecond, LogTimeout: time.Second,
	}, hook
}

// wrappedConn returns a wrapped connection without database/sql above it.
func (s *set) wrappedConn(t *testing.T) driver.Conn {
	t.Helper()
	c, err := bedsql.NewConnector(delivery.Target{Connector: s.f, DataSource: "orders", Dialect: fakeDialect}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = c.(io.Closer).Close()
	})
	return conn
}

func (s *set) warnings() []string {
	var out []string
	for _, e := range s.lines.AllEntries() {
		if e.Level <= logrus.WarnLevel {
			out = append(out, e.Message)
		}
	}
	return out
}

// wantCalls compares the calls that reached the driver since the last time.
func (s *set) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	if got := s.f.recorded(); !slices.Equal(got, want) {
		t.Errorf("the driver was called: %q\nwant %q", got, want)
	}
}

// spyStorage counts the writes to a log in memory, and fails on demand.
type spyStorage struct {
	*txlog.Memory
	mu      sync.Mutex
	added   []*entry.Unit
	onAdd   error
	onClear error // Remove
}

func (s *spyStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	s.mu.Lock()
	err := s.onAdd
	if err == nil {
		s.added = append(s.added, units...)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Memory.Add(ctx, lease, units...)
}

func (s *spyStorage) Remove(ctx context.Context, units ...*entry.Unit) error {
	s.mu.Lock()
	err := s.onClear
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Memory.Remove(ctx, units...)
}

// logged is how many units were ever added.
func (s *spyStorage) logged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.added)
}

// left returns the entries in the log.
func (s *spyStorage) left(t *testing.T) []*entry.Unit {
	t.Helper()
	units, err := s.List(context.Background(), txlog.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return units
}
