package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// patience bounds a wait for an inevitable event.
const patience = 2 * time.Minute

// eachServer runs f on the networked databases.
func eachServer(t *testing.T, f func(t *testing.T, db testdb.DB)) {
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

// newRigBehindProxy is newRig with a proxy between the target and its writers,
// the application and the job. The rig's bare pool goes past it.
func newRigBehindProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (*rig, *testproxy.Proxy) {
	t.Helper()
	p := testproxy.New(t, db.Addr())
	r := newRig(t, db, change...)
	r.db = db.Via(p.Addr())
	r.wrapped = r.open(r.db.DSN)
	return r, p
}

// newRigLogBehindProxy is newRig with a proxy between the wrapper and its log. The rig's own
// questions to the log bypass it.
func newRigLogBehindProxy(t testing.TB, db testdb.DB, change ...func(*bedsql.Config)) (*rig, *testproxy.Proxy) {
	t.Helper()
	logDB := freshLike(t, db)
	r := newRigWithLog(t, db, logDB)
	p := testproxy.New(t, logDB.Addr())
	storage, err := txlog.Open(context.Background(), logDB.Driver, logDB.Via(p.Addr()).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = storage.Close() })
	r.cfg.Storage = storage
	for _, f := range change {
		f(&r.cfg)
	}
	r.wrapped = r.open(db.DSN)
	return r, p
}

// noSyncRetry leaves failed writes to the job at once.
func noSyncRetry(c *bedsql.Config) { c.NoSyncRetry = true }

// conn takes a connection of the application's pool for the test.
func (r *rig) conn() *sql.Conn {
	r.t.Helper()
	c, err := r.wrapped.Conn(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (r *rig) begin() *sql.Tx {
	r.t.Helper()
	tx, err := r.wrapped.Begin()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// executor is a pool, a connection or a local transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// must runs a statement, with ? for parameters, and expects success.
func (r *rig) must(on executor, query string, args ...any) {
	r.t.Helper()
	if _, err := on.ExecContext(context.Background(), r.q(query), args...); err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
}

// fails runs a statement, expects a failure, and returns the error.
func (r *rig) fails(on executor, query string, args ...any) error {
	r.t.Helper()
	_, err := on.ExecContext(context.Background(), r.q(query), args...)
	if err == nil {
		r.t.Fatalf("%s: succeeded", query)
	}
	return err
}

func (r *rig) wantBalances(want ...int) {
	r.t.Helper()
	for i, b := range want {
		if got := r.balance(i + 1); got != b {
			r.t.Errorf("balance of account %d is %d, want %d", i+1, got, b)
		}
	}
}

// wantPending expects a pending write and returns its error.
func wantPending(t testing.TB, err error) *bedsql.PendingError {
	t.Helper()
	var p *bedsql.PendingError
	if !errors.Is(err, bedsql.ErrPending) || !errors.As(err, &p) {
		t.Fatalf("the error is %v, want ErrPending", err)
	}
	return p
}

// wantParked checks that the log holds one parked unit with its reason and its last error.
func (r *rig) wantParked(reason string) *txlog.Unit {
	r.t.Helper()
	u := r.wantOneLog()
	if !u.Parked {
		r.t.Errorf("the unit is not parked: %+v", u)
	}
	if !strings.Contains(u.LastError, reason) {
		r.t.Errorf("the last error is %q, want it to say %q", u.LastError, reason)
	}
	return u
}

// blockRow locks the row of an account in a transaction of the bare driver
// (on SQLite: the whole file) until free is called.
func (r *rig) blockRow(id int) (free func()) {
	r.t.Helper()
	conn, err := r.bare.Conn(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	run := func(query string) {
		r.t.Helper()
		if _, err := conn.ExecContext(context.Background(), query); err != nil {
			r.t.Fatalf("%s: %v", query, err)
		}
	}
	if r.db.Driver == testdb.DriverSQLite {
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
	r.t.Cleanup(free)
	return free
}

// eventually waits for an unannounced event elsewhere: in another process, or on a server.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func waitFor(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain until %s", what)
	}
}

// hookedStorage is between the wrapper and its log, and injects errors that a real log cannot be
// made to return. A hook's error is the answer.
type hookedStorage struct {
	txlog.Storage
	onAdd    func(units []*txlog.Unit) error
	afterAdd func()
	onRemove func(units []*txlog.Unit) error
	onRenew  func() error
	onLocate func() error
}

func (s *hookedStorage) Add(ctx context.Context, lease time.Duration, units ...*txlog.Unit) error {
	if s.onAdd != nil {
		if err := s.onAdd(units); err != nil {
			return err
		}
	}
	err := s.Storage.Add(ctx, lease, units...)
	if s.afterAdd != nil {
		s.afterAdd()
	}
	return err
}

func (s *hookedStorage) Remove(ctx context.Context, units ...*txlog.Unit) error {
	if s.onRemove != nil {
		if err := s.onRemove(units); err != nil {
			return err
		}
	}
	return s.Storage.Remove(ctx, units...)
}

func (s *hookedStorage) Renew(ctx context.Context, lease time.Duration, units ...*txlog.Unit) ([]*txlog.Unit, error) {
	if s.onRenew != nil {
		if err := s.onRenew(); err != nil {
			return nil, err
		}
	}
	return s.Storage.Renew(ctx, lease, units...)
}

func (s *hookedStorage) Locate(ctx context.Context, u *txlog.Unit, place, session string) error {
	if s.onLocate != nil {
		if err := s.onLocate(); err != nil {
			return err
		}
	}
	return s.Storage.Locate(ctx, u, place, session)
}

// rawExec runs a statement on the driver's own connection.
func rawExec(r *rig, conn *sql.Conn, query string) {
	r.t.Helper()
	err := conn.Raw(func(dc any) error {
		inner, err := dc.(*bedsql.Conn).Raw(context.Background())
		if err != nil {
			return err
		}
		_, err = inner.(driver.ExecerContext).ExecContext(context.Background(), query, nil)
		return err
	})
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
}

// statementOf is a statement as the log keeps it.
func statementOf(t testing.TB, query string, args ...any) txlog.Statement {
	t.Helper()
	named := make([]driver.NamedValue, len(args))
	for i, a := range args {
		named[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	params, err := txlog.EncodeParams(named)
	if err != nil {
		t.Fatal(err)
	}
	return txlog.Statement{SQL: query, Params: params}
}

func settingsOf(t testing.TB, db testdb.DB) string {
	t.Helper()
	tgt := targetOf(t, db)
	return tgt.Settings
}
