package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// An action is a decision about entries.
type action struct {
	ops.Action
	verb string
	// done reports success for one entry, as in "<id>: due now".
	done string
	// confirm marks an action that cannot be undone. It must be confirmed and needs a reason.
	confirm bool
}

func actionCommands(a *app) []*cobra.Command {
	return []*cobra.Command{
		actionCommand(a, action{Action: ops.Retry, verb: "retry", done: "due now"}, "Make entries due now, with their tries reset",
			`Make entries due now, with their tries reset and not parked any more. The job delivers
them in its next round.

An entry that is parked because it must not be run again (show says why) is parked again.`),
		actionCommand(a, action{Action: ops.Park, verb: "park", done: "parked"}, "Leave entries for an operator: no job delivers them",
			`Leave entries for an operator: no job delivers them until they are retried.`),
		actionCommand(a, action{Action: ops.Discard, verb: "discard", done: "discarded", confirm: true}, "Erase entries: their writes will never be delivered",
			`Erase entries: their writes will never be delivered. On a terminal it asks first;
elsewhere it requires --yes. It requires a --reason: later readers of the audit will
want to know why a write did not happen.`),
	}
}

func skipCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "skip ID",
		Short: "Let the entries waiting behind this one go first; it stays parked",
		Long: `Let the entries waiting behind this one go first. It must be the first entry under its
order key (see show), and not being delivered at this moment. It is parked, and stays
parked until it is retried or discarded. Once a later entry is delivered, the target
refuses this one: a retry parks it again as overtaken.

It requires a --reason, which the audit keeps.

JSON (-o json): an object with action, changed (1), gone, left, ids and dryRun.`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usagef("skip needs a reason, which the audit keeps: say why with --reason")
			}
			ctx := cmd.Context()
			return withDesk(ctx, a, func(d *desk) error {
				if _, err := ask(ctx, d.log, func(ctx context.Context) (any, error) { return nil, d.Act(ctx, ops.Skip, args[0], a.by(reason)) }); err != nil {
					return explain(args[0], err)
				}
				if a.json() {
					return printJSON(a.Out, acted{Action: ops.Skip, Changed: 1, IDs: args})
				}
				_, err := fmt.Fprintf(a.Out, "%s: skipped and parked, those behind it are delivered in their order\n", printable(args[0]))
				return err
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	return cmd
}

func actionCommand(a *app, act action, short, long string) *cobra.Command {
	c := &clerk{app: a, action: act}
	var f filters
	cmd := &cobra.Command{
		Use:   act.verb + " ID… | --parked",
		Short: short,
		Long: long + `

An ID can be the ID of any row of the unit. An entry being delivered at this moment is
refused. A failure does not stop the rest; the exit status is 1 if any action failed.
Instead of IDs, the filters of list can select entries. These are counted first, without
those being delivered at that moment, and exactly these are changed: not the ones that
arrive or are parked while you confirm. Entries delivered since are reported as gone.
With --dry-run nothing changes. Each action is audited.

JSON (-o json): an object with action, until (the log's clock at the count), changed, gone,
left (numbers), ids (of the changed entries), failed and dryRun.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(cmd); err != nil {
				return err
			}
			switch {
			case f.given() == (len(args) > 0):
				return usagef("%s takes either IDs or --parked and the other filters", act.verb)
			case act.confirm && !c.dryRun && strings.TrimSpace(c.reason) == "":
				return usagef("%s needs a reason, which the audit keeps: say why with --reason", act.verb)
			case act.confirm && !c.yes && !c.dryRun && !a.InTTY:
				return usagef("%s erases entries: confirm it with --yes", act.verb)
			}
			ctx := cmd.Context()
			return withDesk(ctx, a, func(d *desk) (err error) {
				done := acted{Action: act.Action, DryRun: c.dryRun}
				if len(args) > 0 {
					err = c.named(ctx, d, args, &done)
				} else {
					err = c.filtered(ctx, d, f.Filter, &done)
				}
				if a.json() && (err == nil || errors.Is(err, errReported)) {
					err = errors.Join(printJSON(a.Out, done), err)
				}
				return err
			})
		},
	}
	a.logFlags(cmd)
	filterFlags(a, cmd, &f)
	reasonFlags(cmd, &c.reason, &c.dryRun)
	if act.confirm {
		cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask")
	}
	return cmd
}

func reasonFlags(cmd *cobra.Command, reason *string, dryRun *bool) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "print what would be done, and change nothing")
}

type clerk struct {
	*app
	action
	reason      string
	dryRun, yes bool
}

// acted is the result in JSON.
type acted struct {
	Action  ops.Action `json:"action"`
	Until   string     `json:"until,omitempty"`
	Changed int        `json:"changed"`
	Gone    int        `json:"gone"`
	Left    int        `json:"left"`
	IDs     []string   `json:"ids,omitempty"`
	Failed  []string   `json:"failed,omitempty"`
	DryRun  bool       `json:"dryRun"`
}

// sure asks for confirmation to act on n entries; more describes them.
func (c *clerk) sure(ctx context.Context, n int, more string) error {
	return c.app.confirm(ctx, !c.action.confirm || c.yes || c.dryRun, fmt.Sprintf("%s %s%s? It will never be delivered.", c.verb, entries(n), more))
}

// named acts on the named entries, and reports each.
func (c *clerk) named(ctx context.Context, d *desk, ids []string, done *acted) error {
	if err := c.sure(ctx, len(ids), ""); err != nil {
		return err
	}
	for _, id := range ids {
		var err error
		if c.dryRun {
			var u *entry.Unit
			if u, err = d.log.Get(ctx, id); err == nil && u.Leased {
				err = txlog.ErrLeased
			}
		} else {
			_, err = ask(ctx, d.log, func(ctx context.Context) (any, error) { return nil, d.Act(ctx, c.Action, id, c.by(c.reason)) })
		}
		if err != nil {
			done.Failed = append(done.Failed, id)
			c.complain(explain(id, err).Error())
			continue
		}
		done.Changed++
		done.IDs = append(done.IDs, id)
		if !c.json() {
			fmt.Fprintf(c.Out, "%s: %s\n", printable(id), c.outcome())
		}
	}
	if len(done.Failed) > 0 {
		return errReported
	}
	return nil
}

func (c *clerk) outcome() string { return map[bool]string{true: "would be "}[c.dryRun] + c.done }

// filtered counts the entries of a filter and acts on exactly these.
func (c *clerk) filtered(ctx context.Context, d *desk, f ops.Filter, out *acted) error {
	sel, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Selection, error) { return d.Select(ctx, f) })
	switch {
	case err != nil:
		return err
	case sel.More:
		return fmt.Errorf("the filter matches more than %d entries, which is how many can be changed at once: narrow it by --older-than, --data-source or --text", ops.MaxBulk)
	case len(sel.IDs) == 0:
		if !c.json() {
			what := "in the log"
			if f.State == ops.Parked {
				what = "parked"
			}
			fmt.Fprintf(c.Err, "Nothing of that kind is %s.\n", what)
		}
		return nil
	}
	if err := c.sure(ctx, len(sel.IDs), " (counted at "+sel.At.Format(time.RFC3339)+" by the log's clock)"); err != nil {
		return err
	}
	done := ops.Done{Changed: sel.IDs}
	if !c.dryRun {
		log := d.log
		log.within *= manyTimes
		if done, err = ask(ctx, log, func(ctx context.Context) (ops.Done, error) { return d.ActAll(ctx, c.Action, sel, c.by(c.reason)) }); err != nil {
			return err
		}
	}
	out.Until, out.Changed, out.Gone, out.Left, out.IDs = sel.At.Format(time.RFC3339Nano), len(done.Changed), done.Gone, done.Left, done.Changed
	if c.json() {
		return nil
	}
	fmt.Fprintf(c.Out, "%s of %d %s\n", entries(out.Changed), len(sel.IDs), c.outcome())
	if out.Gone > 0 {
		fmt.Fprintf(c.Out, "%s gone: delivered or discarded since they were counted\n", entries(out.Gone))
	}
	if out.Left > 0 {
		fmt.Fprintf(c.Out, "%s left alone: being delivered, or changed so that the filter does not match\n", entries(out.Left))
	}
	if c.Action == ops.Retry && !c.dryRun {
		fmt.Fprintln(c.Err, `The job delivers them in its next round: "bed-job watch" shows how many it delivers, "bed-job kinds --parked" what is parked again and why.`)
	}
	return nil
}

// manyTimes is how many times --log-timeout a change of many entries may take.
const manyTimes = 30

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
