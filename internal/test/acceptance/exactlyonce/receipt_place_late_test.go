package exactlyonce

import (
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// newRigUpOnceLogged is newRigDown with a target that comes up during the write to the log: the
// place of its receipts is learned after that.
func newRigUpOnceLogged(t *testing.T, db testdb.DB, hooks rig.HookedStorage) (*rig.Rig, *testproxy.Proxy) {
	t.Helper()
	var p *testproxy.Proxy
	r, p := rig.NewDown(t, db, rig.ExactlyOnce, rig.NoSyncRetry, func(c *bedsql.Config) {
		hooks.Storage, hooks.OnAdd = c.Storage, func([]*entry.Unit) error {
			p.Accept()
			return nil
		}
		c.Storage = &hooks
	})
	r.Wrapped = r.OpenStepwise()
	r.Account(100)
	return r, p
}

// addThere is addOne for a session of whatever place.
func addThere(r *rig.Rig) string {
	in := "public"
	if r.DB.Driver == testdb.DriverMySQL {
		in = "`" + r.DB.Name + "`"
	}
	return "UPDATE " + in + ".account SET balance = balance + 1 WHERE id = 1"
}

func TestLateReceiptPlaceIsLoggedBeforeTheWrite(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigUpOnceLogged(t, db, rig.HookedStorage{})
		p.CutAfter(testproxy.Commit)
		_, err := r.Wrapped.Exec(addThere(r))
		rig.WantPending(t, err)
		r.WantBalances(101)
		dsn, here, there := receiptsElsewhere(r, t)
		u := r.WantOneLog()
		if !strings.Contains(u.Place, here) {
			t.Errorf("the place is %q, want %s", u.Place, here)
		}
		if db.Driver == testdb.DriverMySQL { // its receipt can be read from everywhere
			if report := r.DeliverTo(t, u.DataSource, dsn); report.Delivered != 1 {
				t.Errorf("a job that looks in %s: %s, %+v", there, report, r.Logs())
			}
		} else { // its account has no right there
			r.Exec("REVOKE ALL ON bed_receipt FROM role_" + db.Name)
			if report := r.DeliverTo(t, u.DataSource, dsn); report.PushedBack != 1 || !strings.Contains(r.WantOneLog().LastError, "GRANT") {
				t.Errorf("a job without rights: %s, %+v", report, r.Logs())
			}
			r.WantBalances(101)
			if report := r.DeliverTo(t, u.DataSource, r.DB.DSN); report.Delivered != 1 {
				t.Errorf("a job that sees the same place: %s, %+v", report, r.Logs())
			}
		}
		r.WantBalances(101)
		r.WantNoLog()
	})
}

func TestWriteWaitsUntilReceiptPlaceIsLogged(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		down := errors.New("the log does not answer")
		r, _ := newRigUpOnceLogged(t, db, rig.HookedStorage{OnLocate: func() error { return down }})
		_, err := r.Wrapped.Exec(addThere(r))
		if rig.WantPending(t, err); !errors.Is(err, down) {
			t.Errorf("the error does not say why: %v", err)
		}
		r.WantBalances(100)
		if u := r.WantOneLog(); u.InDoubt || u.Place != "" {
			t.Errorf("nothing was sent, and the log is %+v", u)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.WantBalances(101)
	})
}

// Two jobs with accounts of their own may serve the same data source.
func TestJobRecordsReceiptPlaceBeforeItDelivers(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewDown(t, db, rig.ExactlyOnce, rig.NoSyncRetry)
		r.Account(100)
		_, err := r.Wrapped.Exec(addThere(r))
		rig.WantPending(t, err)
		if u := r.WantOneLog(); u.Place != "" {
			t.Fatalf("the place is known: %+v", u)
		}
		p.Accept()
		tgt := rig.TargetOf(t, r.DB)
		tgt.Dialect = rig.Stepwise(tgt.Dialect)
		p.CutAfter(testproxy.Commit)
		r.JobFor(asyncjob.Targets{tgt.DataSource: tgt}).RunOnce(t.Context())
		r.WantBalances(101)
		dsn, here, _ := receiptsElsewhere(r, t)
		if u := r.WantOneLog(); !strings.Contains(u.Place, here) {
			t.Errorf("the place is %q, want %s", u.Place, here)
		}
		if err := r.Storage.Retry(t.Context(), r.WantOneLog().ID); err != nil {
			t.Fatal(err)
		}
		// It asks for the receipt where the log says it is.
		if report := r.DeliverTo(t, tgt.DataSource, dsn); report.Delivered != 1 {
			t.Errorf("a job that looks elsewhere: %s", report)
		}
		r.WantBalances(101)
	})
}
