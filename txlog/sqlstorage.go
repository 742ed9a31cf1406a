package txlog

import (
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
	queue   *groupcommit.Queue[content]
	claimer claimer
}

var _ Storage = (*SQLStorage)(nil)

// Open opens the log in a database: driverName is "mysql" (or "mariadb"),
// "postgres" (or "postgresql", "pgx") or "sqlite" (or "sqlite3"), dsn as that
// database's driver takes it. It
// connects at once. ErrUnusable matches the error of a log that waiting does not mend.
// The package of the database (bedsql/mysql, bedsql/postgres, bedsql/sqlite)
// must be imported, or at least its driver.
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
	s.queue = s.newQueue()
	return s, nil
}

// prepareLog learns what the database can do and finds, or creates, the tables.
func (s *SQLStorage) prepareLog(ctx context.Context) error {
	if err := s.writer.learn(ctx); err != nil {
		return err
	}
	for _, t := range tables {
		if err := s.db.ensureTable(ctx, t, s.options.create); err != nil {
			return err
		}
	}
	if err := s.retry.Attempt(ctx, func(ctx context.Context, _ bool) (err error) {
		s.identity, err = s.db.readIdentity(ctx)
		return err
	}); err != nil {
		return err
	}
	// What each write needs is prepared once now, so that the first one waits no
	// longer than the others. An account that may not is told so by its writes.
	for _, k := range []kind{insertRows, deleteOwned} {
		_, _ = s.db.stmt(ctx, shape{kind: k, rows: 1})
	}
	s.openJournal(ctx)
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
	s.journal.Close()
	return s.db.Close()
}

// Add implements [Storage]. Concurrent callers share writes: what comes while a
// write is under way leaves as one INSERT when that is answered, see
// [WithWritesInFlight]. What waits is bounded (4096 rows, 32 MiB); beyond that
// Add waits for room. A caller whose context ends before its units left has
// written nothing. Units without a Lease.Token get the storage's own, units
// without a TransactionID their own id.
func (s *SQLStorage) Add(ctx context.Context, lease time.Duration, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := validateLease(lease); err != nil {
		return err
	}
	for _, u := range units {
		if err := validate(u, s.token); err != nil {
			return err
		}
	}
	if len(units) == 0 {
		return nil
	}
	r, err := s.writer.addition(lease, units)
	if err != nil {
		return err
	}
	// The lease in the table is that of the first attempt that arrived: a
	// repetition does not prolong it. After its end somebody else may have
	// delivered and removed the unit, and a repetition would bring it back.
	switch inDoubt, err := s.queue.Do(ctx, r); {
	case inDoubt:
		return s.unknown("adding unit "+units[0].ID, ErrInDoubt, err)
	case err != nil:
		return s.failed("adding unit "+units[0].ID, err)
	}
	for _, u := range units {
		u.Lease.Deadline = r.End
		u.AddRepeated = r.Body.repeated
	}
	return nil
}

// Remove implements [Storage]. Concurrent callers share writes as in
// [SQLStorage.Add]. After an error, the units after it may not have been tried.
func (s *SQLStorage) Remove(ctx context.Context, units ...*Unit) error {
	if err := s.usable(); err != nil {
		return err
	}
	var lost []*Unit
	gone := 0
	for len(units) > 0 {
		r, n := removalOf(units)
		if r == nil {
			lost = append(lost, units[0])
			units = units[1:]
			continue
		}
		switch inDoubt, err := s.queue.Do(ctx, r); {
		case inDoubt:
			return s.unknown("removing unit "+units[0].ID, ErrInDoubt, err)
		case err != nil && gone > 0:
			return fmt.Errorf("%w: %d units are gone, and then: %w", ErrInDoubt, gone, s.failed("removing unit "+units[0].ID, err))
		case err != nil:
			return s.failed("removing unit "+units[0].ID, err)
		}
		for i, u := range units[:n] {
			if r.Body.removals[i].done {
				gone++
			} else {
				lost = append(lost, u)
			}
		}
		units = units[n:]
	}
	if len(lost) > 0 {
		return leaseLost("removing", lost)
	}
	return nil
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

// unknown makes the error of a write whose outcome stayed unknown.
func (s *SQLStorage) unknown(what string, sentinel, cause error) error {
	return s.failed(what, fmt.Errorf("%w: %w", sentinel, cause))
}

// newQueue makes the queue for the writes of concurrent callers.
func (s *SQLStorage) newQueue() *groupcommit.Queue[content] {
	o := groupcommit.Options{
		Retry:   s.retry,
		MaxRows: maxRows, MaxBytes: s.writer.insertBytes(), QueueRows: queueRows, QueueBytes: queueBytes,
		MinInFlight: s.options.minWrites, MaxInFlight: s.options.maxWrites, Conns: s.db.Stats().MaxOpenConnections, Ping: s.db.pingSome,
	}
	if o.MinInFlight < 1 {
		o.MinInFlight = defaultMinWrites
	}
	if o.MaxInFlight < 1 {
		o.MaxInFlight = defaultMaxWrites
	}
	if s.db.backend.Flavor == FlavorSQLite {
		o.MinInFlight, o.MaxInFlight, o.Mixed, o.MaxRows = 1, 1, true, maxShared
	}
	return groupcommit.New(o, s.writer.write)
}

// openJournal finds its tables, or creates them. Those that cannot be used are left
// out: the log does not depend on them. Whether a table can be used that could not
// be asked for at the moment, its own statements will tell.
func (s *SQLStorage) openJournal(ctx context.Context) {
	d := s.db.backend.Flavor.dialect()
	off := map[string]error{}
	if s.db.probeJournal(ctx) != nil {
		for name, columns := range journal.Tables() {
			var missing *missingError
			if err := s.db.ensureTable(ctx, table{name, columns}, s.options.create); errors.As(err, &missing) || journal.Lasting(err) {
				off[name] = err
			}
		}
	}
	s.journal = journal.New(s.db.DB, d, off, !s.options.noActivity)
}

// attemptsFor bounds what keeping failed attempts can cost an owner that gives a
// unit up.
const attemptsFor = time.Second

// keepAttempts keeps the failed attempts at a unit. Nothing depends on whether
// that succeeds.
func (s *SQLStorage) keepAttempts(ctx context.Context, id string, attempts []Attempt) {
	if len(attempts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attemptsFor)
	defer cancel()
	failed := make([]journal.Attempt, len(attempts))
	for i, a := range attempts {
		failed[i] = journal.Attempt(a)
	}
	_ = s.journal.AddAttempts(ctx, id, failed)
}
