package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/bedsql/sqlite"
	"github.com/bedsql/bed/cmd/bed-job/internal/access"
	"github.com/bedsql/bed/cmd/bed-job/internal/brokers"
	"github.com/bedsql/bed/cmd/bed-job/internal/services"
	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/internal/ops"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

type targetOf = func(dsn string, a *access.Access) (delivery.Target, error)

// databases are the drivers for logs and targets: importing their packages registers them with
// txlog.
var databases = map[string]targetOf{
	"mysql": access.MySQL, "postgres": access.Postgres, "sqlite": func(dsn string, a *access.Access) (delivery.Target, error) {
		if a != nil {
			return delivery.Target{}, errors.New("sqlite reads a file: it takes neither tls nor a password")
		}
		return sqlite.Target(dsn)
	},
}

// drivers are the databases, and what is a target only: message brokers and HTTP services.
var drivers = func() map[string]targetOf {
	all := maps.Clone(databases)
	maps.Copy(all, brokers.Targets)
	all["http"] = services.HTTP
	return all
}()

func namesOf(drivers map[string]targetOf) string {
	return strings.Join(slices.Sorted(maps.Keys(drivers)), ", ")
}

// target reads the DSN of a data source to deliver to. Nothing is dialled.
func (s dataSource) target() (delivery.Target, error) {
	read := drivers[s.driver]
	if read == nil {
		return delivery.Target{}, fmt.Errorf("data source %s: unknown driver, it must be %s", safeName(s.name), namesOf(drivers))
	}
	t, err := read(s.dsn, s.access)
	if err != nil {
		return t, fmt.Errorf("data source %s: %w", safeName(s.name), err)
	}
	t.DataSource = s.name
	return t, nil
}

// openLog opens the transaction log. Looking at a log never creates one.
func openLog(ctx context.Context, s dataSource, create bool) (txlog.Storage, error) {
	var opts []txlog.Option
	if !create {
		// SQLite would create a missing file.
		if t, err := s.target(); err == nil && t.File != "" {
			if _, err := os.Stat(t.File); err != nil {
				return nil, fmt.Errorf("the transaction log cannot be opened: %w", err)
			}
		}
		opts = append(opts, txlog.WithoutCreate())
	}
	if s.noActivity {
		opts = append(opts, txlog.WithoutActivity())
	}
	if s.access != nil {
		opts = append(opts, txlog.WithBeforeConnect(s.access.BeforeConnect))
	}
	st, err := txlog.Open(ctx, s.driver, s.dsn, opts...)
	if err != nil {
		return nil, fmt.Errorf("the transaction log cannot be opened: %w", err)
	}
	return st, nil
}

const (
	// defaultLogTimeout bounds how long a command waits for each answer of the log.
	defaultLogTimeout = 10 * time.Second
	// run pauses so long between two attempts to open a log that is down.
	waitFirst, waitMost = 250 * time.Millisecond, 10 * time.Second
	// waitTold is how often run reports that it is still waiting.
	waitTold = time.Minute
)

// boundedLog is a log with the command line's time limit for each answer.
type boundedLog struct {
	txlog.Storage
	source dataSource
	within time.Duration
}

// Unwrap gives the log itself.
func (b boundedLog) Unwrap() txlog.Storage { return b.Storage }

// ask bounds a question to the log. Its error says if a log accepted a connection and did not
// answer.
func ask[T any](ctx context.Context, log boundedLog, question func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, log.within)
	defer cancel()
	answer, err := question(bounded)
	if err != nil && dberr.TimedOut(ctx, bounded) {
		err = log.silent(err)
	}
	return answer, err
}

func (b boundedLog) silent(err error) error {
	return fmt.Errorf("the transaction log (transactionLogDataSource, %s) did not answer within %v: see whether its server is up "+
		"and answers others, and whether the address is its own; --log-timeout sets how long to wait for it: %w", b.source.place(), b.within, err)
}

func (b boundedLog) List(ctx context.Context, f txlog.Filter) ([]*entry.Unit, error) {
	return ask(ctx, b, func(ctx context.Context) ([]*entry.Unit, error) { return b.Storage.List(ctx, f) })
}

func (b boundedLog) Get(ctx context.Context, id string) (*entry.Unit, error) {
	return ask(ctx, b, func(ctx context.Context) (*entry.Unit, error) { return b.Storage.Get(ctx, id) })
}

func (b boundedLog) Missing(ctx context.Context, ids []string) ([]string, error) {
	return ask(ctx, b, func(ctx context.Context) ([]string, error) { return b.Storage.Missing(ctx, ids) })
}

func (b boundedLog) DataSources(ctx context.Context) ([]string, error) {
	return ask(ctx, b, b.Storage.DataSources)
}

func (b boundedLog) Stats(ctx context.Context) ([]txlog.Stats, error) {
	return ask(ctx, b, b.Storage.Stats)
}

// openBounded opens a log; create also creates missing tables.
func (a *app) openBounded(ctx context.Context, s dataSource, create bool) (boundedLog, error) {
	log := boundedLog{source: s, within: a.logTimeout}
	var err error
	log.Storage, err = ask(ctx, log, func(ctx context.Context) (txlog.Storage, error) { return a.Open(ctx, s, create) })
	return log, err
}

// openForRun opens the log. With wait it waits for a log that is down, because a service manager
// gives up on a program that keeps ending. It reports false if ctx ended meanwhile.
func (a *app) openForRun(ctx context.Context, s dataSource, create, wait bool, logger logrus.FieldLogger) (boundedLog, bool, error) {
	var told time.Time
	for pause := jitter.BackOff(waitFirst, waitMost); ; jitter.Sleep(ctx, pause.NextBackOff()) {
		log, err := a.openBounded(ctx, s, create)
		switch {
		case err == nil:
			return log, true, nil
		case !wait:
			return log, false, err
		case ctx.Err() != nil:
			return log, false, nil //nolint:nilerr // the program was ended meanwhile, and that is no failure
		case !comesUp(s, err):
			return log, false, err
		}
		if time.Since(told) >= waitTold {
			told = time.Now()
			logger.WithError(err).WithField("log", s.place()).
				Warn("waiting for the transaction log, which is not available; --exit-if-log-unavailable or exitIfLogUnavailable ends the program instead")
		}
	}
}

// comesUp reports whether the log may become available without human intervention, given the error
// from opening it.
func comesUp(s dataSource, err error) bool {
	if errors.Is(err, txlog.ErrUnusable) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if s.access.HasPassword() && dberr.Of(err).NotAdmitted() {
		return true // the password changes
	}
	t, terr := s.target()
	// A file is there or it is not.
	return terr == nil && t.File == "" && t.Dialect.DialClass(err) != dialect.Refused
}

// named returns the name that the DSN itself gives the data source: its bedDataSource, or its host
// and database. It is empty for an unreadable DSN.
func (s dataSource) named() string {
	t, _ := drivers[s.driver](s.dsn, nil)
	return t.DataSource
}

// place names the database and its server, without user and password.
func (s dataSource) place() string {
	if name := s.named(); name != "" {
		return s.driver + " at " + name
	}
	return s.driver
}

// A desk carries out an operator's commands. Call its methods through ask: that bounds each answer
// by --log-timeout.
type desk struct {
	*ops.Store
	log boundedLog
	cfg *config
}

func openDesk(a *app, log boundedLog, cfg *config) (*desk, error) {
	store, err := ops.New(log.Storage, opsConfig(a, cfg))
	return &desk{store, log, cfg}, err
}

// withDesk opens the log for a command of an operator.
func withDesk(ctx context.Context, a *app, f func(*desk) error) error {
	return a.withConfig(ctx, func(log boundedLog, cfg *config) error {
		d, err := openDesk(a, log, cfg)
		if err == nil {
			err = f(d)
		}
		if errors.Is(err, ops.ErrNoAnswer) {
			return log.silent(err)
		}
		return err
	})
}
