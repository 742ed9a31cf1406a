package truth

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// execution matches the execution of a prepared statement, as which the log
// sends all of its own.
func execution(db testdb.DB) func([]byte) bool {
	if db.Driver == testdb.DriverMySQL {
		return testproxy.MySQLExecute
	}
	return testproxy.PostgresExecute
}

// warm makes the log prepare its statements, so that the next message of each
// kind is its execution.
func warm(r *rig.Rig) {
	r.T.Helper()
	r.Must(r.Wrapped, rig.SetBalance, 1, 1)
	r.WantNoLog()
}

func TestUnansweredLogInsertIsRepeatedUnderItsID(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, cut := range map[string]func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}{
			"written":     (*testproxy.Proxy).CutAfter,
			"not written": (*testproxy.Proxy).CutBefore,
		} {
			t.Run(name, func(t *testing.T) {
				rows := 0
				r, p := rig.NewLogBehindProxy(t, rig.FreshLike(t, db), func(c *bedsql.Config) {
					c.Storage = &rig.HookedStorage{Storage: c.Storage}
				})
				r.Account(1)
				warm(r)
				// The number of rows while the write is logged and not yet done.
				r.Cfg.Storage.(*rig.HookedStorage).OnRemove = func([]*entry.Unit) error {
					rows = len(r.Logs())
					return nil
				}
				struck := cut(p, execution(db))
				r.Must(r.Wrapped, rig.AddOne)
				rig.WaitFor(t, "the insert was cut", struck)
				if rows != 1 {
					t.Errorf("the log held %d units, want 1", rows)
				}
				r.WantBalances(2)
				r.WantNoLog()
			})
		}
	})
}

// While it is not known whether the log was written, nothing is sent; when it
// stays unknown, so is the write's outcome.
func TestLogInsertThatStaysUnknownIsUnknown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db)
		r.Account(1)
		warm(r)
		reached, release := p.Hold(execution(db))
		defer release()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-reached:
				p.Delay(time.Hour, 0) // what is repeated does not arrive either
				cancel()
			case <-ctx.Done():
			}
		}()
		_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
		var unknown *bedsql.UnknownOutcomeError
		if !errors.As(err, &unknown) || errors.Is(err, bedsql.ErrPending) || !errors.Is(err, txlog.ErrInDoubt) {
			t.Fatalf("the error is %v, want it unknown and to unwrap to ErrInDoubt", err)
		}
		wantState(r, unknown.EntryID, bedsql.StateUnknown)
		r.WantBalances(1)
		// The insert arrives late: what was called unknown is delivered.
		release()
		rig.Eventually(t, "the insert has arrived", func() bool { return len(r.Logs()) == 1 })
		if u := r.WantOneLog(); u.ID != unknown.EntryID {
			t.Errorf("the log holds %s, want %s", u.ID, unknown.EntryID)
		}
		p.Delay(0, 0)
		p.CutAll()
	})
}

func TestNothingIsSentWhenTheLogIsDown(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db)
		r.Account(1)
		target := testproxy.New(t, db.Addr())
		r.Wrapped = r.Open(db.Via(target.Addr()).DSN)
		warm(r)
		sent := target.Count(testproxy.Text("account"))
		p.Refuse()
		p.CutAll()
		for _, ctx := range []context.Context{context.Background(), bg(t)} {
			_, err := r.Wrapped.ExecContext(ctx, rig.AddOne)
			var nl interface{ Unwrap() error }
			if !errors.Is(err, bedsql.ErrNotLogged) || !errors.As(err, &nl) || nl.Unwrap() == nil {
				t.Errorf("the error is %v, want ErrNotLogged with its cause", err)
			}
		}
		if n := sent(); n != 0 {
			t.Errorf("%d messages were sent to the target", n)
		}
		if n := r.Counters.NotLogged.Load(); n != 2 {
			t.Errorf("%d writes were counted as not logged, want 2", n)
		}
		r.WantBalances(1)
		p.Accept()
		r.Must(r.Wrapped, rig.AddOne)
		r.WantBalances(2)
		r.WantNoLog()
	})
}

// bg is a soft transaction's context: what was not logged is thrown there too.
func bg(t *testing.T) context.Context {
	ctx, soft, err := bedsql.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := soft.End(context.Background()); err != nil {
			t.Errorf("End: %v", err)
		}
	})
	return ctx
}

func TestDeliveredWriteReturnsItsResultWithoutTheLog(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db)
		r.Account(1)
		target := testproxy.New(t, db.Addr())
		r.Wrapped = r.Open(db.Via(target.Addr()).DSN)
		warm(r)
		reached, release := target.Hold(testproxy.Text(rig.AddOne))
		defer release()
		done := make(chan error, 1)
		go func() {
			res, err := r.Wrapped.Exec(rig.AddOne)
			if err == nil {
				if n, rerr := res.RowsAffected(); n != 1 || rerr != nil {
					err = errors.Join(errors.New("not the driver's own Result"), rerr)
				}
			}
			done <- err
		}()
		rig.WaitFor(t, "the write is on its way", reached)
		p.Refuse()
		p.CutAll()
		release()
		if err := <-done; err != nil {
			t.Errorf("the write: %v", err)
		}
		r.WantBalances(2)
		if u := r.WantOneLog(); !u.Leased {
			t.Errorf("the log holds %+v, want it to be its writer's still", u)
		}
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the job took it from its writer: %v", report)
		}
		p.Accept()
		rig.Eventually(t, "the removal was repeated with success", func() bool { return len(r.Logs()) == 0 })
		r.WantBalances(2)
	})
}

func TestARemovalWithoutAnswerIsRepeated(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			query string
			err   bool
		}{
			"after a delivery": {rig.AddOne, false},
			"after a refusal":  {"UPDATE account SET nosuch = 1", true},
		} {
			t.Run(name, func(t *testing.T) {
				var cut func()
				r, p := rig.NewLogBehindProxy(t, rig.FreshLike(t, db), func(c *bedsql.Config) {
					c.Storage = &rig.HookedStorage{Storage: c.Storage, OnRemove: func([]*entry.Unit) error {
						if cut != nil {
							cut()
						}
						return nil
					}}
				})
				r.Account(1)
				warm(r)
				cut = func() {
					cut = nil
					p.CutAfter(execution(db))
				}
				_, err := r.Wrapped.Exec(c.query)
				if c.err && (!rig.IsDriversOwn(db, err) || errors.Is(err, bedsql.ErrPending)) || !c.err && err != nil {
					t.Errorf("the error is %v, want the driver's own or none", err)
				}
				if cut != nil {
					t.Error("no removal was cut")
				}
				r.WantNoLog()
			})
		}
	})
}

func TestRefusalWithUnconfirmedRemovalIsPending(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewLogBehindProxy(t, db, func(c *bedsql.Config) { c.LogTimeout = 2 * time.Second })
		r.Account(1)
		target := testproxy.New(t, db.Addr())
		r.Wrapped = r.Open(db.Via(target.Addr()).DSN)
		warm(r)
		const refused = "UPDATE account SET nosuch = 1"
		reached, release := target.Hold(testproxy.Text(refused))
		defer release()
		done := make(chan error, 1)
		go func() {
			_, err := r.Wrapped.Exec(refused)
			done <- err
		}()
		rig.WaitFor(t, "the write is on its way", reached)
		p.Refuse()
		p.CutAll()
		release()
		err := <-done
		rig.WantPending(t, err)
		if !rig.HoldsDriversOwn(db, err) || !strings.Contains(err.Error(), "nosuch") {
			t.Errorf("the error is %v, want it to hold the refusal", err)
		}
		p.Accept()
		r.WantOneLog()
	})
}

// It is then unknown whether there still is an entry for the job to deliver.
func TestRefusalWithUnansweredRemovalPromisesNoDelivery(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		var mute func()
		r, p := rig.NewLogBehindProxy(t, db, func(c *bedsql.Config) {
			c.LogTimeout = 2 * time.Second
			c.Storage = &rig.HookedStorage{Storage: c.Storage, OnRemove: func([]*entry.Unit) error {
				if mute != nil {
					mute()
				}
				return nil
			}}
		})
		r.Account(1)
		warm(r)
		mute = func() {
			mute = nil
			p.Refuse()
			p.Mute(execution(db))
		}
		_, err := r.Wrapped.Exec("UPDATE account SET nosuch = 1")
		if mute != nil {
			t.Fatal("no removal was muted")
		}
		var unknown *bedsql.UnknownOutcomeError
		if !errors.As(err, &unknown) || !errors.Is(err, txlog.ErrInDoubt) || !unknown.Refused || bedsql.OutcomeOf(err) != bedsql.OutcomeUnknown {
			t.Errorf("the error is %#v, want it to say that the entry may be gone", err)
		}
		if !rig.HoldsDriversOwn(db, err) || !strings.Contains(err.Error(), "nosuch") || strings.Contains(err.Error(), "is pending") {
			t.Errorf("the error is %v, want it to hold the refusal and to promise nothing", err)
		}
		p.Accept()
		rig.Eventually(t, "the removal is made all the same", func() bool { return len(r.Logs()) == 0 })
	})
}
