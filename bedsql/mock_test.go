package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/mysql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// dsnConnector dials a driver without connectors of its own.
type dsnConnector struct {
	driver driver.Driver
	dsn    string
}

func (c dsnConnector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c dsnConnector) Driver() driver.Driver                        { return c.driver }

// mocked is a pool of the wrapped driver over a MySQL server with scripted answers, for errors
// that a real server does not produce on demand.
func mocked(t *testing.T, change ...func(*bedsql.Config)) (*sql.DB, sqlmock.Sqlmock, *spyStorage) {
	t.Helper()
	dsn := fresh(t.Name())
	bare, mock, err := sqlmock.NewWithDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	storage := &spyStorage{Memory: txlog.NewMemory()}
	cfg, _ := testConfig(storage)
	for _, f := range change {
		f(&cfg)
	}
	c, err := mysql.NewConnector(delivery.Target{Connector: dsnConnector{bare.Driver(), dsn}, DataSource: "orders"}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool := sql.OpenDB(c)
	t.Cleanup(func() {
		if err := mock.ExpectationsWereMet(); err != nil {
			t.Error(err)
		}
		mock.ExpectClose()
		_ = pool.Close()
		mock.ExpectClose()
		_ = bare.Close()
	})
	return pool, mock, storage
}

// greet expects the queries of a newly dialled session.
func greet(mock sqlmock.Sqlmock) {
	mock.ExpectQuery("SHOW SESSION VARIABLES").WillReturnRows(sqlmock.NewRows([]string{"Variable_name", "Value"}).
		AddRow("version", "8.4.0").AddRow("autocommit", "ON").AddRow("completion_type", "NO_CHAIN").AddRow("sql_mode", ""))
}

const mockWrite = "UPDATE account SET balance = 1"

var mockRefusal = &mysqldriver.MySQLError{Number: 4025, SQLState: [5]byte{'2', '3', '0', '0', '0'}, Message: "CONSTRAINT failed"}

func TestRuleRefusedIsReturnedAfterConfirmedRemoval(t *testing.T) {
	t.Parallel()
	pool, mock, storage := mocked(t)
	greet(mock)
	storage.onClear = errors.New("the log is gone")
	mock.ExpectExec(mockWrite).WillReturnError(mockRefusal)
	_, err := pool.Exec(mockWrite)
	if !errors.Is(err, bedsql.ErrPending) {
		t.Fatalf("a refusal whose entry could not be removed: %v, want ErrPending", err)
	}
	var refusal *mysqldriver.MySQLError
	if !errors.As(err, &refusal) || refusal != mockRefusal {
		t.Errorf("%v does not hold the refusal", err)
	}
	if left := storage.left(t); len(left) != 1 {
		t.Errorf("%d entries, want the one that could not be removed", len(left))
	}
}

func TestRuleDeliveredWithFailedRemovalReturnsTheResult(t *testing.T) {
	t.Parallel()
	pool, mock, storage := mocked(t)
	greet(mock)
	storage.onClear = errors.New("the log is gone")
	mock.ExpectExec(mockWrite).WillReturnResult(sqlmock.NewResult(0, 3))
	res, err := pool.Exec(mockWrite)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := res.RowsAffected(); n != 3 || err != nil {
		t.Errorf("RowsAffected = %d, %v; want 3", n, err)
	}
	storage.mu.Lock()
	storage.onClear = nil
	storage.mu.Unlock()
	// The removal is repeated after the call returned; Close waits for it.
	mock.ExpectClose()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	if left := storage.left(t); len(left) != 0 {
		t.Errorf("%d entries are left of a delivered write", len(left))
	}
}

func TestRuleNotAcceptedSendsNothing(t *testing.T) {
	t.Parallel()
	pool, _, storage := mocked(t)
	storage.onAdd = errors.New("disk full")
	_, err := pool.Exec(mockWrite) // the mock expects nothing
	if !errors.Is(err, bedsql.ErrNotLogged) || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("%v, want ErrNotLogged and not ErrPending", err)
	}
	if !errors.Is(err, storage.onAdd) {
		t.Errorf("%v does not unwrap to the log's error", err)
	}
}

func TestRuleLogInsertInDoubtIsUnknown(t *testing.T) {
	t.Parallel()
	pool, _, storage := mocked(t)
	storage.onAdd = txlog.ErrInDoubt
	_, err := pool.Exec(mockWrite)
	if !errors.Is(err, bedsql.ErrUnknownOutcome) || errors.Is(err, bedsql.ErrPending) || errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("%v, want ErrUnknownOutcome and neither ErrPending nor ErrNotLogged", err)
	}
}

func TestRunUnloggedRunsWhatCannotBeLoggedLoudly(t *testing.T) {
	t.Parallel()
	pool, mock, storage := mocked(t, func(c *bedsql.Config) { c.RunUnlogged = true })
	greet(mock)
	storage.onAdd = errors.New("disk full")
	mock.ExpectExec(mockWrite).WillReturnResult(sqlmock.NewResult(0, 3))
	if _, err := pool.Exec(mockWrite); err != nil {
		t.Error(err)
	}
	mock.ExpectExec(mockWrite).WillReturnError(mockRefusal)
	if _, err := pool.Exec(mockWrite); err != mockRefusal {
		t.Errorf("%v, want the driver's own error", err)
	}
}

func TestUnloggableCommitIsRolledBack(t *testing.T) {
	t.Parallel()
	pool, mock, storage := mocked(t)
	greet(mock)
	mock.ExpectBegin()
	mock.ExpectExec(mockWrite).WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectExec("ROLLBACK").WillReturnResult(sqlmock.NewResult(0, 0))
	tx, err := pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(mockWrite); err != nil {
		t.Fatal(err)
	}
	storage.onAdd = errors.New("disk full")
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("Commit: %v, want ErrNotLogged", err)
	}
}

func TestAConnectionThatCannotRollBackIsDiscarded(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	f.fail = func(call string) error {
		if call == "rollback" {
			return errors.New("no answer")
		}
		return nil
	}
	s := newSet(t, f)
	tx, err := s.pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	s.storage.onAdd = errors.New("disk full")
	if err := tx.Commit(); !errors.Is(err, bedsql.ErrNotLogged) {
		t.Errorf("Commit: %v, want ErrNotLogged", err)
	}
	s.wantCalls(t, "dial", "begin tx 0 false", "exec", "rollback", "close conn")
}

func TestErrBadConnNeverEscapesALoggedExec(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{true, false} {
		f := &fakeDriver{}
		f.fail = func(call string) error {
			if call == "exec" || call == "stmt exec" || call == "query" || call == "stmt query" {
				return driver.ErrBadConn
			}
			return nil
		}
		s := newSetNamed(t, f, t.Name()+map[bool]string{true: "sync"}[sync], func(c *bedsql.Config) { c.NoSyncRetry = !sync })
		st, err := s.pool.Prepare(writeText)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		for name, run := range map[string]func() error{
			"Exec": func() error {
				_, err := s.pool.Exec(writeText)
				return err
			},
			"Query": func() error {
				_, err := s.pool.Query(writeText)
				return err
			},
			"Stmt.Exec": func() error {
				_, err := st.Exec()
				return err
			},
			"Stmt.Query": func() error {
				_, err := st.Query()
				return err
			},
		} {
			before := s.storage.logged()
			err := run()
			if !errors.Is(err, bedsql.ErrPending) || errors.Is(err, driver.ErrBadConn) {
				t.Errorf("%s (sync retries: %t): %v, want ErrPending and no trace of ErrBadConn", name, sync, err)
			}
			if n := s.storage.logged() - before; n != 1 {
				t.Errorf("%s (sync retries: %t): database/sql ran it again: %d entries", name, sync, n)
			}
		}
	}
}

func TestUnloggedErrBadConnIsLeftToDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	bad := 1
	f.fail = func(call string) error {
		if (call == "query" || call == "exec" || call == "begin tx 0 false") && bad > 0 {
			bad--
			return driver.ErrBadConn
		}
		return nil
	}
	s := newSet(t, f)
	for name, run := range map[string]func() error{
		"query": func() error { return s.pool.QueryRow(readText).Scan(new(int)) },
		"DDL": func() error {
			_, err := s.pool.Exec(ddlText)
			return err
		},
		"skipped write": func() error {
			_, err := s.pool.ExecContext(bedsql.Unlogged(context.Background()), writeText)
			return err
		},
		"begin": func() error {
			tx, err := s.pool.Begin()
			if err != nil {
				return err
			}
			return tx.Rollback()
		},
	} {
		bad = 1
		if err := run(); err != nil {
			t.Errorf("%s: %v, database/sql would have tried another connection", name, err)
		}
	}
}

// If a process recovers from a driver's panic, it lives on, and so would the renewals of the
// lease.
func TestPoint15_PanickingDriverReleasesTheLease(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{fail: func(call string) error {
		if call == "exec" {
			panic("the driver's own")
		}
		return nil
	}}
	s := newSet(t, f, func(c *bedsql.Config) { c.Lease = time.Second })
	func() {
		defer func() {
			if p := recover(); p != "the driver's own" {
				t.Errorf("the panic is %v, want the driver's own", p)
			}
		}()
		_, _ = s.pool.Exec(writeText)
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		units, err := s.storage.Claim(context.Background(), entry.ClaimRequest{DataSource: "orders", Limit: 1, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if len(units) == 1 {
			if !units[0].InDoubt {
				t.Error("the unit is not in doubt")
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the log is still owned by a writer that is gone")
		}
	}
}

// A driver's error without an answer need not be the connection's end. COMMIT may still arrive,
// and with it a write that is not in the list.
func TestPoint11_UnitWithUnknownWriteIsNotReplayed(t *testing.T) {
	t.Parallel()
	fail := map[string]error{}
	f := &fakeDriver{fail: func(call string) error { return fail[call] }}
	s := newSet(t, f)
	tx, err := s.pool.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	fail["exec"] = errors.New("no answer in time")
	if _, err := tx.Exec(writeText); err != fail["exec"] {
		t.Errorf("the write gives %v, want the driver's own error", err)
	}
	fail["commit"] = errors.New("no answer in time either")
	var pending *bedsql.PendingError
	if err := tx.Commit(); !errors.As(err, &pending) || !pending.Parked {
		t.Errorf("Commit: %v, want a parked write", err)
	}
	if units := s.storage.left(t); len(units) != 1 || units[0].NotReplayable == "" {
		t.Errorf("the log holds %+v, want the unit, not to be run again", units)
	}
}
