package truth

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
)

func TestRulePendingWhenConnectionIsLostAfterSending(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			cut     func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}
			balance int
		}{
			"applied":     {(*testproxy.Proxy).CutAfter, 90},
			"not applied": {(*testproxy.Proxy).CutBefore, 100},
		} {
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.NoSyncRetry)
				r.Account(100)
				c.cut(p, testproxy.Text("UPDATE account"))
				_, err := r.Wrapped.Exec("UPDATE account SET balance = 90 WHERE id = 1")
				r.WantOutcome(rig.Pending, err)
				e := rig.WantPending(t, err)
				if cause := errors.Unwrap(err); cause == nil {
					t.Errorf("%v unwraps to nothing", err)
				}
				u := r.WantOneLog()
				if e.EntryID != u.ID || e.DataSource != u.DataSource || e.Parked || !u.InDoubt {
					t.Errorf("the error %+v does not tell of the log %+v, or that is not in doubt", e, u)
				}
				r.WantBalances(c.balance)
				if report := r.RunOnce(); report.Delivered != 1 {
					t.Errorf("the job: %s", report)
				}
				r.WantBalances(90)
				r.WantNoLog()
			})
		}
	})
}

func TestRulePendingWhenTheDatabaseGoesDown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		r.Must(r.Wrapped, "UPDATE account SET balance = ? WHERE id = ?", 95, 1)
		p.Refuse()
		p.CutAll()
		_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.WantOutcome(rig.Pending, err)
		r.WantBalances(95)
		if report := r.RunOnce(); report.Delivered != 0 || report.Failed != 0 {
			t.Errorf("the job, with the database down: %s", report)
		}
		p.Accept()
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(90)
		r.WantNoLog()
	})
}

func TestRulePendingWhenALockCannotBeHad(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db, rig.NoSyncRetry)
		r.Account(100)
		impatient := r.Open(rig.Impatient(db).DSN)
		free := r.BlockRow(1)
		_, err := impatient.Exec(r.Q("UPDATE account SET balance = ? WHERE id = ?"), 90, 1)
		r.WantOutcome(rig.Pending, err)
		if !rig.HoldsDriversOwn(db, err) {
			t.Errorf("%v does not unwrap to the driver's error", err)
		}
		if u := r.WantOneLog(); u.InDoubt {
			t.Error("the log is in doubt although the database answered")
		}
		free()
		r.WantBalances(100)
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(90)
		r.WantNoLog()
	})
}

func TestRuleDeliveredWhenRetriesGetTheLock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		bus := listener.NewBus(rig.Quiet())
		failed := make(chan struct{}, 64)
		sub := bus.Subscribe(func(ev listener.Event) {
			if ev.Type == listener.ExecuteFailure {
				failed <- struct{}{}
			}
		})
		defer sub.Close()
		r := rig.New(t, db, func(c *bedsql.Config) { c.Bus, c.SyncMaxDeliveryTryTimes = bus, 1000 })
		r.Account(100)
		impatient := r.Open(rig.Impatient(db).DSN)
		free := r.BlockRow(1)
		done := make(chan error, 1)
		go func() {
			_, err := impatient.Exec(r.Q("UPDATE account SET balance = balance - ? WHERE id = ?"), 10, 1)
			done <- err
		}()
		rig.WaitFor(t, "the first attempt failed", failed)
		free()
		r.WantOutcome(rig.Delivered, <-done)
		r.WantBalances(90)
	})
}

func TestRulePendingWhenContextEndsDuringTheWrite(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			t.Run(cause.Error(), func(t *testing.T) {
				r := rig.New(t, rig.FreshLike(t, db))
				r.Account(100)
				// SQLite gets something to do, for it waits for locks
				// without looking at its context.
				update := "UPDATE account SET balance = balance - 10 WHERE id = 1"
				if db.Driver == testdb.DriverSQLite {
					update += " AND (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 1000000000) SELECT max(n) FROM c) > 0"
				} else {
					r.BlockRow(1)
				}
				running := r.Running("UPDATE account")
				ctx, end := endingContext(cause)
				defer end()
				done := make(chan error, 1)
				go func() {
					_, err := r.Wrapped.ExecContext(ctx, update)
					done <- err
				}()
				running()
				end()
				err := <-done
				r.WantOutcome(rig.Pending, err)
				if !errors.Is(err, cause) {
					t.Errorf("%v does not unwrap to %v", err, cause)
				}
				if u := r.WantOneLog(); u.Leased {
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

func TestRulePendingIsDeliveredOnceByTheJob(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100, 100)
		p.Refuse()
		for i := range 5 {
			_, err := r.Wrapped.Exec(r.Q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1<<i)
			rig.WantPending(t, err)
		}
		p.Accept()
		job := r.Job()
		for range 2 {
			if _, err := job.RunOnce(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		r.WantBalances(131, 100)
		r.WantNoLog()
	})
}

func TestRuleJobParksWhatTheDatabaseRefusesLater(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(100)
		p.Refuse()
		_, err := r.Wrapped.Exec("UPDATE account SET nope = 1")
		r.WantOutcome(rig.Pending, err) // nobody can know yet
		p.Accept()
		if report := r.RunOnce(); report.Parked != 1 {
			t.Errorf("the job: %s, want it parked at once", report)
		}
		r.WantParked("nope")
		r.WantBalances(100)
	})
}
