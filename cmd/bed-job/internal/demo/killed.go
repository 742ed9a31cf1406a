package demo

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/txlog"
)

// patience bounds what the application is waited for.
const patience = 30 * time.Second

// killedHalfWay is the third way once more: the application is killed when one
// of two banks has its half.
func (w *world) killedHalfWay(ctx context.Context, o Options) (err error) {
	n := w.narrator
	n.title("3  delivered by the job", "the program is killed in the middle of a staged transfer")
	n.say("    Another program moves %d from Alice's savings to Bob's, exactly once and staged: Exec only", moved)
	n.say("    records. Its statement is one that must not be run twice:")
	n.say("        %s", moveSavings)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	app, err := w.startApplication(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.kill()) }()
	if err := app.until(ctx, saysStaged); err != nil {
		return err
	}
	if err := w.savingsAre(ctx, savings, savings, 0); err != nil {
		return fmt.Errorf("before End: %w", err)
	}
	n.say("    Both Execs have returned. The log is empty and both balances are as they were: were it")
	n.say("    killed now, before End's write to the log, nothing would have happened anywhere.")

	unlock := map[string]func() error{}
	free := func(name string) error {
		f := unlock[name]
		if f == nil {
			return nil
		}
		delete(unlock, name)
		return f()
	}
	defer func() {
		for name := range unlock {
			err = errors.Join(err, free(name))
		}
	}()
	for _, b := range w.banks() {
		if unlock[b.name], err = b.lock(ctx); err != nil {
			return err
		}
	}
	n.say("    (other connections hold both banks: BEGIN IMMEDIATE) It calls End:")
	if err := app.tell(toldEnd); err != nil {
		return err
	}
	for range w.banks() {
		name, err := app.next(ctx, saysLogged)
		if err != nil {
			return err
		}
		n.say("      %-10s  its entry is durable, in one step with the other's; the write is sent", name)
	}
	// The log is locked too, so that the application cannot remove what it has
	// delivered before it is killed.
	if unlock["the log"], err = w.lockLog(ctx); err != nil {
		return err
	}
	if err := free(aliceBank); err != nil {
		return err
	}
	n.say("    (Alice's bank is let go, Bob's is not)")
	if err := app.until(ctx, saysDelivered+aliceBank); err != nil {
		return err
	}
	n.say("      %-10s  %s by the call itself", aliceBank, n.green("delivered"))
	if err := app.kill(); err != nil {
		return err
	}
	n.say("    %s Alice's half is done, Bob's is not, and nobody could say so to the log.", n.red("kill -9."))
	if err := errors.Join(free("the log"), free(bobBank)); err != nil {
		return err
	}
	if err := w.savingsAre(ctx, savings-moved, savings, 2); err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	n.say("    The receipts in the banks tell what was done:")
	if err := w.command(ctx, o, "list", "--verify"); err != nil {
		return err
	}
	if err := w.untilDue(ctx); err != nil {
		return err
	}
	n.say("\n    (the dead program's lease of %v is over) The job makes a round:", applicationLease)
	if err := w.round(ctx, asyncjob.Counts{Claimed: 2, Delivered: 2}, false); err != nil {
		return err
	}
	return w.savingsAre(ctx, savings-moved, savings+moved, 0)
}

// untilDue waits until the leases of all that is in the log are over.
func (w *world) untilDue(ctx context.Context) error {
	units, err := w.log.List(ctx, txlog.Filter{})
	for _, u := range units {
		if !jitter.Sleep(ctx, time.Until(u.NextTry)+time.Millisecond) {
			return ctx.Err()
		}
	}
	return err
}

// savingsAre compares the savings, and how many entries there are.
func (w *world) savingsAre(ctx context.Context, alice, bob int64, logs int) error {
	units, err := w.log.List(ctx, txlog.Filter{})
	if err != nil {
		return err
	}
	if len(units) != logs {
		return fmt.Errorf("the log holds %d units, it must hold %d", len(units), logs)
	}
	for b, want := range map[*bank]int64{w.alice: alice, w.bob: bob} {
		got, err := b.savings(ctx)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%w: the savings in %s are %d, they must be %d", ErrBooks, b.name, got, want)
		}
	}
	return nil
}

// lockLog holds the write lock of the transaction log until unlock.
func (w *world) lockLog(ctx context.Context) (unlock func() error, err error) {
	log, err := sql.Open("sqlite", w.logDSN+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	release, err := (&bank{bare: log}).lock(ctx)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return func() error { return errors.Join(release(), log.Close()) }, nil
}

// An application is the program that is killed.
type application struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
	killed bool
}

// startApplication runs this program again, as the application.
func (w *world) startApplication(ctx context.Context) (*application, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("the demo cannot run itself again: %w", err)
	}
	app := &application{cmd: exec.CommandContext(ctx, program, "demo")}
	app.cmd.Env = append(os.Environ(), ApplicationVariable+"="+w.dir)
	app.cmd.Stderr = &app.stderr
	out, err := app.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if app.in, err = app.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	app.lines = bufio.NewScanner(out)
	if err := app.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the demo cannot run itself again: %w", err)
	}
	return app, nil
}

// next waits for a line that begins with what, and gives its rest.
func (a *application) next(ctx context.Context, what string) (rest string, err error) {
	for a.lines.Scan() {
		if rest, ok := strings.CutPrefix(a.lines.Text(), what); ok {
			return rest, nil
		}
	}
	err = errors.Join(ctx.Err(), a.kill())
	return "", errors.Join(fmt.Errorf("the program that was to be killed ended before it said %q: %v %s", what, a.cmd.ProcessState, a.stderr.String()), err)
}

func (a *application) until(ctx context.Context, line string) error {
	rest, err := a.next(ctx, line)
	if err == nil && rest != "" {
		err = fmt.Errorf("the program said %q instead of %q", line+rest, line)
	}
	return err
}

func (a *application) tell(line string) error {
	_, err := io.WriteString(a.in, line+"\n")
	return err
}

// kill ends the program as a crash would, and waits until it is gone.
func (a *application) kill() error {
	if a.killed {
		return nil
	}
	a.killed = true
	err := a.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = a.cmd.Wait() // that it was killed is no news
	return err
}
