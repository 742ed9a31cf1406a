package job

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

func TestAStuckRowDoesNotStarveTheRest(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		const others = 12
		r := rig.New(t, db)
		r.Account(1, 1)
		free := r.BlockRow(1)
		leave(r, 3, "UPDATE account SET balance = 10 WHERE id = 1") // the oldest
		leave(r, others, "UPDATE account SET balance = balance + 1 WHERE id = 2")
		// One at a time, so that the stuck ones are met first.
		change := func(c *asyncjob.Config) {
			c.TransactionLogFetchDataCount, c.Concurrency, c.MaxDeliveryTryTimes = 1, 1, 100
			c.DeliveryTimeout = 4 * time.Second
			c.RetryDelay, c.MaxDeliveryTryDelay = time.Hour, asyncjob.NoDelay
		}
		report := r.RunOnce(change)
		if report.Delivered != others || report.Failed != 3 {
			t.Errorf("the job's round: %v, want the %d others delivered", report, others)
		}
		r.WantBalances(1, 1+others)
		for _, u := range r.Logs() {
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
	r := rig.New(t, rig.Impatient(testdb.Postgres(t)))
	r.Account(1, 1)
	free := r.BlockRow(1)
	defer free()
	leave(r, 4, "UPDATE account SET balance = 10 WHERE id = 1")
	leave(r, 4, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	for range 5 {
		r.RunOnce(func(c *asyncjob.Config) {
			c.TransactionLogFetchDataCount, c.Concurrency, c.MaxDeliveryTryTimes = 2, 1, 1000
		})
	}
	r.WantBalances(1, 5)
	if n := len(r.Logs()); n != 4 {
		t.Errorf("%d units are left, want the stuck ones", n)
	}
}

func TestUnknownDataSourceIsReportedAndPushedBack(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(1)
		s := rig.StatementOf(t, rig.AddOne)
		for range 3 {
			u := &entry.Unit{ID: entry.NewID(), DataSource: "elsewhere", Statements: []entry.Statement{s}}
			if err := r.Storage.Add(context.Background(), time.Minute, u); err != nil {
				t.Fatal(err)
			}
			if err := r.Storage.Release(context.Background(), u, entry.Verdict{}); err != nil {
				t.Fatal(err)
			}
		}
		leave(r, 1, rig.AddOne)
		report := r.RunOnce()
		if ds := report.DataSources["elsewhere"]; !ds.Unknown || ds.PushedBack != 3 {
			t.Errorf("the report says %+v of the unknown data source", ds)
		}
		if report.Delivered != 1 || !strings.Contains(report.String(), "elsewhere") {
			t.Errorf("the job's round: %v", report)
		}
		units := r.Logs()
		if len(units) != 3 {
			t.Fatalf("%d units are left, want 3", len(units))
		}
		for _, u := range units {
			if u.Tries != 0 || u.Parked || !strings.Contains(u.LastError, "not among the job's targets") || time.Until(u.NextTry) < 30*time.Second {
				t.Errorf("a unit of it is %+v, want it pushed back, without a try, and saying why", u)
			}
		}
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the next round: %v, want them left alone", report)
		}
	})
}

func TestADeliveryThatHangsIsBounded(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		leave(r, 1, rig.AddOne)
		reached, release := p.Hold(testproxy.Text(rig.AddOne))
		defer release()
		report := r.RunOnce(func(c *asyncjob.Config) { c.DeliveryTimeout = 4 * time.Second })
		rig.WaitFor(t, "the delivery hung", reached)
		if report.Failed != 1 {
			t.Errorf("the job's round: %v", report)
		}
		if u := r.WantOneLog(); u.Tries != 1 || !u.InDoubt || u.Leased || !strings.Contains(u.LastError, "no answer within 4s") {
			t.Errorf("the log holds %+v", u)
		}
	})
}
