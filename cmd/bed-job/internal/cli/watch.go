package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func watchCommand(a *app) *cobra.Command {
	var every time.Duration
	var count int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the state of the log, refreshed until interrupted",
		Long: `Show the state of the log, refreshed until interrupted: the entries of each data source,
whether the jobs reach it, the outcomes of writes in the last five minutes, and the live
jobs. On a terminal each refresh replaces the previous one.

JSON (-o json): a line for each refresh, an object like the API's overview, or one with
error while the log does not answer.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond || count < 0 {
				return usagef("--interval must be at least 100ms, --count not negative")
			}
			return withDesk(cmd.Context(), a, func(d *desk) error { return watchLog(cmd.Context(), a, d, every, count) })
		},
	}
	a.logFlags(cmd)
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "how often")
	cmd.Flags().IntVar(&count, "count", 0, "stop after N refreshes (0: never)")
	return cmd
}

func watchLog(ctx context.Context, a *app, d *desk, every time.Duration, count int) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ; n++ {
		o, err := ask(ctx, d.log, func(ctx context.Context) (*ops.Overview, error) { return d.Overview(ctx, ops.OverviewOptions{}) })
		if ctx.Err() != nil {
			return nil
		}
		var picture strings.Builder
		var shown any = o
		switch {
		case err != nil && n == 1:
			return err
		case err != nil: // it may come back: that is what one watches for
			text := a.redact(err.Error())
			shown = map[string]string{"error": text}
			fmt.Fprintln(&picture, printable(text))
		default:
			draw(&picture, a.width(), o)
		}
		before := ""
		switch {
		case a.OutTTY:
			before = "\x1b[H\x1b[2J"
		case n > 1:
			before = "\n"
		}
		if a.json() {
			err = writeJSON(a.Out, shown, "")
		} else {
			_, err = io.WriteString(a.Out, before+picture.String())
		}
		if err != nil {
			return err
		}
		if n == count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func draw(to io.Writer, width int, o *ops.Overview) {
	fmt.Fprintf(to, "%s   jobs alive: %d\n\n", o.At.Local().Format("2006-01-02 15:04:05"), len(o.Jobs))
	t := table{width: width, headings: []string{"DATA SOURCE", "WAITING", "LEASED", "PARKED", "OLDEST", "STATE", "AT ONCE/MIN", "RETRY/MIN", "JOB/MIN", "PENDING/MIN"}}
	perMinute := func(n float64) string { return strconv.FormatFloat(n, 'f', 1, 64) }
	for _, d := range o.DataSources {
		oldest := "-"
		if d.Oldest != nil {
			oldest = span(o.At.Sub(*d.Oldest))
		}
		count := func(n int, s ops.State) string { return atLeast(n, slices.Contains(d.More, s)) }
		t.add(
			d.Name, count(d.Waiting, ops.Waiting), count(d.Leased, ops.Leased), count(d.Parked, ops.Parked), oldest, condition(d, o.At),
			perMinute(d.Rates.AtOnce), perMinute(d.Rates.SyncRetry), perMinute(d.Rates.Job), perMinute(d.Rates.Pending),
		)
	}
	_ = t.print(to)
	for _, off := range o.Off {
		fmt.Fprintf(to, "unavailable: %s\n", printable(off))
	}
}

// condition says how deliveries to a data source are doing.
func condition(d ops.DataSource, now time.Time) string {
	var all []string
	if d.Paused {
		all = append(all, "paused")
	}
	if d.Reachable != nil && !*d.Reachable {
		down := "unreachable"
		if d.Since != nil {
			down += " for " + span(now.Sub(*d.Since))
		}
		all = append(all, down)
	}
	if d.PerSecond > 0 {
		all = append(all, fmt.Sprintf("at most %d/s", d.PerSecond))
	}
	if !d.Configured {
		all = append(all, "not configured here")
	}
	if len(all) == 0 {
		return "ok"
	}
	return strings.Join(all, ", ")
}
