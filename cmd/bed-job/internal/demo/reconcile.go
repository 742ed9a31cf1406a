package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bedsql/bed/txlog"
)

func (w *world) configFile() string { return filepath.Join(w.dir, "bed-job.yaml") }

// command runs a command of bed-job with a configuration for the demo.
func (w *world) command(ctx context.Context, o Options, args ...string) error {
	if err := os.WriteFile(w.configFile(), []byte(w.configuration()), 0o600); err != nil {
		return err
	}
	w.narrator.say("\n%s", w.narrator.bold("$ bed-job "+strings.Join(args, " ")))
	if status := o.BedJob(ctx, o.Out, append(args, "-c", w.configFile())...); status != 0 {
		return fmt.Errorf("bed-job %s ended with status %d", args[0], status)
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
	n.say("\"bed-job discard\" gives it up, and somebody pays Alice back.")
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

func (w *world) configuration() string {
	var b strings.Builder
	b.WriteString("targetDataSource:\n")
	// A dollar sign in a path is no variable.
	quote := func(dsn string) string { return strconv.Quote(strings.ReplaceAll(dsn, "$", "$$")) }
	for _, bank := range w.banks() {
		fmt.Fprintf(&b, "  %s: {driver: sqlite, dsn: %s}\n", bank.name, quote(bank.dsn))
	}
	fmt.Fprintf(&b, "transactionLogDataSource: {driver: sqlite, dsn: %s}\n", quote(w.logDSN))
	b.WriteString("jobConfig: {maxDeliveryTryDelayMillis: 0}\n")
	return b.String()
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

// amountOf reads the amount of the entry that a unit would write.
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
	return 0, fmt.Errorf("the log %s holds no entry", u.ID)
}
