package txlog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
)

// Flavor is the SQL dialect of a database: how to read its statements, and how to write
// bed's own. The zero value is standard SQL, in which no log can be kept.
type Flavor = sqltext.Flavor

// The flavors. MariaDB is [FlavorMySQL].
const (
	FlavorMySQL    = sqltext.MySQL
	FlavorPostgres = sqltext.Postgres
	FlavorSQLite   = sqltext.SQLite
	// FlavorMessages is the flavor of a message broker, in which no log can be kept.
	FlavorMessages = sqltext.Messages
)

// flavorOf returns the flavor for a name that Open and Schema accept; 0 for any other name.
func flavorOf(name string) Flavor { return sqltext.FlavorOf(name) }

// Backend is the part of a database that [Open] needs without importing its driver.
type Backend struct {
	// Flavor is the dialect of the log's SQL.
	Flavor Flavor
	// Connector makes connections with the options that the log needs. MySQL reports found rows
	// instead of changed ones. SQLite begins transactions with the write lock: a transaction
	// that reads first fails when another one writes before it does.
	Connector func(dsn string) (driver.Connector, error)
	// Answered reports whether err is the database's own answer, so that the statement
	// definitely took no effect. Default: the errors of go-sql-driver/mysql, pgx, lib/pq and
	// modernc.org/sqlite with a code from the server.
	Answered func(err error) bool
	// Location returns the place of the log without user and password ("127.0.0.1:3306/bed", or
	// the file's absolute path). Default: "".
	Location func(dsn string) (string, error)
}

// backends maps names to backends.
var backends sync.Map

// RegisterBackend makes a database known to [Open] under a name: "mysql", "postgres" or
// "sqlite" (which "mariadb" and "pgx" resolve to), or a name of its own. Call it from the
// init function of the database's package; a later call replaces an earlier one. It panics
// if the backend has no Connector or an unknown Flavor.
func RegisterBackend(name string, b Backend) {
	if b.Connector == nil || b.Flavor.String() == "unknown" {
		panic("txlog: RegisterBackend " + name + ": it needs a Flavor and a Connector")
	}
	if b.Answered == nil {
		b.Answered = func(err error) bool { return dberr.Of(err).Known() }
	}
	backends.Store(name, b)
}

// findBackend returns the registered backend.
func findBackend(driverName string) (Backend, error) {
	flavor := flavorOf(driverName)
	for _, name := range []string{driverName, flavor.String()} {
		if b, ok := backends.Load(name); ok {
			return b.(Backend), nil
		}
	}
	if flavor == 0 {
		return Backend{}, fmt.Errorf("txlog: no database is called %q: use mysql, postgres or sqlite", driverName)
	}
	return Backend{}, fmt.Errorf("txlog: the package of %s is not linked into this program: import _ \"github.com/bedsql/bed/bedsql/%s\"", flavor, flavor)
}

// dialError marks an error from before anything could be sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// session is a connector that sets up each new connection for the log, whatever the DSN
// says.
type session struct {
	driver.Connector
	flavor Flavor
}

func (s *session) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dberr.ConnectTimeout)
	defer cancel()
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, &dialError{err}
	}
	for _, text := range sessionSetup(s.flavor) {
		execer, ok := conn.(driver.ExecerContext)
		if !ok {
			err = fmt.Errorf("txlog: connections of %T cannot execute a statement that is not prepared", s.Driver())
		} else {
			_, err = execer.ExecContext(ctx, text, nil)
		}
		if err != nil {
			_ = conn.Close()
			return nil, &dialError{err}
		}
	}
	if c, ok := conn.(mysqlConn); ok && s.flavor == FlavorMySQL {
		return bounded{c}, nil
	}
	return conn, nil
}

// mysqlConn lists the methods of go-sql-driver's connections.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// bounded ends transactions under the context of their BEGIN, as pgx does. A transaction of
// go-sql-driver would wait for the answer to its COMMIT for as long as the connection seems
// to live.
type bounded struct{ mysqlConn }

func (c bounded) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if _, err := c.mysqlConn.BeginTx(ctx, opts); err != nil {
		return nil, err
	}
	return boundedTx{ctx, c}, nil
}

type boundedTx struct {
	ctx  context.Context
	conn driver.ExecerContext
}

func (tx boundedTx) Commit() error { return tx.end(tx.ctx, "COMMIT") }

// Rollback also works when the context is done.
func (tx boundedTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tx.ctx), rollbackTimeout)
	defer cancel()
	return tx.end(ctx, "ROLLBACK")
}

func (tx boundedTx) end(ctx context.Context, text string) error {
	_, err := tx.conn.ExecContext(ctx, text, nil)
	return err
}

// rollbackTimeout bounds a ROLLBACK. Closing its connection has the same effect.
const rollbackTimeout = 5 * time.Second

// Close closes the inner connector if it is closable.
func (s *session) Close() error {
	if c, ok := s.Connector.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

// definite reports whether err proves the absence of a write.
func (b *Backend) definite(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) || errors.Is(err, errNotSent) {
		return true
	}
	// ErrBadConn is a promise of the driver that it sent nothing. Distrusting it costs one more
	// INSERT under the same id.
	return !errors.Is(err, driver.ErrBadConn) && !ended(err) && b.Answered(err)
}

// refused reports whether the database rejected the content of a write, so that a part of
// the write might pass. It returns false for an unreachable database and for contention.
func (b *Backend) refused(err error) bool {
	return errors.Is(err, errHeld) || b.Answered(err) && !b.passing(err)
}

// errNotSent marks failures other than dial errors from before a statement left.
var errNotSent = errors.New("it was not sent")

// passing reports whether a definite error is worth an immediate retry of the same
// statement. Its cause is another transaction (a deadlock, a lock timeout, a serialization
// failure) or a connection that died in the pool or before COMMIT left.
func (b *Backend) passing(err error) bool {
	if errors.Is(err, errHeld) {
		return false
	}
	if errors.Is(err, driver.ErrBadConn) || dberr.Of(err).Contended() {
		return true
	}
	var dial *dialError
	return errors.Is(err, errNotSent) && !errors.As(err, &dial) && !b.Answered(err) && !ended(err)
}

// ended reports whether err comes from a context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
