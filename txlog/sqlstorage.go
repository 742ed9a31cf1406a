package txlog

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/txlog/internal/groupcommit"
)

// SQLStorage is a [Storage] in the tables transaction_log and bed_log of a MySQL, MariaDB,
// PostgreSQL or SQLite database. A nil one behaves like a closed one.
type SQLStorage struct {
	db       *sql.DB
	backend  Backend
	location string
	identity string
	// token is that of all units added here: one statement can then be fenced
	// for many of them. Those who claim take another each time.
	token   string
	options options
	closed  atomic.Bool

	// maxPacket is how many bytes one statement may have; 0 means any.
	maxPacket int
	// tells: a DELETE can tell what it deleted (MySQL's cannot, MariaDB's can).
	tells bool

	retry   groupcommit.Retry
	writing *groupcommit.Queue[*request]

	mu    sync.RWMutex
	stmts map[shape]*sql.Stmt

	// lease is that of insertUsual, in milliseconds; 0 while nothing was added.
	lease atomic.Int64

	// claiming is full while a claim is made, see oneClaim.
	claiming chan struct{}
	// claims counts them; claimer is what their tokens begin with.
	claims  int
	claimer string
}

var _ Storage = (*SQLStorage)(nil)

// Open opens the log in a database: driverName is "mysql" (also for MariaDB),
// "postgres" (or "pgx") or "sqlite", dsn as that database's driver takes it.
// The package of the database (bedsql/mysql, bedsql/postgres, bedsql/sqlite)
// must be imported, or at least its driver.
//
// The tables are created when they are absent, see [Schema]; an account that may
// not create them can use those that are there. An existing table that lacks columns is
// refused with an error that names them.
func Open(ctx context.Context, driverName, dsn string, opts ...Option) (*SQLStorage, error) {
	backend, err := findBackend(driverName)
	if err != nil {
		return nil, err
	}
	s := &SQLStorage{backend: backend, token: NewID(), stmts: map[shape]*sql.Stmt{}, claiming: make(chan struct{}, 1)}
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
	s.db = sql.OpenDB(&session{Connector: connector, setup: sessionSetup(backend.Flavor), keeps: backend.Flavor == FlavorSQLite})
	s.retry = groupcommit.Retry{Grace: s.options.grace, Definite: s.definite, Passing: s.passing, Refused: s.refused}
	conns := s.limitConns()
	if err := s.prepareLog(ctx); err != nil {
		s.db.Close()
		return nil, fmt.Errorf("txlog: opening %s: %w", s.name(), err)
	}
	s.writing = s.newQueue(conns)
	return s, nil
}

// sessionSetup is run on each new connection.
func sessionSetup(f Flavor) []string {
	switch f {
	case FlavorMySQL:
		// READ COMMITTED: claims and removals lock records, never gaps.
		return []string{
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
			// Where sql_safe_updates is set for all, no DELETE with a hint is safe enough.
			"SET autocommit = 1, sql_safe_updates = 0, NAMES utf8mb4",
		}
	case FlavorSQLite:
		return []string{"PRAGMA busy_timeout = 10000", "PRAGMA synchronous = FULL"}
	}
	return nil
}

// limitConns gives the number of connections.
func (s *SQLStorage) limitConns() int {
	n := s.options.maxConns
	if n < 1 {
		n = defaultMaxConns
		if s.backend.Flavor == FlavorSQLite {
			n = 1
		}
	}
	s.db.SetMaxOpenConns(n)
	s.db.SetMaxIdleConns(n)
	// An in-memory SQLite log lives as long as its connection.
	if s.backend.Flavor != FlavorSQLite {
		s.db.SetConnMaxIdleTime(5 * time.Minute)
	}
	return n
}

func (s *SQLStorage) prepareLog(ctx context.Context) error {
	switch s.backend.Flavor {
	case FlavorMySQL:
		var version string
		if err := s.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet, @@version").Scan(&s.maxPacket, &version); err != nil {
			return err
		}
		s.tells = strings.Contains(version, "MariaDB")
	case FlavorPostgres:
		s.tells = true
	case FlavorSQLite:
		// A wish: readers do not block writers. A file system that cannot do
		// it, or another process that is just opening the file, is no failure.
		_, _ = s.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
	}
	for _, t := range tables {
		if err := s.ensureTable(ctx, t, s.options.create); err != nil {
			return err
		}
	}
	return s.readIdentity(ctx)
}

// Driver names the database: "mysql", "postgres" or "sqlite".
func (s *SQLStorage) Driver() string {
	if s == nil {
		return ""
	}
	return s.backend.Flavor.String()
}

// Location says where the log is, without user and password:
// "127.0.0.1:3306/bed", or the absolute path of an SQLite file. It is empty
// when the database's package is not imported.
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
	s.writing.Close(closeFor)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stmt := range s.stmts {
		stmt.Close()
	}
	s.stmts = nil
	return s.db.Close()
}

func (s *SQLStorage) usable() error {
	if s == nil || s.db == nil || s.closed.Load() {
		return ErrClosed
	}
	return nil
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

// stmt gives the prepared statement of a shape.
func (s *SQLStorage) stmt(ctx context.Context, sh shape) (*sql.Stmt, error) {
	if stmt := s.prepared(sh); stmt != nil {
		return stmt, nil
	}
	stmt, err := s.db.PrepareContext(ctx, s.backend.Flavor.text(sh))
	if err != nil {
		// A statement that could not be prepared was not sent.
		return nil, fmt.Errorf("%w (%w)", err, errNotSent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.stmts[sh]; other != nil {
		stmt.Close()
		return other, nil
	}
	if s.stmts == nil {
		stmt.Close()
		return nil, ErrClosed
	}
	s.stmts[sh] = stmt
	return stmt, nil
}

func (s *SQLStorage) prepared(sh shape) *sql.Stmt {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.stmts[sh]
}
