package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func compensateCommand(a *app) *cobra.Command {
	var reason string
	var yes bool
	cmd := &cobra.Command{
		Use:   "compensate TX",
		Short: "Compensate a group: undo the parts that were applied",
		Long: `Compensate a group, a soft transaction whose parts were recorded with compensations.
The job undoes the applied parts, the last one first, and the other parts will never be
applied. TX is the ID of the soft transaction or of any of its entries. On a terminal it
asks first; elsewhere it requires --yes. It requires a --reason, which the audit keeps.

A group that was delivered as a whole can no longer be compensated. One that is half compensated
resumes where it stopped, as after a retry.

JSON (-o json): an object with transactionId, parts (their number) and dataSource (the
first one to compensate).`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case strings.TrimSpace(reason) == "":
				return usagef("compensate needs a reason, which the audit keeps: say why with --reason")
			case !yes && !a.InTTY:
				return usagef("compensate changes data: confirm it with --yes")
			}
			ctx := cmd.Context()
			return withDesk(ctx, a, func(d *desk) error {
				if err := a.confirm(ctx, yes, fmt.Sprintf("compensate %s? Its applied parts are compensated, the last one first.", printable(args[0]))); err != nil {
					return err
				}
				started, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Compensated, error) { return d.Compensate(ctx, args[0], a.by(reason)) })
				switch {
				case err != nil:
					return explain(args[0], err)
				case a.json():
					return printJSON(a.Out, started)
				}
				fmt.Fprintf(a.Out, "%s: compensation started; the job compensates its parts, the one on %s first\n", started.TransactionID, printable(started.DataSource))
				return nil
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
