package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

// tried is a trial as JSON shows it; numbers are texts, as in the API.
type tried struct {
	ID string `json:"id"`
	// Rows are the row counts of the statements; null if the database reports no count.
	Rows  []any    `json:"rows"`
	Error string   `json:"error"`
	Class string   `json:"class,omitempty"`
	Notes []string `json:"notes"`
	Took  string   `json:"took"`
}

func tryCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "try ID",
		Short: "Run a write in a transaction, roll it back, and report its effect",
		Long: `Run a write in a local transaction of its target, roll it back, and print the number of
rows it would change, or the database's error. It waits at most 10 s for locks and leaves
no locks. It lists effects that a rollback does not undo. It is audited.

Exit status: 0 the write would be applied, 1 it would not, or could not be tried.

JSON (-o json): an object with id, rows (of each statement, as texts; null if the
database reports no count), error, class, notes and took.`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withDesk(cmd.Context(), a, func(d *desk) error {
				trial, err := d.Try(cmd.Context(), args[0], a.by(reason))
				if err != nil {
					return explain(args[0], err)
				}
				return printTrial(a, args[0], trial)
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	return cmd
}

func triedOf(id string, trial *ops.Trial) tried {
	rows := make([]any, len(trial.Rows))
	for i, n := range trial.Rows {
		if n >= 0 {
			rows[i] = fmt.Sprint(n)
		}
	}
	return tried{id, rows, trial.Error, trial.Class, trial.Notes, trial.Took.Round(time.Millisecond).String()}
}

func printTrial(a *app, id string, trial *ops.Trial) error {
	if a.json() {
		if err := printJSON(a.Out, triedOf(id, trial)); err != nil {
			return err
		}
	} else {
		for i, n := range trial.Rows {
			which := ""
			if len(trial.Rows) > 1 || trial.Error != "" {
				which = fmt.Sprintf("statement %d ", i+1)
			}
			switch {
			case n < 0:
				fmt.Fprintf(a.Out, "%swould be applied; how many rows it would change the database does not tell\n", which)
			case n == 1:
				fmt.Fprintf(a.Out, "%swould change 1 row\n", which)
			default:
				fmt.Fprintf(a.Out, "%swould change %d rows\n", which, n)
			}
		}
		if trial.Error != "" {
			fmt.Fprintf(a.Out, "would fail: %s\n", printable(a.redact(trial.Error)))
		}
		for _, note := range trial.Notes {
			fmt.Fprintf(a.Out, "note: %s\n", printable(note))
		}
	}
	if trial.Error != "" {
		return errReported
	}
	return nil
}
