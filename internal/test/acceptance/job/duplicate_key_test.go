package job

import (
	"errors"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/listener"
)

func TestDuplicateAfterMaybeIsDeliveredByCallersRetry(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		p.CutAfter(testproxy.Text(rig.InsertThree))
		res, err := r.Wrapped.Exec(rig.InsertThree)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := res.RowsAffected(); !errors.Is(err, bedsql.ErrRowsUnknown) {
			t.Errorf("RowsAffected: %v, want ErrRowsUnknown and no invented number", err)
		}
		if n := r.Count("SELECT COUNT(*) FROM account WHERE id = 3"); n != 1 {
			t.Errorf("%d rows are there, want 1", n)
		}
		r.WantNoLog()
	})
}

func TestDuplicateAfterMaybeIsDeliveredByJob(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.NoSyncRetry)
		r.Account(1)
		p.CutAfter(testproxy.Text(rig.InsertThree))
		rig.WantPending(t, r.Fails(r.Wrapped, rig.InsertThree))
		bus := listener.NewBus(rig.Quiet())
		var last listener.Event
		sub := bus.Subscribe(func(ev listener.Event) { last = ev })
		report := r.RunOnce(func(c *asyncjob.Config) { c.Bus = bus })
		sub.Close()
		if report.Delivered != 1 || report.Assumed != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if last.Type != listener.ExecuteSuccess || last.Origin != listener.AsyncJob || !last.Assumed {
			t.Errorf("the last event is %+v, want a success that is assumed", last)
		}
		r.WantNoLog()
	})
}

func TestADuplicateWithoutAMaybeIsRefused(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1, 2, 3)
		err := r.Fails(r.Wrapped, rig.InsertThree)
		if !rig.IsDriversOwn(db, err) || errors.Is(err, bedsql.ErrPending) {
			t.Errorf("the error is %v, want the driver's own", err)
		}
		r.WantNoLog()
		r.WantBalances(1, 2, 3)
	})
}

// Refused after a maybe is neither a no nor a yes: an operator has to look.
func TestOtherRefusalAfterMaybeIsParked(t *testing.T) {
	t.Parallel()
	eachRetry(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, byJob bool) {
		r.Account(1)
		r.Exec("ALTER TABLE account ADD CONSTRAINT not_negative CHECK (balance >= 0)")
		const once = "UPDATE account SET balance = balance - 1 WHERE id = 1"
		p.CutAfter(testproxy.Text(once))
		_, err := r.Wrapped.Exec(once)
		pending := rig.WantPending(t, err)
		if byJob {
			if report := r.RunOnce(); report.Parked != 1 {
				t.Errorf("the job's round: %v", report)
			}
		} else if !pending.Parked {
			t.Errorf("the error does not say that the write is parked: %v", pending)
		}
		if u := r.WantParked("not_negative"); !u.InDoubt {
			t.Errorf("the log holds %+v, want it in doubt", u)
		}
		r.WantBalances(0)
	})
}

func TestDuplicateRollsBackAndCountsForItsUnit(t *testing.T) {
	t.Parallel()
	eachRetry(t, func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, byJob bool) {
		r.Account(1)
		tx := r.Begin()
		r.Must(tx, "UPDATE account SET balance = balance + 100 WHERE id = 1")
		r.Must(tx, rig.InsertThree)
		r.Must(tx, "UPDATE account SET balance = balance + 1000 WHERE id = 1")
		p.CutAfter(testproxy.Commit)
		err := tx.Commit()
		if byJob {
			rig.WantPending(t, err)
			if report := r.RunOnce(); report.Delivered != 1 || report.Assumed != 1 {
				t.Errorf("the job's round: %v", report)
			}
		} else if err != nil {
			t.Errorf("Commit: %v", err)
		}
		r.WantBalances(1101) // neither 1201 nor 2101
		r.WantNoLog()
	})
}

// eachRetry has the second attempt made in the caller's retry, and by the job.
func eachRetry(t *testing.T, f func(t *testing.T, r *rig.Rig, p *testproxy.Proxy, byJob bool)) {
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, byJob := range map[string]bool{"in the caller's retry": false, "in the job": true} {
			t.Run(name, func(t *testing.T) {
				r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db), func(c *bedsql.Config) { c.NoSyncRetry = byJob })
				f(t, r, p, byJob)
			})
		}
	})
}
