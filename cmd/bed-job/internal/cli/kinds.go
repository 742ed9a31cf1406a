package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func kindsCommand(a *app) *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "kinds",
		Short: "Count the entries by kind of error, the most frequent first",
		Long: `Count the entries by kind of error, the most frequent first. A kind is the errors of a data
source that differ only in values and numbers; its first and last time of writing are shown.
The filters are those of list. Each kind is followed by the flag --kind, which selects its
entries in every command with filters. In a large log, 1536+ means at least as many.

JSON (-o json): an array of objects with key (for --kind), dataSource, code (the database's),
text (with values as ?), count, more (there are others), oldest and newest (IDs), and
createdAt and newestCreatedAt (their times).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.read(cmd); err != nil {
				return err
			}
			ctx := cmd.Context()
			return withDesk(ctx, a, func(d *desk) error {
				kinds, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Kinds, error) { return d.Kinds(ctx, f.Filter) })
				if err != nil {
					return err
				}
				t := table{headings: []string{"COUNT", "DATA SOURCE", "CODE", "FIRST", "LAST", "ERROR"}, long: 1}
				for _, k := range kinds.Kinds {
					t.add(atLeast(k.Count, k.More), k.DataSource, k.Code, k.CreatedAt.Local().Format(time.RFC3339), k.NewestCreatedAt.Local().Format(time.RFC3339), k.Text)
					t.under("--kind " + k.Key)
				}
				return a.print(kinds.Kinds, &t, "The log holds no entry of that kind with an error.")
			})
		},
	}
	a.logFlags(cmd)
	filterFlags(a, cmd, &f)
	return cmd
}

// atLeast formats a count, with a mark if there are more than n.
func atLeast(n int, more bool) string {
	return strconv.Itoa(n) + map[bool]string{true: "+"}[more]
}
