package truth

import (
	"context"
	"errors"
	"testing"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
)

func TestAFailedDialIsNotApplied(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		p.Refuse()
		rig.WantPending(t, r.Fails(r.Wrapped, rig.InsertThree))
		if u := r.WantOneLog(); u.InDoubt || u.Parked {
			t.Errorf("the log holds %+v, want it certain that nothing was applied", u)
		}
		// With that certainty, another row under the key is not its trace.
		r.Exec("INSERT INTO account VALUES (3, 0)")
		p.Accept()
		if report := r.RunOnce(); report.Parked != 1 || report.Assumed != 0 {
			t.Errorf("the job's round: %v", report)
		}
		r.WantParked("")
	})
}

func TestAConnectionLostAfterSendingIsMaybe(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, c := range map[string]struct {
			cut     func(*testproxy.Proxy, func([]byte) bool) <-chan struct{}
			applied int
		}{
			"before it arrived":    {(*testproxy.Proxy).CutBefore, 0},
			"after it was applied": {(*testproxy.Proxy).CutAfter, 1},
		} {
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), rig.NoSyncRetry)
				r.Account(1)
				c.cut(p, testproxy.Text(rig.InsertThree))
				rig.WantPending(t, r.Fails(r.Wrapped, rig.InsertThree))
				if u := r.WantOneLog(); !u.InDoubt || u.Parked {
					t.Errorf("the log holds %+v, want it in doubt and not parked", u)
				}
				if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3"); n != c.applied {
					t.Fatalf("%d rows were inserted, want %d", n, c.applied)
				}
				if report := r.RunOnce(); report.Delivered != 1 || report.Assumed != c.applied {
					t.Errorf("the job's round: %v", report)
				}
				if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3 AND balance = 33"); n != 1 {
					t.Errorf("%d rows are there, want 1", n)
				}
				r.WantNoLog()
			})
		}
	})
}

// A maybe stays one however certain the later attempts are.
func TestAMaybeIsNotForgotten(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, func(c *bedsql.Config) { c.SyncMaxDeliveryTryTimes = 1 })
		r.Account(1)
		r.Must(r.Wrapped, rig.SetBalance, 1, 1) // dials
		p.CutAfter(testproxy.Text(rig.InsertThree))
		p.CutBefore(testproxy.Text(db.Name)) // the retry cannot log in: not applied, for certain
		rig.WantPending(t, r.Fails(r.Wrapped, rig.InsertThree))
		if u := r.WantOneLog(); !u.InDoubt {
			t.Errorf("the log holds %+v, want it in doubt", u)
		}
		if report := r.RunOnce(); report.Assumed != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 1 {
			t.Errorf("%d rows are there, want 1", n)
		}
		r.WantNoLog()
	})
}

func TestAnUnlistedAnswerIsRetryable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		db     func(testing.TB) testdb.DB
		refuse []string
		allow  string
	}{
		testdb.DriverMySQL: {testdb.MySQL, []string{
			"CREATE TRIGGER moody BEFORE INSERT ON account FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 31000, MESSAGE_TEXT = 'not in this mood'",
		}, "DROP TRIGGER moody"},
		testdb.DriverPostgres: {testdb.Postgres, []string{
			"CREATE FUNCTION moody() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not in this mood' USING ERRCODE = 'ZZ001'; END $$",
			"CREATE TRIGGER moody BEFORE INSERT ON account FOR EACH ROW EXECUTE FUNCTION moody()",
		}, "DROP TRIGGER moody ON account"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, c.db(t))
			r.Account(1)
			r.Exec(c.refuse...)
			pending := rig.WantPending(t, r.Fails(r.Wrapped, rig.InsertThree))
			if pending.Unwrap() == nil {
				t.Error("the error does not unwrap to the database's answer")
			}
			if u := r.WantOneLog(); u.InDoubt || u.Parked {
				t.Errorf("the log holds %+v, want it certain that nothing was applied, and not parked", u)
			}
			if report := r.RunOnce(); report.Failed != 1 {
				t.Errorf("the job's round: %v", report)
			}
			r.Exec(c.allow)
			if report := r.RunOnce(); report.Delivered != 1 {
				t.Errorf("the job's round: %v", report)
			}
			r.WantNoLog()
			if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 1 {
				t.Errorf("%d rows are there, want 1", n)
			}
		})
	}
}

func TestArgumentsThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, args := range map[string][]any{
			"too few":                        {1},
			"too many":                       {1, 2, 3},
			"of no type that a driver knows": {func() {}, 1},
		} {
			if db.Driver == testdb.DriverSQLite && name == "too many" {
				continue // SQLite ignores them
			}
			t.Run(name, func(t *testing.T) {
				r := rig.New(t, rig.FreshLike(t, db))
				r.Account(1)
				_, want := r.Bare.Exec(r.Q(rig.SetBalance), args...)
				if want == nil {
					t.Fatal("the bare driver takes them")
				}
				// Undialled, then dialled.
				for range 2 {
					err := r.Fails(r.Wrapped, rig.SetBalance, args...)
					if errors.Is(err, bedsql.ErrPending) || errors.Is(err, bedsql.ErrNotLogged) {
						t.Errorf("the error is %v, want one like the bare driver's: %v", err, want)
					}
					r.Must(r.Wrapped, rig.SetBalance, 1, 1)
				}
				r.WantBalances(1)
				r.WantNoLog()
			})
		}
	})
}

func TestEventsSayHowCertainEachAttemptIs(t *testing.T) {
	t.Parallel()
	r, p := rig.NewBehindProxy(t, testdb.MySQL(t))
	r.Account(1)
	bus := listener.NewBus(rig.Quiet())
	var events []listener.Event
	sub := bus.Subscribe(func(ev listener.Event) { events = append(events, ev) })
	r.Cfg.Bus = bus
	r.Wrapped = r.Open(r.DB.DSN)
	p.CutAfter(testproxy.Text(rig.InsertThree))
	if _, err := r.Wrapped.ExecContext(context.Background(), rig.InsertThree); err != nil {
		t.Fatal(err)
	}
	sub.Close()
	if len(events) != 4 || events[3].Type != listener.Answered {
		t.Fatalf("%d events, want three of attempts and the answer: %+v", len(events), events)
	}
	first, retry := events[1], events[2]
	if events[0].Type != listener.BeforeExecute || first.Type != listener.ExecuteFailure ||
		first.Origin != listener.Caller || first.Class != dialect.Unknown || first.Err == nil {
		t.Errorf("the first attempt's events are %+v and %+v", events[0], first)
	}
	if retry.Type != listener.ExecuteSuccess || retry.Origin != listener.SyncRetry || !retry.Assumed || retry.Err != nil {
		t.Errorf("the retry's event is %+v, want a success that is assumed", retry)
	}
}
