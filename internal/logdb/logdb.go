// Package logdb holds the databases that can keep a transaction log.
package logdb

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/sqltext"
)

// Before adjusts a driver's configuration of one connection.
type Before = func(ctx context.Context, cfg any) error

// Backend is the part of a database that txlog.Open needs without importing its driver.
type Backend struct {
	// Flavor is the dialect of the log's SQL.
	Flavor sqltext.Flavor
	// Connector makes connections with the options that the log needs. MySQL reports found rows
	// instead of changed ones. SQLite begins transactions with the write lock: a transaction
	// that reads first fails when another one writes before it does.
	// before is called before each dial with the driver's own configuration; it may be nil.
	Connector func(dsn string, before Before) (driver.Connector, error)
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

// Register makes a database known to txlog.Open under a name: "mysql", "postgres" or
// "sqlite" (which "mariadb" and "pgx" resolve to), or a name of its own. Call it from the
// init function of the database's package; a later call replaces an earlier one. It panics
// if the backend has no Connector or an unknown Flavor.
func Register(name string, b Backend) {
	if b.Connector == nil || b.Flavor.String() == "unknown" {
		panic("txlog: RegisterBackend " + name + ": it needs a Flavor and a Connector")
	}
	if b.Answered == nil {
		b.Answered = func(err error) bool { return dberr.Of(err).Known() }
	}
	backends.Store(name, b)
}

// Find returns the registered backend.
func Find(driverName string) (Backend, error) {
	flavor := sqltext.FlavorOf(driverName)
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
