package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/txlog"
)

// ApplicationVariable holds the demo's directory. In the environment, it turns "bed-job demo" into
// the application to kill.
const ApplicationVariable = "BED_JOB_DEMO_APPLICATION"

const (
	// moveSavings must not be run twice.
	moveSavings = `UPDATE savings SET balance = balance + ? WHERE owner = ?`
	moved       = 75

	// applicationLease is how long the job has to wait for the dead.
	applicationLease = 3 * time.Second

	// patience bounds the wait for the application.
	patience = 30 * time.Second
)

// runApplication runs this program again, as the application, until it is killed. The application
// prints only if it is not killed.
func (w *world) runApplication(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the demo cannot run itself again: %w", err)
	}
	app := exec.CommandContext(ctx, program, "demo")
	app.Env = append(os.Environ(), ApplicationVariable+"="+w.dir)
	said, err := app.CombinedOutput()
	if ctx.Err() != nil || len(said) > 0 || !errors.As(err, new(*exec.ExitError)) {
		return errors.Join(ctx.Err(), fmt.Errorf("the program that was to be killed ended otherwise: %v %s", err, said))
	}
	return nil
}

// mortal is a log that kills the process on the first removal, after the first delivered write.
type mortal struct{ txlog.Storage }

func (mortal) Remove(ctx context.Context, _ ...*entry.Unit) error {
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
	soft, tx, err := bedsql.Begin(ctx, bedsql.Staged())
	if err != nil {
		return err
	}
	for _, half := range []struct {
		bank, owner string
		amount      int
	}{{aliceBank, "alice", -moved}, {bobBank, "bob", moved}} {
		// It waits for locks for as long as the demo holds them.
		bank, err := openWrapped(bankDSN(dir, half.bank, time.Minute), bedsql.Config{
			Storage: mortal{log}, Logger: quiet(), Guarantee: bedsql.ExactlyOnce, Lease: applicationLease,
		})
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
