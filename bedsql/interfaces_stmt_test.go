package bedsql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
)

func TestParametersAreCheckedByStatementThenConnection(t *testing.T) {
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

func TestStatementHasColumnConverterOnlyIfDriverDoes(t *testing.T) {
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

func TestWithoutACheckerTheConnectionSaysErrSkip(t *testing.T) {
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

func TestErrSkipIsNoFailure(t *testing.T) {
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
		t.Errorf("%d entries were written for one write", n)
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

	// database/sql goes on by itself without bed.
	for name, ctx := range map[string]context.Context{"skipped write": bedsql.Unlogged(context.Background())} {
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
		t.Errorf("%d entries were written, want those of the two logged writes", n)
	}
}

func TestArgumentCountIsCheckedBeforeTheDriver(t *testing.T) {
	t.Parallel()
	// database/sql promises drivers to check the number of arguments against NumInput: many index
	// their arguments without looking.
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
		t.Errorf("the caller's own mistake left %d entries", len(left))
	}
	if _, err := s.pool.Query(writeText+" RETURNING n", 1, 2, 3); err == nil {
		t.Error("Query with three arguments of two succeeded")
	}
}

func TestUnsupportedNamedParametersAreRefused(t *testing.T) {
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
		t.Errorf("the caller's own mistake left %d entries", len(left))
	}
}

func TestStatementPreparedWhileDownNeverReturnsErrSkip(t *testing.T) {
	t.Parallel()
	// With the database down the statement is prepared later. If the driver then returns ErrSkip
	// for its text, bed must really prepare it, because database/sql cannot handle a statement
	// that skips.
	for name, run := range map[string]func(s *set, st *sql.Stmt) error{
		"logged": func(_ *set, st *sql.Stmt) error {
			_, err := st.Exec(1)
			return err
		},
		"skipped": func(_ *set, st *sql.Stmt) error {
			_, err := st.ExecContext(bedsql.Unlogged(context.Background()), 1)
			return err
		},
		"skipped query": func(_ *set, st *sql.Stmt) error {
			rows, err := st.QueryContext(bedsql.Unlogged(context.Background()), 1)
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
				t.Errorf("%d entries are left", len(left))
			}
		})
	}
}
