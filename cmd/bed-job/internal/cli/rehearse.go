package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func rehearseCommand(a *app) *cobra.Command {
	var dataSource string
	cmd := &cobra.Command{
		Use:   "rehearse",
		Short: "Have each pending text prepared on its target, and list what would no longer fit",
		Long: `Have each different text that waits or is parked prepared on its target, in a session such
as the job opens: after a schema migration, or on a copy before it. Nothing is run, and nothing
stays prepared. What the database refuses is listed by kind of error. Entries that must not
be run again are left out. The flag --kind below a line selects the entries of its one text:
park them, amend them, and retry them. Of several texts, JSON has the kind of each.

Exit status: 0 all would be prepared, 1 some would not, 3 it could not look at all of them,
also for a wrong command line.

JSON (-o json): an object with entries and texts (how many were looked at), refused and
unseen (what could not be asked about), each an array of objects with dataSource, code, text
(values in it are ?), entries, texts, oldest (an ID) and kinds (of at most 20 texts: kind, for
--kind, sql and entries), and more (there are more than it looks at).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("data-source") && dataSource == "" {
				return usagef("--data-source is empty: give it a value, or leave it out")
			}
			return withDesk(cmd.Context(), a, func(d *desk) error {
				r, err := d.Rehearse(cmd.Context(), dataSource)
				switch {
				case errors.Is(err, ops.ErrNoAnswer):
					return d.log.silent(err)
				case err != nil:
					return err
				}
				return printRehearsal(a, r)
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&dataSource, "data-source", "", "only those of the data source `name`")
	_ = cmd.RegisterFlagCompletionFunc("data-source", completeDataSource(a))
	return cmd
}

func printRehearsal(a *app, r *ops.Rehearsal) error {
	var err error
	if a.json() {
		err = printJSON(a.Out, r)
	} else {
		fmt.Fprintf(a.Out, "%s with %d different texts looked at, %d kinds of refusal\n", entries(r.Entries), r.Texts, len(r.Refused))
		err = errors.Join(printMisfits(a, "REFUSED", r.Refused), printMisfits(a, "NOT ASKED", r.Unseen))
		if r.More {
			fmt.Fprintln(a.Err, "There are more: name a data source.")
		}
	}
	switch {
	case err != nil:
		return err
	case len(r.Refused) > 0:
		return errReported
	case len(r.Unseen) > 0 || r.More:
		return reported(exitUnknown)
	}
	return nil
}

func printMisfits(a *app, heading string, all []ops.Misfit) error {
	if len(all) == 0 {
		return nil
	}
	t := table{width: a.width(), headings: []string{heading, "TEXTS", "DATA SOURCE", "CODE", "OLDEST", "ERROR"}, long: 1}
	for _, m := range all {
		t.add(strconv.Itoa(m.Entries), strconv.Itoa(m.Texts), m.DataSource, m.Code, m.Oldest, a.redact(m.Text))
		if m.Texts == 1 {
			t.under("--kind " + m.Kinds[0].Kind)
		}
	}
	return t.print(a.Out)
}
