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
	o.Out = newWrapper(o.Out, o.Width)
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
	w, err := newWorld(ctx, dir, &narrator{out: o.Out, color: o.Color})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, step := range []func(context.Context) error{
		w.introduce, w.delivered, w.retried, w.pendingBehindALock, w.pendingWithoutTheFile,
		func(ctx context.Context) error { return w.killedHalfWay(ctx, o) }, w.parked,
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
	return w.serve(ctx, o)
}

func (w *world) introduce(context.Context) error {
	n := w.narrator
	n.say("Two banks, each a SQLite database, and a transaction log in a third, in\n%s\n", w.dir)
	n.say("The program moves money from Alice's bank to Bob's through database/sql with the driver")
	n.say("%q, which is SQLite's wrapped by bed. Each transfer is one entry in each bank:\n", w.driver)
	n.say("    %s\n", insertEntry)
	n.say("A write whose answer was lost is sent again, so it must do no harm twice: the transfer's")
	n.say("name is the key, and the balance is the sum of the entries.")
	return nil
}

// delivered is the first way: nothing goes wrong.
func (w *world) delivered(ctx context.Context) error {
	w.narrator.title("1  delivered", "nothing goes wrong")
	return w.transfer(ctx, "rent", 100, nil, outcome{})
}

// retried is the second way: another connection holds bob's bank locked until
// the first attempt has failed.
func (w *world) retried(ctx context.Context) error {
	w.narrator.title("2  delivered by sync retry", "somebody holds Bob's bank locked for a moment")
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	w.narrator.say("    (another connection: BEGIN IMMEDIATE)")
	var unlocked error
	release := func(ev listener.Event) {
		if ev.Type == listener.ExecuteFailure && ev.DataSource == w.bob.name && unlock != nil {
			unlocked, unlock = unlock(), nil
			w.narrator.say("    (the other connection: ROLLBACK)")
		}
	}
	err = w.transfer(ctx, "groceries", 50, release, outcome{by: listener.SyncRetry})
	if unlock != nil {
		unlocked = unlock()
	}
	return errors.Join(err, unlocked)
}

// pendingBehindALock is the third way: the lock stays longer than the caller
// is willing to wait.
func (w *world) pendingBehindALock(ctx context.Context) error {
	w.narrator.title("3  delivered by the job", "Bob's bank stays locked for longer than the call lasts")
	unlock, err := w.bob.lock(ctx)
	if err != nil {
		return err
	}
	w.narrator.say("    (another connection: BEGIN IMMEDIATE)")
	err = w.transfer(ctx, "books", 25, nil, outcome{pending: true})
	if err == nil {
		w.narrator.say("    The job makes a round while the lock is held:")
		err = w.round(ctx, asyncjob.Counts{Claimed: 1, Failed: 1}, false)
	}
	if err = errors.Join(err, unlock()); err != nil {
		return err
	}
	w.narrator.say("    (the other connection: ROLLBACK) The job's next round:")
	return w.round(ctx, asyncjob.Counts{Claimed: 1, Delivered: 1}, false)
}

// pendingWithoutTheFile is the third way again: the database is not there, and
// the caller uses no soft transaction but a plain Exec.
func (w *world) pendingWithoutTheFile(ctx context.Context) error {
	w.narrator.title("3  delivered by the job", "Bob's bank is down: its file is moved away")
	back, err := w.bob.takeAway()
	if err != nil {
		return err
	}
	err = w.transferPlainly(ctx, "tickets", 40)
	if err == nil {
		w.narrator.say("    The job makes a round while the bank is down. An outage is not a failed try:")
		err = w.round(ctx, asyncjob.Counts{}, true)
	}
	if err = errors.Join(err, back()); err != nil {
		return err
	}
	w.narrator.say("    (the file is back) The job's next round:")
	return w.round(ctx, asyncjob.Counts{Claimed: 1, Delivered: 1}, false)
}

// parked is the fourth way: bob's bank refuses, and no retry can help.
func (w *world) parked(ctx context.Context) error {
	w.narrator.title("4  parked", fmt.Sprintf("Bob's bank takes no transfer above %d, by a constraint", maxEntry))
	return w.transfer(ctx, "car", 600, nil, outcome{parked: true})
}

// An outcome is how the entry in bob's bank must end.
type outcome struct {
	by      listener.Origin // who delivers it; zero means the caller
	pending bool
	parked  bool
}

// transfer moves money in a soft transaction. also is another listener for its
// events.
func (w *world) transfer(ctx context.Context, name string, amount int64, also func(listener.Event), want outcome) error {
	n := w.narrator
	n.say("    Alice sends Bob %d for %q, in a soft transaction:", amount, name)
	deliveredBy, stop := w.watch(also)
	soft, tx, err := bedsql.Begin(ctx)
	if err != nil {
		stop()
		return err
	}
	_, err = w.alice.wrapped.ExecContext(soft, insertEntry, name, w.alice.owner, -amount)
	if err == nil {
		_, err = w.bob.wrapped.ExecContext(soft, insertEntry, name, w.bob.owner, amount)
	}
	end := tx.End(ctx)
	stop()
	w.book(amount)
	var refused *bedsql.RefusedError
	switch {
	case err != nil:
		return fmt.Errorf("the transfer %q: %w", name, errors.Join(err, end))
	case want.pending && !errors.Is(end, bedsql.ErrPending),
		want.parked && !errors.As(end, &refused),
		!want.pending && !want.parked && end != nil:
		return fmt.Errorf("the transfer %q did not end as it must: End says %w", name, orNothing(end))
	}
	switch {
	case want.pending:
		n.say("    End reports it as pending: %s the entry is kept for the job.", n.bold("errors.Is(err, bedsql.ErrPending);"))
	case want.parked:
		w.parkedID, w.parkedAmount = refused.LogID, amount
		n.say("    End reports the refusal. Alice's half is done; Bob's is in the log, waiting for an operator.")
	default:
		if want.by == 0 {
			want.by = listener.Caller
		}
		if by := deliveredBy(w.bob.name); by != want.by {
			return fmt.Errorf("the transfer %q was delivered by the %v, not by the %v", name, by, want.by)
		}
		n.say("    End reports no error.")
	}
	return nil
}

// transferPlainly moves money without a soft transaction: each Exec has its
// own answer.
func (w *world) transferPlainly(ctx context.Context, name string, amount int64) error {
	n := w.narrator
	n.say("    Alice sends Bob %d for %q, with two plain calls of Exec:", amount, name)
	_, stop := w.watch(nil)
	_, errAlice := w.alice.wrapped.ExecContext(ctx, insertEntry, name, w.alice.owner, -amount)
	_, errBob := w.bob.wrapped.ExecContext(ctx, insertEntry, name, w.bob.owner, amount)
	stop()
	w.book(amount)
	if errAlice != nil || !errors.Is(errBob, bedsql.ErrPending) {
		return fmt.Errorf("the transfer %q did not end as it must: %w", name, errors.Join(errAlice, orNothing(errBob)))
	}
	n.say("    The second Exec returns an error that %s: accepted, not failed.", n.bold("is bedsql.ErrPending"))
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

// inspect lets bed-job look at the log.
func (w *world) inspect(ctx context.Context, o Options) error {
	n := w.narrator
	file := w.configFile()
	n.title("What an operator sees", "bed-job with "+file)
	for _, args := range [][]string{{"stats"}, {"list", "--parked"}, {"show", w.parkedID}} {
		if err := w.command(ctx, o, args...); err != nil {
			return err
		}
	}
	n.say("\nWhen the bank's limit is raised, \"bed-job retry %s\" delivers it;", w.parkedID)
	n.say("\"bed-job discard --reason …\" gives it up, and somebody pays Alice back.")
	if o.Keep {
		n.say("\nEverything is kept in %s:", w.dir)
		for _, args := range []string{"stats", "list --parked", "show --show-parameters " + w.parkedID, "retry " + w.parkedID, "run --once"} {
			n.say("    bed-job %s -c %s", args, file)
		}
	} else {
		n.say("(bed-job demo --keep leaves the databases and this configuration behind.)")
	}
	return nil
}

// reconcile compares the balances with what the transfers must have left,
// given what the log still holds.
func (w *world) reconcile(ctx context.Context) error {
	n := w.narrator
	n.title("The books", fmt.Sprintf("%d in each bank at the beginning, and savings of %d", opening, savings))
	units, err := w.log.List(ctx, txlog.Filter{})
	if err != nil {
		return err
	}
	var parked int64
	var wrong []string
	for _, u := range units {
		amount, err := amountOf(u)
		if err != nil {
			return err
		}
		if !u.Parked || u.ID != w.parkedID || u.DataSource != w.bob.name {
			wrong = append(wrong, fmt.Sprintf("the log holds %s, which should not be there", u.ID))
			continue
		}
		parked += amount
	}
	if parked != w.parkedAmount {
		wrong = append(wrong, fmt.Sprintf("%d is parked, it must be %d", parked, w.parkedAmount))
	}
	var sum int64
	compare := func(name string, got, want int64) {
		sum += got
		verdict := n.green("as it must be")
		if got != want {
			verdict = n.red(fmt.Sprintf("it must be %d", want))
			wrong = append(wrong, fmt.Sprintf("%s has %d, it must be %d", name, got, want))
		}
		n.say("    %-20s %6d  %s", name, got, verdict)
	}
	for _, b := range w.banks() {
		want := w.expected[b]
		if b == w.bob {
			want -= w.parkedAmount
		}
		got, err := b.balance(ctx)
		if err != nil {
			return fmt.Errorf("the balance of %s: %w", b.name, err)
		}
		compare(b.name, got, want)
	}
	for _, b := range w.banks() {
		want := int64(savings + moved)
		if b == w.alice {
			want = savings - moved
		}
		got, err := b.savings(ctx)
		if err != nil {
			return fmt.Errorf("the savings in %s: %w", b.name, err)
		}
		compare(b.name+" savings", got, want)
	}
	n.say("    %-20s %6d  taken from Alice, not yet with Bob", "parked in the log", parked)
	const all = 2 * (opening + savings)
	n.say("    %-20s %6d  of %d", "together", sum+parked, all)
	if sum+parked != all {
		wrong = append(wrong, fmt.Sprintf("together it is %d, it must be %d", sum+parked, all))
	}
	if wrong != nil {
		return fmt.Errorf("%w: %s", ErrBooks, strings.Join(wrong, "; "))
	}
	n.say("%s", n.green("Nothing is lost, nothing is there twice."))
	return nil
}

// amountOf reads the amount that a unit would write into the ledger.
func amountOf(u *txlog.Unit) (int64, error) {
	if len(u.Statements) == 1 {
		args, err := u.Statements[0].Args()
		if err != nil {
			return 0, err
		}
		if len(args) == 3 {
			if amount, ok := args[2].Value.(int64); ok {
				return amount, nil
			}
		}
	}
	return 0, fmt.Errorf("the unit %s writes nothing into the ledger", u.ID)
}
