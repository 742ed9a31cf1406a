package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func controlCommands(a *app) []*cobra.Command {
	return []*cobra.Command{controlCommand(a, control{
		Action: ops.Pause, args: "NAME", done: "paused: no job delivers there until it is resumed",
		short: "Stop all deliveries to a data source until it is resumed",
		long: `Stop all deliveries to a data source until it is resumed: before work on it, or while
deliveries do harm. Running deliveries finish. Applications go on, and their pending writes
wait in the log. Jobs check for a pause in each round.`,
	}), controlCommand(a, control{
		Action: ops.Resume, args: "NAME", done: "resumed",
		short: "Let jobs deliver to a paused data source again",
		long:  "Let jobs deliver to a paused data source again.",
	}), controlCommand(a, control{
		Action: ops.Limit, args: "NAME PER_SECOND",
		short: "Limit the deliveries to a data source by all jobs together",
		long: `Limit the deliveries to a data source, by all jobs together, to PER_SECOND; 0 lifts the
limit. Applications' own writes are not limited.`,
	})}
}

// control is a decision about a data source.
type control struct {
	ops.Action
	args, done, short, long string
}

// controlled is the result in JSON.
type controlled struct {
	Action     ops.Action `json:"action"`
	DataSource string     `json:"dataSource"`
	PerSecond  *int       `json:"perSecond,omitempty"`
	// Changed is false after a dry run, and if there was nothing to do.
	Changed bool `json:"changed"`
	DryRun  bool `json:"dryRun"`
}

func controlCommand(a *app, c control) *cobra.Command {
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   string(c.Action) + " " + c.args,
		Short: c.short,
		Long: c.long + `

It is audited, with --reason. With --dry-run nothing is changed.

JSON (-o json): an object with action, dataSource, perSecond (of limit), changed and dryRun.`,
		ValidArgsFunction: completeDataSource(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != len(strings.Fields(c.args)) {
				return usagef("%s takes %s", c.Action, c.args)
			}
			done, n := c.done, 0
			said := controlled{Action: c.Action, DataSource: args[0], DryRun: dryRun}
			if len(args) > 1 {
				var err error
				if n, err = strconv.Atoi(args[1]); err != nil || n < 0 || n > ops.MaxPerSecond {
					return usagef("%q is not a number per second from 0 to %d", args[1], ops.MaxPerSecond)
				}
				if said.PerSecond = &n; n == 0 {
					done = "not limited any more"
				} else {
					done = fmt.Sprintf("limited to %d deliveries per second", n)
				}
			}
			return withDesk(cmd.Context(), a, func(d *desk) error {
				_, err := ask(cmd.Context(), d.log, func(ctx context.Context) (any, error) {
					source, err := d.source(ctx, args[0])
					switch {
					case err != nil:
						return nil, err
					case c.Action == ops.Resume && !source.Paused:
						done = "it was not paused"
						return nil, nil
					case dryRun:
						done = "would be " + done
						return nil, nil
					}
					said.Changed = true
					return nil, d.Control(ctx, c.Action, args[0], n, a.by(reason))
				})
				switch {
				case err != nil:
				case a.json():
					err = printJSON(a.Out, said)
				default:
					_, err = fmt.Fprintf(a.Out, "%s: %s\n", printable(args[0]), done)
				}
				return err
			})
		},
	}
	a.logFlags(cmd)
	reasonFlags(cmd, &reason, &dryRun)
	return cmd
}

// source returns the state of a data source. The error for an unknown name lists the known ones.
func (d *desk) source(ctx context.Context, name string) (ops.DataSource, error) {
	o, err := d.Overview(ctx, ops.OverviewOptions{Cap: 1})
	if err != nil {
		return ops.DataSource{}, err
	}
	var known []string
	for _, s := range o.DataSources {
		if s.Name == name {
			return s, nil
		}
		known = append(known, s.Name)
	}
	return ops.DataSource{}, fmt.Errorf("no data source %s in the log or the configuration; known: %s", name, cmp.Or(strings.Join(known, ", "), "none"))
}
