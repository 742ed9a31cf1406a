package crash

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/acceptance/rig"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// The number of entries that two processes share. SQLite has one writer at a
// time for all of them, and a sync to disk for each.
const (
	manyLogs   = 5000
	sqliteLogs = 300
)

func logsFor(db testdb.DB) int {
	if db.Driver == testdb.DriverSQLite {
		return sqliteLogs
	}
	return manyLogs
}

// owners is how many jobs and writers own entries at this moment. The tokens of a
// process's claims have all but their last three digits in common.
func owners(r *rig.Rig) int {
	return r.CountLog(fmt.Sprintf("SELECT COUNT(DISTINCT SUBSTR(lease_token, 1, 33)) FROM transaction_log WHERE lease_token IS NOT NULL AND lease_until > %d",
		time.Now().UnixMilli()))
}

// patientTarget makes deliveries wait for a lock as long as a test holds it:
// only SQLite would give up before.
func patientTarget(r *rig.Rig) {
	if r.DB.Driver == testdb.DriverSQLite {
		r.DB.DSN = "file:" + r.DB.Name + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)"
	}
}

func TestTwoJobProcessesDeliverEachLogOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		patientTarget(r)
		// This table does not prevent a second application: it would be a second row.
		r.Exec("CREATE TABLE applied (log_no INT NOT NULL)")
		file := r.JobFile(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: 50`)
		workers := []*rig.Process{rig.Start(t, "bed-job", "run", "-c", file), rig.Start(t, "bed-job", "run", "-c", file)}
		for _, w := range workers {
			w.Until("bed-job is running")
		}
		n := logsFor(db)
		// Held up until both have claimed, so that both have a share.
		free := r.BlockTable("applied")
		r.Abandon(n, "INSERT INTO applied (log_no) VALUES (?)")
		rig.Eventually(t, "both processes have claimed", func() bool { return owners(r) == len(workers) })
		free()
		rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
		total := 0
		for i, w := range workers {
			status := w.Terminate()
			delivered, lost := w.Counted()
			if status != 0 || delivered == 0 || lost != 0 {
				t.Errorf("process %d ended with status %d, delivered %d, lost %d", i, status, delivered, lost)
			}
			total += delivered
		}
		if total != n {
			t.Errorf("the processes say they delivered %d, want %d", total, n)
		}
		if rows, different := r.Count("SELECT COUNT(*) FROM applied"), r.Count("SELECT COUNT(DISTINCT log_no) FROM applied"); rows != n || different != n {
			t.Errorf("%d applications of %d entries, want each of %d once", rows, different, n)
		}
		r.WantNoLog()
	})
}

func TestJobFinishesWhatAKilledOneClaimed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		patientTarget(r)
		n := max(logsFor(db)/5, sqliteLogs)
		r.Exec("CREATE TABLE item (id INT PRIMARY KEY, v INT NOT NULL)")
		// A process holds two claims at a time: there must be some for both again.
		file := r.JobFile(fmt.Sprintf(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: %d, leaseMillis: 2000`, min(20, n/20)))
		victim, survivor := rig.Start(t, "bed-job", "run", "-c", file), rig.Start(t, "bed-job", "run", "-c", file)
		victim.Until("bed-job is running")
		survivor.Until("bed-job is running")
		upsert := "INSERT INTO item VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
		if db.Driver == testdb.DriverMySQL {
			upsert = "INSERT INTO item VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)"
		}
		free := r.BlockTable("item")
		r.Abandon(n/2, upsert, int64(7))
		rig.Eventually(t, "both processes have claimed", func() bool { return owners(r) == 2 })
		free()
		// In the middle: some are delivered, and however fast that was, some are not.
		rig.Eventually(t, "some are delivered", func() bool { return r.Left() < n/2-n/20 })
		free = r.BlockTable("item")
		r.Abandon(n-n/2, strings.Replace(upsert, "(?,", fmt.Sprintf("(? + %d,", n/2), 1), int64(7))
		rig.Eventually(t, "both processes are at work again", func() bool { return owners(r) == 2 })
		victim.Kill()
		if r.Left() == 0 {
			t.Fatal("nothing was left in the middle")
		}
		free()
		rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
		if status := survivor.Terminate(); status != 0 {
			t.Errorf("the survivor ended with status %d", status)
		}
		if right := r.Count("SELECT COUNT(*) FROM item WHERE v = 7"); right != n {
			t.Errorf("%d of %d are applied", right, n)
		}
		r.WantNoLog()
	})
}

func TestTerminatedJobReturnsItsClaims(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		patientTarget(r)
		r.Exec("CREATE TABLE applied (log_no INT NOT NULL)")
		// The leases outlast the test: unreleased units stay.
		file := r.JobFile(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: 50, leaseMillis: 3600000`)
		ending, staying := rig.Start(t, "bed-job", "run", "-c", file), rig.Start(t, "bed-job", "run", "-c", file)
		ending.Until("bed-job is running")
		staying.Until("bed-job is running")
		n := logsFor(db)
		free := r.BlockTable("applied")
		r.Abandon(n, "INSERT INTO applied (log_no) VALUES (?)")
		rig.Eventually(t, "both processes have claimed", func() bool { return owners(r) == 2 })
		if err := ending.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ending.Until("ending: finishing what is in flight")
		free()
		if status := ending.Status(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		if done, lost := ending.Counted(); done >= 50 || lost != 0 {
			t.Errorf("it delivered %d and lost %d: want no more than was in flight of the 50 that it had claimed", done, lost)
		}
		rig.Eventually(t, "the log is empty", func() bool { return r.Left() == 0 })
		if status := staying.Terminate(); status != 0 {
			t.Errorf("the other one ended with status %d", status)
		}
		if rows, different := r.Count("SELECT COUNT(*) FROM applied"), r.Count("SELECT COUNT(DISTINCT log_no) FROM applied"); rows != n || different != n {
			t.Errorf("%d applications of %d entries, want each of %d once", rows, different, n)
		}
		r.WantNoLog()
	})
}

func TestJobKilledBeforeRemovalDeliversAgain(t *testing.T) {
	t.Parallel()
	rig.EachServer(t, func(t *testing.T, db testdb.DB) {
		r := rig.New(t, db)
		r.Account()
		p := testproxy.New(t, r.LogDB.Addr())
		const config = `cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, leaseMillis: 1000`
		r.Abandon(1, "INSERT INTO account VALUES (?, ?)", int64(7))
		reached, release := p.HoldRun("DELETE FROM transaction_log")
		victim := rig.Start(t, "bed-job", "run", "-c",
			rig.JobFile(t, r.LogDB.Via(p.Addr()), map[string]testdb.DB{rig.DataSourceOf(t, r.DB): r.DB}, config))
		rig.WaitFor(t, "the removal was held on its way", reached)
		victim.Kill()
		p.CutAll()
		release()
		r.WantBalances(7)
		r.WantOneLog()
		survivor := rig.Start(t, "bed-job", "run", "-c", r.JobFile(config))
		survivor.Until("delivered 1 (assumed 1)")
		if status := survivor.Terminate(); status != 0 {
			t.Errorf("the survivor ended with status %d", status)
		}
		r.WantBalances(7)
		r.WantNoLog()
	})
}
