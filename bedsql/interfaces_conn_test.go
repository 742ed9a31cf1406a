package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

// Texts of each kind, as any dialect reads them.
const (
	readText  = "SELECT n FROM t"
	writeText = "UPDATE t SET n = 1"
	ddlText   = "CREATE TABLE t (n INT)"
)

func TestOptionsOfBeginTxAreNeverDropped(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	tx, err := s.pool.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelSerializable, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "dial", "begin tx 6 true", "rollback")
}

func TestOptionsAreRefusedWithoutDriverBeginTx(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{conn: func(f *fakeDriver) driver.Conn { return &plainConn{f} }}
	s := newSet(t, f)
	bare := sql.OpenDB(f)
	defer func() { _ = bare.Close() }()
	for name, opts := range map[string]*sql.TxOptions{
		"isolation": {Isolation: sql.LevelSerializable}, "read only": {ReadOnly: true},
	} {
		_, want := bare.BeginTx(context.Background(), opts)
		f.recorded()
		_, err := s.pool.BeginTx(context.Background(), opts)
		if err == nil || want == nil || err.Error() != want.Error() {
			t.Errorf("%s: error %v, want that of the bare driver: %v", name, err, want)
		}
		for _, call := range f.recorded() {
			if call == "begin" {
				t.Errorf("%s: a transaction was begun without the option", name)
			}
		}
	}
	tx, err := s.pool.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "begin", "commit")
}

func TestDriversWithoutTheContextInterfacesWork(t *testing.T) {
	t.Parallel()
	type legacyConn struct {
		plainConn
		legacyExecer
	}
	for _, c := range []struct {
		name string
		conn func(f *fakeDriver) driver.Conn
		want []string
	}{
		{"plain", func(f *fakeDriver) driver.Conn { return &plainConn{f} },
			[]string{"dial", "prepare", "legacy stmt exec", "close stmt"}},
		{"Execer", func(f *fakeDriver) driver.Conn { return &legacyConn{plainConn{f}, legacyExecer{f}} },
			[]string{"dial", "legacy exec"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := &fakeDriver{conn: c.conn, stmt: func(f *fakeDriver) driver.Stmt { return &plainStmt{f, -1} }}
			s := newSet(t, f)
			res, err := s.pool.Exec(writeText)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 42 || err != nil {
				t.Errorf("RowsAffected = %d, %v; want the driver's own 42", n, err)
			}
			s.wantCalls(t, c.want...)
			if s.storage.logged() != 1 || len(s.storage.left(t)) != 0 {
				t.Errorf("%d entries were written, %d are left; want 1 and 0", s.storage.logged(), len(s.storage.left(t)))
			}
			rows, err := s.pool.Query(readText)
			if err != nil {
				t.Fatal(err)
			}
			_ = rows.Close()
			s.wantCalls(t, "prepare", "legacy stmt query", "close stmt")
			if err := s.pool.Ping(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestResetSessionAndIsValidReachTheDriver(t *testing.T) {
	t.Parallel()
	type (
		both struct {
			modernConn
			resetter
			validator
		}
		resets struct {
			modernConn
			resetter
		}
		validates struct {
			modernConn
			validator
		}
	)
	modern := func(f *fakeDriver) modernConn {
		return modernConn{plainConn{f}, execer{f}, queryer{f}, preparer{f}, beginner{f}, pinger{f}}
	}
	for name, conn := range map[string]func(f *fakeDriver) driver.Conn{
		"neither":   nil,
		"both":      func(f *fakeDriver) driver.Conn { return &both{modern(f), resetter{f}, validator{f}} },
		"resets":    func(f *fakeDriver) driver.Conn { return &resets{modern(f), resetter{f}} },
		"validates": func(f *fakeDriver) driver.Conn { return &validates{modern(f), validator{f}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeDriver{conn: conn}
			bare := sql.OpenDB(f)
			defer func() { _ = bare.Close() }()
			twice := func(pool *sql.DB) []string {
				f.recorded()
				for range 2 {
					if _, err := pool.Exec(ddlText); err != nil {
						t.Fatal(err)
					}
				}
				return f.recorded()
			}
			want := twice(bare)
			s := newSet(t, f)
			got := twice(s.pool)
			if len(got) != len(want) {
				t.Fatalf("the driver was called: %q, by database/sql alone: %q", got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("the driver was called: %q, by database/sql alone: %q", got, want)
				}
			}
		})
	}
}

func TestConnectionThatCannotBeResetIsReplaced(t *testing.T) {
	t.Parallel()
	type resets struct {
		modernConn
		resetter
	}
	f := &fakeDriver{conn: func(f *fakeDriver) driver.Conn {
		return &resets{modernConn{plainConn{f}, execer{f}, queryer{f}, preparer{f}, beginner{f}, pinger{f}}, resetter{f}}
	}}
	s := newSet(t, f)
	if _, err := s.pool.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	f.fail = func(call string) error {
		if call == "reset session" {
			return driver.ErrBadConn
		}
		return nil
	}
	f.recorded()
	if _, err := s.pool.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "reset session", "close conn", "dial", "exec")
	if n := s.storage.logged(); n != 2 {
		t.Errorf("%d entries were written for two writes", n)
	}
}

// closingConnector is a connector that is closed with its pool.
type closingConnector struct{ *fakeDriver }

func (c closingConnector) Close() error { return c.call("close connector") }

func TestConnectorIsClosedIfItHasACloser(t *testing.T) {
	t.Parallel()
	cfg, _ := testConfig(txlog.NewMemory())
	for _, with := range []bool{false, true} {
		f := &fakeDriver{}
		var inner driver.Connector = f
		want := 0
		if with {
			inner, want = closingConnector{f}, 1
		}
		c, err := bedsql.NewConnector(delivery.Target{Connector: inner, DataSource: "orders"}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := sql.OpenDB(c).Close(); err != nil {
			t.Error(err)
		}
		if calls := f.recorded(); len(calls) != want {
			t.Errorf("closing the pool called the driver: %q", calls)
		}
	}
	failing := &fakeDriver{fail: func(string) error { return io.ErrUnexpectedEOF }}
	c, err := bedsql.NewConnector(delivery.Target{Connector: closingConnector{failing}, DataSource: "orders"}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := sql.OpenDB(c).Close(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Close gives %v, want the connector's own error", err)
	}
}

func TestPoolKeepsTheDriverItWasOpenedWith(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	s := newSet(t, f)
	if _, ok := s.pool.Driver().(driver.DriverContext); !ok {
		t.Errorf("the registered driver %T has no OpenConnector", s.pool.Driver())
	}
	conn, err := s.pool.Driver().Open("dsn")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.(driver.ExecerContext).ExecContext(context.Background(), writeText, nil); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	c, err := bedsql.NewConnector(delivery.Target{Connector: f, DataSource: "orders"}, s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if c.Driver() != driver.Driver(f) {
		t.Errorf("Driver() of a wrapped connector is %T, want the wrapped one's", c.Driver())
	}
}

func TestUnloggedRowsAndResultsAreUnwrapped(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := context.Background()
	conn := s.wrappedConn(t)
	execs := map[string]driver.ExecerContext{"on the connection": conn.(driver.ExecerContext)}
	queries := map[string]driver.QueryerContext{"on the connection": conn.(driver.QueryerContext)}
	for where, c := range execs {
		for name, run := range map[string]func() (driver.Result, error){
			"a read":           func() (driver.Result, error) { return c.ExecContext(ctx, readText, nil) },
			"DDL":              func() (driver.Result, error) { return c.ExecContext(ctx, ddlText, nil) },
			"a skipped write":  func() (driver.Result, error) { return c.ExecContext(bedsql.Unlogged(ctx), writeText, nil) },
			"a logged write":   func() (driver.Result, error) { return c.ExecContext(ctx, writeText, nil) },
			"an unknown word":  func() (driver.Result, error) { return c.ExecContext(ctx, "FROBNICATE t", nil) },
			"an empty text":    func() (driver.Result, error) { return c.ExecContext(ctx, "", nil) },
			"several together": func() (driver.Result, error) { return c.ExecContext(ctx, "SELECT 1; SELECT 2", nil) },
		} {
			res, err := run()
			if err != nil {
				t.Fatalf("%s %s: %v", name, where, err)
			}
			if _, ok := res.(*fakeResult); !ok {
				t.Errorf("%s %s gives a %T, want the driver's own result", name, where, res)
			}
		}
	}
	for where, c := range queries {
		for name, run := range map[string]func() (driver.Rows, error){
			"a read":          func() (driver.Rows, error) { return c.QueryContext(ctx, readText, nil) },
			"a skipped write": func() (driver.Rows, error) { return c.QueryContext(bedsql.Unlogged(ctx), writeText, nil) },
			"an unknown word": func() (driver.Rows, error) { return c.QueryContext(ctx, "FROBNICATE t", nil) },
		} {
			rows, err := run()
			if err != nil {
				t.Fatalf("%s %s: %v", name, where, err)
			}
			if _, ok := rows.(*fakeRows); !ok {
				t.Errorf("%s %s gives %T, want the driver's own rows", name, where, rows)
			}
		}
	}
	st, err := conn.Prepare(readText)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	rows, err := st.(driver.StmtQueryContext).QueryContext(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := rows.(*fakeRows); !ok {
		t.Errorf("a prepared read gives %T, want the driver's own rows", rows)
	}
	if n := s.storage.logged(); n != 1 {
		t.Errorf("%d entries were written, want that of the one logged write", n)
	}
}

func TestRowsInLocalTransactionAreUnwrapped(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	ctx := context.Background()
	conn := s.wrappedConn(t)
	tx, err := conn.(driver.ConnBeginTx).BeginTx(ctx, driver.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, writeText+" RETURNING n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := rows.(*fakeRows); !ok {
		t.Errorf("it gives %T, want the driver's own rows", rows)
	}
	if err := tx.Rollback(); err != nil {
		t.Error(err)
	}
}

func TestAConnectionIsDialledOnFirstUseOnly(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	conn, err := s.pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(writeText); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "dial", "exec")
	// An unused connection has nothing to close.
	if err := s.wrappedConn(t).Close(); err != nil {
		t.Error(err)
	}
	s.wantCalls(t)
}

func inTx(pool *sql.DB, f func(*sql.Tx) error) error {
	tx, err := pool.Begin()
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
