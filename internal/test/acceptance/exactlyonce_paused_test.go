package acceptance

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// pause stops the process at once, like a suspended machine.
func (p *process) pause() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
}

// proceed lets a paused process go on.
func (p *process) proceed() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}

// waiting counts the target's sessions waiting for a lock. MariaDB reports no such waits as they
// happen, but a statement on a row or two takes that long only in a lock wait.
func (r *rig) waiting() int {
	r.t.Helper()
	if r.db.Driver == testdb.DriverPostgres {
		return r.count("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	}
	return r.count("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info IS NOT NULL AND time_ms > 300")
}

// receipted turns the log's entries into units under ExactlyOnce, with receipts.
func (r *rig) receipted() {
	r.t.Helper()
	r.execLog("UPDATE transaction_log SET receipt = id")
}

const (
	pausedUnits = 10
	// oneByOne makes a worker deliver one unit at a time under a short lease.
	oneByOne = `cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, leaseMillis: 3000, concurrency: 1`
)

// pausePlaces are the places to pause a worker after it has begun some of its units.
var pausePlaces = []struct {
	name string
	// held selects the message to the target to hold; nil holds the removal at the log.
	held func(*commits) func([]byte) bool
}{
	{"before its first byte has reached the target", func(c *commits) func([]byte) bool { return c.first }},
	{"between the write and COMMIT", func(c *commits) func([]byte) bool { return c.match }},
	{"between COMMIT and the removal of the log", nil},
}

func TestStalledWorkerAppliesNothingTwice(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for _, place := range pausePlaces {
			t.Run(place.name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db))
				r.receiptTable()
				r.account(make([]int, pausedUnits)...)
				r.abandon(pausedUnits, "UPDATE account SET balance = balance + 1 WHERE id = ?")
				r.receipted()
				toTarget, toLog := testproxy.New(t, r.db.Addr()), testproxy.New(t, r.logDB.Addr())
				var reached <-chan struct{}
				var release func()
				if place.held == nil {
					reached, release = toLog.HoldRun("DELETE FROM transaction_log")
				} else {
					// Not the first of its units, but one in the middle.
					held, seen := place.held(commitsOf(toTarget)), 0
					reached, release = toTarget.Hold(func(m []byte) bool {
						if held(m) {
							seen++
						}
						return seen == pausedUnits/2
					})
				}
				defer release()
				paused := start(t, "bed-job", "run", "-c", jobFile(t, r.logDB.Via(toLog.Addr()),
					map[string]testdb.DB{dataSourceOf(t, r.db): r.db.Via(toTarget.Addr())}, oneByOne))
				waitFor(t, "the worker's message was held", reached)
				paused.pause()

				second := start(t, "bed-job", "run", "-c", r.jobFile(oneByOne))
				eventually(t, "the second worker has come as far as it can", func() bool {
					return r.left() == 0 || r.waiting() == 1
				})
				paused.proceed()
				release()
				eventually(t, "the log is empty", func() bool { return r.left() == 0 })
				paused.until("the lease was lost")
				for name, w := range map[string]*process{"paused": paused, "second": second} {
					if status := w.terminate(); status != 0 {
						t.Errorf("the %s worker ended with status %d", name, status)
					}
				}
				delivered, lost := paused.counted()
				if lost == 0 || delivered+lost != pausedUnits {
					t.Errorf("the paused worker says that it delivered %d and lost %d of its %d", delivered, lost, pausedUnits)
				}
				if twice := r.count("SELECT COUNT(*) FROM account WHERE balance <> 1"); twice != 0 {
					t.Errorf("%d of %d increments are not applied once", twice, pausedUnits)
				}
				// Their writer vanished, so another attempt may come at any time.
				r.wantReceipts(pausedUnits)
			})
		}
	})
}

// pausedWrites are a paused writer's next writes: increments.
var pausedWrites = map[string][]string{
	"a write":             {"UPDATE account SET balance = balance + 1 WHERE id = 1"},
	"a local transaction": {"UPDATE account SET balance = balance + 1 WHERE id = 1", "UPDATE account SET balance = balance + 1 WHERE id = 2"},
}

// exactlyOnceWriter is writer under the guarantee ExactlyOnce.
func (r *rig) exactlyOnceWriter(log testdb.DB, statements ...string) *process {
	r.t.Helper()
	return r.runWriter(writerTask{
		Target: r.db, Log: log, Lease: writerLease, Statements: statements, Guarantee: bedsql.ExactlyOnce,
	})
}

// wantTruth waits for the end of a writer with an applied unit. It may report delivered or pending,
// but never refused.
func wantTruth(t testing.TB, w *process) {
	t.Helper()
	status := w.status()
	lines, _ := w.said()
	said := strings.Join(lines, "\n")
	if status != 0 && !strings.Contains(said, "is pending") || status == 0 && !strings.Contains(said, "delivered") {
		t.Errorf("the writer of an applied unit got: %s", said)
	}
}

func TestWriterStalledBeforeSendingIsAppliedOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, statements := range pausedWrites {
			for _, staged := range []bool{false, true} {
				if !staged && len(statements) > 1 {
					continue // its transaction is open by then: see below
				}
				t.Run(fmt.Sprintf("%s, staged: %v", name, staged), func(t *testing.T) {
					t.Parallel()
					r, p := newRigBehindProxy(t, freshLike(t, db))
					r.receiptTable()
					r.account(make([]int, len(statements))...)
					reached, release := p.Hold(commitsOf(p).first)
					defer release()
					w := r.runWriter(writerTask{
						Target: r.db, Log: r.logDB, Lease: writerLease, Statements: statements,
						Guarantee: bedsql.ExactlyOnce, Staged: staged,
					})
					waitFor(t, "the first byte was held on its way", reached)
					w.pause()
					if balance := r.balance(1); balance != 0 {
						t.Fatalf("balance %d, although nothing has arrived", balance)
					}
					r.deliverAfterTheLease()
					// This is shorter than the retention of receipts, so that they all survive a
					// purge.
					r.receiptsAge(6 * 24 * time.Hour)
					r.runOnce()
					r.wantReceipts(1)
					w.proceed()
					release()
					wantTruth(t, w)
					for id := range statements {
						if balance := r.balance(id + 1); balance != 1 {
							t.Errorf("balance %d of account %d after one increment", balance, id+1)
						}
					}
					r.wantNoLog()
				})
			}
		}
	})
}

func TestWriterStalledBeforeItsReceiptIsAppliedOnce(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db)
		r.receiptTable()
		r.account(0, 0)
		reached, release := p.Hold(testproxy.Text("INSERT INTO bed_receipt"))
		defer release()
		w := r.exactlyOnceWriter(r.logDB, pausedWrites["a local transaction"]...)
		waitFor(t, "the receipt was held on its way", reached)
		w.pause()
		u := r.wantOneLog()
		// The job waits for the rows locked by the writer.
		job := r.job(func(c *asyncjob.Config) { c.MaxDeliveryTryTimes = 1000 })
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
		eventually(t, "the job waits for the writer's locks", func() bool { return r.waiting() > 0 })
		w.proceed()
		release()
		report := <-round
		wantTruth(t, w)
		r.drain(job)
		r.wantBalances(1, 1)
		r.wantNoLog()
		if early := time.Until(u.NextTry); early > 0 {
			t.Errorf("the job took the log %v before its writer's lease ran out: %s", early, report)
		}
	})
}

func TestFoundReceiptIsKeptForALateWorker(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account(0)
		r.abandon(1, "UPDATE account SET balance = balance + ? WHERE id = 1")
		r.receipted()
		r.receiptTable()
		// An attempt applied it, and its answer was lost. The job then stood still for longer than
		// the retention of receipts.
		u := r.wantOneLog()
		out := r.onTarget(func(d *dialect.Dialect, conn driver.Conn) attempt.Outcome {
			return attempt.Replay(context.Background(), d, conn, u, receiptsOf(r))
		})
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		r.receiptsAge(30 * 24 * time.Hour)
		// A purge found the log gone before a late write to it brought it back.
		r.exec("UPDATE bed_receipt SET log_gone = 1")

		p := testproxy.New(t, r.db.Addr())
		reached, release := p.Hold(commitsOf(p).first)
		defer release()
		paused := start(t, "bed-job", "run", "-c", jobFile(t, r.logDB,
			map[string]testdb.DB{dataSourceOf(t, r.db): r.db.Via(p.Addr())}, oneByOne))
		waitFor(t, "the worker's first byte was held", reached)
		paused.pause()
		job := r.job()
		r.drain(job)
		r.runOnce() // purges, whatever the round before did
		paused.proceed()
		release()
		paused.until("the lease was lost")
		if status := paused.terminate(); status != 0 {
			t.Errorf("the paused worker ended with status %d", status)
		}
		r.wantBalances(1)
		r.wantReceipts(1)
	})
}

func TestAttemptAfterTheJobsDeliveryAppliesNothing(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r, p := newRigBehindProxy(t, db, exactlyOnce)
		r.bare.SetMaxOpenConns(1)
		committing := commitsOf(p)
		r.account(0)
		r.must(r.wrapped, addOne)
		r.settle()
		held, arrive := p.Hold(committing.match)
		defer arrive()
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		done := make(chan error, 1)
		go func() {
			_, err := r.wrapped.ExecContext(ctx, r.q("UPDATE account SET balance = balance + ? WHERE id = 1"), 1)
			done <- err
		}()
		waitFor(t, "the write was held on its way", held)
		leave()
		wantPending(t, <-done)
		if u := r.wantOneLog(); !u.InDoubt {
			t.Error("a message is on its way, but its unit is not in doubt")
		}
		job := r.job()
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
		eventually(t, "the job has delivered, or waits", func() bool { return r.left() == 0 || r.waiting() > 0 })
		arrive()
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		_ = job.Close()
		_ = r.wrapped.Close()
		eventually(t, "the session of the late message has ended", func() bool { return r.others() == 0 })
		r.wantBalances(2)
		r.wantReceipts(1)
	})
}

// others counts the other sessions of the target.
func (r *rig) others() int {
	r.t.Helper()
	if r.db.Driver == testdb.DriverPostgres {
		return r.count("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
	}
	return r.count("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
}
