package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bedsql/bed/asyncjob"
	"github.com/bedsql/bed/txlog"
)

func runCommand(a *app) *cobra.Command {
	var once, exit bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver what the log holds, by the schedule of the configuration",
		Long: `Deliver what the log holds, by the schedule of the configuration, until SIGINT,
SIGTERM or SIGHUP. Then what is in flight is finished and what was claimed is given
back; a second signal, a second later or more, ends the process at once.

A transaction log that is down at the start is waited for, with a warning at once and
each minute; --exit-if-log-unavailable, or exitIfLogUnavailable: true in jobConfig,
ends with status 1 instead, as --once does.

With --once it makes one round and prints what it did. The exit status is 1 if the
round is not complete: the log or a data source could not be reached or takes no
writes, or entries cannot be delivered until an operator acts: the configuration does not
name their data source, their settings cannot be applied, rights or a table are missing.

The configuration, with the names of Sharding-JDBC:

    targetDataSource:
      orders_0: {driver: mysql, dsn: "${ORDERS_0_DSN}"}
      ledger:   {driver: postgres, dsn: "${LEDGER_DSN}"}
    transactionLogDataSource: {driver: mysql, dsn: "${BED_LOG_DSN}"}   # or a list of several, each with a name
    jobConfig: {name: bestEffortsDeliveryJob, cron: "0/5 * * * * ?",
                transactionLogFetchDataCount: 100, maxDeliveryTryTimes: 3,
                maxDeliveryTryDelayMillis: 60000}

driver is mysql, postgres or sqlite. ${NAME} in a value is an environment variable, $$
is a dollar sign. jobConfig and each of its keys may be absent; it also knows
retryDelayMillis, retryMultiplier, retryDelayMaxMillis, retryJitter,
deliveryTimeoutMillis, probeTimeoutMillis, leaseMillis, concurrency,
deliveryBatch, unknownDataSourceDelayMillis, shutdownTimeoutMillis, receiptRetentionMillis,
keyRetentionMillis, purgeIntervalMillis, activity and exitIfLogUnavailable. A delay of 0 means none.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runJob(cmd.Context(), a, once, exit) },
	}
	a.configFlag(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "make one round and end")
	cmd.Flags().BoolVar(&exit, "exit-if-log-unavailable", false, "end when the transaction log is down at the start, instead of waiting for it")
	return cmd
}

// runJob is the command run.
func runJob(ctx context.Context, a *app, once, exit bool) (err error) {
	if _, err := a.logger(); err != nil {
		return err // before anything is opened
	}
	if a.logTimeout <= 0 {
		return usagef(nil, "--log-timeout must be more than 0")
	}
	cfg, err := a.readConfig(a.configPath, wholeFile)
	if err != nil {
		return err
	}
	logs := a.served(cfg)
	targets := asyncjob.Targets{}
	for _, s := range cfg.targets {
		if targets[s.name], err = s.target(); err != nil {
			return err
		}
	}
	defer func() { err = redactError(err, a.dsns...) }()
	log, err := a.logger(a.dsns...)
	if err != nil {
		return err
	}
	var served *consoleServer
	if cfg.console.Listen != "" && !once {
		if served, err = serveConsole(ctx, cfg.console.Config, logs, log); err != nil {
			return err
		}
		defer served.end()
	}
	open := func(ctx context.Context, s dataSource, log logrus.FieldLogger) (txlog.Storage, error) {
		if once || exit || cfg.exitIfLogUnavailable {
			return a.openBounded(ctx, s, true)
		}
		return a.openForRun(ctx, s, true, log)
	}
	told := make(chan struct{})
	untold := context.AfterFunc(ctx, func() {
		defer close(told)
		log.Info("ending: what is in flight is finished; a second signal ends it at once")
	})
	defer func() {
		if !untold() {
			<-told
		}
	}()
	d := &delivering{app: a, cfg: cfg, targets: targets, log: log, open: open, served: served, once: once}
	if once {
		var errs []error
		for _, l := range logs {
			if len(logs) > 1 {
				fmt.Fprintln(a.Out, "log "+printable(l.name)+":")
			}
			errs = append(errs, d.from(ctx, l, 0))
		}
		return errors.Join(errs...)
	}
	if err := d.fromAll(ctx, logs); err != nil {
		return err
	}
	log.Info("bed-job has ended")
	return nil
}

// delivering is what the command run delivers with, from each of its logs.
type delivering struct {
	*app
	cfg     *config
	targets asyncjob.Targets
	log     *logrus.Logger
	open    func(context.Context, dataSource, logrus.FieldLogger) (txlog.Storage, error)
	served  *consoleServer
	once    bool
}

// fromAll delivers from several logs side by side: one that is down is waited for
// while the others are served. An error of one ends all.
func (d *delivering) fromAll(ctx context.Context, logs []dataSource) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(logs))
	var wg sync.WaitGroup
	for i, l := range logs {
		wg.Go(func() {
			if errs[i] = d.from(ctx, l, i); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// from delivers from one log, the i-th.
func (d *delivering) from(ctx context.Context, l dataSource, i int) error {
	var log logrus.FieldLogger = d.log
	if len(d.cfg.logs) > 1 {
		log = d.log.WithField("log_name", l.name)
	}
	st, err := d.open(ctx, l, log)
	if err != nil || st == nil {
		return err
	}
	defer closing(st.Close)
	st = boundedLog{st, d.app, l}
	cfg := d.cfg.job
	if d.served != nil {
		if err := d.served.ready(i, st, opsConfig(d.app, d.cfg)); err != nil {
			return err
		}
		cfg.Bus = d.served.bus
	}
	cfg.Logger = log
	if d.once {
		return runOnce(ctx, d.app, st, d.targets, cfg)
	}
	job, err := asyncjob.New(st, d.targets, cfg)
	if err != nil {
		return err
	}
	defer closing(job.Close)
	log.WithFields(logrus.Fields{"data_sources": slices.Sorted(maps.Keys(d.targets))}).Info("bed-job is running")
	return job.Run(ctx)
}

// closing closes something whose every answer was waited for: an error then is
// of a connection that was cut while it was idle, and no failure of the command.
func closing(f func() error) { _ = f() }

func runOnce(ctx context.Context, a *app, st txlog.Storage, targets asyncjob.Targets, cfg jobConfig) (err error) {
	progress, clear := spinner(a, cfg.WithDefaults().Name)
	cfg.OnProgress = func(r asyncjob.Report) { progress(r.Claimed, r.Delivered) }
	job, err := asyncjob.New(st, targets, cfg)
	if err != nil {
		return err
	}
	defer closing(job.Close)
	report, err := job.RunOnce(ctx)
	clear()
	fmt.Fprintln(a.Out, printable(report.String()))
	if err != nil {
		return fmt.Errorf("the round is not complete: %w", err)
	}
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(report.DataSources)) {
		ds := report.DataSources[name]
		switch {
		case ds.Unknown:
			wrong = append(wrong, fmt.Errorf("data source %s: the log names it, targetDataSource does not: add it there", printable(name)))
		case ds.Unreachable != nil:
			wrong = append(wrong, fmt.Errorf("data source %s: unreachable: %w", printable(name), ds.Unreachable))
		case ds.Blocked != nil:
			wrong = append(wrong, fmt.Errorf("data source %s: entries cannot be delivered until an operator acts: %w", printable(name), ds.Blocked))
		case ds.Lost > 0:
			wrong = append(wrong, fmt.Errorf("data source %s: of %s it is not known what became", printable(name), entries(ds.Lost)))
		}
		if ds.Purge != nil {
			wrong = append(wrong, fmt.Errorf("data source %s: receipts cannot be erased or purged until an operator acts: %w", printable(name), ds.Purge))
		}
	}
	return errors.Join(wrong...)
}

// spinner shows the progress of work whose size is not known, on a terminal.
func spinner(a *app, name string) (show func(claimed, delivered int), clear func()) {
	bar := progressbar.NewOptions(-1,
		progressbar.OptionSetWriter(a.Err), progressbar.OptionSetDescription(name),
		progressbar.OptionSetVisibility(a.ErrTTY), progressbar.OptionThrottle(100*time.Millisecond))
	var mu sync.Mutex
	return func(claimed, delivered int) {
			mu.Lock()
			defer mu.Unlock()
			bar.Describe(fmt.Sprintf("%s: claimed %d, delivered %d", printable(name), claimed, delivered))
			_ = bar.Set(claimed)
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			_ = bar.Finish()
			_ = bar.Clear()
		}
}
