package acceptance

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
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// behind runs a statement of the application behind a lock and waits until its
// log is there.
func (r *rig) behind(query string, args ...any) (done <-chan error) {
	r.t.Helper()
	c := make(chan error, 1)
	go func() {
		_, err := r.wrapped.Exec(r.q(query), args...)
		c <- err
	}()
	eventually(r.t, "the write is logged", func() bool { return len(r.logs()) == 1 })
	return c
}

// takeOver claims the one unit of the log as another worker would, as soon as
// its owner's lease has ended.
func (r *rig) takeOver() *txlog.Unit {
	r.t.Helper()
	dataSource := r.wantOneLog().DataSource
	var units []*txlog.Unit
	eventually(r.t, "the lease has ended", func() bool {
		var err error
		units, err = r.storage.Claim(context.Background(), txlog.ClaimRequest{DataSource: dataSource, Limit: 1, Lease: time.Hour})
		if err != nil {
			r.t.Fatal(err)
		}
		return len(units) == 1
	})
	return units[0]
}

// wantUntouched checks that the unit is still the other worker's: it can be
// removed under its token.
func (r *rig) wantUntouched(u *txlog.Unit) {
	r.t.Helper()
	now := r.wantOneLog()
	if !now.Leased || now.Parked || now.LastError != "" || now.NextTry.UnixMilli() != u.NextTry.UnixMilli() {
		r.t.Errorf("somebody else's unit was changed: %+v", now)
	}
	if err := r.storage.Remove(context.Background(), u); err != nil {
		r.t.Errorf("the unit was taken from its owner: %v", err)
	}
}

func TestTheJobLeavesABusyWriterAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		const lease = 5 * time.Second
		r := newRig(t, db, func(c *bedsql.Config) { c.Lease = lease })
		r.account(1)
		free := r.blockRow(1)
		done := r.behind(setBalance, 10, 1)
		first := r.wantOneLog().NextTry
		eventually(t, "the lease was renewed for longer than a lease", func() bool {
			return r.wantOneLog().NextTry.Sub(first) > 2*lease
		})
		for range 3 {
			if report := r.runOnce(); report.Claimed != 0 {
				t.Errorf("the job took a log from its writer: %v", report)
			}
		}
		free()
		if err := <-done; err != nil {
			t.Errorf("the write: %v", err)
		}
		r.wantBalances(10)
		r.wantNoLog()
	})
}

func TestAPendingWriteIsTheJobsAtOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, run := range map[string]func(r *rig) error{
			"after the retries": func(r *rig) error {
				_, err := r.wrapped.Exec(r.q(setBalance), 10, 1)
				return err
			},
			"after the caller has gone": func(r *rig) error {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				done := make(chan error, 1)
				go func() {
					_, err := r.wrapped.ExecContext(ctx, r.q(setBalance), 10, 1)
					done <- err
				}()
				eventually(r.t, "the write is logged", func() bool { return len(r.logs()) == 1 })
				cancel()
				return <-done
			},
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, impatient(freshLike(t, db)), func(c *bedsql.Config) {
					c.Lease, c.SyncMaxDeliveryTryTimes = time.Hour, 1
				})
				r.account(1)
				free := r.blockRow(1)
				wantPending(t, run(r))
				if u := r.wantOneLog(); u.Leased || u.LastError == "" {
					t.Errorf("the log holds %+v, want it handed over with the error", u)
				}
				free()
				if report := r.runOnce(); report.Delivered != 1 {
					t.Errorf("the job's round: %v", report)
				}
				r.wantBalances(10)
				r.wantNoLog()
			})
		}
	})
}

// lostLease is a writer's configuration under which its lease runs out.
func lostLease(c *bedsql.Config) {
	c.Lease = time.Second
	c.Storage = &hookedStorage{Storage: c.Storage, onRenew: func() error { return errors.New("the log does not answer") }}
}

func TestAWriterThatLostItsLeaseRemovesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, lostLease)
		r.account(1)
		free := r.blockRow(1)
		done := r.behind(setBalance, 10, 1)
		other := r.takeOver()
		if !other.InDoubt {
			t.Error("the one who takes over does not learn that the outcome is unknown")
		}
		free()
		if err := <-done; err != nil {
			t.Errorf("the write is known to be applied, but: %v", err)
		}
		r.wantUntouched(other)
	})
}

func TestWriterWithoutLeaseDoesNotSayNo(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, lostLease)
		r.exec("CREATE TABLE account (id INT PRIMARY KEY, balance INT NOT NULL CHECK (balance >= 0))", "INSERT INTO account VALUES (1, 1)")
		free := r.blockRow(1)
		query := setBalance
		if db.Driver == testdb.DriverPostgres {
			// It checks constraints before it waits for a row's lock.
			query = "WITH l AS (SELECT id FROM account WHERE id = 1 FOR UPDATE) UPDATE account SET balance = ? FROM l WHERE account.id = l.id AND l.id = ?"
		}
		done := r.behind(query, -1, 1)
		other := r.takeOver()
		free()
		err := <-done
		wantPending(t, err)
		if !holdsDriversOwn(db, err) {
			t.Errorf("the error is %v, want it to hold the refusal", err)
		}
		r.wantUntouched(other)
	})
}

func TestWriterWithoutLeaseDoesNotRetry(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		switch db.Driver { // longer than the lease
		case testdb.DriverMySQL:
			db = withParam(db, "innodb_lock_wait_timeout", "1")
		case testdb.DriverPostgres:
			db = withParam(db, "lock_timeout", "1000")
		default:
			db.DSN = strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(1000)", 1)
		}
		r := newRig(t, db, lostLease)
		r.account(1)
		free := r.blockRow(1)
		done := r.behind(setBalance, 10, 1)
		other := r.takeOver()
		err := <-done // a lock timeout, which a retry could cure
		free()
		if pending := wantPending(t, err); !errors.Is(pending, txlog.ErrLeaseLost) {
			t.Errorf("the error is %v, want it to say that the lease was lost", err)
		}
		r.wantUntouched(other)
		r.wantBalances(1)
	})
}

// After a standstill (a debugger, a suspended machine), a process does not know how long it took.
func TestStoppedProcessLeavesTakenOverUnitsAlone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		free := r.blockRow(1)
		p := r.writer(r.logDB, "UPDATE account SET balance = 10 WHERE id = 1")
		eventually(t, "the write is logged", func() bool { return len(r.logs()) == 1 })
		if db.Driver != testdb.DriverSQLite {
			r.running("UPDATE account SET balance = 10")()
		}
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		other := r.takeOver()
		free()
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the process has ended", p.dead)
		// A sent message is applied. An unsent one must not be sent any more (SQLite cannot show
		// which). Either way the process reports the truth.
		lines, _ := p.said()
		applied := r.balance(1) == 10
		if said := slices.Contains(lines, "delivered"); said != applied || !applied && db.Driver != testdb.DriverSQLite {
			t.Errorf("applied: %t, and the process says %q", applied, lines)
		}
		r.wantUntouched(other)
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
		db := testdb.MySQL(t)
		return db, func(at time.Time) *txlog.SQLStorage {
			return open(withParam(db, "timestamp", fmt.Sprint(at.Unix())).DSN)
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
			r := newRigWithLog(t, freshLike(t, logDB), logDB, noSyncRetry, func(c *bedsql.Config) {
				c.Storage, c.Lease = storage, 30*time.Second
			})
			r.account(1)
			// This writer reports its start, and then no more.
			unit := &txlog.Unit{
				ID: txlog.NewID(), DataSource: dataSourceOf(t, r.db),
				Statements: []txlog.Statement{{SQL: "UPDATE account SET balance = 10 WHERE id = 1"}},
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
				r.storage = logAt(past.Add(after))
				return r.runOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryDelay = minAge })
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
			r.wantBalances(10)
			r.wantNoLog()
		})
	}
}
