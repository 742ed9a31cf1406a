package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func pauseCommand(a *app) *cobra.Command {
	return controlCommand(a, control{
		verb: "pause", args: "NAME", done: "paused: no job delivers there until it is resumed",
		short: "Have no job deliver to a data source until it is resumed",
		long: `Have no job deliver to a data source until it is resumed: before work on it, or while
it does harm. What is being delivered is finished. Applications go on: what they leave
pending waits in the log. Each job looks at it in each round.`,
		do: func(ctx context.Context, s *ops.Store, name string, _ int, by ops.By) error {
			return s.Pause(ctx, name, by)
		},
	})
}

func resumeCommand(a *app) *cobra.Command {
	return controlCommand(a, control{
		verb: "resume", args: "NAME", done: "resumed",
		short: "Have jobs deliver again to a data source that was paused",
		long:  "Have jobs deliver again to a data source that was paused.",
		do: func(ctx context.Context, s *ops.Store, name string, _ int, by ops.By) error {
			return s.Resume(ctx, name, by)
		},
	})
}

func limitCommand(a *app) *cobra.Command {
	return controlCommand(a, control{
		verb: "limit", args: "NAME PER_SECOND", number: true, done: "limited",
		short: "Bound the deliveries to a data source by all jobs together",
		long: `Bound the deliveries to a data source by all jobs together to so many per second;
0 lifts the limit. What applications write themselves is not bounded.`,
		do: func(ctx context.Context, s *ops.Store, name string, n int, by ops.By) error {
			return s.Limit(ctx, name, n, by)
		},
	})
}

// control is a decision about a data source.
type control struct {
	verb, args, done, short, long string
	number                        bool
	do                            func(ctx context.Context, s *ops.Store, name string, n int, by ops.By) error
}

// controlled is what was done, as JSON shows it.
type controlled struct {
	Action     string `json:"action"`
	DataSource string `json:"dataSource"`
	PerSecond  *int   `json:"perSecond,omitempty"`
	DryRun     bool   `json:"dryRun"`
}

func controlCommand(a *app, c control) *cobra.Command {
	var (
		reason string
		dryRun bool
		out    output
	)
	cmd := &cobra.Command{
		Use:   c.verb + " " + c.args,
		Short: c.short,
		Long: c.long + `

It is audited, with --reason. With --dry-run nothing is changed.

JSON (-o json): an object with action, dataSource, perSecond (of limit) and dryRun.`,
		ValidArgsFunction: completeDataSource(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			want := 1
			if c.number {
				want = 2
			}
			if len(args) != want {
				return usagef(cmd, "%s takes %s", c.verb, c.args)
			}
			said := controlled{Action: c.verb, DataSource: args[0], DryRun: dryRun}
			n := 0
			if c.number {
				var err error
				if n, err = strconv.Atoi(args[1]); err != nil || n < 0 || n > ops.MaxPerSecond {
					return usagef(cmd, "%q is no number per second from 0 to %d", args[1], ops.MaxPerSecond)
				}
				said.PerSecond = &n
			}
			return withDesk(cmd.Context(), a, logAndTargets, func(ctx context.Context, s *ops.Store, cfg *config) error {
				err := a.asked(ctx, cfg, func(ctx context.Context) error {
					if dryRun {
						return knownIn(ctx, s, args[0])
					}
					return c.do(ctx, s, args[0], n, a.by(reason))
				})
				if err != nil {
					return err
				}
				return tellControl(a, c, said, out)
			})
		},
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	reasonFlags(cmd, &reason, &dryRun)
	return cmd
}

// knownIn finds out whether a data source is known, without a change.
func knownIn(ctx context.Context, s *ops.Store, name string) error {
	o, err := s.Overview(ctx, ops.OverviewOptions{Cap: 1})
	if err != nil {
		return err
	}
	for _, d := range o.DataSources {
		if d.Name == name {
			return nil
		}
	}
	return fmt.Errorf("%w: %q", ops.ErrUnknownDataSource, name)
}

func tellControl(a *app, c control, said controlled, out output) error {
	if out.json() {
		text, err := marshal(said, "")
		if err == nil {
			_, err = fmt.Fprintln(a.Out, text)
		}
		return err
	}
	done := c.done
	switch {
	case said.PerSecond != nil && *said.PerSecond == 0:
		done = "not limited any more"
	case said.PerSecond != nil:
		done = fmt.Sprintf("limited to %d deliveries per second", *said.PerSecond)
	}
	if said.DryRun {
		done = "would be " + done
	}
	_, err := fmt.Fprintf(a.Out, "%s: %s\n", printable(said.DataSource), done)
	return err
}
