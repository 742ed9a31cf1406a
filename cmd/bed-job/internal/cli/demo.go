package cli

import (
	"cmp"
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/bedsql/bed/cmd/bed-job/internal/demo"
)

// demoWidth is the most columns of the demo's lines: it is made to be read beside other things.
const demoWidth = 100

func demoCommand(a *app) *cobra.Command {
	var keep, console bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Demonstrate the four ways of a write, on two SQLite databases with real faults",
		Long: `Move money between two SQLite databases in a temporary directory while faults are
injected and a program is killed. Show each way of a write, and check the balances at the
end. It needs no other program and takes a few seconds. With --console the job stays, with
its web console. The exit status is 1 if a balance is wrong.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir, ok := a.Getenv(demo.ApplicationVariable); ok {
				return demo.Application(cmd.Context(), dir)
			}
			width := min(cmp.Or(a.width(), demoWidth), demoWidth)
			return demo.Run(cmd.Context(), demo.Options{
				Out: a.Out, Width: width, Keep: keep, Console: console,
				BedJob: func(ctx context.Context, out io.Writer, args ...string) int {
					inner := *a
					inner.Out, inner.Err, inner.OutTTY, inner.ErrTTY = out, out, false, false
					inner.Width = func() int { return width }
					return inner.run(ctx, args)
				},
			})
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the databases for inspection")
	cmd.Flags().BoolVar(&console, "console", false, "leave a job with its web console running at the end, with the stuck entry")
	return cmd
}
