package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/bedsql/bed/asyncjob"
)

func runCommand(a *app) *cobra.Command {
	var once, exit bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver the log's entries, on the configured schedule",
		Long: `Deliver the log's entries, on the configured schedule, until SIGINT, SIGTERM or SIGHUP.
Then running deliveries finish, and the other claimed entries are released. A second
signal, a second later or more, ends the process at once.

If the transaction log is down at the start, run waits for it, with a warning at once and
each minute. With --exit-if-log-unavailable, or exitIfLogUnavailable: true in jobConfig,
it ends with status 1 instead, as with --once.

With --once it runs one round and prints the result. The exit status is 1 if the round is
incomplete: the log or a data source is unreachable or takes no writes, or some entries
cannot be delivered until an operator acts. The reasons are a data source missing in the
configuration, settings that cannot be applied, and missing rights or tables, also for
purging receipts.

The configuration, with the names of Sharding-JDBC:

    targetDataSource:
      orders_0: {driver: mysql, dsn: "${ORDERS_0_DSN}"}
      ledger:   {driver: postgres, dsn: "${LEDGER_DSN}"}
    transactionLogDataSource: {driver: mysql, dsn: "${BED_LOG_DSN}"}   # or a list of several, each with a name
    jobConfig: {name: bestEffortsDeliveryJob, cron: "0/5 * * * * ?",
                transactionLogFetchDataCount: 100, maxDeliveryTryTimes: 3,
                maxDeliveryTryDelayMillis: 60000}

driver is mysql, postgres or sqlite; for targets also nats, amqp or kafka. ${NAME} in a
value is an environment variable, $$ a dollar sign. tls: {ca, cert, key, serverName}, and
passwordFile or passwordCommand, complete a dsn. jobConfig and its keys are optional.
Further keys are
retryDelayMillis, retryMultiplier, retryDelayMaxMillis, retryJitter,
deliveryTimeoutMillis, probeTimeoutMillis, leaseMillis, concurrency,
deliveryBatch, unknownDataSourceDelayMillis, shutdownTimeoutMillis, receiptRetentionMillis,
keyRetentionMillis, purgeIntervalMillis, activity and exitIfLogUnavailable. A delay of 0
means no delay.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runJob(cmd.Context(), a, once, exit) },
	}
	a.configFlags(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "run one round and exit")
	cmd.Flags().BoolVar(&exit, "exit-if-log-unavailable", false, "exit if the transaction log is down at the start, instead of waiting for it")
	return cmd
}

func runJob(ctx context.Context, a *app, once, exit bool) (err error) {
	cfg, err := a.readConfig(wholeFile)
	if err != nil {
		return err
	}
	targets := asyncjob.Targets{}
	for _, s := range cfg.targets {
		if targets[s.name], err = s.target(); err != nil {
			return err
		}
	}
	logger, err := a.logger()
	if err != nil {
		return err
	}
	d := &delivering{app: a, cfg: cfg, targets: targets, logger: logger, once: once, wait: !once && !exit && !cfg.exitIfLogUnavailable}
	if metrics := string(cfg.metrics.Listen); cfg.console.Listen+metrics != "" && !once {
		if d.served, err = serveConsole(ctx, cfg.console, metrics, cfg.logs, logger); err != nil {
			return err
		}
		defer d.served.end()
	}
	told := make(chan struct{})
	untold := context.AfterFunc(ctx, func() {
		defer close(told)
		logger.Info("ending: finishing what is in flight; a second signal ends it at once")
	})
	defer func() {
		if !untold() {
			<-told
		}
	}()
	if once {
		var errs []error
		for _, l := range cfg.logs {
			if len(cfg.logs) > 1 {
				fmt.Fprintln(a.Out, "log "+printable(l.name)+":")
			}
			errs = append(errs, d.from(ctx, l, 0))
		}
		return errors.Join(errs...)
	}
	if err := d.fromAll(ctx); err != nil {
		return err
	}
	logger.Info("bed-job has ended")
	return nil
}

type delivering struct {
	*app
	cfg     *config
	targets asyncjob.Targets
	logger  *logrus.Logger
	served  *consoleServer
	once    bool
	// wait makes run wait for a log that is down.
	wait bool
}

// fromAll delivers from several logs in parallel. It waits for a log that is down while it serves
// the others. An error of one log ends all.
func (d *delivering) fromAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(d.cfg.logs))
	var wg sync.WaitGroup
	for i, l := range d.cfg.logs {
		wg.Go(func() {
			if errs[i] = d.from(ctx, l, i); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// from delivers from one log, the i-th.
func (d *delivering) from(ctx context.Context, l dataSource, i int) (err error) {
	var logger logrus.FieldLogger = d.logger
	if len(d.cfg.logs) > 1 {
		logger = d.logger.WithField("log_name", l.name)
	}
	log, opened, err := d.openForRun(ctx, l, true, d.wait, logger)
	if err != nil || !opened {
		return err
	}
	defer func() { _ = log.Close() }() // an error means that an idle connection broke
	cfg := d.cfg.job
	if d.served != nil {
		if err := d.served.ready(i, log, opsConfig(d.app, d.cfg)); err != nil {
			return err
		}
		cfg.Bus = d.served.bus
	}
	cfg.Logger = logger
	job, err := asyncjob.New(log, d.targets, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = job.Close() }()
	if d.once {
		return runOnce(ctx, d.app, job)
	}
	logger.WithField("data_sources", slices.Sorted(maps.Keys(d.targets))).Info("bed-job is running")
	return job.Run(ctx)
}

func runOnce(ctx context.Context, a *app, job *asyncjob.Job) error {
	report, err := job.RunOnce(ctx)
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
			wrong = append(wrong, fmt.Errorf("data source %s: the outcome of %s is unknown", printable(name), entries(ds.Lost)))
		}
		if ds.Purge != nil {
			wrong = append(wrong, fmt.Errorf("data source %s: receipts cannot be erased or purged until an operator acts: %w", printable(name), ds.Purge))
		}
	}
	return errors.Join(wrong...)
}

// oneWish is the time in which further signals count as one with the first: ending a process group
// as well as the process sends two at once. Tests set it.
var oneWish = time.Second

// withSignals returns a context canceled by the first SIGINT, SIGTERM or SIGHUP, so that running
// work can finish. A further signal more than oneWish later ends the process at once, as by
// default. An ignored SIGHUP, as under nohup, stays ignored.
func withSignals(parent context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	context.AfterFunc(ctx, func() {
		time.Sleep(oneWish)
		stop()
	})
	return ctx, stop
}
