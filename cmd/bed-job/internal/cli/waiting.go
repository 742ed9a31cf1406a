package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/jitter"
	"github.com/bedsql/bed/listener/delivery"
	"github.com/bedsql/bed/txlog"
)

const (
	// defaultLogTimeout bounds what a command waits for an answer of the log.
	defaultLogTimeout = 10 * time.Second
	// The pauses of run between two looks at a log that is down.
	waitFirst, waitMost = 250 * time.Millisecond, 10 * time.Second
	// waitTold is how often run says that it still waits.
	waitTold = time.Minute
)

// silence is the error of a log that accepted a connection and did not answer.
func (a *app) silence(bounded context.Context, s dataSource, err error) error {
	if err == nil || !errors.Is(context.Cause(bounded), errSilentLog) {
		return err
	}
	return fmt.Errorf("the transaction log (transactionLogDataSource, %s) did not answer within %v: see whether its server is up "+
		"and answers others, and whether the address is its own; --log-timeout sets how long it is waited for: %w", s.place(), a.logTimeout, err)
}

var errSilentLog = errors.New("the log's time is over")

func (a *app) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.logTimeout, errSilentLog)
}

// openBounded is Open with an error for a log that never answers.
func (a *app) openBounded(ctx context.Context, s dataSource, create bool) (txlog.Storage, error) {
	bounded, cancel := a.bound(ctx)
	defer cancel()
	st, err := a.Open(bounded, s, create)
	return st, redactError(a.silence(bounded, s, err), s.dsn)
}

// openForRun opens the log, and waits for one that is down: a service manager
// gives up on a program that ends again and again. create makes one that is not
// there. Both are nil when ctx ended meanwhile.
func (a *app) openForRun(ctx context.Context, s dataSource, create bool, log logrus.FieldLogger) (txlog.Storage, error) {
	var told time.Time
	for pause := waitFirst; ; pause = min(2*pause, waitMost) {
		st, err := a.openBounded(ctx, s, create)
		switch {
		case err == nil:
			return st, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the program was ended meanwhile: there is no log, and no failure
		case !comesUp(s, err):
			return nil, err
		}
		if told.IsZero() || time.Since(told) >= waitTold {
			told = time.Now()
			log.WithError(err).WithField("log", s.place()).
				Warn("the transaction log is not available, it is waited for; --exit-if-log-unavailable or exitIfLogUnavailable ends the program instead")
		}
		if !jitter.Sleep(ctx, jitter.Pause(pause)) {
			return nil, nil
		}
	}
}

// comesUp reports whether a log that cannot be opened because of err may be
// opened later without anybody's doing.
func comesUp(s dataSource, err error) bool {
	if errors.Is(err, txlog.ErrUnusable) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	t, terr := drivers[s.driver].target(s.dsn)
	// A file is there or it is not.
	return terr == nil && t.File == "" && t.Dialect.DialClass(err) != delivery.Refused
}

// place says which database it is and where, without user and password.
func (s dataSource) place() string {
	t, err := drivers[s.driver].target(s.dsn)
	if err != nil {
		return s.driver
	}
	return s.driver + " at " + t.DataSource
}

// boundedLog is a log whose answers are each waited for as long as the command
// line allows.
type boundedLog struct {
	txlog.Storage
	app    *app
	source dataSource
}

// Unwrap gives the log itself.
func (b boundedLog) Unwrap() txlog.Storage { return b.Storage }

func ask[T any](ctx context.Context, b boundedLog, question func(context.Context) (T, error)) (T, error) {
	bounded, cancel := b.app.bound(ctx)
	defer cancel()
	answer, err := question(bounded)
	return answer, b.app.silence(bounded, b.source, err)
}

func (b boundedLog) List(ctx context.Context, f txlog.Filter) ([]*txlog.Unit, error) {
	return ask(ctx, b, func(ctx context.Context) ([]*txlog.Unit, error) { return b.Storage.List(ctx, f) })
}

func (b boundedLog) Get(ctx context.Context, id string) (*txlog.Unit, error) {
	return ask(ctx, b, func(ctx context.Context) (*txlog.Unit, error) { return b.Storage.Get(ctx, id) })
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

// asked bounds a question by --log-timeout.
func (a *app) asked(ctx context.Context, cfg *config, f func(context.Context) error) error {
	bounded, cancel := a.bound(ctx)
	defer cancel()
	return a.silence(bounded, cfg.log, f(bounded))
}

// askedOf is asked for what may take several times as long.
func (a *app) askedOf(ctx context.Context, cfg *config, times int, f func(context.Context) error) error {
	patient := *a
	patient.logTimeout *= time.Duration(times)
	return patient.asked(ctx, cfg, f)
}
