package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
)

func TestWritesToANeverReachedDatabaseAreDelivered(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewDown(t, db)
		r.Account(100, 100, 100)
		_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.WantOutcome(rig.Pending, err)
		if u := r.WantOneLog(); u.InDoubt {
			t.Error("the log is in doubt although nothing was ever dialled")
		}
		st, err := r.Wrapped.Prepare(r.Q("UPDATE account SET balance = ? WHERE id = ?"))
		if err != nil {
			t.Fatalf("Prepare of a write: %v", err)
		}
		defer func() { _ = st.Close() }()
		if _, err := st.Exec(80, 2); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("a prepared write: %v, want ErrPending", err)
		}
		if err := r.Wrapped.QueryRow(r.Q("DELETE FROM account WHERE id = ? RETURNING id"), 3).Scan(new(int)); !errors.Is(err, bedsql.ErrPending) {
			t.Errorf("a write through Query: %v, want ErrPending", err)
		}
		r.WantBalances(100, 100, 100)
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 3 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(90, 80)
		if n := r.Count("SELECT count(*) FROM account"); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
		r.WantNoLog()
		// The statement prepared without a database works with one.
		if _, err := st.Exec(70, 2); err != nil {
			t.Errorf("the prepared write once the database is up: %v", err)
		}
		r.WantBalances(90, 70)
	})
}

func TestDatabaseBackDuringRetriesGetsTheWrite(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		adds := make(chan struct{}, 1)
		r, p := rig.NewDown(t, db, func(c *bedsql.Config) {
			c.SyncMaxDeliveryTryTimes = 1000
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnAdd: func([]*entry.Unit) error {
				adds <- struct{}{}
				return nil
			}}
		})
		r.Account(100)
		done := make(chan error, 1)
		go func() {
			_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			done <- err
		}()
		rig.WaitFor(t, "the write is logged", adds)
		p.Accept()
		r.WantOutcome(rig.Delivered, <-done)
		r.WantBalances(90)
	})
}

func TestNonWriteGetsTheDriversErrorWhenDown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, _ := rig.NewDown(t, db)
		ctx := context.Background()
		down := r.DB.Open(t)
		query := func(pool *sql.DB) error {
			rows, err := pool.Query("SELECT id FROM account")
			if err == nil {
				_ = rows.Close()
			}
			return err
		}
		for name, run := range map[string]func(*sql.DB) error{
			"ping":     func(pool *sql.DB) error { return pool.Ping() },
			"query":    query,
			"QueryRow": func(pool *sql.DB) error { return pool.QueryRow("SELECT 1").Scan(new(int)) },
			"prepare": func(pool *sql.DB) error {
				_, err := pool.Prepare("SELECT id FROM account")
				return err
			},
			"begin": func(pool *sql.DB) error {
				_, err := pool.Begin()
				return err
			},
			"DDL": func(pool *sql.DB) error {
				_, err := pool.Exec("CREATE TABLE more (id INT)")
				return err
			},
			"skipped write": func(pool *sql.DB) error {
				_, err := pool.ExecContext(bedsql.Unlogged(ctx), "UPDATE account SET balance = 1")
				return err
			},
		} {
			want, err := run(down), run(r.Wrapped)
			if err == nil || errors.Is(err, bedsql.ErrPending) || err.Error() != want.Error() {
				t.Errorf("%s: %v, want the driver's own %v", name, err, want)
			}
		}
		r.WantNoLog()
	})
}

// A wrong password and one that was just replaced are the same to the server.
func TestRefusedFirstLoginLeavesTheWriteToTheJob(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		stranger := db
		if db.Driver == testdb.DriverMySQL {
			stranger.DSN = strings.Replace(db.DSN, "root@", "nobody_of_this_name:wrong@", 1)
		} else {
			stranger = rig.WithParam(db, "user", "nobody_of_this_name")
		}
		_, want := stranger.Open(t).Exec("UPDATE account SET balance = 1")
		pool := r.Open(stranger.DSN)
		_, err := pool.Exec("UPDATE account SET balance = 1")
		r.WantOutcome(rig.Pending, err)
		if want == nil || !strings.Contains(err.Error(), want.Error()) || !rig.HoldsDriversOwn(db, err) {
			t.Errorf("%v, want in it the driver's own %v", err, want)
		}
		if u := r.WantOneLog(); u.InDoubt || u.Parked {
			t.Errorf("nothing was sent, and nobody refused the write: %+v", u)
		}
		if err := pool.Ping(); err == nil || err.Error() != want.Error() {
			t.Errorf("Ping: %v, want the driver's own %v", err, want)
		}
		// The job's own login is refused, too.
		job := r.JobFor(asyncjob.Targets{r.Logs()[0].DataSource: rig.TargetOf(t, stranger)}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 })
		if report, err := job.RunOnce(t.Context()); err != nil || report.Parked+report.Failed != 0 {
			t.Errorf("the job: %v, %v", report, err)
		}
		if u := r.WantOneLog(); u.InDoubt || u.Parked || u.Tries != 0 {
			t.Errorf("a refused login counts as a try: %+v", u)
		}
		r.WantBalances(100)
	})
}

// As when credentials rotate: the writer's pool was connected before.
func TestLogInRefusedForAMomentLosesNoWrite(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		user := fmt.Sprintf("u%d", time.Now().UnixNano())
		account, app := user, rig.WithParam(db, "user", user)
		grant, lock, unlock := []string{"CREATE ROLE " + user + " LOGIN", "GRANT ALL ON ALL TABLES IN SCHEMA public TO " + user}, "ALTER ROLE "+user+" NOLOGIN", "ALTER ROLE "+user+" LOGIN"
		drop := []string{"DROP OWNED BY " + user, "DROP ROLE " + user}
		if db.Driver == testdb.DriverMySQL {
			account += "@'%'"
			app.DSN = strings.Replace(db.DSN, "root@", user+":old@", 1)
			grant, lock, unlock = []string{"CREATE USER " + account + " IDENTIFIED BY 'old'", "GRANT ALL ON *.* TO " + account}, "ALTER USER "+account+" IDENTIFIED BY 'new'", "ALTER USER "+account+" IDENTIFIED BY 'old'"
			drop = []string{"DROP USER " + account}
		}
		r.Exec(grant...)
		defer r.Exec(drop...)
		pool := r.Open(app.DSN)
		pool.SetMaxIdleConns(-1)
		r.Must(pool, rig.AddOne)
		r.Exec(lock)
		_, err := pool.Exec(rig.AddOne)
		r.WantOutcome(rig.Pending, err)
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("%v does not hold the driver's error", err)
		}
		st, err := pool.Prepare(r.Q("UPDATE account SET balance = balance + ?"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = st.Exec(1)
		_ = st.Close()
		rig.WantPending(t, err)
		if _, err := pool.Begin(); bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted || !rig.HoldsDriversOwn(db, err) {
			t.Errorf("BeginTx: %v is %v", err, bedsql.OutcomeOf(err))
		}
		first := r.Open(app.DSN)
		if _, err := first.Begin(); bedsql.OutcomeOf(err) != bedsql.OutcomeNotAccepted {
			t.Errorf("BeginTx on a first connection: %v is %v", err, bedsql.OutcomeOf(err))
		}
		_, err = first.Exec(rig.AddOne)
		rig.WantPending(t, err)
		r.Exec(unlock)
		r.Must(pool, rig.AddOne)
		r.Drain(r.JobFor(asyncjob.Targets{r.Logs()[0].DataSource: rig.TargetOf(t, app)}))
		r.WantBalances(105)
	})
}

func TestStatementIsLoggedWhenDatabaseGoesAfterPrepare(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		st, err := r.Wrapped.Prepare(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		if _, err := st.Exec(1, 1); err != nil {
			t.Fatal(err)
		}
		p.Refuse()
		p.CutAll()
		_, err = st.Exec(10, 1)
		r.WantOutcome(rig.Pending, err)
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		if _, err := st.Exec(1, 1); err != nil {
			t.Errorf("the statement once the database is back: %v", err)
		}
		r.WantBalances(88)
		r.WantNoLog()
	})
}

func TestUnopenableSQLiteFileIsWrittenLater(t *testing.T) {
	t.Parallel()
	db := testdb.SQLite(t)
	dir := filepath.Join(filepath.Dir(db.Name), "later")
	db.Name = filepath.Join(dir, "test.db")
	db.DSN = "file:" + db.Name + "?_pragma=busy_timeout(5000)"
	r := rig.New(t, db)
	_, err := r.Wrapped.Exec("INSERT INTO account VALUES (?, ?)", 1, 90)
	r.WantOutcome(rig.Pending, err)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r.Account()
	if report := r.RunOnce(); report.Delivered != 1 {
		t.Errorf("the job: %s", report)
	}
	r.WantBalances(90)
	r.WantNoLog()
}

func TestUndialledConnectionChecksParametersLikeTheDriver(t *testing.T) {
	t.Parallel()
	column := testdb.By[string]{MySQL: "BIGINT UNSIGNED", Postgres: "NUMERIC", SQLite: "INTEGER"}
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Exec("CREATE TABLE wide (id INT PRIMARY KEY, n " + column.For(db.Driver) + ")")
		type id uint64
		var none *uint64
		for i, v := range []any{uint64(math.MaxUint64), uint64(1) << 63, id(math.MaxUint64), int8(-1), none, sql.NullInt64{Int64: 7, Valid: true}, struct{}{}} {
			insert := r.Q("INSERT INTO wide VALUES (?, ?)")
			_, want := db.Open(t).Exec(insert, 2*i, v)
			_, err := r.Open(db.DSN).Exec(insert, 2*i+1, v)
			if (err == nil) != (want == nil) {
				t.Errorf("%T %v on an undialled connection: %v, with the bare driver: %v", v, v, err, want)
				continue
			}
			r.WantNoLog()
			if err != nil {
				continue
			}
			var bare, wrapped sql.NullString
			for id, dest := range map[int]*sql.NullString{2 * i: &bare, 2*i + 1: &wrapped} {
				if err := r.Bare.QueryRow(r.Q("SELECT CAST(n AS CHAR(30)) FROM wide WHERE id = ?"), id).Scan(dest); err != nil {
					t.Fatal(err)
				}
			}
			if bare != wrapped {
				t.Errorf("%T %v was stored as %v, by the bare driver as %v", v, v, wrapped, bare)
			}
		}
	})
}

func TestAWideUnsignedParameterSurvivesTheLog(t *testing.T) {
	t.Parallel()
	r, p := rig.NewDown(t, testdb.MySQL(t))
	r.Exec("CREATE TABLE wide (n BIGINT UNSIGNED)")
	_, err := r.Wrapped.Exec("INSERT INTO wide VALUES (?)", uint64(math.MaxUint64))
	r.WantOutcome(rig.Pending, err)
	p.Accept()
	if report := r.RunOnce(); report.Delivered != 1 {
		t.Errorf("the job: %s", report)
	}
	var n uint64
	if err := r.Bare.QueryRow("SELECT n FROM wide").Scan(&n); err != nil || n != math.MaxUint64 {
		t.Errorf("n = %d, %v; want %d", n, err, uint64(math.MaxUint64))
	}
}
