package job

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// leave logs n writes as pending that were not sent.
func leave(r *rig.Rig, n int, query string, args ...any) {
	r.T.Helper()
	s := rig.StatementOf(r.T, r.Q(query), args...)
	for range n {
		u := &entry.Unit{ID: entry.NewID(), DataSource: rig.DataSourceOf(r.T, r.DB), Settings: rig.SettingsOf(r.T, r.DB), Statements: []entry.Statement{s}}
		if err := r.Storage.Add(context.Background(), time.Minute, u); err != nil {
			r.T.Fatal(err)
		}
		if err := r.Storage.Release(context.Background(), u, entry.Verdict{}); err != nil {
			r.T.Fatal(err)
		}
	}
}

func TestOutageIsNotATry(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		const rows, rounds = 25, 4
		r := rig.New(t, db)
		r.Account(1)
		leave(r, rows, "UPDATE account SET balance = balance + 1 WHERE id = 1")
		before := r.Logs()
		name := rig.DataSourceOf(t, r.DB)

		// A proxy before a server that is not there: it counts the dials.
		down := testproxy.New(t, rig.DeadAddr(t))
		tgt, err := rig.Target(db.Driver)(db.Via(down.Addr()).DSN)
		if err != nil {
			t.Fatal(err)
		}
		job := r.JobFor(asyncjob.Targets{name: tgt}, func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 2 })
		for range rounds {
			report, err := job.RunOnce(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if report.Claimed != 0 || report.DataSources[name].Unreachable == nil {
				t.Errorf("the job's round: %+v, want the data source unreachable and nothing claimed", report)
			}
		}
		// pgx may dial twice, with TLS and without.
		if n := down.Accepted(); n < rounds || n > 2*rounds {
			t.Errorf("%d dials in %d rounds over %d rows, want one probe in each round", n, rounds, rows)
		}
		for i, u := range r.Logs() {
			if u.Tries != 0 || u.Parked || u.InDoubt || u.LastError != "" || !u.NextTry.Equal(before[i].NextTry) {
				t.Errorf("an outage changed a unit: %+v, was %+v", u, before[i])
			}
		}
		if report := r.RunOnce(); report.Delivered != rows {
			t.Errorf("after the outage: %v", report)
		}
		r.WantBalances(1 + rows)
		r.WantNoLog()
	})
}

// The connection breaks during the delivery, and the database cannot be
// reached right after: that says nothing about the row.
func TestOutageDuringDeliveryIsNotATry(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1)
		leave(r, 1, rig.AddOne)
		p.CutBefore(testproxy.Text(rig.AddOne))
		logins := 0
		p.CutBefore(func(message []byte) bool {
			if testproxy.Text(db.Name)(message) {
				logins++
			}
			return logins == 3 // the probe that begins the round, the delivery, the probe after it
		})
		report := r.RunOnce(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1 })
		if report.PushedBack != 1 || report.Failed+report.Parked != 0 {
			t.Errorf("the job's round: %v", report)
		}
		if u := r.WantOneLog(); u.Tries != 0 || u.Parked || !u.InDoubt {
			t.Errorf("the log holds %+v, want no try counted, and in doubt", u)
		}
		if report := r.RunOnce(); report.Delivered != 1 {
			t.Errorf("the job's next round: %v", report)
		}
		r.WantBalances(2)
	})
}

func TestRowThatBreaksTheConnectionIsParkedEventually(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.Account(1, 1)
		const poison = "UPDATE account SET balance = 66 WHERE id = 2 /* poison */"
		leave(r, 1, poison)
		leave(r, 1, rig.AddOne)
		for try := 1; try <= 3; try++ {
			p.CutBefore(testproxy.Text("poison"))
			report := r.RunOnce()
			if try < 3 && report.Failed != 1 || try == 3 && report.Parked != 1 {
				t.Errorf("round %d: %v", try, report)
			}
			if u := r.WantOneLog(); u.Tries != try || u.Parked != (try == 3) || !u.InDoubt {
				t.Errorf("after round %d the log holds %+v", try, u)
			}
			r.WantBalances(2, 1) // the other row was delivered in the first round
		}
		if report := r.RunOnce(); report.Claimed != 0 {
			t.Errorf("the job goes on with a parked unit: %v", report)
		}
	})
}

func TestOversizedStatementIsNotRetriedForever(t *testing.T) {
	t.Parallel()
	server := testdb.PrivateMariaDB(t, "--max-allowed-packet=64K")
	for name, args := range map[string][]any{
		"in its text":      nil,
		"in its arguments": {strings.Repeat("x", 200<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			query := "INSERT INTO doc VALUES (1, ?)"
			if args == nil {
				query = fmt.Sprintf("INSERT INTO doc VALUES (1, '%s')", strings.Repeat("x", 200<<10))
			}
			r := rig.NewWithLog(t, server.DB(t), testdb.NewLog(t, testdb.DriverMySQL))
			r.Exec("CREATE TABLE doc (id INT PRIMARY KEY, body LONGTEXT)")
			r.Account(1)
			leave(r, 1, query, args...)
			leave(r, 1, rig.AddOne)
			rounds := 0
			for ; rounds < 5; rounds++ {
				r.RunOnce()
				r.WantBalances(2)
				if u := r.WantOneLog(); u.Parked {
					break
				} else if u.Tries != rounds+1 {
					t.Fatalf("after round %d the log holds a unit with %d tries", rounds+1, u.Tries)
				}
			}
			if rounds == 5 {
				t.Error("the row is not parked")
			}
			if n := r.Count("SELECT COUNT(*) FROM doc"); n != 0 {
				t.Error("the server took the packet: the test shows nothing")
			}
		})
	}
}
