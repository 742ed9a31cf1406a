package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func amendCommand(a *app) *cobra.Command {
	var to ops.Amendment
	var reason string
	var yes bool
	cmd := &cobra.Command{
		Use:   "amend ID",
		Short: "Replace the SQL or the parameters of a parked entry that is surely not applied",
		Long: `Replace the SQL or the parameters of one statement of a parked entry that is surely not
applied, such as after a column was renamed. The entry stays parked: retry it afterwards. On a
terminal it asks before; elsewhere it requires --yes. It requires a --reason; the audit
keeps the old text.

Refused are entries that are in doubt and whose receipt cannot end that, that must not be run
again, or that were written under an idempotency key; a text that is not one DML statement;
and one that the data source, if it can be reached, would not prepare.

Parameters are a JSON array in the log's own form, such as [1, "text", {"uint64": 7}], or what
show --show-parameters -o json prints as parameters or typedParameters; left out, they stay.

JSON (-o json): an object with id, statement and unprepared (why the data source could not
be asked; empty if it takes the text).`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, flags := cmd.Context(), cmd.Flags()
			switch {
			case !flags.Changed("sql") && !flags.Changed("parameters"):
				return usagef("amend needs a new text, --sql, or new --parameters")
			case flags.Changed("sql") && strings.TrimSpace(to.SQL) == "", flags.Changed("parameters") && strings.TrimSpace(to.Parameters) == "":
				return usagef("--sql or --parameters is empty: give it a value, or leave it out; no parameters are []")
			case flags.Changed("statement") && to.Statement < 1:
				return usagef("--statement must be at least 1")
			case strings.TrimSpace(reason) == "":
				return usagef("amend needs a reason, which the audit keeps: say why with --reason")
			case !yes && !a.InTTY:
				return usagef("amend changes what will be written: confirm it with --yes")
			}
			return withDesk(ctx, a, func(d *desk) error {
				if !yes {
					if err := a.confirm(ctx, fmt.Sprintf("amend %s? The audit keeps the old text.", printable(args[0]))); err != nil {
						return err
					}
				}
				done, err := d.Amend(ctx, args[0], to, a.by(reason))
				switch {
				case errors.Is(err, ops.ErrNoAnswer):
					return d.log.silent(err)
				case err != nil:
					return explain(args[0], err)
				case a.json():
					return printJSON(a.Out, done)
				}
				fmt.Fprintf(a.Out, "%s: statement %d amended; it is still parked: bed-job retry %[1]s\n", done.ID, done.Statement)
				if done.Unprepared != "" {
					fmt.Fprintf(a.Err, "note: its data source could not be asked whether it takes the text: %s\n", printable(a.redact(done.Unprepared)))
				}
				return nil
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&to.SQL, "sql", "", "the new text; left out, it stays")
	cmd.Flags().StringVar(&to.Parameters, "parameters", "", "the new parameters as a `JSON` array; left out, they stay")
	cmd.Flags().IntVar(&to.Statement, "statement", 0, "which statement of several, from 1")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
