package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/txlog"
)

// patience bounds what the application is waited for.
const patience = 30 * time.Second

// killedHalfWay is the third way once more: the application is killed when one
// of two banks has its half.
func (w *world) killedHalfWay(ctx context.Context, o Options) error {
	n := w.narrator
	n.title("3  pending", "the program is killed in the middle of a staged transfer")
	n.say("    Another program moves %d from Alice's savings to Bob's, exactly once and", moved)
	n.say("    staged: Exec only records. Its statement must not be run twice:")
	n.say("        %s", moveSavings)
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	n.say("    (another connection locks Bob's bank) It calls End, which first writes both")
	n.say("    entries at once. When Alice's half is delivered, before its entry is removed:")
	if err := errors.Join(w.runApplication(ctx), unlock()); err != nil {
		return err
	}
	n.say("    %s Alice's half is done, Bob's is not. The receipts in the banks tell:", n.red("kill -9."))
	if err := w.savingsAre(ctx, savings-moved, savings, 2); err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	if err := w.command(ctx, o, "list", "--verify"); err != nil {
		return err
	}
	if err := w.untilDue(ctx); err != nil {
		return err
	}
	n.say("    (the dead program's lease of %v is over) The job makes a round:", applicationLease)
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

// runApplication runs this program again, as the application, until it is killed. It says
// something only if it is not.
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
