package acceptance

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
	"github.com/bedsql/bed/txlog"
)

// writerTask is what the program "writer" is to do: one unit of writes
// through the wrapped driver.
type writerTask struct {
	Target, Log testdb.DB
	Lease       time.Duration
	// Statements are run in autocommit if it is one, else in a local transaction.
	Statements []string
	Guarantee  bedsql.Guarantee
	// Staged runs them in a staged soft transaction.
	Staged bool
}

// writerMain is the program "writer". It says "delivered" when its write has
// returned without error.
func writerMain() int {
	if err := write(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "delivered")
	return 0
}

func write(ctx context.Context, encoded string) error {
	var task writerTask
	if err := json.Unmarshal([]byte(encoded), &task); err != nil {
		return err
	}
	storage, err := txlog.Open(ctx, task.Log.Driver, task.Log.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	if err := register(task.Target.Driver)("bed", bedsql.Config{Storage: storage, Lease: task.Lease, Guarantee: task.Guarantee, Logger: quiet()}); err != nil {
		return err
	}
	pool, err := sql.Open("bed", task.Target.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	if task.Staged {
		return writeStaged(ctx, pool, task.Statements)
	}
	if len(task.Statements) == 1 {
		_, err := pool.ExecContext(ctx, task.Statements[0])
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, s := range task.Statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func writeStaged(ctx context.Context, pool *sql.DB, statements []string) error {
	ctx, soft, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := pool.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return soft.End(ctx)
}

// writerLease is how long a killed writer's log stays its own.
const writerLease = 3 * time.Second

// writer starts the program "writer" on the rig's target and a log.
func (r *rig) writer(log testdb.DB, statements ...string) *process {
	r.t.Helper()
	return r.runWriter(writerTask{Target: r.db, Log: log, Lease: writerLease, Statements: statements})
}

func (r *rig) runWriter(what writerTask) *process {
	r.t.Helper()
	task, err := json.Marshal(what)
	if err != nil {
		r.t.Fatal(err)
	}
	return start(r.t, "writer", string(task))
}

// deliverAfterTheLease runs the job until it has delivered the only unit of
// the log, and checks that it did not do so while the unit was its writer's.
func (r *rig) deliverAfterTheLease() asyncjob.Report {
	r.t.Helper()
	u := r.wantOneLog()
	if u.Parked || u.NotReplayable != "" || !u.InDoubt {
		r.t.Errorf("a writer that vanished left %+v, want a unit in doubt that may be run again", u)
	}
	job := r.job()
	var report asyncjob.Report
	eventually(r.t, "the job has the log of the killed writer", func() bool {
		var err error
		if report, err = job.RunOnce(context.Background()); err != nil {
			r.t.Fatal(err)
		}
		return report.Claimed > 0
	})
	if early := time.Until(u.NextTry); early > 0 {
		r.t.Errorf("the job took the log %v before its writer's lease ran out", early)
	}
	if report.Claimed != 1 || report.Delivered != 1 {
		r.t.Errorf("the job: %s, want the unit delivered", report)
	}
	return report
}

var killedWrites = map[string]struct {
	statements []string
	// last is what makes it take effect.
	last     string
	balances []int
}{
	"a write": {
		[]string{"INSERT INTO account VALUES (2, 7)"}, "INSERT INTO account", []int{1, 7},
	},
	"a local transaction": {
		[]string{"UPDATE account SET balance = 11 WHERE id = 1", "INSERT INTO account VALUES (2, 7)"}, "COMMIT", []int{11, 7},
	},
}

func TestJobFinishesWriterKilledBeforeItsWrite(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, arrives late: %v", name, late), func(t *testing.T) {
					t.Parallel()
					r, p := newRigBehindProxy(t, freshLike(t, db))
					r.account(1)
					reached, release := p.Hold(testproxy.Text(w.last))
					writer := r.writer(r.logDB, w.statements...)
					waitFor(t, "the write was held on its way", reached)
					writer.kill()
					r.wantBalances(1)
					if late {
						release()
						eventually(t, "the late message has been carried out", func() bool {
							return r.count("SELECT COUNT(*) FROM account") == 2
						})
					} else {
						p.CutAll()
						release()
					}
					if report := r.deliverAfterTheLease(); (report.Assumed == 1) != late {
						t.Errorf("the job: %s, with the write carried out before: %v", report, late)
					}
					r.wantBalances(w.balances...)
					r.wantNoLog()
				})
			}
		}
	})
	t.Run(testdb.DriverSQLite, func(t *testing.T) {
		t.Parallel()
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, writer, free := waitingOnSQLite(t, w.statements)
				writer.kill()
				free()
				r.wantBalances(1)
				r.deliverAfterTheLease()
				r.wantBalances(w.balances...)
				r.wantNoLog()
			})
		}
	})
}

// waitingOnSQLite starts a writer with its entries written and its COMMIT waiting for a reader,
// until free is called. With the WAL it would not wait.
func waitingOnSQLite(t *testing.T, statements []string) (r *rig, writer *process, free func()) {
	t.Helper()
	db := testdb.SQLite(t)
	db.DSN = "file:" + db.Name + "?_pragma=busy_timeout(60000)"
	r = newRig(t, db)
	r.account(1)
	free = r.readOn()
	writer = r.writer(r.logDB, statements...)
	eventually(t, "the write is logged", func() bool { return r.left() == len(statements) })
	return r, writer, free
}

// readOn keeps a read transaction open in SQLite's target until free is called.
func (r *rig) readOn() (free func()) {
	r.t.Helper()
	conn, err := r.bare.Conn(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	var n int
	_, err = conn.ExecContext(context.Background(), "BEGIN")
	if err == nil {
		err = conn.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM account").Scan(&n)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			r.t.Error(err)
		}
		_ = conn.Close()
	}
}

func TestJobRepeatsWriterKilledBeforeRemoval(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db))
				r.account(1)
				p := testproxy.New(t, r.logDB.Addr())
				reached, release := p.HoldRun("DELETE FROM transaction_log")
				writer := r.writer(r.logDB.Via(p.Addr()), w.statements...)
				waitFor(t, "the removal was held on its way", reached)
				writer.kill()
				r.wantBalances(w.balances...)
				p.CutAll()
				release()
				if report := r.deliverAfterTheLease(); report.Assumed != 1 {
					t.Errorf("the job: %s, want the duplicate key taken for what it is", report)
				}
				r.wantBalances(w.balances...)
				r.wantNoLog()
			})
		}
	})
}

func TestSQLiteWriterKilledBeforeRemoval(t *testing.T) {
	t.Parallel()
	for name, w := range killedWrites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, writer, free := waitingOnSQLite(t, w.statements)
			// Now the removal has to wait, and the write has not.
			log, err := r.logPool().Conn(context.Background())
			if err == nil {
				_, err = log.ExecContext(context.Background(), "BEGIN IMMEDIATE")
			}
			if err != nil {
				t.Fatal(err)
			}
			free()
			eventually(t, "the write is applied", func() bool {
				var n int
				err := r.bare.QueryRow("SELECT COUNT(*) FROM account").Scan(&n)
				return err == nil && n == 2
			})
			writer.kill()
			if _, err := log.ExecContext(context.Background(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			_ = log.Close()
			if report := r.deliverAfterTheLease(); report.Assumed != 1 {
				t.Errorf("the job: %s, want the duplicate key taken for what it is", report)
			}
			r.wantBalances(w.balances...)
			r.wantNoLog()
		})
	}
}

func TestSurvivingWriterLeavesNothingToTheJob(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db testdb.DB) {
		for name, w := range killedWrites {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, freshLike(t, db))
				r.account(1)
				writer := r.writer(r.logDB, w.statements...)
				if status := writer.status(); status != 0 {
					lines, _ := writer.said()
					t.Fatalf("the writer ended with status %d: %v", status, lines)
				}
				r.wantBalances(w.balances...)
				r.wantNoLog()
			})
		}
	})
}
