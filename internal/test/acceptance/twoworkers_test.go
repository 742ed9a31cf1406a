package acceptance

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
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

// abandon writes n entries of vanished writers, each with one statement. Its parameters are the
// number of the log, from 1, and then args. All leases end at once, so that no job finds only a
// part.
func (r *rig) abandon(n int, query string, args ...any) {
	r.t.Helper()
	tgt := targetOf(r.t, r.db)
	units := make([]*txlog.Unit, n)
	for i := range units {
		values := []driver.NamedValue{{Ordinal: 1, Value: int64(i + 1)}}
		for j, a := range args {
			values = append(values, driver.NamedValue{Ordinal: j + 2, Value: a})
		}
		params, err := txlog.EncodeParams(values)
		if err != nil {
			r.t.Fatal(err)
		}
		units[i] = &txlog.Unit{
			ID: txlog.NewID(), DataSource: tgt.DataSource, Settings: tgt.Settings,
			Statements: []txlog.Statement{{SQL: r.q(query), Params: params}},
		}
	}
	if err := r.storage.Add(context.Background(), time.Minute, units...); err != nil {
		r.t.Fatal(err)
	}
	ids := make([]string, n) // not the entries whose removal is still under way
	for i, u := range units {
		ids[i] = u.ID
	}
	r.execLog("UPDATE transaction_log SET lease_until = 1, next_try_time = 1 WHERE id IN ('" + strings.Join(ids, "', '") + "')")
}

// jobFile is a configuration of bed-job for the rig.
func (r *rig) jobFile(jobConfig string) string {
	r.t.Helper()
	return jobFile(r.t, r.logDB, map[string]testdb.DB{dataSourceOf(r.t, r.db): r.db}, jobConfig)
}

// blockTable keeps everybody from writing into a table of the target (on
// SQLite: into any) until free is called.
func (r *rig) blockTable(name string) (free func()) {
	r.t.Helper()
	conn, err := r.bare.Conn(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	lock, unlock := []string{"BEGIN IMMEDIATE"}, "ROLLBACK"
	switch r.db.Driver {
	case testdb.DriverMySQL:
		lock, unlock = []string{"LOCK TABLES " + name + " WRITE"}, "UNLOCK TABLES"
	case testdb.DriverPostgres:
		lock = []string{"BEGIN", "LOCK TABLE " + name + " IN EXCLUSIVE MODE"}
	}
	for _, s := range lock {
		if _, err := conn.ExecContext(context.Background(), s); err != nil {
			r.t.Fatalf("%s: %v", s, err)
		}
	}
	free = sync.OnceFunc(func() {
		if _, err := conn.ExecContext(context.Background(), unlock); err != nil {
			r.t.Errorf("%s: %v", unlock, err)
		}
		_ = conn.Close()
	})
	r.t.Cleanup(free)
	return free
}

// left is how many rows the log has.
func (r *rig) left() int { return r.countLog("SELECT COUNT(*) FROM transaction_log") }

// owners is how many jobs and writers own entries at this moment. The tokens of a
// process's claims have all but their last three digits in common.
func (r *rig) owners() int {
	return r.countLog(fmt.Sprintf("SELECT COUNT(DISTINCT SUBSTR(lease_token, 1, 33)) FROM transaction_log WHERE lease_token IS NOT NULL AND lease_until > %d",
		time.Now().UnixMilli()))
}

func (r *rig) countLog(query string) (n int) {
	r.t.Helper()
	if err := r.logPool().QueryRow(query).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) execLog(query string) {
	r.t.Helper()
	if _, err := r.logPool().Exec(query); err != nil {
		r.t.Fatal(err)
	}
}

// logPool is a pool of the bare driver on the log's database.
func (r *rig) logPool() *sql.DB {
	if r.bareLog == nil {
		r.bareLog = r.logDB.Open(r.t)
	}
	return r.bareLog
}

// patientTarget makes deliveries wait for a lock as long as a test holds it:
// only SQLite would give up before.
func (r *rig) patientTarget() {
	if r.db.Driver == testdb.DriverSQLite {
		r.db.DSN = "file:" + r.db.Name + "?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)"
	}
}

func TestTwoJobProcessesDeliverEachLogOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.patientTarget()
		// This table does not prevent a second application: it would be a second row.
		r.exec("CREATE TABLE applied (log_no INT NOT NULL)")
		file := r.jobFile(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: 50`)
		workers := []*process{start(t, "bed-job", "run", "-c", file), start(t, "bed-job", "run", "-c", file)}
		for _, w := range workers {
			w.until("bed-job is running")
		}
		n := logsFor(db)
		// Held up until both have claimed, so that both have a share.
		free := r.blockTable("applied")
		r.abandon(n, "INSERT INTO applied (log_no) VALUES (?)")
		eventually(t, "both processes have claimed", func() bool { return r.owners() == len(workers) })
		free()
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
		total := 0
		for i, w := range workers {
			status := w.terminate()
			delivered, lost := w.counted()
			if status != 0 || delivered == 0 || lost != 0 {
				t.Errorf("process %d ended with status %d, delivered %d, lost %d", i, status, delivered, lost)
			}
			total += delivered
		}
		if total != n {
			t.Errorf("the processes say they delivered %d, want %d", total, n)
		}
		if rows, different := r.count("SELECT COUNT(*) FROM applied"), r.count("SELECT COUNT(DISTINCT log_no) FROM applied"); rows != n || different != n {
			t.Errorf("%d applications of %d entries, want each of %d once", rows, different, n)
		}
		r.wantNoLog()
	})
}

func TestJobFinishesWhatAKilledOneClaimed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.patientTarget()
		n := max(logsFor(db)/5, sqliteLogs)
		r.exec("CREATE TABLE item (id INT PRIMARY KEY, v INT NOT NULL)")
		// A process holds two claims at a time: there must be some for both again.
		file := r.jobFile(fmt.Sprintf(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: %d, leaseMillis: 2000`, min(20, n/20)))
		victim, survivor := start(t, "bed-job", "run", "-c", file), start(t, "bed-job", "run", "-c", file)
		victim.until("bed-job is running")
		survivor.until("bed-job is running")
		upsert := "INSERT INTO item VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
		if db.Driver == testdb.DriverMySQL {
			upsert = "INSERT INTO item VALUES (?, ?) ON DUPLICATE KEY UPDATE v = VALUES(v)"
		}
		free := r.blockTable("item")
		r.abandon(n, upsert, int64(7))
		eventually(t, "both processes have claimed", func() bool { return r.owners() == 2 })
		free()
		// In the middle: some are delivered, some are not.
		eventually(t, "some are delivered", func() bool { return r.left() < n-n/10 })
		free = r.blockTable("item")
		eventually(t, "both processes are at work again", func() bool { return r.owners() == 2 })
		victim.kill()
		if r.left() == 0 {
			t.Fatal("nothing was left in the middle")
		}
		free()
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
		if status := survivor.terminate(); status != 0 {
			t.Errorf("the survivor ended with status %d", status)
		}
		if right := r.count("SELECT COUNT(*) FROM item WHERE v = 7"); right != n {
			t.Errorf("%d of %d are applied", right, n)
		}
		r.wantNoLog()
	})
}

func TestTerminatedJobReturnsItsClaims(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.patientTarget()
		r.exec("CREATE TABLE applied (log_no INT NOT NULL)")
		// The leases outlast the test: unreleased units stay.
		file := r.jobFile(`cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, transactionLogFetchDataCount: 50, leaseMillis: 3600000`)
		ending, staying := start(t, "bed-job", "run", "-c", file), start(t, "bed-job", "run", "-c", file)
		ending.until("bed-job is running")
		staying.until("bed-job is running")
		n := logsFor(db)
		free := r.blockTable("applied")
		r.abandon(n, "INSERT INTO applied (log_no) VALUES (?)")
		eventually(t, "both processes have claimed", func() bool { return r.owners() == 2 })
		if err := ending.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ending.until("ending: finishing what is in flight")
		free()
		if status := ending.status(); status != 0 {
			t.Errorf("it ended with status %d", status)
		}
		if done, lost := ending.counted(); done >= 50 || lost != 0 {
			t.Errorf("it delivered %d and lost %d: want no more than was in flight of the 50 that it had claimed", done, lost)
		}
		eventually(t, "the log is empty", func() bool { return r.left() == 0 })
		if status := staying.terminate(); status != 0 {
			t.Errorf("the other one ended with status %d", status)
		}
		if rows, different := r.count("SELECT COUNT(*) FROM applied"), r.count("SELECT COUNT(DISTINCT log_no) FROM applied"); rows != n || different != n {
			t.Errorf("%d applications of %d entries, want each of %d once", rows, different, n)
		}
		r.wantNoLog()
	})
}

func TestJobKilledBeforeRemovalDeliversAgain(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		r := newRig(t, db)
		r.account()
		p := testproxy.New(t, r.logDB.Addr())
		const config = `cron: "* * * * * ?", maxDeliveryTryDelayMillis: 0, retryDelayMillis: 0, leaseMillis: 1000`
		r.abandon(1, "INSERT INTO account VALUES (?, ?)", int64(7))
		reached, release := p.HoldRun("DELETE FROM transaction_log")
		victim := start(t, "bed-job", "run", "-c",
			jobFile(t, r.logDB.Via(p.Addr()), map[string]testdb.DB{dataSourceOf(t, r.db): r.db}, config))
		waitFor(t, "the removal was held on its way", reached)
		victim.kill()
		p.CutAll()
		release()
		r.wantBalances(7)
		r.wantOneLog()
		survivor := start(t, "bed-job", "run", "-c", r.jobFile(config))
		survivor.until("delivered 1 (assumed 1)")
		if status := survivor.terminate(); status != 0 {
			t.Errorf("the survivor ended with status %d", status)
		}
		r.wantBalances(7)
		r.wantNoLog()
	})
}
