package txlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/journal"
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
	// token is that of all units added here, so that one statement can be fenced
	// for many of them. Claimers take another each time.
	token   string
	options options
	closed  atomic.Bool

	retry groupcommit.Retry
	// queue is for what is added and removed.
	queue *groupcommit.Queue[content]
	// ordered is the same for what is under order keys.
	ordered *groupcommit.Queue[content]
	claimer claimer
	// orderless: the tables for order keys could not be used when the log was opened.
	orderless bool
}

var _ Storage = (*SQLStorage)(nil)

// Open opens the log in a database: driverName is "mysql" (or "mariadb"),
// "postgres" (or "postgresql", "pgx") or "sqlite" (or "sqlite3"), dsn as that
// database's driver takes it. The package of the database (bedsql/mysql,
// bedsql/postgres, bedsql/sqlite) must be imported. It connects at once. ErrUnusable
// matches the error of a log that waiting does not cure.
//
// The tables are created when they are absent, see [Schema]; an account that may
// not create them can use those that are there. An existing table that lacks columns
// is refused with an error that names them. Close the storage after the databases
// that use it.
func Open(ctx context.Context, driverName, dsn string, opts ...Option) (*SQLStorage, error) {
	backend, err := findBackend(driverName)
	if err != nil {
		return nil, err
	}
	s := &SQLStorage{token: NewID()}
	s.options = options{create: true, grace: defaultGrace, minWrites: defaultMinWrites, maxWrites: defaultMaxWrites}
	for _, o := range opts {
		if o != nil {
			o(&s.options)
		}
	}
	if backend.Location != nil {
		if s.location, err = backend.Location(dsn); err != nil {
			return nil, fmt.Errorf("txlog: the DSN of the %s log: %w", backend.Flavor, err)
		}
	}
	connector, err := backend.Connector(dsn)
	if err != nil {
		return nil, fmt.Errorf("txlog: the DSN of the %s log: %w", backend.Flavor, err)
	}
	s.db = openDatabase(backend, connector, s.options.maxConns)
	s.retry = groupcommit.Retry{Grace: s.options.grace, Definite: s.db.backend.definite, Passing: s.db.backend.passing, Refused: s.db.backend.refused}
	s.writer = &writer{db: s.db}
	s.claimer = claimer{db: s.db, turn: make(chan struct{}, 1)}
	if err := s.prepareLog(ctx); err != nil {
		_ = s.db.Close()
		return nil, fmt.Errorf("txlog: opening %s: %w", s.name(), err)
	}
	o := groupcommit.Options{
		Retry:   s.retry,
		MaxRows: maxRows, MaxBytes: s.writer.insertBytes(),
		MinInFlight: s.options.minWrites, MaxInFlight: s.options.maxWrites, Conns: s.db.Stats().MaxOpenConnections, Ping: s.db.pingSome,
	}
	if s.db.backend.Flavor == FlavorSQLite {
		o.MinInFlight, o.MaxInFlight, o.Mixed, o.MaxRows = 1, 1, true, 2*maxRows
	}
	s.queue = groupcommit.New(o, s.writer.write)
	// One after the other: those under one key would wait for each other all the same.
	o.MinInFlight, o.MaxInFlight, o.Mixed = 1, 1, true
	s.ordered = groupcommit.New(o, s.writer.writeOrdered)
	return s, nil
}

// prepareLog learns what the database can do and finds, or creates, the tables.
func (s *SQLStorage) prepareLog(ctx context.Context) error {
	if err := s.writer.learn(ctx); err != nil {
		return err
	}
	off := map[string]error{}
	for _, t := range logTables(s.db.backend.Flavor) {
		err := s.db.ensureTable(ctx, &t, s.options.create)
		switch {
		case isOrderTable(t.Name):
			// Only writes under order keys need it, and their errors say what is missing.
			s.orderless = s.orderless || err != nil
		case !journal.Keeps(t.Name) && err != nil:
			return err
		case errors.Is(err, ErrUnusable) || journal.Lasting(err):
			// The log does not depend on it. Whether one can be used that could not be
			// asked for at the moment, its own statements will tell.
			off[t.Name] = err
		}
	}
	s.journal = journal.New(s.db.DB, s.db.backend.Flavor, off, !s.options.noActivity)
	if err := s.retry.Attempt(ctx, func(ctx context.Context) (err error) {
		s.identity, err = s.db.readIdentity(ctx)
		return err
	}); err != nil {
		return err
	}
	// What each write needs is prepared once now, so that the first one waits no
	// longer than the others. An account that may not learns so from its writes.
	for _, k := range []kind{insertRows, deleteOwned} {
		_, _ = s.db.stmt(ctx, shape{kind: k, rows: 1})
	}
	s.warn(ctx)
	return nil
}

// warn warns of what the server is, or is set to, that weakens the promise. It is
// no failure if the server cannot be asked.
func (s *SQLStorage) warn(ctx context.Context) {
	server, err := dbserver.Ask(ctx, s.db.DB, s.db.backend.Flavor.String(), true)
	if err != nil {
		return
	}
	logger := s.options.logger
	if logger == nil {
		logger = logrus.StandardLogger()
	}
	for _, w := range server.Warnings {
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

// Location says where the log is, without user and password:
// "127.0.0.1:3306/bed", or the absolute path of an SQLite file.
func (s *SQLStorage) Location() string {
	if s == nil {
		return ""
	}
	return s.location
}

// Identity implements [Storage]. It was given when the log was opened for the
// first time, and stands in the table bed_log.
func (s *SQLStorage) Identity() string {
	if s == nil {
		return ""
	}
	return s.identity
}

// Journal is for bed's other packages: what is kept for operators beside the log,
// in tables of the same database. nil for a closed storage.
func (s *SQLStorage) Journal() *journal.Journal {
	if s == nil {
		return nil
	}
	return s.journal
}

// name is how errors speak of the log.
func (s *SQLStorage) name() string {
	if s.location == "" {
		return "the " + s.Driver() + " log"
	}
	return "the log at " + s.location
}

// Close waits until what was queued before it has been written, at most 10 s,
// and closes the connections. Calls after it fail with [ErrClosed].
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

// do runs f, again if others were in its way, and says in its error what was being
// done.
func (s *SQLStorage) do(ctx context.Context, what string, f func(ctx context.Context) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	return s.failed(what, s.retry.Attempt(ctx, f))
}

// failed says in an error what was being done, and where.
func (s *SQLStorage) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if s.closed.Load() {
		return fmt.Errorf("%w (%s): %w", ErrClosed, what, err)
	}
	return fmt.Errorf("txlog: %s in %s: %w", what, s.name(), err)
}

// unknown makes the error of a write whose outcome stayed unknown.
func (s *SQLStorage) unknown(what string, sentinel, cause error) error {
	return s.failed(what, fmt.Errorf("%w: %w", sentinel, cause))
}

type options struct {
	create   bool
	maxConns int
	grace    time.Duration

	minWrites, maxWrites int

	noActivity bool

	logger logrus.FieldLogger
}

// The defaults of the options.
const (
	defaultMaxConns = 32
	defaultGrace    = 3 * time.Second

	defaultMinWrites = 1
	defaultMaxWrites = 8
)

// Option changes how [Open] opens a log.
type Option func(*options)

// WithoutCreate makes [Open] fail when a table is not there, instead of
// creating it.
func WithoutCreate() Option { return func(o *options) { o.create = false } }

// WithMaxConns sets how many connections to the log's database may be open at
// a time. Defaults to 32; to 1 for SQLite, where writers queue better within
// the process than at the file. Values below 1 mean the default.
func WithMaxConns(n int) Option { return func(o *options) { o.maxConns = n } }

// WithLogger sets the logger for warnings, once when the log is opened, of what
// weakens the promise: settings of the log's server (a Galera cluster's), or a product
// that is not tested. Defaults to logrus's standard logger.
func WithLogger(l logrus.FieldLogger) Option { return func(o *options) { o.logger = l } }

// WithGrace sets for how long after the end of the caller's context a write to the
// log whose outcome is not known is still repeated. Defaults to 3 s. Values below 0
// mean not at all.
func WithGrace(d time.Duration) Option { return func(o *options) { o.grace = d } }

// WithWritesInFlight bounds how many joined writes are under way at a time, each
// of what several callers add or of what they remove. Between least and most the
// log goes by the round trip to the database: as many as keep it busy. What comes
// while they are under way leaves together as soon as one of them is answered.
// Defaults to 1 and 8; always 1 for SQLite, where additions and removals
// leave in one transaction. Values below 1 mean the defaults, and more
// connections than [WithMaxConns] are not used.
func WithWritesInFlight(least, most int) Option {
	return func(o *options) {
		o.minWrites = cmp.Or(max(0, least), defaultMinWrites)
		o.maxWrites = cmp.Or(max(0, most), defaultMaxWrites)
	}
}

// WithoutActivity keeps no account of what happened to the writes of each minute.
// Otherwise it is added up in memory and written to the table bed_activity every few
// seconds, where it is kept for seven days. Jobs also learn there that applications
// write to a data source, and yield to those that tell.
func WithoutActivity() Option { return func(o *options) { o.noActivity = true } }
