package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/bedsql"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/txlog"
)

// Options are the demo's settings.
type Options struct {
	// Out takes the narration.
	Out io.Writer
	// Width is how many columns a line has at most.
	Width int
	// Keep leaves the databases behind.
	Keep bool
	// Console leaves a job with its console running at the end, until the context is
	// done.
	Console bool
	// BedJob runs a command line of bed-job and returns its exit status.
	BedJob func(ctx context.Context, out io.Writer, args ...string) int
}

// ErrBooks is returned for wrong balances.
var ErrBooks = errors.New("the books do not balance")

// Run runs the demo in a temporary directory. It returns nil when each write
// took the way it should and the balances are right.
func Run(ctx context.Context, o Options) error { return run(ctx, o, steps) }

var steps = []func(*world, context.Context) error{
	(*world).introduce, (*world).delivered, (*world).refused, (*world).pending, (*world).killedHalfWay,
	(*world).notAccepted, (*world).parked, (*world).reconcile, (*world).serve,
}

func run(ctx context.Context, o Options, steps []func(*world, context.Context) error) (err error) {
	defer func() {
		// An interrupted step fails first with a secondary error, such as a pipe closed by ctx. The
		// reason is ctx.
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = errors.Join(ctx.Err(), err)
		}
	}()
	dir, err := os.MkdirTemp("", "bed-demo-")
	if err != nil {
		return fmt.Errorf("the demo needs a temporary directory: %w", err)
	}
	if !o.Keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	w, err := newWorld(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, step := range steps {
		if err := step(w, ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) introduce(context.Context) error {
	w.say("Two banks and a transaction log, each a SQLite database, in")
	w.say("%s\n", w.dir)
	w.say("Money goes from Alice's bank to Bob's through database/sql with SQLite's driver")
	w.say("wrapped by bed: an entry in each bank by")
	w.say("    %s", insertEntry)
	w.say("A write whose answer was lost is sent again: this one does no harm twice.")
	return nil
}

// delivered is the first way: at once, or by a retry during the call, while another
// connection holds bob's bank locked until the first attempt has failed.
func (w *world) delivered(ctx context.Context) error {
	w.say("\n1  delivered: at once, or by a retry during the call")
	if err := w.transferDelivered(ctx, "rent", rent); err != nil {
		return err
	}
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	w.say("    (another connection locks Bob's bank: BEGIN IMMEDIATE)")
	var unlocked error
	w.afterFailure = func() {
		unlocked = unlock()
		w.say("    (it lets go: ROLLBACK)")
	}
	err = w.transferDelivered(ctx, "groceries", groceries)
	if w.afterFailure != nil {
		unlocked = unlock()
	}
	return errors.Join(err, unlocked)
}

// refused is the second way: bob's bank refuses, and no retry can help.
func (w *world) refused(ctx context.Context) error {
	w.say("\n2  refused: Bob's bank takes no transfer above %d, by a constraint", maxEntry)
	w.say("    Bob is sent 700 by one call of Exec:")
	err := w.told(func() error { return w.bob.enter(ctx, "boat", 700) })
	if err := check("boat", err, bedsql.OutcomeRefused); err != nil {
		return err
	}
	w.say("    Exec returns the database's own error; nothing is left in the log.")
	return w.logIsEmpty(ctx)
}

// pending is the third way: the database is not there. The caller uses no soft
// transaction but a plain Exec.
func (w *world) pending(ctx context.Context) error {
	w.say("\n3  pending: Bob's bank is down: its file is moved away")
	away := w.bob.file + ".away"
	if err := os.Rename(w.bob.file, away); err != nil {
		return err
	}
	w.say("    Alice sends Bob %d for \"tickets\", with two plain calls of Exec:", tickets)
	err := w.told(func() error {
		if err := w.alice.enter(ctx, "tickets", -tickets); err != nil {
			return err
		}
		return check("tickets", w.bob.enter(ctx, "tickets", tickets), bedsql.OutcomeAccepted)
	})
	if err == nil {
		w.say("    The second Exec returns bedsql.ErrPending: accepted, not failed.")
		w.say("    The job makes a round. An outage is not a failed try:")
		err = w.round(ctx, asyncjob.Counts{}, true)
	}
	if err = errors.Join(err, os.Rename(away, w.bob.file)); err != nil {
		return err
	}
	w.say("    (the file is back) The job's next round:")
	return w.round(ctx, asyncjob.Counts{Claimed: 1, Delivered: 1}, false)
}

// killedHalfWay is the third way once more: the application is killed when one
// of two banks has its half.
func (w *world) killedHalfWay(ctx context.Context) error {
	w.say("\n3  pending: the program is killed in the middle of a staged transfer")
	w.say("    Another program moves %d from Alice's savings to Bob's, exactly once and", moved)
	w.say("    staged: Exec only records. Its statement must not be run twice:")
	w.say("        %s", moveSavings)
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	w.say("    (another connection locks Bob's bank) It calls End, which first writes both")
	w.say("    entries at once. When Alice's half is delivered, before its entry is removed:")
	if err := errors.Join(w.runApplication(ctx), unlock()); err != nil {
		return err
	}
	w.say("    kill -9. Alice's half is done, Bob's is not. The receipts in the banks tell:")
	if err := w.command(ctx, "list", "--verify"); err != nil {
		return err
	}
	if !jitter.Sleep(ctx, applicationLease) {
		return ctx.Err()
	}
	w.say("    (the dead program's lease of %v is over) The job makes a round:", applicationLease)
	return w.round(ctx, asyncjob.Counts{Claimed: 2, Delivered: 2}, false)
}

// notAccepted is the fourth way: the log cannot be written.
func (w *world) notAccepted(ctx context.Context) error {
	w.say("\n4  not accepted: the log is out of order: somebody renamed its table")
	log := logdb.Journal(w.log).DB()
	if _, err := log.ExecContext(ctx, `ALTER TABLE transaction_log RENAME TO away`); err != nil {
		return err
	}
	w.say("    Alice sends 30 for \"lunch\":")
	err := w.told(func() error { return w.alice.enter(ctx, "lunch", -30) })
	if _, rerr := log.ExecContext(context.WithoutCancel(ctx), `ALTER TABLE away RENAME TO transaction_log`); rerr != nil {
		return errors.Join(err, rerr)
	}
	if err := check("lunch", err, bedsql.OutcomeNotAccepted); err != nil {
		return err
	}
	w.say("      the log     failed: %v", root(err))
	w.say("    Exec returns bedsql.ErrNotLogged: nothing was sent and nothing will be.")
	w.say("    The caller may try again later.")
	return w.logIsEmpty(ctx)
}

// root is the database's own error.
func root(err error) error {
	var not *bedsql.NotLoggedError
	if errors.As(err, &not) {
		err = not.Cause
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

// parked leaves a transfer to an operator and lets bed-job look at the log.
func (w *world) parked(ctx context.Context) error {
	w.say("\nFor the operator: a part of a soft transaction that is refused is parked")
	end, err := w.transfer(ctx, "car", car)
	if err != nil {
		return err
	}
	var refused *bedsql.RefusedError
	if !errors.As(end, &refused) {
		return errors.Join(errors.New(`the transfer "car" was not refused`), end)
	}
	w.parkedID = refused.EntryID
	w.say("    End reports the refusal. Alice's half is done, Bob's waits for an operator.")
	if err := w.command(ctx, "list", "--parked"); err != nil {
		return err
	}
	w.say("\nWhen the bank's limit is raised, \"bed-job retry\" delivers it; \"bed-job discard\"")
	w.say("gives it up, and somebody pays Alice back.")
	if !w.Keep {
		w.say("(With --keep the databases and this configuration stay.)")
		return nil
	}
	w.say("\nEverything is kept in %s:", w.dir)
	for _, args := range []string{"stats", "list --parked", "show --show-parameters " + w.parkedID, "retry " + w.parkedID, "run --once"} {
		w.say("    bed-job %s -c %s", args, w.configFile())
	}
	return nil
}

// reconcile compares the balances with the expected ones. The parked transfer does not count.
func (w *world) reconcile(ctx context.Context) error {
	w.say("\nThe books: %d in each bank at the beginning, and savings of %d", opening, savings)
	units, err := w.log.List(ctx, txlog.Filter{})
	if err != nil {
		return err
	}
	var wrong []string
	sum := car
	if len(units) != 1 || units[0].ID != w.parkedID || !units[0].Parked || units[0].DataSource != w.bob.name {
		sum = 0
		wrong = append(wrong, "the log does not hold the parked entry alone")
	}
	parked := sum
	for _, c := range []struct {
		bank       *bank
		name, what string
		want       int
	}{
		{w.alice, aliceBank, "SUM(amount) FROM entries", opening - rent - groceries - tickets - car},
		{w.bob, bobBank, "SUM(amount) FROM entries", opening + rent + groceries + tickets},
		{w.alice, aliceBank + " savings", "SUM(balance) FROM savings", savings - moved},
		{w.bob, bobBank + " savings", "SUM(balance) FROM savings", savings + moved},
	} {
		var got int
		if err := c.bank.bare.QueryRowContext(ctx, "SELECT "+c.what).Scan(&got); err != nil {
			return fmt.Errorf("the balance of %s: %w", c.name, err)
		}
		sum += got
		verdict := "correct"
		if got != c.want {
			verdict = fmt.Sprintf("it must be %d", c.want)
			wrong = append(wrong, fmt.Sprintf("%s has %d, %s", c.name, got, verdict))
		}
		w.say("    %-20s %6d  %s", c.name, got, verdict)
	}
	w.say("    %-20s %6d  taken from Alice, not yet with Bob", "parked in the log", parked)
	w.say("    %-20s %6d  of %d", "together", sum, 2*(opening+savings))
	if wrong != nil {
		return fmt.Errorf("%w: %s", ErrBooks, strings.Join(wrong, "; "))
	}
	w.say("Nothing is lost, nothing is there twice.")
	return nil
}

// check compares a write's outcome with the expected one.
func check(name string, err error, want bedsql.Outcome) error {
	if got := bedsql.OutcomeOf(err); got != want {
		return errors.Join(fmt.Errorf("the transfer %q is %v, not %v", name, got, want), err)
	}
	return nil
}

func (w *world) logIsEmpty(ctx context.Context) error {
	units, err := w.log.List(ctx, txlog.Filter{})
	if len(units) > 0 {
		err = fmt.Errorf("%d entries are left in the log", len(units))
	}
	return err
}

// transfer moves money in a soft transaction, and returns the result of its End.
func (w *world) transfer(ctx context.Context, name string, amount int) (end, err error) {
	w.say("    Alice sends Bob %d for %q, in a soft transaction:", amount, name)
	err = w.told(func() error {
		soft, tx, err := bedsql.Begin(ctx)
		if err != nil {
			return err
		}
		if err = w.alice.enter(soft, name, -amount); err == nil {
			err = w.bob.enter(soft, name, amount)
		}
		if end = tx.End(ctx); err != nil {
			err = fmt.Errorf("the transfer %q: %w", name, errors.Join(err, end))
		}
		return err
	})
	return end, err
}

// transferDelivered is a transfer delivered during the call.
func (w *world) transferDelivered(ctx context.Context, name string, amount int) error {
	end, err := w.transfer(ctx, name, amount)
	if err == nil {
		err = check(name, end, bedsql.OutcomeDelivered)
	}
	if err == nil {
		w.say("    End reports no error.")
	}
	return err
}

// round makes the job run one round and compares the result.
func (w *world) round(ctx context.Context, want asyncjob.Counts, down bool) error {
	var report asyncjob.Report
	err := w.told(func() (err error) {
		report, err = w.job.RunOnce(ctx)
		return err
	})
	w.say("    job: %v", report)
	if err != nil {
		return fmt.Errorf("the job's round: %w", err)
	}
	if unreachable := report.DataSources[w.bob.name].Unreachable != nil; report.Counts != want || unreachable != down {
		return fmt.Errorf("the job's round did not do what it must: %v", report)
	}
	return nil
}
