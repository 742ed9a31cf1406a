package cli

import (
	"context"
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
	a.configFlag(cmd)
	cmd.Flags().StringVar(&listen, "listen", "", "listen there, whatever the configuration says (default: console.listen, else "+DefaultListen+")")
	return cmd
}

// runConsole is the command console.
func runConsole(ctx context.Context, a *app, listen string) (err error) {
	if a.logTimeout <= 0 {
		return usagef(nil, "--log-timeout must be more than 0")
	}
	if _, err := a.logger(); err != nil {
		return err
	}
	cfg, err := a.readConfig(a.configPath, logTargetsAndConsole)
	if err != nil {
		return err
	}
	where := cfg.console.Config
	if listen != "" {
		where.Listen = listen
	}
	if where.Listen == "" {
		where.Listen = DefaultListen
	}
	if err := where.Validate(); err != nil {
		return err
	}
	logs := a.served(cfg)
	defer func() { err = redactError(err, a.dsns...) }()
	log, err := a.logger(a.dsns...)
	if err != nil {
		return err
	}
	served, err := serveConsole(ctx, where, logs, log)
	if err != nil {
		return err
	}
	defer served.end()
	ctx, cancel := context.WithCancel(ctx)
	opened := make(chan error, len(logs))
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	for i, l := range logs {
		open.Go(func() {
			st, err := a.openForRun(ctx, l, false, log)
			if err == nil && st != nil {
				defer closing(st.Close)
				err = served.ready(i, st, opsConfig(a, cfg))
			}
			opened <- err
			<-ctx.Done()
		})
	}
	for {
		select {
		case err := <-opened:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			log.Info("the console has ended")
			return nil
		case err := <-served.ended:
			served.ended <- nil
			return err
		}
	}
}
