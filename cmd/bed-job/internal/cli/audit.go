package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func auditCommand(a *app) *cobra.Command {
	var limit int
	var values bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List the actions of operators, newest first",
		Long: `List the actions of operators in the console, by its API and by these commands, newest
first: when (by the log's clock), who, on how many entries, and why. For an action by a
filter it shows the filter, the time of the count, and how many entries were gone by then.
For an amended statement it keeps the old and the new text. Values (parameters, and texts
of filters) are shown only with --show-parameters, and that is audited.

JSON (-o json): an array of objects with id, time, who, action, what (an entry's ID, a
data source, or a filter or an amendment as JSON, whole), count and reason. A filter has the
ids of the changed entries, up to 10,000.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit must not be negative")
			}
			return withDesk(cmd.Context(), a, func(d *desk) error { return printAudit(cmd.Context(), a, d, limit, values) })
		},
	}
	a.logFlags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "list at most N (0: all)")
	cmd.Flags().BoolVar(&values, "show-parameters", false, "print values: amended parameters, texts of filters")
	return cmd
}

func printAudit(ctx context.Context, a *app, d *desk, limit int, values bool) error {
	records := []ops.Record{}
	err := eachPage(limit, func(p ops.Page) ([]ops.Record, string, error) {
		found, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Audit, error) {
			if values {
				return d.RevealAudit(ctx, p, a.by(""))
			}
			return d.Audit(ctx, p)
		})
		if err != nil {
			return nil, "", err
		}
		return found.Records, found.Next, nil
	}, func(page []ops.Record) error {
		records = append(records, page...)
		return nil
	})
	if err != nil {
		return err
	}
	t := table{headings: []string{"TIME", "WHO", "ACTION", "COUNT", "WHAT", "REASON"}, long: 2}
	for _, r := range records {
		n := "-"
		if r.Count > 0 {
			n = strconv.Itoa(r.Count)
		}
		t.add(r.Time.Local().Format(time.RFC3339), r.Who, string(r.Action), n, r.What, r.Reason)
	}
	return a.print(records, &t, "The audit is empty.")
}
