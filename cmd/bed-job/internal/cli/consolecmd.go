package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func (a *app) consoleCommand() *cobra.Command {
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

Without users and tokens it listens on loopback only, and whoever asks there has all
roles.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), listen) },
	}
	a.configFlag(cmd)
	cmd.Flags().StringVar(&listen, "listen", "", "listen there, whatever the configuration says (default: console.listen, else "+DefaultListen+")")
	return cmd
}

// serve is the command console.
func (a *app) serve(ctx context.Context, listen string) (err error) {
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
	a.dsns = []string{cfg.log.dsn}
	for _, s := range cfg.targets {
		a.dsns = append(a.dsns, s.dsn)
	}
	defer func() { err = redactError(err, a.dsns...) }()
	log, err := a.logger(a.dsns...)
	if err != nil {
		return err
	}
	served, err := serveConsole(ctx, where, log)
	if err != nil {
		return err
	}
	defer served.end()
	st, err := a.openForRun(ctx, cfg.log, log)
	if err != nil || st == nil {
		return err
	}
	defer closing(st.Close)
	if err := served.ready(st, a.opsConfig(cfg)); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err := <-served.ended:
		served.ended <- nil
		return err
	}
	log.Info("the console has ended")
	return nil
}
