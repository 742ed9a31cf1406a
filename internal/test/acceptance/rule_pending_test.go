package acceptance

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
)

func TestRulePendingWhenConnectionIsLostAfterSending(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			cut     func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}
			balance int
		}{
			"applied":     {(*testproxy.Proxy).CutAfter, 90},
			"not applied": {(*testproxy.Proxy).CutBefore, 100},
		} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db), noSyncRetry)
				r.account(100)
				c.cut(p, testproxy.Text("UPDATE account"))
				_, err := r.wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1")
				r.wantOutcome(pending, err)
				e := wantPending(t, err)
				if cause := errors.Unwrap(err); cause == nil {
					t.Errorf("%v unwraps to nothing", err)
				}
				u := r.wantOneLog()
				if e.EntryID != u.ID || e.DataSource != u.DataSource || e.Parked || !u.InDoubt {
					t.Errorf("the error %+v does not tell of the log %+v, or that is not in doubt", e, u)
				}
				r.wantBalances(c.balance)
				if report := r.runOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.wantBalances(90)
				r.wantNoLog()
			})
		}
	})
}

func TestRulePendingWhenTheDatabaseGoesDown(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		r.must(r.wrapped, "UPDATE account SET balance = ? WHERE id = ?", 95, 1)
		p.Refuse()
		p.CutAll()
		_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.wantOutcome(pending, err)
		r.wantBalances(95)
		if report := r.runOnce(); report.Delivered != 0 || report.Failed != 0 {
			t.Errorf("the job, with the database down: %s", report)
		}
		p.Accept()
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

func TestRulePendingWhenALockCannotBeHad(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db, noSyncRetry)
		r.account(100)
		impatient := r.open(impatient(db).DSN)
		free := r.blockRow(1)
		_, err := impatient.Exec(r.q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.wantOutcome(pending, err)
		if !holdsDriversOwn(db, err) {
			t.Errorf("%v does not unwrap to the driver's error", err)
		}
		if u := r.wantOneLog(); u.InDoubt {
			t.Error("the log is in doubt although the database answered")
		}
		free()
		r.wantBalances(100)
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(90)
		r.wantNoLog()
	})
}

// impatient is the target with the shortest wait for locks.
func impatient(db testdb.DB) testdb.DB {
	switch db.Driver {
	case testdb.DriverMySQL:
		return withParam(db, "innodb_lock_wait_timeout", "1")
	case testdb.DriverPostgres:
		return withParam(db, "lock_timeout", "50")
	default:
		return testdb.DB{Driver: db.Driver, Name: db.Name, DSN: strings.Replace(db.DSN, "busy_timeout(5000)", "busy_timeout(20)", 1)}
	}
}

func TestRuleDeliveredWhenRetriesGetTheLock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		bus := listener.NewBus(quiet())
		failed := make(chan struct{}, 64)
		sub := bus.Subscribe(func(ev listener.Event) {
			if ev.Type == listener.ExecuteFailure {
				failed <- struct{}{}
			}
		})
		defer sub.Close()
		r := newRig(t, db, func(c *bedsql.Config) { c.Bus, c.SyncMaxDeliveryTryTimes = bus, 60 })
		r.account(100)
		impatient := r.open(impatient(db).DSN)
		free := r.blockRow(1)
		done := make(chan error, 1)
		go func() {
			_, err := impatient.Exec(r.q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			done <- err
		}()
		waitFor(t, "the first attempt failed", failed)
		free()
		r.wantOutcome(delivered, <-done)
		r.wantBalances(90)
	})
}

func TestRulePendingWhenContextEndsDuringTheWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			t.Run(cause.Error(), func(t *testing.T) {
				r := newRig(t, freshLike(t, db))
				r.account(100)
				// SQLite gets something to do, for it waits for locks
				// without looking at its context.
				update := "UPDATE account SET balance = balance - 10 WHERE id = 1"
				if db.Driver == testdb.DriverSQLite {
					update += " AND (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 3000000) SELECT max(n) FROM c) > 0"
				} else {
					r.blockRow(1)
				}
				running := r.running("UPDATE account")
				ctx, end := endingContext(cause)
				defer end()
				done := make(chan error, 1)
				go func() {
					_, err := r.wrapped.ExecContext(ctx, update)
					done <- err
				}()
				running()
				end()
				err := <-done
				r.wantOutcome(pending, err)
				if !errors.Is(err, cause) {
					t.Errorf("%v does not unwrap to %v", err, cause)
				}
				if u := r.wantOneLog(); u.Leased {
					t.Error("the log was not handed over to the job")
				}
			})
		}
	})
}

// endingContext ends with cause when end is called.
func endingContext(cause error) (ctx context.Context, end func()) {
	if errors.Is(cause, context.Canceled) {
		return context.WithCancel(context.Background())
	}
	done := make(chan struct{})
	c := &deadlined{Context: context.Background(), done: done}
	var ended bool
	return c, func() {
		if !ended {
			ended = true
			close(done)
		}
	}
}

// deadlined is a context whose deadline passes when done is closed.
type deadlined struct {
	context.Context
	done chan struct{}
}

func (c *deadlined) Done() <-chan struct{} { return c.done }

func (c *deadlined) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// running returns a function that waits for a statement containing text to run on the target.
func (r *rig) running(text string) func() {
	query := "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '" + text + "%'"
	switch r.db.Driver {
	case testdb.DriverPostgres:
		query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() " +
			"AND state = 'active' AND query LIKE '" + text + "%'"
	case testdb.DriverSQLite:
		// SQLite has no sessions to list. A taken write lock shows it: BEGIN IMMEDIATE fails.
		return func() {
			conn, err := impatient(r.db).Open(r.t).Conn(context.Background())
			if err != nil {
				r.t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			eventually(r.t, "the statement holds the write lock", func() bool {
				if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
					return true
				}
				_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
				return false
			})
		}
	}
	return func() {
		eventually(r.t, "the statement runs", func() bool { return r.count(query) > 0 })
	}
}

func TestRulePendingIsDeliveredOnceByTheJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100, 100)
		p.Refuse()
		for i := range 5 {
			_, err := r.wrapped.Exec(r.q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1<<i)
			wantPending(t, err)
		}
		p.Accept()
		job := r.job()
		for range 2 {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		r.wantBalances(131, 100)
		r.wantNoLog()
	})
}

func TestRuleJobParksWhatTheDatabaseRefusesLater(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(100)
		p.Refuse()
		_, err := r.wrapped.Exec("UPDATE account SET nope = 1")
		r.wantOutcome(pending, err) // nobody can know yet
		p.Accept()
		if report := r.runOnce(); report.Parked != 1 {
			t.Errorf("the job: %s, want it parked at once", report)
		}
		r.wantParked("nope")
		r.wantBalances(100)
	})
}
