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

func TestPoint04_OptionsOfBeginTxAreNeverDropped(t *testing.T) {
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

func TestPoint04_ADriverWithoutBeginTxRefusesOptionsInsteadOfIgnoringThem(t *testing.T) {
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

func TestPoint04_ParametersAreCheckedByTheStatementElseTheConnectionElseNobody(t *testing.T) {
	t.Parallel()
	type (
		checkedConn struct {
			modernConn
			connChecker
		}
		checkedStmt struct {
			fakeStmt
			stmtChecker
		}
		convertingStmt struct {
			fakeStmt
			columnConverter
		}
	)
	plainly := func(f *fakeDriver) driver.Conn {
		return &modernConn{plainConn{f}, execer{f}, queryer{f}, preparer{f}, beginner{f}, pinger{f}}
	}
	checking := func(f *fakeDriver) driver.Conn {
		return &checkedConn{modernConn{plainConn{f}, execer{f}, queryer{f}, preparer{f}, beginner{f}, pinger{f}}, connChecker{f}}
	}
	checkedStatement := func(f *fakeDriver) driver.Stmt { return &checkedStmt{fakeStmt{plainStmt{f, -1}}, stmtChecker{f}} }
	converting := func(f *fakeDriver) driver.Stmt {
		return &convertingStmt{fakeStmt{plainStmt{f, -1}}, columnConverter{f}}
	}
	for _, c := range []struct {
		name string
		conn func(*fakeDriver) driver.Conn
		stmt func(*fakeDriver) driver.Stmt
	}{
		{"neither", plainly, nil},
		{"connection", checking, nil},
		{"statement", plainly, checkedStatement},
		{"both", checking, checkedStatement},
		{"column converter", plainly, converting},
		{"connection and column converter", checking, converting},
	} {
		for kind, text := range map[string]string{"write": writeText, "read": readText, "ddl": ddlText} {
			t.Run(c.name+" "+kind, func(t *testing.T) {
				t.Parallel()
				f := &fakeDriver{conn: c.conn, stmt: c.stmt}
				bare := sql.OpenDB(f)
				defer func() { _ = bare.Close() }()
				want := preparedArg(t, f, bare, text)
				s := newSet(t, f)
				// The first connection has not been dialled when its parameters are checked.
				if got := preparedArg(t, f, s.pool, text); got != want {
					t.Errorf("the driver received %#v, with the bare driver %#v", got, want)
				}
				wantDirect := directArg(t, f, bare, text)
				if got := directArg(t, f, s.pool, text); got != wantDirect {
					t.Errorf("without a prepared statement the driver received %#v, with the bare driver %#v", got, wantDirect)
				}
			})
		}
	}
}

func preparedArg(t *testing.T, f *fakeDriver, pool *sql.DB, text string) driver.Value {
	t.Helper()
	st, err := pool.Prepare(text)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	if _, err := st.Exec(int32(5)); err != nil {
		t.Fatal(err)
	}
	return f.lastArg(t)
}

func directArg(t *testing.T, f *fakeDriver, pool *sql.DB, text string) driver.Value {
	t.Helper()
	if _, err := pool.Exec(text, int32(5)); err != nil {
		t.Fatal(err)
	}
	return f.lastArg(t)
}

func TestPoint04_AStatementHasAColumnConverterOnlyIfTheDriversHasOne(t *testing.T) {
	t.Parallel()
	type convertingStmt struct {
		fakeStmt
		columnConverter
	}
	for _, with := range []bool{false, true} {
		f := &fakeDriver{}
		if with {
			f.stmt = func(f *fakeDriver) driver.Stmt {
				return &convertingStmt{fakeStmt{plainStmt{f, -1}}, columnConverter{f}}
			}
		}
		s := &set{f: f, storage: &spyStorage{}}
		s.cfg, _ = testConfig(s.storage)
		for _, text := range []string{readText, writeText} {
			st, err := s.wrappedConn(t).Prepare(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, has := st.(driver.ColumnConverter); has != with { //nolint:staticcheck // deprecated, but drivers have it
				t.Errorf("%s: has a ColumnConverter: %t, the driver's has one: %t", text, has, with)
			}
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPoint04_WithoutACheckerTheConnectionSaysErrSkip(t *testing.T) {
	t.Parallel()
	s := newSet(t, &fakeDriver{})
	conn := s.wrappedConn(t)
	for _, when := range []string{"undialled", "dialled"} {
		nv := driver.NamedValue{Ordinal: 1, Value: 5}
		if err := conn.(driver.NamedValueChecker).CheckNamedValue(&nv); !errors.Is(err, driver.ErrSkip) || nv.Value != 5 {
			t.Errorf("%s: CheckNamedValue gives %v and the value %v, want ErrSkip and 5", when, err, nv.Value)
		}
		if err := conn.(driver.Pinger).Ping(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPoint02_ErrSkipIsNoFailure(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	f.fail = func(call string) error {
		if call == "exec" || call == "query" {
			return driver.ErrSkip
		}
		return nil
	}
	s := newSet(t, f)
	if _, err := s.pool.Exec(writeText, 1); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "dial", "exec", "prepare", "stmt exec", "close stmt")
	if n := s.storage.logged(); n != 1 {
		t.Errorf("%d logs were written for one write", n)
	}
	if n := s.cfg.Counters.Delivered.Load(); n != 1 {
		t.Errorf("%d deliveries counted, want 1", n)
	}

	rows, err := s.pool.Query(writeText+" RETURNING n", 1)
	if err != nil {
		t.Fatal(err)
	}
	_ = rows.Close()
	s.wantCalls(t, "query", "prepare", "stmt query", "close stmt")

	// database/sql goes on by itself where bed takes no part.
	for name, ctx := range map[string]context.Context{"skipped write": bedsql.Skip(context.Background())} {
		if _, err := s.pool.ExecContext(ctx, writeText, 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.wantCalls(t, "exec", "prepare", "stmt exec", "close stmt")
	}
	if _, err := s.pool.Exec(ddlText, 1); err != nil {
		t.Error(err)
	}
	s.wantCalls(t, "exec", "prepare", "stmt exec", "close stmt")
	if rows, err = s.pool.Query(readText, 1); err != nil {
		t.Fatal(err)
	}
	_ = rows.Close()
	s.wantCalls(t, "query", "prepare", "stmt query", "close stmt")
	if n := s.storage.logged(); n != 2 {
		t.Errorf("%d logs were written, want those of the two logged writes", n)
	}
}

func TestPoint04_DriversWithoutTheContextInterfacesWork(t *testing.T) {
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
				t.Errorf("%d logs were written, %d are left; want 1 and 0", s.storage.logged(), len(s.storage.left(t)))
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

func TestPoint04_TheNumberOfArgumentsIsCheckedBeforeTheDriverSeesThem(t *testing.T) {
	t.Parallel()
	// database/sql promises drivers that it checks the number of arguments
	// against NumInput: many index their arguments without looking.
	f := &fakeDriver{
		conn:     func(f *fakeDriver) driver.Conn { return &plainConn{f} },
		numInput: func(string) int { return 2 },
	}
	bare := sql.OpenDB(f)
	defer func() { _ = bare.Close() }()
	_, want := bare.Exec(writeText, 1)
	s := newSet(t, f)
	f.recorded()
	_, err := s.pool.Exec(writeText, 1)
	if err == nil || err.Error() != want.Error() {
		t.Errorf("Exec with one argument of two: %v, want %v", err, want)
	}
	s.wantCalls(t, "dial", "prepare", "close stmt")
	if left := s.storage.left(t); len(left) != 0 {
		t.Errorf("the caller's own mistake left %d logs", len(left))
	}
	if _, err := s.pool.Query(writeText+" RETURNING n", 1, 2, 3); err == nil {
		t.Error("Query with three arguments of two succeeded")
	}
}

func TestPoint04_NamedParametersThatTheDriverDoesNotKnowAreRefused(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{
		conn: func(f *fakeDriver) driver.Conn { return &plainConn{f} },
		stmt: func(f *fakeDriver) driver.Stmt { return &plainStmt{f, -1} },
	}
	s := newSet(t, f)
	_, err := s.pool.Exec(writeText, sql.Named("n", 1))
	if err == nil || errors.Is(err, bedsql.ErrPending) {
		t.Errorf("Exec with a name: %v, want a refusal", err)
	}
	if left := s.storage.left(t); len(left) != 0 {
		t.Errorf("the caller's own mistake left %d logs", len(left))
	}
}

func TestPoint04_ResetSessionAndIsValidReachTheDriverAndAreInventedForNone(t *testing.T) {
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

func TestPoint04_AConnectionThatTheDriverResetsNoMoreIsReplaced(t *testing.T) {
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
		t.Errorf("%d logs were written for two writes", n)
	}
}

// closingConnector is a connector that is closed with its pool.
type closingConnector struct{ *fakeDriver }

func (c closingConnector) Close() error { return c.call("close connector") }

func TestPoint04_TheConnectorsCloserIsCalledIfItHasOne(t *testing.T) {
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

func TestPoint04_TheDriverOfAPoolIsTheOneItWasOpenedWith(t *testing.T) {
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

func TestPoint04_RowsAndResultsOfWhatIsNotLoggedComeBackUnwrapped(t *testing.T) {
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
			"a skipped write":  func() (driver.Result, error) { return c.ExecContext(bedsql.Skip(ctx), writeText, nil) },
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
			"a skipped write": func() (driver.Rows, error) { return c.QueryContext(bedsql.Skip(ctx), writeText, nil) },
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
		t.Errorf("%d logs were written, want that of the one logged write", n)
	}
}

func TestPoint04_RowsOfAWriteInALocalTransactionComeBackUnwrapped(t *testing.T) {
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

func TestPoint01_AConnectionIsDialledOnFirstUseOnly(t *testing.T) {
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
	// A connection that was never used has nothing to close.
	if err := s.wrappedConn(t).Close(); err != nil {
		t.Error(err)
	}
	s.wantCalls(t)
}

func TestAStatementPreparedWithoutADatabaseNeverGivesErrSkip(t *testing.T) {
	t.Parallel()
	// With the database down the statement is prepared later. A driver that
	// then says ErrSkip to its text must be met by a real prepare, because
	// database/sql has no way out of a statement that skips.
	for name, run := range map[string]func(s *set, st *sql.Stmt) error{
		"logged": func(_ *set, st *sql.Stmt) error {
			_, err := st.Exec(1)
			return err
		},
		"skipped": func(_ *set, st *sql.Stmt) error {
			_, err := st.ExecContext(bedsql.Skip(context.Background()), 1)
			return err
		},
		"skipped query": func(_ *set, st *sql.Stmt) error {
			rows, err := st.QueryContext(bedsql.Skip(context.Background()), 1)
			if err == nil {
				err = rows.Close()
			}
			return err
		},
		"query": func(_ *set, st *sql.Stmt) error {
			rows, err := st.Query(1)
			if err == nil {
				err = rows.Close()
			}
			return err
		},
		"in a transaction": func(s *set, st *sql.Stmt) error {
			return inTx(s.pool, func(tx *sql.Tx) error {
				_, err := tx.Stmt(st).Exec(1)
				return err
			})
		},
		"query in a transaction": func(s *set, st *sql.Stmt) error {
			return inTx(s.pool, func(tx *sql.Tx) error {
				rows, err := tx.Stmt(st).Query(1)
				if err == nil {
					err = rows.Close()
				}
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeDriver{}
			down := true
			f.fail = func(call string) error {
				switch {
				case call == "dial" && down:
					return errors.New("connection refused")
				case call == "exec", call == "query":
					return driver.ErrSkip
				}
				return nil
			}
			s := newSet(t, f)
			s.pool.SetMaxOpenConns(1)
			st, err := s.pool.Prepare(writeText)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			down = false
			if err := run(s, st); err != nil {
				t.Error(err)
			}
			if left := s.storage.left(t); len(left) != 0 {
				t.Errorf("%d logs are left", len(left))
			}
		})
	}
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
