package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/txlog"
)

// ApplicationVariable in the environment makes "bed-job demo" the application
// that is killed: it holds the demo's directory.
const ApplicationVariable = "BED_JOB_DEMO_APPLICATION"

const (
	// moveSavings must not be run twice.
	moveSavings = `UPDATE savings SET balance = balance + ? WHERE owner = ?`
	moved       = 75

	// applicationLease is how long the job has to wait for the dead.
	applicationLease = time.Second
)

// mortal is a log whose process is killed when it is to remove an entry: that of the first
// write that is delivered.
type mortal struct{ txlog.Storage }

func (mortal) Remove(ctx context.Context, _ ...*txlog.Unit) error {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err == nil {
		<-ctx.Done() // it takes a moment
	}
	return err
}

// Application moves savings from alice to bob in a staged soft transaction, and is killed in
// its End.
func Application(ctx context.Context, dir string) (err error) {
	log, err := txlog.Open(ctx, "sqlite", logDSN(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err := sqlite.Register("bed-sqlite-application", bedsql.Config{
		Storage: mortal{log}, Logger: quiet(), Guarantee: bedsql.ExactlyOnce, Lease: applicationLease,
	}); err != nil {
		return err
	}
	soft, tx, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	for _, half := range []struct {
		bank, owner string
		amount      int
	}{{aliceBank, "alice", -moved}, {bobBank, "bob", moved}} {
		// It waits for locks for as long as the demo holds them.
		bank, err := sql.Open("bed-sqlite-application", bankDSN(dir, half.bank, time.Minute))
		if err != nil {
			return err
		}
		defer func() { _ = bank.Close() }()
		if _, err := bank.ExecContext(soft, moveSavings, half.amount, half.owner); err != nil {
			return err
		}
	}
	return errors.Join(errors.New("the program was to be killed"), tx.End(ctx))
}

func logDSN(dir string) string { return fileDSN(filepath.Join(dir, "transaction_log.db")) }

func bankFile(dir, name string) string { return filepath.Join(dir, name+".db") }

// bankDSN is the DSN for the wrapped driver. With mode=rw a missing file is an
// outage, not a new empty bank.
func bankDSN(dir, name string, waitForLocks time.Duration) string {
	return fmt.Sprintf("%s?mode=rw&_pragma=busy_timeout(%d)&bedDataSource=%s", fileDSN(bankFile(dir, name)), waitForLocks.Milliseconds(), name)
}
