package acceptance

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
)

func TestDuplicateAfterMaybeIsDeliveredByCallersRetry(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(1)
		p.CutAfter(testproxy.Text(insertThree))
		res, err := r.wrapped.Exec(insertThree)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := res.RowsAffected(); !errors.Is(err, bedsql.ErrRowsUnknown) {
			t.Errorf("RowsAffected: %v, want ErrRowsUnknown and no invented number", err)
		}
		if n := r.count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 1 {
			t.Errorf("%d rows are there, want 1", n)
		}
		r.wantNoLog()
	})
}

func TestDuplicateAfterMaybeIsDeliveredByJob(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, noSyncRetry)
		r.account(1)
		p.CutAfter(testproxy.Text(insertThree))
		wantPending(t, r.fails(r.wrapped, insertThree))
		bus := listener.NewBus(quiet())
		var last listener.Event
		sub := bus.Subscribe(func(ev listener.Event) { last = ev })
		report := r.runOnce(func(c *asyncjob.Config) { c.Bus = bus })
		sub.Close()
		if report.Delivered != 1 || report.Assumed != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if last.Type != listener.ExecuteSuccess || last.Origin != listener.AsyncJob || !last.Assumed {
			t.Errorf("the last event is %+v, want a success that is assumed", last)
		}
		r.wantNoLog()
	})
}

func TestADuplicateWithoutAMaybeIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1, 2, 3)
		err := r.fails(r.wrapped, insertThree)
		if !isDriversOwn(db, err) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("the error is %v, want the driver's own", err)
		}
		r.wantNoLog()
		r.wantBalances(1, 2, 3)
	})
}

// Refused after a maybe is neither a no nor a yes: an operator has to look.
func TestOtherRefusalAfterMaybeIsParked(t *testing.T) {
	t.Parallel()
	eachRetry(t, func(t *testing.T, r *rig, p *testproxy.Proxy, byJob bool) {
		r.account(1)
		r.exec("ALTER TABLE account ADD CONSTRAINT not_negative CHECK (balance >= 0)")
		const once = "UPDATE account SET balance = balance - 1 WHERE id = 1"
		p.CutAfter(testproxy.Text(once))
		_, err := r.wrapped.Exec(once)
		pending := wantPending(t, err)
		if byJob {
			if report := r.runOnce(); report.Parked != 1 {
				t.Errorf("the job's round: %v", report)
			}
		} else if !pending.Parked {
			t.Errorf("the error does not say that the write is parked: %v", pending)
		}
		if u := r.wantParked("not_negative"); !u.InDoubt {
			t.Errorf("the log holds %+v, want it in doubt", u)
		}
		r.wantBalances(0)
	})
}

func TestDuplicateRollsBackAndCountsForItsUnit(t *testing.T) {
	t.Parallel()
	eachRetry(t, func(t *testing.T, r *rig, p *testproxy.Proxy, byJob bool) {
		r.account(1)
		tx := r.begin()
		r.must(tx, "UPDATE account SET balance = balance + 100 WHERE id = 1")
		r.must(tx, insertThree)
		r.must(tx, "UPDATE account SET balance = balance + 1000 WHERE id = 1")
		p.CutAfter(testproxy.Text("COMMIT"))
		err := tx.Commit()
		if byJob {
			wantPending(t, err)
			if report := r.runOnce(); report.Delivered != 1 || report.Assumed != 1 {
				t.Errorf("the job's round: %v", report)
			}
		} else if err != nil {
			t.Errorf("Commit: %v", err)
		}
		r.wantBalances(1101) // neither 1201 nor 2101
		r.wantNoLog()
	})
}

// eachRetry has the second attempt made in the caller's retry, and by the job.
func eachRetry(t *testing.T, f func(t *testing.T, r *rig, p *testproxy.Proxy, byJob bool)) {
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, byJob := range map[string]bool{"in the caller's retry": false, "in the job": true} {
			t.Run(name, func(t *testing.T) {
				r, p := newRigBehindProxy(t, freshLike(t, db), func(c *bedsql.Config) { c.NoSyncRetry = byJob })
				f(t, r, p, byJob)
			})
		}
	})
}
