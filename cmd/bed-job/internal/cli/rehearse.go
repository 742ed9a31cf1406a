package cli

import (
	"cmp"
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
		Short: "Prepare each pending statement on its target, and list those that would fail",
		Long: `Prepare each distinct text of waiting and parked entries on its target, in a session like
the job's. Use it after a schema migration, or before it on a copy. It runs no statement and
leaves no prepared one. Refused texts are listed by kind of error. Entries that must not be
run again are left out. The flag --kind below a line selects the entries with its text:
park, amend and retry them. For a line with several texts, JSON has the kind of each.

Exit status: 0 all can be prepared, 1 some cannot, 3 some could not be checked, or the
command line is wrong.

JSON (-o json): an object with entries and texts (the numbers examined), refused and unseen
(those that could not be checked), each an array of objects with dataSource, code, text (with
values as ?), entries, texts, oldest (an ID) and kinds (of at most 20 texts: kind, for
--kind, sql and entries), and more (some were not examined).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("data-source") && dataSource == "" {
				return usagef("--data-source is empty: give it a value, or leave it out")
			}
			return withDesk(cmd.Context(), a, func(d *desk) error {
				r, err := d.Rehearse(cmd.Context(), dataSource)
				if err != nil {
					return err
				}
				return printRehearsal(a, r)
			})
		},
	}
	a.logFlags(cmd)
	cmd.Flags().StringVar(&dataSource, "data-source", "", "only texts for the data source `name`")
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
	return cmp.Or(err, judged(len(r.Refused) > 0, len(r.Unseen) > 0 || r.More))
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
