package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/internal/ops"
)

func watchCommand(a *app) *cobra.Command {
	var (
		every time.Duration
		count int
	)
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the state of the log again and again, until it is interrupted",
		Long: `Show the state of the log again and again, until it is interrupted: what each data source
holds, whether the jobs reach it, what became of writes in the last five minutes, which
jobs are alive. On a terminal each picture replaces the one before.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond || count < 0 {
				return usagef(cmd, "--interval must be at least 100ms, --count not negative")
			}
			return withDesk(cmd.Context(), a, logAndTargets, func(ctx context.Context, s *ops.Store, cfg *config) error {
				return watchLog(ctx, a, s, cfg, every, count)
			})
		},
	}
	a.configFlag(cmd)
	cmd.Flags().DurationVar(&every, "interval", 2*time.Second, "how often")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many pictures (0: never)")
	return cmd
}

func watchLog(ctx context.Context, a *app, s *ops.Store, cfg *config, every time.Duration, count int) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ; n++ {
		var picture strings.Builder
		err := a.asked(ctx, cfg, func(ctx context.Context) error {
			o, err := s.Overview(ctx, ops.OverviewOptions{})
			if err == nil {
				draw(&picture, o)
			}
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if n == 1 {
				return err
			}
			// It may come back: that is what one watches for.
			fmt.Fprintf(&picture, "%s\n", printable(redact(err.Error(), a.dsns...)))
		}
		if a.OutTTY {
			fmt.Fprint(a.Out, "\x1b[H\x1b[2J")
		} else if n > 1 {
			fmt.Fprintln(a.Out)
		}
		if _, err := io.WriteString(a.Out, picture.String()); err != nil {
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

// draw draws one picture.
func draw(to io.Writer, o *ops.Overview) {
	fmt.Fprintf(to, "%s   jobs alive: %d\n\n", o.At.Local().Format("2006-01-02 15:04:05"), len(o.Jobs))
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DATA SOURCE\tWAITING\tLEASED\tPARKED\tOLDEST\tSTATE\tAT ONCE/MIN\tRETRY/MIN\tJOB/MIN\tPENDING/MIN")
	for _, d := range o.DataSources {
		oldest := "-"
		if d.Oldest != nil {
			oldest = clockText(o.At.Sub(*d.Oldest))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\n", printable(d.Name),
			capped(d, ops.Waiting, d.Waiting), capped(d, ops.Leased, d.Leased), capped(d, ops.Parked, d.Parked), oldest, condition(d, o.At),
			d.Rates.AtOnce, d.Rates.SyncRetry, d.Rates.Job, d.Rates.Pending)
	}
	_ = w.Flush()
	for _, off := range o.Off {
		fmt.Fprintf(to, "not told: %s\n", printable(off))
	}
}

// capped is a count that may have been broken off.
func capped(d ops.DataSource, s ops.State, n int) string {
	if slices.Contains(d.More, s) {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
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
			down += " for " + clockText(now.Sub(*d.Since))
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
