package cli

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"
)

func consoleCommand(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve the web console and its JSON API, without a job",
		Long: `Serve the web console and its JSON API until SIGINT, SIGTERM or SIGHUP: what the log
holds, why it is stuck, what a retry would do, and the actions that clear it. No job
runs here; "bed-job run" serves the same when its configuration says console.listen.

The section console of the configuration says where it listens and who may log in:

    console:
      listen: "127.0.0.1:8390"
      users:  [{name: ann, passwordHash: "${ANN_HASH}", role: operate}]
      tokens: [{name: grafana, tokenHash: "${TOKEN_SHA256}", role: read}]

Several logs (transactionLogDataSource as a list) are shown together, and each by itself;
--log shows one alone.

Without users and tokens it listens on loopback only, and whoever asks there has all
roles.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runConsole(cmd.Context(), a, listen) },
	}
	a.configFlags(cmd)
	cmd.Flags().StringVar(&listen, "listen", "", "listen there, whatever the configuration says (default: console.listen, else "+DefaultListen+")")
	return cmd
}

// runConsole is the command console.
func runConsole(ctx context.Context, a *app, listen string) error {
	cfg, err := a.readConfig(logTargetsAndConsole)
	if err != nil {
		return err
	}
	where := cfg.console
	where.Listen = cmp.Or(listen, where.Listen, DefaultListen)
	if err := where.Validate(); err != nil {
		return err
	}
	logger, err := a.logger()
	if err != nil {
		return err
	}
	served, err := serveConsole(ctx, where, cfg.logs, logger)
	if err != nil {
		return err
	}
	defer served.end()
	ctx, cancel := context.WithCancelCause(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel(nil)
	for i, l := range cfg.logs {
		open.Go(func() {
			log, ok, err := a.openForRun(ctx, l, false, true, logger)
			if ok {
				defer closing(log.Close)
				err = served.ready(i, log, opsConfig(a, cfg))
			}
			if err != nil {
				cancel(err)
			}
			<-ctx.Done()
		})
	}
	select {
	case <-ctx.Done():
		if err := context.Cause(ctx); !errors.Is(err, ctx.Err()) {
			return err
		}
		logger.Info("the console has ended")
		return nil
	case err := <-served.ended:
		served.ended <- nil
		return err
	}
}
