package job

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// behind runs a statement of the application behind a lock and waits until its
// log is there.
func behind(r *rig.Rig, query string, args ...any) (done <-chan error) {
	r.T.Helper()
	c := make(chan error, 1)
	go func() {
		_, err := r.Wrapped.Exec(r.Q(query), args...)
		c <- err
	}()
	rig.Eventually(r.T, "the write is logged", func() bool { return len(r.Logs()) == 1 })
	return c
}

// takeOver claims the one unit of the log as another worker would, as soon as
// its owner's lease has ended.
func takeOver(r *rig.Rig) *entry.Unit {
	r.T.Helper()
	dataSource := r.WantOneLog().DataSource
	var units []*entry.Unit
	rig.Eventually(r.T, "the lease has ended", func() bool {
		var err error
		units, err = r.Storage.Claim(context.Background(), entry.ClaimRequest{DataSource: dataSource, Limit: 1, Lease: time.Hour})
		if err != nil {
			r.T.Fatal(err)
		}
		return len(units) == 1
	})
	return units[0]
}

// wantUntouched checks that the unit is still the other worker's: it can be
// removed under its token.
func wantUntouched(r *rig.Rig, u *entry.Unit) {
	r.T.Helper()
	now := r.WantOneLog()
	if !now.Leased || now.Parked || now.LastError != "" || now.NextTry.UnixMilli() != u.NextTry.UnixMilli() {
		r.T.Errorf("somebody else's unit was changed: %+v", now)
	}
	if err := r.Storage.Remove(context.Background(), u); err != nil {
		r.T.Errorf("the unit was taken from its owner: %v", err)
	}
}

func TestTheJobLeavesABusyWriterAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const lease = 10 * time.Second
		r := rig.New(t, db, func(c *bedsql.Config) { c.Lease, c.SyncMaxDeliveryTryTimes = lease, 100 })
		r.Account(1)
		free := r.BlockRow(1)
		done := behind(r, rig.SetBalance, 10, 1)
		first := r.WantOneLog().NextTry
		rig.Eventually(t, "the lease was renewed for longer than a lease", func() bool {
			return r.WantOneLog().NextTry.Sub(first) > lease
		})
		for range 3 {
			if report := r.RunOnce(); report.Claimed != 0 {
				t.Errorf("the job took a log from its writer: %v", report)
			}
		}
		free()
		if err := <-done; err != nil {
			t.Errorf("the write: %v", err)
		}
		r.WantBalances(10)
		r.WantNoLog()
	})
}

func TestAPendingWriteIsTheJobsAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, run := range map[string]func(r *rig.Rig) error{
			"after the retries": func(r *rig.Rig) error {
				_, err := r.Wrapped.Exec(r.Q(rig.SetBalance), 10, 1)
				return err
			},
			"after the caller has gone": func(r *rig.Rig) error {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				done := make(chan error, 1)
				go func() {
					_, err := r.Wrapped.ExecContext(ctx, r.Q(rig.SetBalance), 10, 1)
					done <- err
				}()
				rig.Eventually(r.T, "the write is logged", func() bool { return len(r.Logs()) == 1 })
				cancel()
				return <-done
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := rig.New(t, rig.Impatient(rig.FreshLike(t, db)), func(c *bedsql.Config) {
					c.Lease, c.SyncMaxDeliveryTryTimes = time.Hour, 1
				})
				r.Account(1)
				free := r.BlockRow(1)
				rig.WantPending(t, run(r))
				if u := r.WantOneLog(); u.Leased || u.LastError == "" {
					t.Errorf("the log holds %+v, want it handed over with the error", u)
				}
				free()
				if report := r.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job's round: %v", report)
				}
				r.WantBalances(10)
				r.WantNoLog()
			})
		}
	})
}

// lostLease is a writer's configuration under which its lease runs out. It is as long as a busy
// server may take to write an entry.
func lostLease(c *bedsql.Config) {
	c.Lease = 4 * time.Second
	c.Storage = &rig.HookedStorage{Storage: c.Storage, OnRenew: func() error { return errors.New("the log does not answer") }}
}

func TestAWriterThatLostItsLeaseRemovesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		db.DSN = strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(60000)", 1) // it waits until it is free
		r := rig.New(t, db, lostLease)
		r.Account(1)
		free := r.BlockRow(1)
		done := behind(r, rig.SetBalance, 10, 1)
		other := takeOver(r)
		if !other.InDoubt {
			t.Error("the one who takes over does not learn that the outcome is unknown")
		}
		free()
		if err := <-done; err != nil {
			t.Errorf("the write is known to be applied, but: %v", err)
		}
		wantUntouched(r, other)
	})
}

func TestWriterWithoutLeaseDoesNotSayNo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, lostLease)
		r.Exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL CHECK (balance >= 0))", "INSERT INTO account VALUES (1, 1)")
		free := r.BlockRow(1)
		query := rig.SetBalance
		if db.Driver == testdb.DriverPostgres {
			// It checks constraints before it waits for a row's lock.
			query = "WITH l AS (SELECT id FROM account WHERE id = 1 FOR UPDATE) UPDATE account SET balance = ? FROM l WHERE account.id = l.id AND l.id = ?"
		}
		done := behind(r, query, -1, 1)
		other := takeOver(r)
		free()
		err := <-done
		rig.WantPending(t, err)
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("the error is %v, want it to hold the refusal", err)
		}
		wantUntouched(r, other)
	})
}

func TestWriterWithoutLeaseDoesNotRetry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		switch db.Driver { // longer than the lease, as SQLite's is
		case testdb.DriverMySQL:
			db = rig.WithParam(db, "innodb_lock_wait_timeout", "5")
		case testdb.DriverPostgres:
			db = rig.WithParam(db, "lock_timeout", "5000")
		}
		r := rig.New(t, db, lostLease)
		r.Account(1)
		free := r.BlockRow(1)
		done := behind(r, rig.SetBalance, 10, 1)
		other := takeOver(r)
		err := <-done // a lock timeout, which a retry could cure
		free()
		if pending := rig.WantPending(t, err); !errors.Is(pending, txlog.ErrLeaseLost) {
			t.Errorf("the error is %v, want it to say that the lease was lost", err)
		}
		wantUntouched(r, other)
		r.WantBalances(1)
	})
}

// After a standstill (a debugger, a suspended machine), a process does not know how long it took.
func TestStoppedProcessLeavesTakenOverUnitsAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		free := r.BlockRow(1)
		p := r.Writer(r.LogDB, "UPDATE account SET balance = 10 WHERE id = 1")
		rig.Eventually(t, "the write is logged", func() bool { return len(r.Logs()) == 1 })
		if db.Driver != testdb.DriverSQLite {
			r.Running("UPDATE account SET balance = 10")()
		}
		if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		other := takeOver(r)
		free()
		if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		rig.WaitFor(t, "the process has ended", p.Dead)
		// A sent message is applied. An unsent one must not be sent any more (SQLite cannot show
		// which). Either way the process reports the truth.
		lines, _ := p.Said()
		applied := r.Balance(1) == 10
		if said := slices.Contains(lines, "delivered"); said != applied || !applied && db.Driver != testdb.DriverSQLite {
			t.Errorf("applied: %t, and the process says %q", applied, lines)
		}
		wantUntouched(r, other)
	})
}

// clockedLog makes a log database with a clock set by the test. The returned function opens the log
// as of a given time.
func clockedLog(t testing.TB, driver string) (testdb.DB, func(at time.Time) *txlog.SQLStorage) {
	t.Helper()
	open := func(dsn string) *txlog.SQLStorage {
		t.Helper()
		s, err := txlog.Open(context.Background(), driver, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	if driver == testdb.DriverMySQL {
		db := testdb.NewLog(t, driver)
		return db, func(at time.Time) *txlog.SQLStorage {
			return open(rig.WithParam(db, "timestamp", fmt.Sprint(at.Unix())).DSN)
		}
	}
	// A function that is found before PostgreSQL's own.
	db := testdb.Postgres(t)
	pool := db.Open(t)
	run := func(query string) {
		t.Helper()
		if _, err := pool.Exec(query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	run("CREATE TABLE clock (at timestamptz)")
	run("INSERT INTO clock VALUES (now())")
	run("CREATE SCHEMA shifted")
	run("CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE SQL AS 'SELECT at FROM public.clock'")
	path := "shifted,pg_catalog,public"
	if u, err := url.Parse(db.DSN); err == nil && u.Scheme != "" {
		q := u.Query()
		q.Set("search_path", path)
		u.RawQuery = q.Encode()
		db.DSN = u.String()
	} else {
		db.DSN += " search_path=" + path
	}
	return db, func(at time.Time) *txlog.SQLStorage {
		run(fmt.Sprintf("UPDATE clock SET at = to_timestamp(%d)", at.Unix()))
		return open(db.DSN)
	}
}

func TestTimesAreTheLogDatabasesOwn(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{testdb.DriverMySQL, testdb.DriverPostgres} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			logDB, logAt := clockedLog(t, driver)
			past := time.Unix(1_000_000_000, 0) // 2001
			storage := logAt(past)
			r := rig.NewWithLog(t, rig.FreshLike(t, logDB), logDB, rig.NoSyncRetry, func(c *bedsql.Config) {
				c.Storage, c.Lease = storage, 30*time.Second
			})
			r.Account(1)
			// This writer reports its start, and then no more.
			unit := &entry.Unit{
				ID: entry.NewID(), DataSource: rig.DataSourceOf(t, r.DB),
				Statements: []entry.Statement{{SQL: "UPDATE account SET balance = 10 WHERE id = 1"}},
			}
			if err := storage.Add(context.Background(), 30*time.Second, unit); err != nil {
				t.Fatal(err)
			}
			var created int64
			if err := logDB.Open(t).QueryRow("SELECT creation_time FROM transaction_log").Scan(&created); err != nil {
				t.Fatal(err)
			}
			if created != past.UnixMilli() {
				t.Errorf("creation_time is %d, want the log database's %d", created, past.UnixMilli())
			}
			job := func(after time.Duration, minAge time.Duration) asyncjob.Report {
				t.Helper()
				r.Storage = logAt(past.Add(after))
				return r.RunOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = minAge })
			}
			if report := job(29*time.Second, asyncjob.NoDelay); report.Claimed != 0 {
				t.Errorf("before the lease's end: %v", report)
			}
			if report := job(59*time.Second, time.Minute); report.Claimed != 0 {
				t.Errorf("before it is old enough: %v", report)
			}
			if report := job(60*time.Second, time.Minute); report.Delivered != 1 {
				t.Errorf("when it is old enough: %v", report)
			}
			r.WantBalances(10)
			r.WantNoLog()
		})
	}
}
