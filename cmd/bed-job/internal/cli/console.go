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
		Long: `Serve the web console and its JSON API until SIGINT, SIGTERM or SIGHUP. They show the
log's entries, the reasons of stuck ones and the effect of a retry, and offer the actions
to clear them. No job runs here; "bed-job run" serves the same if its configuration has
console.listen.

The section console of the configuration sets the address and the users:

    console:
      listen: "127.0.0.1:8390"
      users:  [{name: ann, passwordHash: "${ANN_HASH}", role: operate}]
      tokens: [{name: grafana, tokenHash: "${TOKEN_SHA256}", role: read}]

Several logs (transactionLogDataSource as a list) are shown together, and each by itself;
--log shows one alone.

Without users and tokens it listens on loopback only, and every user there has all
roles.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runConsole(cmd.Context(), a, listen) },
	}
	a.configFlags(cmd)
	cmd.Flags().StringVar(&listen, "listen", "", "the address to listen on (default: console.listen, else "+DefaultListen+")")
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
	served, err := serveConsole(ctx, where, "", cfg.logs, logger)
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
