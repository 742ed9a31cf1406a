package cli

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/txlog"
)

func statsCommand(a *app) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the entries of each data source",
		Long: `Count the entries of each data source: those that wait, those that are being written
or delivered at this moment (leased), those parked for an operator, and the oldest.

JSON (-o json): an array of objects with dataSource, waiting, leased, parked and
oldest (RFC 3339 in UTC, or null).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), func(st txlog.Storage) error { return showStats(cmd.Context(), a, st, out) })
		},
	}
	a.configFlag(cmd)
	outputFlag(a, cmd, &out)
	return cmd
}

// statsView is a data source's counts as JSON shows them.
type statsView struct {
	DataSource string     `json:"dataSource"`
	Waiting    int        `json:"waiting"`
	Leased     int        `json:"leased"`
	Parked     int        `json:"parked"`
	Oldest     *time.Time `json:"oldest"`
}

func showStats(ctx context.Context, a *app, st txlog.Storage, out output) error {
	all, err := st.Stats(ctx)
	if err != nil {
		return err
	}
	if out.json() {
		views := make([]statsView, len(all))
		for i, s := range all {
			views[i] = statsView{s.DataSource, s.Waiting, s.Leased, s.Parked, utc(s.Oldest)}
		}
		return printJSON(a.Out, views)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(a.Err, "The log is empty.")
		return err
	}
	now := a.Now()
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DATA SOURCE\tWAITING\tLEASED\tPARKED\tOLDEST")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", printable(s.DataSource), s.Waiting, s.Leased, s.Parked, when(now, s.Oldest))
	}
	return w.Flush()
}
