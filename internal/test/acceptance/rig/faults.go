package rig

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// Session returns the server's number for the session of one connection.
func (r *Rig) Session(on interface {
	QueryRow(string, ...any) *sql.Row
}) int {
	r.T.Helper()
	query := "SELECT CONNECTION_ID()"
	if r.DB.Driver == testdb.DriverPostgres {
		query = "SELECT pg_backend_pid()"
	}
	var id int
	if err := on.QueryRow(query).Scan(&id); err != nil {
		r.T.Fatal(err)
	}
	return id
}

// NewDown is newRigBehindProxy with the target down before the
// application's first connection.
func NewDown(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (*Rig, *testproxy.Proxy) {
	t.Helper()
	r, p := NewBehindProxy(t, db, change...)
	p.Refuse()
	return r, p
}

// Patience bounds a wait for an inevitable event.
const Patience = 2 * time.Minute

// EachServer runs f on the networked databases.
func EachServer(t *testing.T, f func(t *testing.T, db testdb.DB)) {
	t.Helper()
	t.Run(testdb.DriverMySQL, func(t *testing.T) {
		t.Parallel()
		f(t, testdb.MySQL(t))
	})
	if testdb.MySQLPath() {
		return
	}
	t.Run(testdb.DriverPostgres, func(t *testing.T) {
		t.Parallel()
		f(t, testdb.Postgres(t))
	})
}

// NewBehindProxy is newRig with a proxy between the target and its writers,
// the application and the job. The rig's bare pool goes past it.
func NewBehindProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (*Rig, *testproxy.Proxy) {
	t.Helper()
	p := testproxy.New(t, db.Addr())
	p.SpareErasing()
	r := New(t, db, change...)
	r.DB = db.Via(p.Addr())
	r.Wrapped = r.Open(r.DB.DSN)
	return r, p
}

// NewLogBehindProxy is newRig with a proxy between the wrapper and its log. The rig's own
// questions to the log bypass it.
func NewLogBehindProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (*Rig, *testproxy.Proxy) {
	t.Helper()
	logDB := testdb.NewLog(t, db.Driver)
	r := NewWithLog(t, db, logDB)
	p := testproxy.New(t, logDB.Addr())
	storage, err := txlog.Open(context.Background(), logDB.Driver, logDB.Via(p.Addr()).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	r.Cfg.Storage = storage
	for _, f := range change {
		f(&r.Cfg)
	}
	r.Wrapped = r.Open(db.DSN)
	return r, p
}

// NoSyncRetry leaves failed writes to the job at once.
func NoSyncRetry(c *bedsql.Config) { c.NoSyncRetry = true }

// Conn takes a connection of the application's pool for the test.
func (r *Rig) Conn() *sql.Conn {
	r.T.Helper()
	c, err := r.Wrapped.Conn(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *Rig) Begin() *sql.Tx {
	r.T.Helper()
	tx, err := r.Wrapped.Begin()
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// Executor is a pool, a connection or a local transaction.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Must runs a statement, with ? for parameters, and expects success.
func (r *Rig) Must(on Executor, query string, args ...any) {
	r.T.Helper()
	if _, err := on.ExecContext(context.Background(), r.Q(query), args...); err != nil {
		r.T.Fatalf("%s: %v", query, err)
	}
}

// Fails runs a statement, expects a failure, and returns the error.
func (r *Rig) Fails(on Executor, query string, args ...any) error {
	r.T.Helper()
	_, err := on.ExecContext(context.Background(), r.Q(query), args...)
	if err == nil {
		r.T.Fatalf("%s: succeeded", query)
	}
	return err
}

func (r *Rig) WantBalances(want ...int) {
	r.T.Helper()
	for i, b := range want {
		if got := r.Balance(i + 1); got != b {
			r.T.Errorf("balance of account %d is %d, want %d", i+1, got, b)
		}
	}
}

// WantPending expects a pending write and returns its error.
func WantPending(t testing.TB, err error) *bedsql.PendingError {
	t.Helper()
	var p *bedsql.PendingError
	if !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &p) {
		t.Fatalf("the error is %v, want ErrPending", err)
	}
	return p
}

// WantParked checks that the log holds one parked unit with its reason and its last error.
func (r *Rig) WantParked(reason string) *entry.Unit {
	r.T.Helper()
	u := r.WantOneLog()
	if !u.Parked {
		r.T.Errorf("the unit is not parked: %+v", u)
	}
	if !strings.Contains(u.LastError, reason) {
		r.T.Errorf("the last error is %q, want it to say %q", u.LastError, reason)
	}
	return u
}

// BlockRow locks the row of an account in a transaction of the bare driver
// (on SQLite: the whole file) until free is called.
func (r *Rig) BlockRow(id int) (free func()) {
	r.T.Helper()
	conn, err := r.Bare.Conn(context.Background())
	if err != nil {
		r.T.Fatal(err)
	}
	run := func(query string) {
		r.T.Helper()
		if _, err := conn.ExecContext(context.Background(), query); err != nil {
			r.T.Fatalf("%s: %v", query, err)
		}
	}
	if r.DB.Driver == testdb.DriverSQLite {
		run("BEGIN IMMEDIATE")
	} else {
		run("BEGIN")
		run(fmt.Sprintf("SELECT id FROM account WHERE id = %d FOR UPDATE", id))
	}
	freed := false
	free = func() {
		if freed {
			return
		}
		freed = true
		_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
		_ = conn.Close()
	}
	r.T.Cleanup(free)
	return free
}

// Eventually waits for an unannounced event elsewhere: in another process, or on a server.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func WaitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		t.Fatalf("waited in vain until %s", what)
	}
}

// HookedStorage is between the wrapper and its log, and injects errors that a real log cannot be
// made to return. A hook's error is the answer.
type HookedStorage struct {
	txlog.Storage
	OnAdd    func(units []*entry.Unit) error
	AfterAdd func()
	OnRemove func(units []*entry.Unit) error
	OnRenew  func() error
	OnLocate func() error
}

func (s *HookedStorage) Add(ctx context.Context, lease time.Duration, units ...*entry.Unit) error {
	if s.OnAdd != nil {
		if err := s.OnAdd(units); err != nil {
			return err
		}
	}
	err := s.Storage.Add(ctx, lease, units...)
	if s.AfterAdd != nil {
		s.AfterAdd()
	}
	return err
}

func (s *HookedStorage) Remove(ctx context.Context, units ...*entry.Unit) error {
	if s.OnRemove != nil {
		if err := s.OnRemove(units); err != nil {
			return err
		}
	}
	return s.Storage.Remove(ctx, units...)
}

func (s *HookedStorage) Renew(ctx context.Context, lease time.Duration, units ...*entry.Unit) ([]*entry.Unit, error) {
	if s.OnRenew != nil {
		if err := s.OnRenew(); err != nil {
			return nil, err
		}
	}
	return s.Storage.Renew(ctx, lease, units...)
}

func (s *HookedStorage) Locate(ctx context.Context, u *entry.Unit, place, session string) error {
	if s.OnLocate != nil {
		if err := s.OnLocate(); err != nil {
			return err
		}
	}
	return s.Storage.Locate(ctx, u, place, session)
}

// RawExec runs a statement on the driver's own connection.
func RawExec(r *Rig, conn *sql.Conn, query string) {
	r.T.Helper()
	err := conn.Raw(func(dc any) error {
		inner, err := dc.(*bedsql.Conn).Raw(context.Background())
		if err != nil {
			return err
		}
		_, err = inner.(driver.ExecerContext).ExecContext(context.Background(), query, nil)
		return err
	})
	if err != nil {
		r.T.Fatalf("%s: %v", query, err)
	}
}

// StatementOf is a statement as the log keeps it.
func StatementOf(t testing.TB, query string, args ...any) entry.Statement {
	t.Helper()
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	params, err := entry.EncodeParams(named)
	if err != nil {
		t.Fatal(err)
	}
	return entry.Statement{SQL: query, Params: params}
}

func SettingsOf(t testing.TB, db testdb.DB) string {
	t.Helper()
	tgt := TargetOf(t, db)
	return tgt.Settings
}

// DeadAddr is an address that nobody uses while the test runs.
func DeadAddr(t testing.TB) string {
	t.Helper()
	l, kept, err := testdb.Listen(10000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	_ = l.Close()
	return l.Addr().String()
}
