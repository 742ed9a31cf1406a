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

// Flavor is how a database's SQL text is read, and bed's own statements for it
// are written. The zero value is standard SQL, in which no log can be kept.
type Flavor = sqltext.Flavor

// The flavors. MariaDB is [FlavorMySQL].
const (
	FlavorMySQL    = sqltext.MySQL
	FlavorPostgres = sqltext.Postgres
	FlavorSQLite   = sqltext.SQLite
	// FlavorMessages is that of a message broker: no log is kept there.
	FlavorMessages = sqltext.Messages
)

// flavorOf gives the flavor for the names that Open and Schema take; 0 for any
// other.
func flavorOf(name string) Flavor { return sqltext.FlavorOf(name) }

// Backend is what [Open] has to know of a database whose driver it does not
// import.
type Backend struct {
	// Flavor is that of the log's SQL.
	Flavor Flavor
	// Connector makes connections with what the log needs (MySQL: found rows
	// instead of changed ones; SQLite: transactions that begin with the write lock,
	// since one that reads first fails when another one wrote before it does).
	Connector func(dsn string) (driver.Connector, error)
	// Answered reports whether err is the database's own answer, so that the
	// statement definitely took no effect. Default: the errors of
	// go-sql-driver/mysql, pgx, lib/pq and modernc.org/sqlite that carry a
	// code of the server's.
	Answered func(err error) bool
	// Location says where the log is, without user and password
	// ("127.0.0.1:3306/bed", or the file's absolute path). Default: "".
	Location func(dsn string) (string, error)
}

// backends are by name.
var backends sync.Map

// RegisterBackend makes a database known to [Open] under a name: "mysql", "postgres"
// or "sqlite", which the other names of the same database lead to ("mariadb", "pgx"),
// or one of its own. It is meant for the init function of the database's package; a
// later call replaces an earlier one. It panics if the backend has no Connector, or
// its Flavor is none of those above.
func RegisterBackend(name string, b Backend) {
	if b.Connector == nil || b.Flavor.String() == "unknown" {
		panic("txlog: RegisterBackend " + name + ": it needs a Flavor and a Connector")
	}
	if b.Answered == nil {
		b.Answered = func(err error) bool { return dberr.Of(err).Known() }
	}
	backends.Store(name, b)
}

// findBackend gives the registered backend.
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

// dialError marks an error that came before anything could be sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// session is a connector whose connections begin with the settings that the log
// needs, whatever the DSN says.
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

// mysqlConn is what go-sql-driver's connections can do.
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

// bounded ends transactions under the context that they began under, as pgx does.
// A transaction of go-sql-driver would wait for the answer to its COMMIT for as long
// as the connection seems to live.
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

// Rollback comes when the context is done, too.
func (tx boundedTx) Rollback() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tx.ctx), rollbackTimeout)
	defer cancel()
	return tx.end(ctx, "ROLLBACK")
}

func (tx boundedTx) end(ctx context.Context, text string) error {
	_, err := tx.conn.ExecContext(ctx, text, nil)
	return err
}

// rollbackTimeout bounds a ROLLBACK: closing its connection does the same.
const rollbackTimeout = 5 * time.Second

// Close closes the inner connector when it can be closed.
func (s *session) Close() error {
	if c, ok := s.Connector.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

// definite reports whether err leaves no doubt that nothing was written.
func (b *Backend) definite(err error) bool {
	var dial *dialError
	if errors.As(err, &dial) || errors.Is(err, errNotSent) {
		return true
	}
	// A driver that says ErrBadConn promises that nothing was sent. Not trusting
	// it costs one more INSERT under the same id.
	return !errors.Is(err, driver.ErrBadConn) && !ended(err) && b.Answered(err)
}

// refused reports whether the database refused what it was given: a part of it
// might pass. That is not so if the database could not be reached, or others were
// in the way.
func (b *Backend) refused(err error) bool {
	return errors.Is(err, errHeld) || b.Answered(err) && !b.passing(err)
}

// errNotSent marks failures before a statement left, other than those of dialling.
var errNotSent = errors.New("it was not sent")

// passing reports whether a definite error is due to other transactions that were
// in the way (a deadlock, a lock timeout, a serialization failure), or to a
// connection that died, in the pool or before COMMIT was sent, so that the same
// statement is worth repeating at once.
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

// ended reports whether err is that of a context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
