package rig

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/txlog"
)

// Pause stops the process at once, like a suspended machine.
func (p *Process) Pause() {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
}

// Proceed lets a paused process go on.
func (p *Process) Proceed() {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
		p.t.Fatal(err)
	}
}

// Waiting counts the target's sessions waiting for a lock. MariaDB and MySQL report no such waits as
// they happen, but a statement on a row or two takes that long only in a lock wait.
func (r *Rig) Waiting() int {
	r.T.Helper()
	if r.DB.Driver == testdb.DriverPostgres {
		return r.Count("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	}
	long := "time_ms > 300"
	if r.Count("SELECT COUNT(*) FROM information_schema.columns WHERE table_name = 'PROCESSLIST' AND column_name = 'TIME_MS'") == 0 { // MySQL
		long = "time > 0"
	}
	return r.Count("SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info IS NOT NULL AND " + long)
}

// WriterTask is what the program "writer" is to do: one unit of writes
// through the wrapped driver.
type WriterTask struct {
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
	var task WriterTask
	if err := json.Unmarshal([]byte(encoded), &task); err != nil {
		return err
	}
	storage, err := txlog.Open(ctx, task.Log.Driver, task.Log.DSN)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	if err := Register(task.Target.Driver)("bed", bedsql.Config{Storage: storage, Lease: task.Lease, Guarantee: task.Guarantee, Logger: Quiet()}); err != nil {
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

// WriterLease is how long a killed writer's log stays its own.
const WriterLease = 5 * time.Second

// Writer starts the program "writer" on the rig's target and a log.
func (r *Rig) Writer(log testdb.DB, statements ...string) *Process {
	r.T.Helper()
	return r.RunWriter(WriterTask{Target: r.DB, Log: log, Lease: WriterLease, Statements: statements})
}

func (r *Rig) RunWriter(what WriterTask) *Process {
	r.T.Helper()
	task, err := json.Marshal(what)
	if err != nil {
		r.T.Fatal(err)
	}
	return Start(r.T, "writer", string(task))
}

// DeliverAfterTheLease runs the job until it has delivered the only unit of
// the log, and checks that it did not do so while the unit was its writer's.
func (r *Rig) DeliverAfterTheLease() asyncjob.Report {
	r.T.Helper()
	u := r.WantOneLog()
	if u.Parked || u.NotReplayable != "" || !u.InDoubt {
		r.T.Errorf("a writer that vanished left %+v, want a unit in doubt that may be run again", u)
	}
	job := r.Job()
	var report asyncjob.Report
	Eventually(r.T, "the job has the log of the killed writer", func() bool {
		var err error
		if report, err = job.RunOnce(context.Background()); err != nil {
			r.T.Fatal(err)
		}
		return report.Claimed > 0
	})
	if early := time.Until(u.NextTry); early > 0 {
		r.T.Errorf("the job took the log %v before its writer's lease ran out", early)
	}
	if report.Claimed != 1 || report.Delivered != 1 {
		r.T.Errorf("the job: %s, want the unit delivered", report)
	}
	return report
}
