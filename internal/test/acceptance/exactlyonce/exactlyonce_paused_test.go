package exactlyonce

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// receipted turns the log's entries into units under ExactlyOnce, with receipts.
func receipted(r *rig.Rig) {
	r.T.Helper()
	r.ExecLog("UPDATE transaction_log SET receipt = id")
}

const (
	pausedUnits = 10
	// oneByOne makes a worker deliver one unit at a time under a short lease.
	oneByOne = `cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, leaseMillis: 5000, concurrency: 1`
)

// pausePlaces are the places to pause a worker after it has begun some of its units.
var pausePlaces = []struct {
	name string
	// held selects the message to the target to hold; nil holds the removal at the log.
	held func(*rig.Commits) func([]byte) bool
}{
	{"before its first byte has reached the target", func(c *rig.Commits) func([]byte) bool { return c.First }},
	{"between the write and COMMIT", func(c *rig.Commits) func([]byte) bool { return c.Match }},
	{"between COMMIT and the removal of the log", nil},
}

func TestStalledWorkerAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for _, place := range pausePlaces {
			t.Run(place.name, func(t *testing.T) {
				t.Parallel()
				r := rig.New(t, rig.FreshLike(t, db))
				r.ReceiptTable()
				r.Account(make([]int, pausedUnits)...)
				r.Abandon(pausedUnits, "UPDATE account SET balance = balance + 1 WHERE id = ?")
				receipted(r)
				toTarget, toLog := testproxy.New(t, r.DB.Addr()), testproxy.New(t, r.LogDB.Addr())
				var reached <-chan struct{}
				var release func()
				if place.held == nil {
					reached, release = toLog.HoldRun("DELETE FROM transaction_log")
				} else {
					// Not the first of its units, but one in the middle.
					held, seen := place.held(rig.CommitsOf(toTarget)), 0
					reached, release = toTarget.Hold(func(m []byte) bool {
						if held(m) {
							seen++
						}
						return seen == pausedUnits/2
					})
				}
				defer release()
				paused := rig.Start(t, "bed-job", "run", "-c", rig.JobFile(t, r.LogDB.Via(toLog.Addr()),
					map[string]testdb.DB{rig.DataSourceOf(t, r.DB): r.DB.Via(toTarget.Addr())}, oneByOne))
				rig.WaitFor(t, "the worker's message was held", reached)
				paused.Pause()
				until := leasedUntil(r)

				second := rig.Start(t, "bed-job", "run", "-c", r.JobFile(oneByOne))
				rig.Eventually(t, "the second worker has come as far as it can", func() bool {
					return r.Left() == 0 || r.Waiting() == 1 && leasedUntil(r) > until
				})
				paused.Proceed()
				release()
				rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
				paused.Until("the lease was lost")
				for name, w := range map[string]*rig.Process{"paused": paused, "second": second} {
					if status := w.Terminate(); status != 0 {
						t.Errorf("the %s worker ended with status %d", name, status)
					}
				}
				delivered, lost := paused.Counted()
				if lost == 0 || delivered+lost != pausedUnits {
					t.Errorf("the paused worker says that it delivered %d and lost %d of its %d", delivered, lost, pausedUnits)
				}
				if twice := r.Count("SELECT COUNT(*) FROM account WHERE balance <> 1"); twice != 0 {
					t.Errorf("%d of %d increments are not applied once", twice, pausedUnits)
				}
				// Their writer vanished, so another attempt may come at any time.
				r.WantReceipts(pausedUnits)
			})
		}
	})
}

// leasedUntil is the end of the log's last lease. While its owner stands still, only another one moves it.
func leasedUntil(r *rig.Rig) int {
	r.T.Helper()
	return r.CountLog("SELECT COALESCE(MAX(lease_until), 0) FROM transaction_log")
}

// pausedWrites are a paused writer's next writes: increments.
var pausedWrites = map[string][]string{
	"a write":             {"UPDATE account SET balance = balance + 1 WHERE id = 1"},
	"a local transaction": {"UPDATE account SET balance = balance + 1 WHERE id = 1", "UPDATE account SET balance = balance + 1 WHERE id = 2"},
}

// exactlyOnceWriter is writer under the guarantee ExactlyOnce.
func exactlyOnceWriter(r *rig.Rig, log testdb.DB, statements ...string) *rig.Process {
	r.T.Helper()
	return r.RunWriter(rig.WriterTask{
		Target: r.DB, Log: log, Lease: rig.WriterLease, Statements: statements, Guarantee: bedsql.ExactlyOnce,
	})
}

// wantTruth waits for the end of a writer with an applied unit. It may report delivered or pending,
// but never refused.
func wantTruth(t testing.TB, w *rig.Process) {
	t.Helper()
	status := w.Status()
	lines, _ := w.Said()
	said := strings.Join(lines, "\n")
	if status != 0 && !strings.Contains(said, "is pending") || status == 0 && !strings.Contains(said, "delivered") {
		t.Errorf("the writer of an applied unit got: %s", said)
	}
}

func TestWriterStalledBeforeSendingIsAppliedOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		for name, statements := range pausedWrites {
			for _, staged := range []bool{false, true} {
				if !staged && len(statements) > 1 {
					continue // its transaction is open by then: see below
				}
				t.Run(fmt.Sprintf("%s, staged: %v", name, staged), func(t *testing.T) {
					t.Parallel()
					r, p := rig.NewBehindProxy(t, rig.FreshLike(t, db))
					r.ReceiptTable()
					r.Account(make([]int, len(statements))...)
					reached, release := p.Hold(rig.CommitsOf(p).First)
					defer release()
					w := r.RunWriter(rig.WriterTask{
						Target: r.DB, Log: r.LogDB, Lease: rig.WriterLease, Statements: statements,
						Guarantee: bedsql.ExactlyOnce, Staged: staged,
					})
					rig.WaitFor(t, "the first byte was held on its way", reached)
					w.Pause()
					if balance := r.Balance(1); balance != 0 {
						t.Fatalf("balance %d, although nothing has arrived", balance)
					}
					r.DeliverAfterTheLease()
					// This is shorter than the retention of receipts, so that they all survive a
					// purge.
					r.ReceiptsAge(6 * 24 * time.Hour)
					r.RunOnce()
					r.WantReceipts(1)
					w.Proceed()
					release()
					wantTruth(t, w)
					for id := range statements {
						if balance := r.Balance(id + 1); balance != 1 {
							t.Errorf("balance %d of account %d after one increment", balance, id+1)
						}
					}
					r.WantNoLog()
				})
			}
		}
	})
}

func TestWriterStalledBeforeItsReceiptIsAppliedOnce(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db)
		r.ReceiptTable()
		r.Account(0, 0)
		reached, release := p.Hold(testproxy.Text("INSERT INTO bed_receipt"))
		defer release()
		w := exactlyOnceWriter(r, r.LogDB, pausedWrites["a local transaction"]...)
		rig.WaitFor(t, "the receipt was held on its way", reached)
		w.Pause()
		u, until := r.WantOneLog(), leasedUntil(r)
		// The job waits for the rows locked by the writer.
		job := r.Job(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
		round := make(chan asyncjob.Report, 1)
		go func() {
			for {
				report, err := job.RunOnce(context.Background())
				if err != nil || report.Claimed > 0 {
					round <- report
					return
				}
			}
		}()
		rig.Eventually(t, "the job waits for the writer's locks", func() bool { return r.Waiting() > 0 && leasedUntil(r) > until })
		w.Proceed()
		release()
		report := <-round
		wantTruth(t, w)
		r.Drain(job)
		r.WantBalances(1, 1)
		r.WantNoLog()
		if early := time.Until(u.NextTry); early > 0 {
			t.Errorf("the job took the log %v before its writer's lease ran out: %s", early, report)
		}
	})
}

func TestFoundReceiptIsKeptForALateWorker(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account(0)
		r.Abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		receipted(r)
		r.ReceiptTable()
		// An attempt applied it, and its answer was lost. The job then stood still for longer than
		// the retention of receipts.
		u := r.WantOneLog()
		out := r.OnTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(context.Background(), d, conn, u, rig.ReceiptsOf(r))
		})
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		r.ReceiptsAge(30 * 24 * time.Hour)
		// A purge found the log gone before a late write to it brought it back.
		r.Exec("UPDATE bed_receipt SET log_gone = 1")

		p := testproxy.New(t, r.DB.Addr())
		reached, release := p.Hold(rig.CommitsOf(p).First)
		defer release()
		paused := rig.Start(t, "bed-job", "run", "-c", rig.JobFile(t, r.LogDB,
			map[string]testdb.DB{rig.DataSourceOf(t, r.DB): r.DB.Via(p.Addr())}, oneByOne))
		rig.WaitFor(t, "the worker's first byte was held", reached)
		paused.Pause()
		job := r.Job()
		r.Drain(job)
		r.RunOnce() // purges, whatever the round before did
		paused.Proceed()
		release()
		paused.Until("the lease was lost")
		if status := paused.Terminate(); status != 0 {
			t.Errorf("the paused worker ended with status %d", status)
		}
		r.WantBalances(1)
		r.WantReceipts(1)
	})
}

func TestAttemptAfterTheJobsDeliveryAppliesNothing(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := rig.NewBehindProxy(t, db, rig.ExactlyOnce)
		r.Bare.SetMaxOpenConns(1)
		committing := rig.CommitsOf(p)
		r.Account(0)
		r.Must(r.Wrapped, rig.AddOne)
		r.Settle()
		held, arrive := p.Hold(committing.Match)
		defer arrive()
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		done := make(chan error, 1)
		go func() {
			_, err := r.Wrapped.ExecContext(ctx, r.Q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1)
			done <- err
		}()
		rig.WaitFor(t, "the write was held on its way", held)
		leave()
		rig.WantPending(t, <-done)
		if u := r.WantOneLog(); !u.InDoubt {
			t.Error("a message is on its way, but its unit is not in doubt")
		}
		job := r.Job()
		drained := make(chan error, 1)
		go func() {
			for {
				report, err := job.RunOnce(context.Background())
				if err != nil || report.Delivered == 1 {
					drained <- err
					return
				}
			}
		}()
		// A group sent in one message has not begun. Of several messages, the last one is missing,
		// and the job waits for it.
		rig.Eventually(t, "the job has delivered, or waits", func() bool { return r.Left() == 0 || r.Waiting() > 0 })
		arrive()
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		_ = job.Close()
		_ = r.Wrapped.Close()
		rig.Eventually(t, "the session of the late message has ended", func() bool { return others(r) == 0 })
		r.WantBalances(2)
		r.WantReceipts(1)
	})
}

// others counts the other sessions of the target.
func others(r *rig.Rig) int {
	r.T.Helper()
	if r.DB.Driver == testdb.DriverPostgres {
		return r.Count("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	return r.Count("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
}
