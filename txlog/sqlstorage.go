package txlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/journal"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/slogger"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

// SQLStorage is a [Storage] in the tables transaction_log and bed_log of a MySQL, MariaDB,
// PostgreSQL or SQLite database. A nil one behaves like a closed one.
type SQLStorage struct {
	db       *database
	writer   *writer
	journal  *journal.Journal
	location string
	identity string
	// token is the owner of all units added here, so that one statement can be fenced for many
	// of them. Each claim takes another token.
	token   string
	options options
	closed  atomic.Bool

	retry groupcommit.Retry
	// queue takes additions and removals.
	queue *groupcommit.Queue[content]
	// ordered takes those under order keys.
	ordered *groupcommit.Queue[content]
	claimer claimer
	// orderless is set if the tables for order keys were not usable when the log was opened.
	orderless bool
}

var _ Storage = (*SQLStorage)(nil)

// Open opens the log in a database. driverName is "mysql" (or "mariadb"), "postgres" (or
// "postgresql", "pgx") or "sqlite" (or "sqlite3"); dsn has the form of that database's
// driver. Import the package of the database (bedsql/mysql, bedsql/postgres, bedsql/sqlite).
// Open connects at once. Its error matches ErrUnusable if waiting does not help.
//
// Open creates absent tables, see [Schema]; an account without the right to create them can
// use existing ones. It rejects a table that lacks columns, with an error that names them.
// Close the storage after the databases that use it.
func Open(ctx context.Context, driverName, dsn string, opts ...Option) (*SQLStorage, error) {
	found, err := logdb.Find(driverName)
	if err != nil {
		return nil, err
	}
	s := &SQLStorage{token: entry.NewID()}
	s.options = options{create: true, grace: defaultGrace, minWrites: defaultMinWrites, maxWrites: defaultMaxWrites}
	for _, o := range opts {
		if o != nil {
			o(&s.options)
		}
	}
	if found.Location != nil {
		if s.location, err = found.Location(dsn); err != nil {
			return nil, fmt.Errorf("txlog: the DSN of the %s log: %w", found.Flavor, err)
		}
	}
	connector, err := found.Connector(dsn, s.options.before)
	if err != nil {
		return nil, fmt.Errorf("txlog: the DSN of the %s log: %w", found.Flavor, err)
	}
	s.db = openDatabase(found, connector, s.options.maxConns)
	s.retry = groupcommit.Retry{Grace: s.options.grace, Definite: s.db.backend.definite, Passing: s.db.backend.passing, Refused: s.db.backend.refused}
	s.writer = &writer{db: s.db}
	s.claimer = claimer{db: s.db, turn: make(chan struct{}, 1), reaches: map[string]*reach{}}
	if err := s.prepareLog(ctx); err != nil {
		_ = s.db.Close()
		return nil, fmt.Errorf("txlog: opening %s: %w", s.name(), err)
	}
	o := groupcommit.Options{
		Retry:   s.retry,
		MaxRows: maxRows, MaxBytes: s.writer.insertBytes(),
		MinInFlight: s.options.minWrites, MaxInFlight: s.options.maxWrites, Conns: s.db.Stats().MaxOpenConnections, Ping: s.db.pingSome,
	}
	if s.db.backend.Flavor == sqltext.SQLite {
		o.MinInFlight, o.MaxInFlight, o.Mixed, o.MaxRows = 1, 1, true, 2*maxRows
	}
	s.queue = groupcommit.New(o, s.writer.write)
	// One in flight: writes under the same key would wait for each other anyway.
	o.MinInFlight, o.MaxInFlight, o.Mixed = 1, 1, true
	s.ordered = groupcommit.New(o, s.writer.writeOrdered)
	return s, nil
}

// prepareLog queries the database's capabilities and finds, or creates, the tables.
func (s *SQLStorage) prepareLog(ctx context.Context) error {
	if err := s.writer.learn(ctx); err != nil {
		return err
	}
	off := map[string]error{}
	for _, t := range logTables(s.db.backend.Flavor) {
		err := s.db.ensureTable(ctx, &t, s.options.create)
		switch {
		case strings.HasPrefix(t.Name, "bed_order_"):
			// Only writes under order keys need it, and their errors name the missing table.
			s.orderless = s.orderless || err != nil
		case !journal.Keeps(t.Name) && err != nil:
			return err
		case errors.Is(err, ErrUnusable) || journal.Lasting(err):
			// The log does not depend on it. After a temporary failure here, its own statements will
			// show whether it is usable.
			off[t.Name] = err
		}
	}
	s.journal = journal.New(s.db.DB, s.db.backend.Flavor, off, !s.options.noActivity)
	s.writer.journal = s.journal
	if err := s.retry.Attempt(ctx, func(ctx context.Context) (err error) {
		s.identity, err = s.db.readIdentity(ctx)
		return err
	}); err != nil {
		return err
	}
	// Prepare the statements of each write now, so that the first write is as fast as the
	// others. An account without the rights gets the error from its writes.
	for _, k := range []kind{insertRows, deleteOwned} {
		_, _ = s.db.stmt(ctx, shape{kind: k, rows: 1})
	}
	s.warn(ctx)
	return nil
}

// warn logs a warning about properties of the server that weaken the promise. It ignores a
// failure to query them.
func (s *SQLStorage) warn(ctx context.Context) {
	warnings, err := dbserver.Warnings(ctx, s.db.DB, s.db.backend.Flavor.String())
	if err != nil {
		return
	}
	logger := slogger.Of(s.options.logger, s.options.slog)
	for _, w := range warnings {
		logger.WithField("log", s.name()).Warn("bed: " + w)
	}
}

// Driver names the database: "mysql", "postgres" or "sqlite".
func (s *SQLStorage) Driver() string {
	if s == nil || s.db == nil {
		return ""
	}
	return s.db.backend.Flavor.String()
}

// Location returns the place of the log without user and password: "127.0.0.1:3306/bed", or
// the absolute path of an SQLite file.
func (s *SQLStorage) Location() string {
	if s == nil {
		return ""
	}
	return s.location
}

// Identity implements [Storage]. The first Open created it; it is in the table bed_log.
func (s *SQLStorage) Identity() string {
	if s == nil {
		return ""
	}
	return s.identity
}

// sqlLog implements [logdb.SQL], out of applications' sight.
type sqlLog struct{ *SQLStorage }

// inside returns s for bed's own packages. A storage that embeds s has this method, too.
func (s *SQLStorage) inside() *SQLStorage { return s }

func init() {
	logdb.Of = func(storage any) logdb.SQL {
		for {
			if s, ok := storage.(interface{ inside() *SQLStorage }); ok && s.inside() != nil {
				return sqlLog{s.inside()}
			}
			wrapper, ok := storage.(interface{ Unwrap() Storage })
			if !ok {
				return nil
			}
			storage = wrapper.Unwrap()
		}
	}
}

func (s sqlLog) Journal() *journal.Journal { return s.journal }

// name is the log's name in errors.
func (s *SQLStorage) name() string {
	if s.location == "" {
		return "the " + s.Driver() + " log"
	}
	return "the log at " + s.location
}

// Close waits at most 10 s for the queued writes and closes the connections. Later calls
// fail with [ErrClosed].
func (s *SQLStorage) Close() error {
	if s == nil || s.db == nil {
		return ErrClosed
	}
	if s.closed.Swap(true) {
		return nil
	}
	s.queue.Close(closeFor)
	s.ordered.Close(closeFor)
	s.journal.Close()
	return s.db.Close()
}

func (s *SQLStorage) usable() error {
	if s == nil || s.db == nil || s.closed.Load() {
		return ErrClosed
	}
	return nil
}

// validate rejects a unit that could not be stored or found again. It sets an empty token to
// the storage's, and an empty TransactionID to the unit's ID. Errors name the unit by its
// id.
func validate(u *Unit, lease time.Duration, token string) error {
	if err := u.Check(lease, token); err != nil {
		return unstorable{err}
	}
	return nil
}

// do runs f, repeats it after contention, and names the operation in its error.
func (s *SQLStorage) do(ctx context.Context, what string, f func(ctx context.Context) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	return s.failed(what, s.retry.Attempt(ctx, f))
}

// failed adds the operation and the log to an error.
func (s *SQLStorage) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if s.closed.Load() {
		return fmt.Errorf("%w (%s): %w", ErrClosed, what, err)
	}
	return fmt.Errorf("txlog: %s in %s: %w", what, s.name(), err)
}

// ended returns the error of a repeated write, with the sentinel if its outcome is unknown.
func (s *SQLStorage) ended(what string, sentinel error, inDoubt bool, err error) error {
	if inDoubt {
		err = fmt.Errorf("%w: %w", sentinel, err)
	}
	return s.failed(what, err)
}

type options struct {
	create   bool
	maxConns int
	grace    time.Duration

	minWrites, maxWrites int

	noActivity bool

	logger logrus.FieldLogger
	slog   slogger.Logger

	before logdb.Before
}

// The defaults of the options.
const (
	defaultMaxConns = 32
	defaultGrace    = 3 * time.Second

	defaultMinWrites = 1
	defaultMaxWrites = 8
)

// Option configures [Open].
type Option func(*options)

// WithoutCreate makes [Open] fail if a table is absent. By default it creates the table.
func WithoutCreate() Option { return func(o *options) { o.create = false } }

// WithMaxConns sets the maximum number of open connections to the log's database. Defaults
// to 32; to 1 for SQLite, where writers queue better within the process than at the file.
// Values below 1 mean the default.
func WithMaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// WithBeforeConnect sets a function that is called before each dial with the driver's
// configuration of that connection, a *mysql.Config or a *pgx.ConnConfig. It may set a
// password or certificates that change, but must not change the address or the database. Its
// error fails the dial. It must be safe for concurrent use. By default the DSN says
// everything. SQLite has no passwords: Open then returns an error.
func WithBeforeConnect(f func(ctx context.Context, cfg any) error) Option {
	return func(o *options) { o.before = f }
}

// WithLogger sets the logger for warnings. Open logs one for each weakness of the promise: a
// setting of the log's server (a Galera cluster's), or an untested product. Defaults to
// logrus's standard logger.
func WithLogger(l logrus.FieldLogger) Option { return func(o *options) { o.logger = l } }

// WithSlog is [WithLogger] for a *slog.Logger, and takes precedence over it.
func WithSlog(l slogger.Logger) Option { return func(o *options) { o.slog = l } }

// WithGrace sets how long a write to the log with an unknown outcome is still repeated after
// the caller's context has ended. Defaults to 3 s. Values below 0 mean no repetition.
func WithGrace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// WithWritesInFlight bounds the number of concurrent joined writes, each with the additions
// or the removals of several callers. Between least and most the log adapts to the round
// trip to the database and makes enough writes to keep it busy. Requests that arrive in the
// meantime leave together after the next answer. Defaults to 1 and 8; always 1 for SQLite,
// where additions and removals leave in one transaction. Values below 1 mean the defaults.
// [WithMaxConns] limits the number, too.
func WithWritesInFlight(least, most int) Option {
	return func(o *options) {
		o.minWrites = cmp.Or(max(0, least), defaultMinWrites)
		o.maxWrites = cmp.Or(max(0, most), defaultMaxWrites)
	}
}

// WithoutActivity turns off the statistics of writes by minute. By default they are added up
// in memory and written every few seconds to the table bed_activity, which keeps them for
// seven days. They also tell jobs which data sources applications are writing to, so that
// jobs yield to these writes.
func WithoutActivity() Option { return func(o *options) { o.noActivity = true } }
