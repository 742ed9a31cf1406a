package asyncjob

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/target"
	"github.com/bedsql/bed/listener/delivery"
)

// Targets maps data sources to their targets. The key is the data source's name in the log,
// and wins over the name in the Target.
type Targets map[string]delivery.Target

func (ts Targets) validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("asyncjob: target %q: "+format, append([]any{name}, args...)...))
	}
	for _, name := range slices.Sorted(maps.Keys(ts)) {
		t := ts[name]
		if name == "" {
			bad(name, "the data source's name is empty: use the one that stands in the log")
		}
		if t.Connector == nil {
			bad(name, "Connector is nil: make the target from a DSN with the package of its database")
		}
		if t.Dialect == nil {
			bad(name, "Dialect is nil: make the target from a DSN with the package of its database")
		}
		if err := attempt.CheckReceiptSchema(&t); err != nil {
			bad(name, "%w", err)
		}
		if t.AutocommitOff {
			bad(name, "its DSN turns autocommit off, which would leave every delivery uncommitted: remove it from the DSN")
		}
		if t.NoSideConnection {
			bad(name, "another connection would reach another, empty database: a database in memory cannot be delivered to by a job")
		}
	}
	return errors.Join(errs...)
}

// source is a target with its pool, for the life of a job.
type source struct {
	name        string
	concurrency int
	log         logrus.FieldLogger

	// own has the settings of the job's DSN.
	own    *session
	others sessions

	storage target.Log
	// receipts configures the receipts of its units.
	receipts attempt.Receipts

	// purgeFor is the constant; a test shortens it.
	purgeFor time.Duration
	// minAge is Config.MaxDeliveryTryDelay, for a log line.
	minAge time.Duration

	mu     sync.Mutex
	down   bool
	purged time.Time
	// purgedTo is the progress of an unfinished purge.
	purgedTo purgePoint
	// purging is set if the purge continues in the next round.
	purging bool

	pace pace
	// kinds are by text, and by text without values.
	kinds map[string]*kindOfUnit
}

func newSource(name string, t delivery.Target, storage target.Log, r attempt.Receipts, cfg *Config, log logrus.FieldLogger) *source {
	s := &source{
		name: name, storage: storage, receipts: r,
		concurrency: cfg.Concurrency,
		purgeFor:    purgeFor,
		minAge:      max(cfg.MaxDeliveryTryDelay, 0),
		log:         log.WithField("data_source", name),
	}
	if t.Dialect.Flavor == sqltext.SQLite {
		s.concurrency = 1
	}
	t.DataSource = name
	s.own = newSession(t, s)
	s.pace.most = s.concurrency
	return s
}

// isSQL reports whether it is a database. Others have neither local transactions nor receipts.
func (s *source) isSQL() bool { return s.own.Dialect.Flavor.IsSQL() }

// probe checks on a connection of its own whether the data source is reachable and writable.
// It does not use the pool, whose connections may predate the current state. A dial that
// ended in a refusal (a wrong password, too many connections) also makes deliveries
// impossible.
func (s *source) probe(ctx context.Context, timeout time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the driver panicked: %v", p)
		}
	}()
	conn, err := s.own.Connector.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	dialect := s.own.Dialect
	if err := attempt.Ping(ctx, conn); err != nil || dialect.Writable == nil {
		return err
	}
	return dialect.Writable(ctx, conn)
}

// reached and unreachable keep the state of the data source from round to round, and log
// only changes.
func (s *source) reached() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		s.log.WithField("max_delivery_try_delay", s.minAge).Info("the data source is reachable again; each entry is due once it is older than max_delivery_try_delay, and its next try, as bed-job list shows it, has come")
	}
	s.down = false
}

func (s *source) unreachable(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down {
		s.log.WithError(err).Warn("the data source is unreachable; its entries wait, no try is counted")
	}
	s.down = true
	s.pace.broke()
}

func (s *source) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// panicError is a driver's panic during an attempt.
type panicError struct{ value any }

func (e panicError) Error() string { return fmt.Sprintf("the driver panicked: %v", e.value) }

// describe returns a text for an attempt's error without values of the application, which
// servers and panics may quote.
func (s *source) describe(err error) string {
	var p panicError
	if errors.As(err, &p) {
		return fmt.Sprintf("the driver panicked with a %T", p.value)
	}
	return s.own.Dialect.Describe(err)
}

// try is one attempt to deliver a unit, with the job's own additions.
type try struct {
	attempt.Outcome
	// NoConn is set if there was no connection for the attempt, or no table of receipts: the
	// unit is not at fault.
	NoConn bool
	// readOnly is set if the data source is currently read-only.
	readOnly bool
	// late is set if it was cut off by Config.DeliveryTimeout.
	late bool
	took time.Duration
}

// deliver runs u once more. It does not run u again after a driver's ErrBadConn: some
// drivers break its promise that nothing was sent.
func (s *source) deliver(ctx context.Context, u *entry.Unit, run attempt.Runner) try {
	session, leave, err := s.session(u)
	if err != nil {
		return try{NoConn: true, Outcome: attempt.Outcome{Err: err, Class: dialect.Retryable}}
	}
	defer leave()
	a := try{NoConn: true}
	out, dialled := session.pool.On(ctx, false, func(conn driver.Conn) attempt.Outcome {
		if err := session.Follow(ctx, conn, u); err != nil {
			a = try{NoConn: true, Outcome: attempt.Failed(session.Dialect, err, true)}
			return a.Outcome
		}
		a = s.attempt(ctx, session, attempt.Bare(conn), u, run)
		return a.Outcome
	})
	if !dialled {
		out.Class = dialect.Unreachable // also if a dial is refused
	}
	a.Outcome = out
	if a.Err != nil && dialled && session.pool.ReadOnly(a.Err) {
		a.readOnly = true
		// Sessions that became read-only stay so even when the server no longer is.
		session.pool.DB().SetMaxIdleConns(0)
		session.pool.DB().SetMaxIdleConns(s.concurrency)
	}
	return a
}

// attempt runs u on a connection. It does not trust entries: it rejects anything but DML before it
// runs a statement.
func (s *source) attempt(ctx context.Context, in *session, conn driver.Conn, u *entry.Unit, run attempt.Runner) try {
	err := in.InSession(ctx, conn, u)
	if err == nil && u.NotReplayable == "" {
		if err = attempt.OnlyDML(ctx, in.Dialect, conn, u.Statements); errors.As(err, new(*attempt.NotOneDML)) {
			return try{Outcome: attempt.Failed(in.Dialect, err, true)}
		}
	}
	if err != nil {
		return try{NoConn: true, Outcome: attempt.Failed(in.Dialect, err, true)}
	}
	out, reached := in.Attempt(ctx, conn, u, func() attempt.Outcome { return guarded(ctx, in, conn, u, run) })
	if reached == target.Gone {
		out.Err = errors.Unwrap(out.Err) // no operator need create it
	}
	return try{Outcome: out, NoConn: reached != target.Ran}
}

// guarded turns a driver's panic into an unknown outcome.
func guarded(ctx context.Context, in *session, conn driver.Conn, u *entry.Unit, run attempt.Runner) (out attempt.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = attempt.Outcome{Class: dialect.Unknown, Err: panicError{p}, ConnLost: true}
		}
	}()
	return run(ctx, in.Dialect, conn, u, in.Receipts)
}

// look looks up the receipt of u. It returns Found for a receipt of an earlier attempt, and
// no error without one. It prefers the place in the log, even in a session that could not
// deliver u.
func (s *source) look(ctx context.Context, u *entry.Unit) (out attempt.Outcome) {
	ask := func(in *session) error {
		return in.pool.Ask(ctx, func(conn driver.Conn) (err error) {
			out, err = attempt.Look(ctx, in.Dialect, attempt.Bare(conn), u, in.At(u.Place))
			return err
		})
	}
	in, leave, err := s.session(u)
	if err == nil {
		defer leave()
		err = ask(in)
	}
	if err != nil && in != s.own && u.Place != "" {
		err = ask(s.own)
	}
	if err != nil {
		return attempt.Failed(s.own.Dialect, err, true)
	}
	return out
}

// kindOf finds the kind of u.
func (s *source) kindOf(u *entry.Unit) *kindOfUnit {
	if u.Unreadable != nil || len(u.Statements) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := u.Statements[0].SQL
	if k := s.kinds[text]; k != nil {
		return k
	}
	if s.kinds == nil || len(s.kinds) >= maxKinds {
		s.kinds = map[string]*kindOfUnit{}
	}
	masked := sqltext.Mask(s.own.Dialect.Flavor, text)
	k := s.kinds[masked]
	if k == nil {
		k = new(kindOfUnit)
		s.kinds[masked] = k
	}
	s.kinds[text] = k
	return k
}

// needsOperator reports whether err comes from a missing or inaccessible table of receipts,
// and returns the text for a log line.
func (s *source) needsOperator(err error) (said string, ok bool) {
	return target.Unusable(err, s.describe)
}
