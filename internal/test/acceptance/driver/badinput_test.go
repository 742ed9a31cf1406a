package driver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

func TestBadInputAMegabyteOfSQLIsDelivered(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Exec("CREATE TABLE doc (id INT PRIMARY KEY, body " + longText(db) + ")")
		body := strings.Repeat("0123456789abcde\n", 1<<16)
		r.Must(r.Wrapped, fmt.Sprintf("INSERT INTO doc VALUES (1, '%s')", body))
		r.Must(r.Wrapped, "INSERT INTO doc VALUES (2, ?)", body)
		if n := r.Count(fmt.Sprintf("SELECT COUNT(*) FROM doc WHERE LENGTH(body) = %d", len(body))); n != 2 {
			t.Errorf("%d bodies arrived whole, want 2", n)
		}
		r.WantNoLog()
	})
}

func longText(db testdb.DB) string {
	if db.Driver == testdb.DriverMySQL {
		return "LONGTEXT"
	}
	return "TEXT"
}

func TestBadInputMegabyteOfSQLIsStored(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Exec("CREATE TABLE doc (id INT PRIMARY KEY, body " + longText(db) + ")")
		body := strings.Repeat("0123456789abcde\n", 1<<16)
		p.Refuse()
		rig.WantPending(t, r.Fails(r.Wrapped, fmt.Sprintf("INSERT INTO doc VALUES (1, '%s')", body)))
		rig.WantPending(t, r.Fails(r.Wrapped, "INSERT INTO doc VALUES (2, ?)", body))
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 2 {
			t.Errorf("the job's round: %v", report)
		}
		for id := 1; id <= 2; id++ {
			var got string
			if err := r.Bare.QueryRow(fmt.Sprintf("SELECT body FROM doc WHERE id = %d", id)).Scan(&got); err != nil || got != body {
				t.Errorf("body %d arrived changed (%d bytes), %v", id, len(got), err)
			}
		}
	})
}

// Databases treat invalid text in their own ways. The wrapper answers as they do, and leaves no
// entry in the log.
func TestBadInputStringsOfAnyBytes(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"NUL": "a\x00b", "NUL alone": "\x00", "invalid UTF-8": "a\xff\xfeb", "empty": "",
		"quotes": `it's "quoted" \ and; -- more`, "4 byte characters": "😀",
	}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		column := "TEXT"
		if db.Driver == testdb.DriverMySQL {
			column = "BLOB"
		}
		r.Exec("CREATE TABLE doc (id INT PRIMARY KEY, body "+column+")", "CREATE TABLE bare_doc (id INT PRIMARY KEY, body "+column+")")
		id := 0
		for name, v := range values {
			id++
			_, want := r.Bare.Exec(r.Q("INSERT INTO bare_doc VALUES (?, ?)"), id, v)
			_, got := r.Wrapped.Exec(r.Q("INSERT INTO doc VALUES (?, ?)"), id, v)
			if fmt.Sprint(got) != strings.ReplaceAll(fmt.Sprint(want), "bare_doc", "doc") {
				t.Errorf("%s: the error is %v, the bare driver's %v", name, got, want)
			}
			if want == nil {
				var back []byte
				if err := r.Bare.QueryRow(r.Q("SELECT body FROM doc WHERE id = ?"), id).Scan(&back); err != nil || string(back) != v {
					t.Errorf("%s: %q arrived as %q, %v", name, v, back, err)
				}
			}
		}
		r.WantNoLog()
	})
}

func TestBadInputSQLOfAnyBytes(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		for _, query := range []string{
			"", " ", ";", ";;", "--", "/*", "\x00", "\xff", "'", "UPDATE", "UPDATE\x00 account SET balance = 9",
			"UPDATE account SET balance = 9 WHERE id = '\x00'", "UPDATE account SET \xff = 9", "(((((", strings.Repeat("(", 100_000),
			"INSERT INTO account VALUES (", "WITH", "UPDATE account SET balance = ?", "\ufeffUPDATE account SET balance = 9 WHERE id = 7",
		} {
			short := query
			if len(short) > 30 {
				short = short[:30] + "…"
			}
			_, want := r.Bare.Exec(query)
			_, got := r.Wrapped.Exec(query)
			if (want == nil) != (got == nil) || errors.Is(got, bedsql.ErrPending) || errors.Is(got, bedsql.ErrNotLogged) {
				t.Errorf("%q: the error is %v, the bare driver's %v", short, got, want)
			}
			if units := r.Logs(); len(units) != 0 {
				t.Fatalf("%q: the log holds %+v", short, units[0])
			}
		}
		r.Must(r.Wrapped, rig.SetBalance, 10, 1)
		r.WantBalances(10)
	})
}

func TestBadInputAClosedDatabaseOrLog(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		closed := r.Open(db.DSN)
		r.Must(closed, rig.SetBalance, 1, 1)
		if err := closed.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.Fails(closed, rig.SetBalance, 10, 1); !strings.Contains(err.Error(), "closed") {
			t.Errorf("a closed database: %v", err)
		}
		r.WantNoLog()

		if err := r.Storage.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.Fails(r.Wrapped, rig.SetBalance, 10, 1); !errors.Is(err, bedsql.ErrNotLogged) || !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("a closed log: %v, want ErrNotLogged and ErrClosed", err)
		}
		r.WantBalances(1)
		if _, err := r.Job().RunOnce(context.Background()); !errors.Is(err, txlog.ErrClosed) {
			t.Errorf("a job on a closed log: %v, want ErrClosed", err)
		}
		job := r.Job()
		if err := errors.Join(job.Close(), job.Close()); err != nil {
			t.Errorf("closing a job twice: %v", err)
		}
		if _, err := job.RunOnce(context.Background()); !errors.Is(err, asyncjob.ErrClosed) {
			t.Errorf("a closed job: %v", err)
		}
	})
}

func TestBadInputNoStorage(t *testing.T) {
	t.Parallel()
	var (
		noSQL    *txlog.SQLStorage
		noMemory *txlog.Memory
	)
	for name, storage := range map[string]txlog.Storage{"none": nil, "a nil SQLStorage": noSQL, "a nil Memory": noMemory} {
		t.Run(name, func(t *testing.T) {
			for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres, testdb.DriverSQLite} {
				err := rig.Register(driver)("bed-"+t.Name()+driver, bedsql.Config{Storage: storage})
				if err == nil || !strings.Contains(err.Error(), "Storage") {
					t.Errorf("%s: Register: %v, want it to name Config.Storage", driver, err)
				}
			}
			job, err := asyncjob.New(storage, nil, asyncjob.Config{Logger: rig.Quiet()})
			if err != nil {
				return
			}
			if _, err := job.RunOnce(context.Background()); err == nil {
				t.Error("a job without a log makes rounds")
			}
		})
	}
}

func TestBadInputDSNs(t *testing.T) {
	t.Parallel()
	storage := txlog.NewMemory()
	for driver, dsns := range (testdb.By[[]string]{
		MySQL:    []string{"nonsense", "user:secret@tcp(", "root@tcp(127.0.0.1:3306)/x?bedDataSource=", "root@tcp(127.0.0.1:3306)/x?autocommit=0"},
		Postgres: []string{"postgres://user:secret@host:notaport/x", "host='unterminated", "postgres://127.0.0.1/x?bedDataSource="},
		SQLite:   []string{"file:x.db?bedDataSource=", "file:x.db?a=%zz"},
	}).All() {
		name := "bed-" + t.Name() + driver
		if err := rig.Register(driver)(name, bedsql.Config{Storage: storage, Logger: rig.Quiet()}); err != nil {
			t.Fatal(err)
		}
		if err := rig.Register(driver)(name, bedsql.Config{Storage: storage}); err == nil {
			t.Errorf("%s: the same name was registered twice", driver)
		}
		for _, dsn := range dsns {
			pool, err := sql.Open(name, dsn)
			if err == nil {
				_ = pool.Close()
				t.Errorf("%s: the DSN %q was taken", driver, dsn)
				continue
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error shows the password: %v", driver, err)
			}
		}
	}
}

// A nil Result, a nil context's value, a statement used after its database:
// none of them may panic.
func TestBadInputAStatementOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		st, err := r.Wrapped.Prepare(r.Q(rig.SetBalance))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		p.CutAll()
		if _, err := st.Exec(10, 1); err != nil {
			t.Errorf("on a connection that was cut: %v", err)
		}
		r.WantBalances(10)
		_ = st.Close()
		if _, err := st.Exec(11, 1); err == nil {
			t.Error("a closed statement ran")
		}
		r.WantBalances(10)
		r.WantNoLog()
	})
}
