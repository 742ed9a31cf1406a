package acceptance

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

func TestAStuckRowDoesNotStarveTheRest(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		const others = 12
		r := newRig(t, db)
		r.account(1, 1)
		free := r.blockRow(1)
		r.leave(3, "UPDATE account SET balance = 10 WHERE id = 1") // the oldest
		r.leave(others, "UPDATE account SET balance = balance + 1 WHERE id = 2")
		// One at a time, so that the stuck ones are met first.
		change := func(c *asyncjob.Config) {
			c.TransactionLogFetchDataCount, c.Concurrency, c.MaxDeliveryTryTimes = 1, 1, 100
			c.DeliveryTimeout = 4 * time.Second
			c.RetryDelay, c.MaxDeliveryTryDelay = time.Hour, asyncjob.NoDelay
		}
		report := r.runOnce(change)
		if report.Delivered != others || report.Failed != 3 {
			t.Errorf("the job's round: %v, want the %d others delivered", report, others)
		}
		r.wantBalances(1, 1+others)
		for _, u := range r.logs() {
			if u.Tries != 1 || !u.InDoubt || !strings.Contains(u.LastError, "no answer within 4s") {
				t.Errorf("a stuck row is %+v, want one try, in doubt, and the timeout in its error", u)
			}
			if rest := time.Until(u.NextTry); rest < 30*time.Minute {
				t.Errorf("a stuck row is due in %v, want it pushed back", rest)
			}
		}
		free()
	})
}

// However short the rest, a round ends, and the rows behind a stuck one come
// first in the next.
func TestStuckUnitsWithoutDelayDoNotStarveOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, impatient(testdb.Postgres(t)))
	r.account(1, 1)
	free := r.blockRow(1)
	defer free()
	r.leave(4, "UPDATE account SET balance = 10 WHERE id = 1")
	r.leave(4, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	for range 5 {
		r.runOnce(func(c *asyncjob.Config) {
			c.TransactionLogFetchDataCount, c.Concurrency, c.MaxDeliveryTryTimes = 2, 1, 1000
		})
	}
	r.wantBalances(1, 5)
	if n := len(r.logs()); n != 4 {
		t.Errorf("%d units are left, want the stuck ones", n)
	}
}

func TestUnknownDataSourceIsReportedAndPushedBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(1)
		s := statementOf(t, addOne)
		for range 3 {
			u := &txlog.Unit{ID: txlog.NewID(), DataSource: "elsewhere", Statements: []txlog.Statement{s}}
			if err := r.storage.Add(context.Background(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
			if err := r.storage.Release(context.Background(), u, txlog.Verdict{}); err != nil {
				t.Fatal(err)
			}
		}
		r.leave(1, addOne)
		report := r.runOnce()
		if ds := report.DataSources["elsewhere"]; !ds.Unknown || ds.PushedBack != 3 {
			t.Errorf("the report says %+v of the unknown data source", ds)
		}
		if report.Delivered != 1 || !strings.Contains(report.String(), "elsewhere") {
			t.Errorf("the job's round: %v", report)
		}
		units := r.logs()
		if len(units) != 3 {
			t.Fatalf("%d units are left, want 3", len(units))
		}
		for _, u := range units {
			if u.Tries != 0 || u.Parked || !strings.Contains(u.LastError, "not among the job's targets") || time.Until(u.NextTry) < 30*time.Second {
				t.Errorf("a unit of it is %+v, want it pushed back, without a try, and saying why", u)
			}
		}
		if report := r.runOnce(); report.Claimed != 0 {
			t.Errorf("the next round: %v, want them left alone", report)
		}
	})
}

func TestADeliveryThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.account(1)
		r.leave(1, addOne)
		reached, release := p.Hold(testproxy.Text(addOne))
		defer release()
		report := r.runOnce(func(c *asyncjob.Config) { c.DeliveryTimeout = 4 * time.Second })
		waitFor(t, "the delivery hung", reached)
		if report.Failed != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if u := r.wantOneLog(); u.Tries != 1 || !u.InDoubt || u.Leased || !strings.Contains(u.LastError, "no answer within 4s") {
			t.Errorf("the log holds %+v", u)
		}
	})
}
