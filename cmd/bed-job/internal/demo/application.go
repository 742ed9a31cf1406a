package demo

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// ApplicationVariable in the environment makes "bed-job demo" the application
// that the demo kills: it holds the demo's directory.
const ApplicationVariable = "BED_JOB_DEMO_APPLICATION"

// What the application and the demo say to each other, one line at a time. All
// but the first two are followed by the name of a bank.
const (
	saysStaged    = "staged"
	toldEnd       = "end"
	saysLogged    = "logged "
	saysDelivered = "delivered "
)

const (
	// moveSavings must not be run twice.
	moveSavings = `UPDATE savings SET balance = balance + ? WHERE owner = ?`
	moved       = 75

	// applicationLease is how long the job has to wait for the dead.
	applicationLease = time.Second
)

// Application moves savings from alice to bob in a staged soft transaction. It
// waits to be told before End, and expects to be killed in it.
func Application(ctx context.Context, dir string, in io.Reader, out io.Writer) (err error) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log, err := txlog.Open(ctx, "sqlite", logDSN(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	bus := listener.NewBus(quiet)
	events := bus.Subscribe(func(ev listener.Event) {
		switch ev.Type {
		case listener.BeforeExecute:
			fmt.Fprintln(out, saysLogged+ev.DataSource)
		case listener.ExecuteSuccess:
			fmt.Fprintln(out, saysDelivered+ev.DataSource)
		}
	})
	defer events.Close()
	if err := sqlite.Register("bed-sqlite-application", bedsql.Config{
		Storage: log, Bus: bus, Logger: quiet, Guarantee: bedsql.ExactlyOnce, Lease: applicationLease,
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
	fmt.Fprintln(out, saysStaged)
	if line, err := bufio.NewReader(in).ReadString('\n'); err != nil || line != toldEnd+"\n" {
		tx.Discard()
		return errors.Join(errors.New("nobody says when to end"), err)
	}
	return tx.End(ctx)
}

func logDSN(dir string) string { return fileDSN(filepath.Join(dir, "transaction_log.db")) }

func bankFile(dir, name string) string { return filepath.Join(dir, name+".db") }

// bankDSN is the DSN for the wrapped driver. With mode=rw a missing file is an
// outage, not a new empty bank.
func bankDSN(dir, name string, waitForLocks time.Duration) string {
	return fmt.Sprintf("%s?mode=rw&_pragma=busy_timeout(%d)&bedDataSource=%s", fileDSN(bankFile(dir, name)), waitForLocks.Milliseconds(), name)
}
