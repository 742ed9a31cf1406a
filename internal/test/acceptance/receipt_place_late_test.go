package acceptance

import (
	"errors"
	"strings"
	"testing"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// newRigUpOnceLogged is newRigDown with a target that comes up during the write to the log: the
// place of its receipts is learned after that.
func newRigUpOnceLogged(t *testing.T, db testdb.DB, hooks hookedStorage) (*rig, *testproxy.Proxy) {
	t.Helper()
	var p *testproxy.Proxy
	r, p := newRigDown(t, db, exactlyOnce, noSyncRetry, func(c *bedsql.Config) {
		hooks.Storage, hooks.onAdd = c.Storage, func([]*txlog.Unit) error {
			p.Accept()
			return nil
		}
		c.Storage = &hooks
	})
	r.wrapped = r.openStepwise()
	r.account(100)
	return r, p
}

// addThere is addOne for a session of whatever place.
func (r *rig) addThere() string {
	in := "public"
	if r.db.Driver == testdb.DriverMySQL {
		in = "`" + r.db.Name + "`"
	}
	return "UPDATE " + in + ".account SET balance = balance + 1 WHERE id = 1"
}

func TestLateReceiptPlaceIsLoggedBeforeTheWrite(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigUpOnceLogged(t, db, hookedStorage{})
		p.CutAfter(testproxy.Text("COMMIT"))
		_, err := r.wrapped.Exec(r.addThere())
		wantPending(t, err)
		r.wantBalances(101)
		dsn, here, there := r.receiptsElsewhere(t)
		u := r.wantOneLog()
		if !strings.Contains(u.Place, here) {
			t.Errorf("the place is %q, want %s", u.Place, here)
		}
		if db.Driver == testdb.DriverMySQL { // its receipt can be read from everywhere
			if report := r.deliverTo(t, u.DataSource, dsn); report.Delivered != 1 {
				t.Errorf("a job that looks in %s: %s, %+v", there, report, r.logs())
			}
		} else { // its account has no right there
			r.exec("REVOKE ALL ON bed_receipt FROM role_" + db.Name)
			if report := r.deliverTo(t, u.DataSource, dsn); report.PushedBack != 1 || !strings.Contains(r.wantOneLog().LastError, "GRANT") {
				t.Errorf("a job without rights: %s, %+v", report, r.logs())
			}
			r.wantBalances(101)
			if report := r.deliverTo(t, u.DataSource, r.db.DSN); report.Delivered != 1 {
				t.Errorf("a job that sees the same place: %s, %+v", report, r.logs())
			}
		}
		r.wantBalances(101)
		r.wantNoLog()
	})
}

func TestWriteWaitsUntilReceiptPlaceIsLogged(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		down := errors.New("the log does not answer")
		r, _ := newRigUpOnceLogged(t, db, hookedStorage{onLocate: func() error { return down }})
		_, err := r.wrapped.Exec(r.addThere())
		if wantPending(t, err); !errors.Is(err, down) {
			t.Errorf("the error does not say why: %v", err)
		}
		r.wantBalances(100)
		if u := r.wantOneLog(); u.InDoubt || u.Place != "" {
			t.Errorf("nothing was sent, and the log is %+v", u)
		}
		if report := r.runOnce(); report.Delivered != 1 {
			t.Errorf("the job: %s", report)
		}
		r.wantBalances(101)
	})
}

// Two jobs with accounts of their own may serve the same data source.
func TestJobRecordsReceiptPlaceBeforeItDelivers(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigDown(t, db, exactlyOnce, noSyncRetry)
		r.account(100)
		_, err := r.wrapped.Exec(r.addThere())
		wantPending(t, err)
		if u := r.wantOneLog(); u.Place != "" {
			t.Fatalf("the place is known: %+v", u)
		}
		p.Accept()
		tgt := targetOf(t, r.db)
		tgt.Dialect = stepwise(tgt.Dialect)
		p.CutAfter(testproxy.Text("COMMIT"))
		r.jobFor(asyncjob.Targets{tgt.DataSource: tgt}).RunOnce(t.Context())
		r.wantBalances(101)
		dsn, here, _ := r.receiptsElsewhere(t)
		if u := r.wantOneLog(); !strings.Contains(u.Place, here) {
			t.Errorf("the place is %q, want %s", u.Place, here)
		}
		if err := r.storage.Retry(t.Context(), r.wantOneLog().ID); err != nil {
			t.Fatal(err)
		}
		// It asks for the receipt where the log says it is.
		if report := r.deliverTo(t, tgt.DataSource, dsn); report.Delivered != 1 {
			t.Errorf("a job that looks elsewhere: %s", report)
		}
		r.wantBalances(101)
	})
}
