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
	"github.com/bedsql/bed/listener"
	"github.com/bedsql/bed/txlog"
)

// Options are what the demo needs from its surroundings.
type Options struct {
	// Out takes the narration.
	Out io.Writer
	// Color colours it, for a terminal.
	Color bool
	// Width is the terminal's; the lines have at most this many columns, and
	// never more than 100. 0 means 100.
	Width int
	// Keep leaves the databases behind.
	Keep bool
	// Console leaves a job with its console running at the end, until the context is
	// done.
	Console bool
	// BedJob runs a command line of bed-job and returns its exit status.
	BedJob func(ctx context.Context, out io.Writer, args ...string) int

	// meddle is called before the balances are checked; tests put a wrong
	// entry into a bank with it.
	meddle func(*world) error
	// parent is where the temporary directory is made; empty means the
	// system's place for these.
	parent string
}

// ErrBooks is returned when the balances are not what they must be.
var ErrBooks = errors.New("the books do not balance")

// Run runs the demo in a temporary directory. It returns nil when each write
// took the way it should and the balances are right.
func Run(ctx context.Context, o Options) (err error) {
	defer func() {
		// What an interrupted step meets first, such as the closed pipe of a program
		// that ended with ctx, is not why it failed.
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = errors.Join(ctx.Err(), err)
		}
	}()
	dir, err := os.MkdirTemp(o.parent, "bed-demo-")
	if err != nil {
		return fmt.Errorf("the demo needs a temporary directory: %w", err)
	}
	if !o.Keep {
		defer func() {
			if rerr := os.RemoveAll(dir); err == nil && rerr != nil {
				err = rerr
			}
		}()
	}
	w, err := newWorld(ctx, dir, &narrator{out: o.Out, width: Columns(o.Width), color: o.Color})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, step := range []func(context.Context) error{
		w.introduce, w.delivered, w.refused, w.pending,
		func(ctx context.Context) error { return w.killedHalfWay(ctx, o) }, w.notAccepted,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := w.inspect(ctx, o); err != nil {
		return err
	}
	if o.meddle != nil {
		if err := o.meddle(w); err != nil {
			return err
		}
	}
	if err := w.reconcile(ctx); err != nil || !o.Console {
		return err
	}
	// The console's process runs a job of its own: the list of jobs is to hold that one.
	if err := w.job.Close(); err != nil {
		return err
	}
	return w.serve(ctx, o)
}

func (w *world) introduce(context.Context) error {
	n := w.narrator
	n.say("Two banks and a transaction log, each a SQLite database, in")
	n.say("%s\n", w.dir)
	n.say("Money goes from Alice's bank to Bob's through database/sql with the driver")
	n.say("%q, SQLite's wrapped by bed: an entry in each bank by", w.driver)
	n.say("    %s", insertEntry)
	n.say("A write whose answer was lost is sent again: this one does no harm twice.")
	return nil
}

// delivered is the first way: at once, or by a retry during the call, while another
// connection holds bob's bank locked until the first attempt has failed.
func (w *world) delivered(ctx context.Context) error {
	w.narrator.title("1  delivered", "at once, or by a retry during the call")
	if err := w.transferBy(ctx, listener.Caller, "rent", rent, nil); err != nil {
		return err
	}
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	w.narrator.say("    (another connection locks Bob's bank: BEGIN IMMEDIATE)")
	var unlocked error
	release := func(ev listener.Event) {
		if ev.Type == listener.ExecuteFailure && ev.DataSource == w.bob.name && unlock != nil {
			unlocked, unlock = unlock(), nil
			w.narrator.say("    (it lets go: ROLLBACK)")
		}
	}
	err = w.transferBy(ctx, listener.SyncRetry, "groceries", groceries, release)
	if unlock != nil {
		unlocked = unlock()
	}
	return errors.Join(err, unlocked)
}

// refused is the second way: bob's bank refuses, and no retry can help.
func (w *world) refused(ctx context.Context) error {
	n := w.narrator
	n.title("2  refused", fmt.Sprintf("Bob's bank takes no transfer above %d, by a constraint", maxEntry))
	n.say("    Bob is sent 700 by one call of Exec:")
	_, stop := w.watch(nil)
	_, err := w.bob.wrapped.ExecContext(ctx, insertEntry, "boat", w.bob.owner, 700)
	stop()
	if err := w.answered(ctx, "boat", err, bedsql.OutcomeRefused); err != nil {
		return err
	}
	n.say("    Exec returns the database's own error; nothing is left in the log.")
	return nil
}

// pending is the third way: the database is not there. The caller uses no soft
// transaction but a plain Exec.
func (w *world) pending(ctx context.Context) error {
	w.narrator.title("3  pending", "Bob's bank is down: its file is moved away")
	back, err := w.bob.takeAway()
	if err != nil {
		return err
	}
	n := w.narrator
	n.say("    Alice sends Bob %d for \"tickets\", with two plain calls of Exec:", tickets)
	_, stop := w.watch(nil)
	_, errAlice := w.alice.wrapped.ExecContext(ctx, insertEntry, "tickets", w.alice.owner, -tickets)
	_, errBob := w.bob.wrapped.ExecContext(ctx, insertEntry, "tickets", w.bob.owner, tickets)
	stop()
	if errAlice != nil || !errors.Is(errBob, bedsql.ErrPending) {
		err = fmt.Errorf("the transfer %q did not end as it must: %w", "tickets", errors.Join(errAlice, orNothing(errBob)))
	} else {
		n.say("    The second Exec returns %s: accepted, not failed.", n.bold("bedsql.ErrPending"))
		n.say("    The job makes a round. An outage is not a failed try:")
		err = w.round(ctx, asyncjob.Counts{}, true)
	}
	if err = errors.Join(err, back()); err != nil {
		return err
	}
	w.narrator.say("    (the file is back) The job's next round:")
	return w.round(ctx, asyncjob.Counts{Claimed: 1, Delivered: 1}, false)
}

// notAccepted is the fourth way: the log cannot be written.
func (w *world) notAccepted(ctx context.Context) error {
	n := w.narrator
	n.title("4  not accepted", "the log is out of order: somebody renamed its table")
	log := w.log.Journal().DB()
	if _, err := log.ExecContext(ctx, `ALTER TABLE transaction_log RENAME TO away`); err != nil {
		return err
	}
	n.say("    Alice sends 30 for \"lunch\":")
	_, stop := w.watch(nil)
	_, err := w.alice.wrapped.ExecContext(ctx, insertEntry, "lunch", w.alice.owner, -30)
	stop()
	if _, rerr := log.ExecContext(context.WithoutCancel(ctx), `ALTER TABLE away RENAME TO transaction_log`); rerr != nil {
		return errors.Join(err, rerr)
	}
	var not *bedsql.NotLoggedError
	if !errors.As(err, &not) {
		return fmt.Errorf("the transfer %q did not end as it must: %w", "lunch", orNothing(err))
	}
	if err := w.answered(ctx, "lunch", err, bedsql.OutcomeNotAccepted); err != nil {
		return err
	}
	n.say("      %-10s  %s: %v", "the log", n.red("failed"), root(not.Cause))
	n.say("    Exec returns %s: nothing was sent and nothing will be.", n.bold("bedsql.ErrNotLogged"))
	n.say("    The caller may try again later.")
	return nil
}

// root is the database's own error.
func root(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

// answered compares a write's outcome, and sees that the log holds nothing of it.
func (w *world) answered(ctx context.Context, name string, err error, want bedsql.Outcome) error {
	if got := bedsql.OutcomeOf(err); got != want {
		return fmt.Errorf("the transfer %q is %v, not %v: %w", name, got, want, orNothing(err))
	}
	units, lerr := w.log.List(ctx, txlog.Filter{})
	if len(units) > 0 {
		lerr = errors.Join(lerr, fmt.Errorf("the transfer %q left %d entries in the log", name, len(units)))
	}
	return lerr
}

// transfer moves money in a soft transaction, and returns what its End says and who delivered
// the entry in bob's bank. also is another listener for its events.
func (w *world) transfer(ctx context.Context, name string, amount int64, also func(listener.Event)) (by listener.Origin, end, err error) {
	w.narrator.say("    Alice sends Bob %d for %q, in a soft transaction:", amount, name)
	deliveredBy, stop := w.watch(also)
	soft, tx, err := bedsql.Begin(ctx)
	if err != nil {
		stop()
		return 0, nil, err
	}
	_, err = w.alice.wrapped.ExecContext(soft, insertEntry, name, w.alice.owner, -amount)
	if err == nil {
		_, err = w.bob.wrapped.ExecContext(soft, insertEntry, name, w.bob.owner, amount)
	}
	end = tx.End(ctx)
	stop()
	if err != nil {
		err = fmt.Errorf("the transfer %q: %w", name, errors.Join(err, end))
	}
	return deliveredBy(w.bob.name), end, err
}

// transferBy is a transfer that is delivered during the call.
func (w *world) transferBy(ctx context.Context, want listener.Origin, name string, amount int64, also func(listener.Event)) error {
	by, end, err := w.transfer(ctx, name, amount, also)
	switch {
	case err != nil:
		return err
	case end != nil:
		return fmt.Errorf("the transfer %q did not end as it must: End says %w", name, end)
	case by != want:
		return fmt.Errorf("the transfer %q was delivered by the %v, not by the %v", name, by, want)
	}
	w.narrator.say("    End reports no error.")
	return nil
}

func orNothing(err error) error {
	if err == nil {
		return errors.New("nothing")
	}
	return err
}

// round lets the job make one round and compares what it did.
func (w *world) round(ctx context.Context, want asyncjob.Counts, down bool) error {
	_, stop := w.watch(nil)
	report, err := w.job.RunOnce(ctx)
	stop()
	w.narrator.say("    job: %v", report)
	if err != nil {
		return fmt.Errorf("the job's round: %w", err)
	}
	if unreachable := report.DataSources[w.bob.name].Unreachable != nil; report.Counts != want || unreachable != down {
		return fmt.Errorf("the job's round did not do what it must: %v", report)
	}
	return nil
}

// inspect parks a transfer and lets bed-job look at the log.
func (w *world) inspect(ctx context.Context, o Options) error {
	n := w.narrator
	file := w.configFile()
	n.title("For the operator", "a part of a soft transaction that is refused is parked")
	_, end, err := w.transfer(ctx, "car", car, nil)
	if err != nil {
		return err
	}
	var refused *bedsql.RefusedError
	if !errors.As(end, &refused) {
		return fmt.Errorf("the transfer %q did not end as it must: End says %w", "car", orNothing(end))
	}
	w.parkedID = refused.LogID
	n.say("    End reports the refusal. Alice's half is done, Bob's waits for an operator.")
	if err := w.command(ctx, o, "list", "--parked"); err != nil {
		return err
	}
	n.say("\nWhen the bank's limit is raised, \"bed-job retry\" delivers it; \"bed-job discard\"")
	n.say("gives it up, and somebody pays Alice back.")
	if o.Keep {
		n.say("\nEverything is kept in %s:", w.dir)
		for _, args := range []string{"stats", "list --parked", "show --show-parameters " + w.parkedID, "retry " + w.parkedID, "run --once"} {
			n.say("    bed-job %s -c %s", args, file)
		}
	} else {
		n.say("(With --keep the databases and this configuration stay.)")
	}
	return nil
}

// reconcile compares the balances with what the transfers must have left, but for the one that
// is parked.
func (w *world) reconcile(ctx context.Context) error {
	n := w.narrator
	n.title("The books", fmt.Sprintf("%d in each bank at the beginning, and savings of %d", opening, savings))
	units, err := w.log.List(ctx, txlog.Filter{})
	if err != nil {
		return err
	}
	var wrong []string
	parked := int64(car)
	if len(units) != 1 || units[0].ID != w.parkedID || !units[0].Parked || units[0].DataSource != w.bob.name {
		parked = 0
		wrong = append(wrong, "the log does not hold the parked entry alone")
	}
	sum := parked
	for _, c := range []struct {
		name    string
		balance func(context.Context) (int64, error)
		want    int64
	}{
		{aliceBank, w.alice.balance, opening - rent - groceries - tickets - car}, {bobBank, w.bob.balance, opening + rent + groceries + tickets},
		{aliceBank + " savings", w.alice.savings, savings - moved}, {bobBank + " savings", w.bob.savings, savings + moved},
	} {
		got, err := c.balance(ctx)
		if err != nil {
			return fmt.Errorf("the balance of %s: %w", c.name, err)
		}
		sum += got
		verdict := n.green("correct")
		if got != c.want {
			verdict = n.red(fmt.Sprintf("it must be %d", c.want))
			wrong = append(wrong, fmt.Sprintf("%s has %d, it must be %d", c.name, got, c.want))
		}
		n.say("    %-20s %6d  %s", c.name, got, verdict)
	}
	n.say("    %-20s %6d  taken from Alice, not yet with Bob", "parked in the log", parked)
	n.say("    %-20s %6d  of %d", "together", sum, 2*(opening+savings))
	if wrong != nil {
		return fmt.Errorf("%w: %s", ErrBooks, strings.Join(wrong, "; "))
	}
	n.say("%s", n.green("Nothing is lost, nothing is there twice."))
	return nil
}
