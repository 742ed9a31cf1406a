package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/bedsql/bed/txlog"
)

// An action is what an operator decides for entries: retry or discard.
type action struct {
	verb string
	// done says for one entry that it worked, as in "<id>: due now".
	done string
	do   func(context.Context, txlog.Storage, string) error
	// confirm: it cannot be undone and must be confirmed.
	confirm bool
}

func (a *app) retryCommand() *cobra.Command {
	return a.actionCommand(action{
		verb: "retry", done: "due now",
		do: func(ctx context.Context, st txlog.Storage, id string) error { return st.Retry(ctx, id) },
	}, "Make entries due now, with their tries reset",
		`Make entries due now, with their tries reset and not parked any more. The job delivers
them in its next round.

A log that is parked because it must not be run again (show says why) is parked again.`)
}

func (a *app) discardCommand() *cobra.Command {
	return a.actionCommand(action{
		verb: "discard", done: "discarded", confirm: true,
		do: func(ctx context.Context, st txlog.Storage, id string) error { return st.Discard(ctx, id) },
	}, "Erase entries for good: what they hold will not be delivered",
		`Erase entries for good: what they hold will not be delivered. On a terminal it asks
before; elsewhere it wants --yes.`)
}

// selection is which entries a command acts on.
type selection struct {
	ids    []string
	parked bool
	filter txlog.Filter
	yes    bool
}

func (a *app) actionCommand(act action, short, long string) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   act.verb + " ID… | --parked",
		Short: short,
		Long:  long + "\n\nAn ID is that of any row of the unit. An entry that is being delivered at this moment is\nrefused. What fails does not stop the rest; the exit status is 1 if anything failed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			sel.ids = args
			switch filtered := sel.filter.DataSource != "" || sel.filter.OlderThan != 0; {
			case sel.parked == (len(args) > 0):
				return usagef(cmd, "%s takes either IDs or --parked", act.verb)
			case filtered && !sel.parked:
				return usagef(cmd, "--data-source and --older-than go with --parked")
			case sel.filter.OlderThan < 0:
				return usagef(cmd, "--older-than must not be negative")
			case act.confirm && !sel.yes && !a.InTTY:
				return usagef(cmd, "%s erases entries for good: confirm it with --yes", act.verb)
			}
			return a.withLog(cmd.Context(), func(st txlog.Storage) error {
				return a.act(cmd.Context(), st, act, sel)
			})
		},
	}
	a.configFlag(cmd)
	cmd.Flags().BoolVar(&sel.parked, "parked", false, "all that are parked")
	a.filterFlags(cmd, &sel.filter)
	if act.confirm {
		cmd.Flags().BoolVar(&sel.yes, "yes", false, "do not ask")
	}
	return cmd
}

func (a *app) act(ctx context.Context, st txlog.Storage, act action, sel selection) error {
	ids := sel.ids
	if sel.parked {
		sel.filter.Parked = true
		// Chosen first and acted upon afterwards, so that what is confirmed is
		// what happens, and what is parked meanwhile stays.
		if err := eachUnit(ctx, st, sel.filter, 0, func(units []*txlog.Unit) error {
			for _, u := range units {
				ids = append(ids, u.ID)
			}
			return nil
		}); err != nil {
			return err
		}
		if len(ids) == 0 {
			_, err := fmt.Fprintln(a.Err, "Nothing of that kind is parked.")
			return err
		}
	}
	if act.confirm && !sel.yes {
		if ok, err := a.confirm(ctx, fmt.Sprintf("%s %s for good? Nothing of it will be delivered.", act.verb, entries(len(ids)))); err != nil || !ok {
			if err == nil {
				err = errors.New("nothing was done")
			}
			return err
		}
	}
	if sel.parked {
		return a.actParked(ctx, st, act, ids)
	}
	return a.actNamed(ctx, st, act, ids)
}

// actNamed acts on the entries that were named, and reports each.
func (a *app) actNamed(ctx context.Context, st txlog.Storage, act action, ids []string) error {
	failed := 0
	for _, id := range ids {
		if err := act.do(ctx, st, id); err != nil {
			failed++
			a.complain(redact(explain(id, err).Error(), a.dsns...))
			continue
		}
		fmt.Fprintf(a.Out, "%s: %s\n", printable(id), act.done)
	}
	if failed > 0 {
		return errReported
	}
	return nil
}

// maxReported is how many failures of a long list are told one by one.
const maxReported = 20

// actParked acts on what was found parked. A log that is not parked any more
// was decided or delivered by somebody else and is left alone.
func (a *app) actParked(ctx context.Context, st txlog.Storage, act action, ids []string) (err error) {
	bar := a.progress(len(ids), act.verb)
	var done, gone int
	var failures []string
	for _, id := range ids {
		var u *txlog.Unit
		if u, err = st.Get(ctx, id); err == nil && u.Parked {
			err = act.do(ctx, st, id)
		} else if err == nil {
			err = txlog.ErrNotFound
		}
		switch {
		case err == nil:
			done++
		case errors.Is(err, txlog.ErrNotFound):
			gone++
		case errors.Is(err, txlog.ErrLeased):
			failures = append(failures, explain(id, err).Error())
		}
		if err != nil && !errors.Is(err, txlog.ErrNotFound) && !errors.Is(err, txlog.ErrLeased) {
			break // the log itself fails; it would for each of the rest
		}
		err = nil
		_ = bar.Add(1)
	}
	_ = bar.Clear()
	fmt.Fprintf(a.Out, "%s of %d %s", entries(done), len(ids), act.done)
	if gone > 0 {
		fmt.Fprintf(a.Out, ", %d not parked any more", gone)
	}
	fmt.Fprintln(a.Out)
	for i, f := range failures {
		if i == maxReported {
			a.complain(fmt.Sprintf("… and %d more", len(failures)-i))
			break
		}
		a.complain(f)
	}
	switch {
	case err != nil:
		return fmt.Errorf("stopped: %w", err)
	case len(failures) > 0:
		return errReported
	}
	return nil
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// progress is a bar on a terminal, and nothing elsewhere.
func (a *app) progress(n int, what string) *progressbar.ProgressBar {
	return progressbar.NewOptions(n,
		progressbar.OptionSetWriter(a.Err), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetVisibility(a.ErrTTY))
}

// confirm asks on the terminal.
func (a *app) confirm(ctx context.Context, question string) (bool, error) {
	fmt.Fprintf(a.Err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case s := <-answer:
		return s == "y" || s == "yes", nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
