package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/txlog"
)

// An action is what an operator decides for entries.
type action struct {
	ops.Action
	verb string
	// done says for one entry that it worked, as in "<id>: due now".
	done string
	// confirm says that it cannot be undone, must be confirmed and needs a
	// reason.
	confirm bool
}

func retryCommand(a *app) *cobra.Command {
	return actionCommand(a, action{Action: ops.Retry, verb: "retry", done: "due now"}, "Make entries due now, with their tries reset",
		`Make entries due now, with their tries reset and not parked any more. The job delivers
them in its next round.

An entry that is parked because it must not be run again (show says why) is parked again.`)
}

func parkCommand(a *app) *cobra.Command {
	return actionCommand(a, action{Action: ops.Park, verb: "park", done: "parked"}, "Leave entries for an operator: no job delivers them",
		`Leave entries for an operator: no job delivers them until they are retried.`)
}

func discardCommand(a *app) *cobra.Command {
	return actionCommand(a, action{Action: ops.Discard, verb: "discard", done: "discarded", confirm: true}, "Erase entries for good: what they hold will not be delivered",
		`Erase entries for good: what they hold will not be delivered. On a terminal it asks
before; elsewhere it wants --yes. It needs a --reason: who looks at the audit later will
want to know why a write did not happen.`)
}

// selection is which entries a command acts on, and how.
type selection struct {
	ids    []string
	filter filters
	reason string
	dryRun bool
	yes    bool
	out    output
}

func actionCommand(a *app, act action, short, long string) *cobra.Command {
	var sel selection
	cmd := &cobra.Command{
		Use:   act.verb + " ID… | --parked",
		Short: short,
		Long: long + `

An ID is that of any row of the unit. An entry that is being delivered at this moment is
refused. What fails does not stop the rest; the exit status is 1 if anything failed.
Instead of IDs the filters of list say which; they are counted first, and exactly these
are changed, or none. With --dry-run nothing is. What is done is audited.

JSON (-o json): an object with action, changed (a number), ids, failed and dryRun.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel.ids = args
			if err := sel.filter.read(cmd); err != nil {
				return err
			}
			switch {
			case sel.filter.given() == (len(args) > 0) && len(args) > 0:
				return usagef(cmd, "%s takes either IDs or --parked and the other filters", act.verb)
			case !sel.filter.given() && len(args) == 0:
				return usagef(cmd, "%s takes either IDs or --parked and the other filters", act.verb)
			case act.confirm && !sel.dryRun && strings.TrimSpace(sel.reason) == "":
				return usagef(cmd, "%s needs a reason, which the audit keeps: say why with --reason", act.verb)
			case act.confirm && !sel.yes && !sel.dryRun && !a.InTTY:
				return usagef(cmd, "%s erases entries for good: confirm it with --yes", act.verb)
			}
			return a.withConfig(cmd.Context(), onlyLog, func(st txlog.Storage, cfg *config) error {
				store, err := openDesk(a, st, cfg)
				if err != nil {
					return err
				}
				c := &clerk{app: a, log: st, store: store, cfg: cfg, act: act, selection: sel}
				return c.work(cmd.Context())
			})
		},
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &sel.out)
	filterFlags(a, cmd, &sel.filter)
	reasonFlags(cmd, &sel.reason, &sel.dryRun)
	if act.confirm {
		cmd.Flags().BoolVar(&sel.yes, "yes", false, "do not ask")
	}
	return cmd
}

func reasonFlags(cmd *cobra.Command, reason *string, dryRun *bool) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(dryRun, "dry-run", false, "say what would be done, and change nothing")
}

// clerk carries one action out.
type clerk struct {
	*app
	selection
	log   txlog.Storage
	store *ops.Store
	cfg   *config
	act   action

	changed int
	failed  []string
}

// acted is what was done, as JSON shows it.
type acted struct {
	Action  ops.Action `json:"action"`
	Changed int        `json:"changed"`
	IDs     []string   `json:"ids,omitempty"`
	Failed  []string   `json:"failed,omitempty"`
	DryRun  bool       `json:"dryRun"`
}

func (c *clerk) work(ctx context.Context) error {
	var err error
	if len(c.ids) > 0 {
		err = c.named(ctx)
	} else {
		err = c.filtered(ctx)
	}
	if c.out.json() && (err == nil || errors.Is(err, errReported)) {
		text, jerr := marshal(acted{c.act.Action, c.changed, c.ids, c.failed, c.dryRun}, "")
		if jerr != nil {
			return jerr
		}
		fmt.Fprintln(c.Out, text)
	}
	return err
}

// sure asks whether n entries are meant.
func (c *clerk) sure(ctx context.Context, n int) error {
	if !c.act.confirm || c.yes || c.dryRun {
		return nil
	}
	ok, err := c.confirm(ctx, fmt.Sprintf("%s %s for good? Nothing of it will be delivered.", c.act.verb, entries(n)))
	if err == nil && !ok {
		err = errors.New("nothing was done")
	}
	return err
}

// named acts on the entries that were named, and reports each.
func (c *clerk) named(ctx context.Context) error {
	if err := c.sure(ctx, len(c.ids)); err != nil {
		return err
	}
	ids := c.ids
	c.ids = nil
	for _, id := range ids {
		err := c.asked(ctx, c.cfg, func(ctx context.Context) error {
			if c.dryRun {
				return c.could(ctx, id)
			}
			return c.store.Act(ctx, c.act.Action, id, c.by(c.reason))
		})
		if err != nil {
			c.failed = append(c.failed, id)
			c.complain(redact(explain(id, err).Error(), c.dsns...))
			continue
		}
		c.changed++
		c.ids = append(c.ids, id)
		if !c.out.json() {
			fmt.Fprintf(c.Out, "%s: %s%s\n", printable(id), c.would(), c.act.done)
		}
	}
	if len(c.failed) > 0 {
		return errReported
	}
	return nil
}

func (c *clerk) would() string {
	if c.dryRun {
		return "would be "
	}
	return ""
}

// could gives the reason that keeps an entry from being acted upon.
func (c *clerk) could(ctx context.Context, id string) error {
	u, err := c.log.Get(ctx, id)
	if err == nil && u.Leased {
		err = ops.ErrLeased
	}
	return err
}

// recounts is how often a set that changes while it is counted is counted again,
// where nobody has confirmed the number.
const recounts = 5

// filtered acts on all that a filter matches: exactly those that were counted, or none.
func (c *clerk) filtered(ctx context.Context) error {
	for try := 1; ; try++ {
		var n ops.Count
		err := c.asked(ctx, c.cfg, func(ctx context.Context) (err error) {
			n, err = c.store.Count(ctx, c.filter.Filter, -1)
			return err
		})
		switch {
		case err != nil:
			return err
		case n.N == 0:
			if !c.out.json() {
				what := "Nothing of that kind is in the log."
				if c.filter.State == ops.Parked {
					what = "Nothing of that kind is parked."
				}
				fmt.Fprintln(c.Err, what)
			}
			return nil
		case n.N > ops.MaxBulk:
			return fmt.Errorf("the filter matches %d entries, %d can be changed at once: narrow it by --older-than, --data-source or --text", n.N, ops.MaxBulk)
		}
		if err := c.sure(ctx, n.N); err != nil {
			return err
		}
		if !c.dryRun {
			err = c.askedOf(ctx, c.cfg, manyTimes, func(ctx context.Context) error {
				return c.store.ActAll(ctx, c.act.Action, c.filter.Filter, n.N, c.by(c.reason))
			})
		}
		if errors.Is(err, ops.ErrConflict) && (!c.act.confirm || c.yes) && try < recounts {
			continue
		}
		if err != nil {
			return err
		}
		if c.changed = n.N; !c.out.json() {
			fmt.Fprintf(c.Out, "%s of %d %s%s\n", entries(n.N), n.N, c.would(), c.act.done)
		}
		return nil
	}
}

// manyTimes is how many times --log-timeout a change of many entries may take.
const manyTimes = 30

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
