package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func statsCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the entries of each data source",
		Long: `Count the entries of each data source: waiting ones, those being written or delivered at
this moment (leased), and those parked for an operator. Also show the oldest entry's time.

JSON (-o json): an array of objects with dataSource, waiting, leased, parked and
oldest (RFC 3339 in UTC, or null).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConfig(cmd.Context(), func(log boundedLog, _ *config) error { return printStats(cmd.Context(), a, log) })
		},
	}
	a.logFlags(cmd)
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

func printStats(ctx context.Context, a *app, log boundedLog) error {
	all, err := log.Stats(ctx)
	if err != nil {
		return err
	}
	if a.json() {
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
	t := table{width: a.width(), headings: []string{"DATA SOURCE", "WAITING", "LEASED", "PARKED", "OLDEST"}}
	for _, s := range all {
		t.add(s.DataSource, strconv.Itoa(s.Waiting), strconv.Itoa(s.Leased), strconv.Itoa(s.Parked), when(a.Now(), s.Oldest))
	}
	return t.print(a.Out)
}
