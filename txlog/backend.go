package txlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bedsql/bed/internal/sqltext"
)

// Flavor is how a database's SQL text is read, and bed's own statements for it
// are written. The zero value is standard SQL, in which no log can be kept.
type Flavor uint8

// The flavors. MariaDB is [FlavorMySQL].
const (
	FlavorMySQL    = Flavor(sqltext.MySQL)
	FlavorPostgres = Flavor(sqltext.Postgres)
	FlavorSQLite   = Flavor(sqltext.SQLite)
)

// String gives the name under which [Open] and [Schema] know the database.
func (f Flavor) String() string {
	switch f {
	case FlavorMySQL:
		return "mysql"
	case FlavorPostgres:
		return "postgres"
	case FlavorSQLite:
		return "sqlite"
	}
	return "unknown"
}

// flavorOf gives the flavor for the names that Open and Schema take; 0 for any
// other.
func flavorOf(name string) Flavor {
	switch name {
	case "mysql", "mariadb":
		return FlavorMySQL
	case "postgres", "pgx", "postgresql":
		return FlavorPostgres
	case "sqlite", "sqlite3":
		return FlavorSQLite
	}
	return 0
}

// Backend is what [Open] has to know of a database whose driver it does not
// import.
type Backend struct {
	// Flavor is that of the log's SQL.
	Flavor Flavor
	// Connector makes connections with what the log needs (MySQL: found rows
	// instead of changed ones; SQLite: a busy timeout, WAL).
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

var backends struct {
	sync.RWMutex
	byName map[string]Backend
}

// RegisterBackend makes a database known to [Open] under a name: "mysql", "postgres"
// or "sqlite", which the other names of the same database lead to ("mariadb", "pgx"),
// or one of its own. It is meant for the init function of the database's package; a
// later call replaces an earlier one. It panics if the backend has no Connector, or
// its Flavor is none of those above.
func RegisterBackend(name string, b Backend) {
	if b.Connector == nil || b.Flavor.String() == "unknown" {
		panic("txlog: RegisterBackend " + name + ": it needs a Flavor and a Connector")
	}
	backends.Lock()
	defer backends.Unlock()
	if backends.byName == nil {
		backends.byName = map[string]Backend{}
	}
	backends.byName[name] = b
}

// findBackend gives the registered backend, or one made of a driver that
// database/sql knows by one of the database's names.
func findBackend(driverName string) (Backend, error) {
	flavor := flavorOf(driverName)
	backends.RLock()
	b, ok := backends.byName[driverName]
	if !ok && flavor != 0 {
		b, ok = backends.byName[flavor.String()]
	}
	backends.RUnlock()
	if ok {
		if b.Answered == nil {
			b.Answered = answered
		}
		return b, nil
	}
	if flavor == 0 {
		return Backend{}, fmt.Errorf("txlog: no database is called %q: use mysql, postgres or sqlite", driverName)
	}
	for _, name := range []string{driverName, "mysql", "pgx", "postgres", "sqlite", "sqlite3"} {
		if flavorOf(name) == flavor && slices.Contains(sql.Drivers(), name) {
			return Backend{Flavor: flavor, Answered: answered, Connector: func(dsn string) (driver.Connector, error) {
				return connectorOf(name, dsn)
			}}, nil
		}
	}
	return Backend{}, fmt.Errorf("txlog: no driver for %s is linked into this program: import _ \"github.com/bedsql/bed/bedsql/%s\"", flavor, flavor)
}

// connectorOf makes a connector of a driver registered with database/sql.
func connectorOf(name, dsn string) (driver.Connector, error) {
	db, err := sql.Open(name, dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if d, ok := db.Driver().(driver.DriverContext); ok {
		return d.OpenConnector(dsn)
	}
	return dsnConnector{db.Driver(), dsn}, nil
}

type dsnConnector struct {
	driver driver.Driver
	dsn    string
}

func (c dsnConnector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c dsnConnector) Driver() driver.Driver                        { return c.driver }

// dialError marks an error that came before anything could be sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// session is a connector whose connections begin with the settings that the log
// needs, whatever the DSN says.
type session struct {
	driver.Connector
	setup []string
	// keeps says that the connections keep statements, see keepingConn.
	keeps bool
}

func (s *session) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, &dialError{err}
	}
	for _, text := range s.setup {
		if err := execOn(ctx, conn, text); err != nil {
			_ = conn.Close()
			return nil, &dialError{err}
		}
	}
	if s.keeps {
		conn = keeping(conn)
	}
	return conn, nil
}

// Close closes the inner connector when it can be closed.
func (s *session) Close() error {
	if c, ok := s.Connector.(interface{ Close() error }); ok {
		return c.Close()
	}
	return nil
}

func execOn(ctx context.Context, conn driver.Conn, text string) error {
	if e, ok := conn.(driver.ExecerContext); ok {
		if _, err := e.ExecContext(ctx, text, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	stmt, err := conn.Prepare(text)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	if e, ok := stmt.(driver.StmtExecContext); ok {
		_, err = e.ExecContext(ctx, nil)
	} else {
		_, err = stmt.Exec(nil) //nolint:staticcheck // the only way such a driver has
	}
	return err
}
