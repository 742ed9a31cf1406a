package testdb

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver "pgx"
	_ "modernc.org/sqlite"             // database/sql driver "sqlite"

	"github.com/bedsql/bed/internal/dberr"
)

// These are the names of the tested databases, as in [DB.Driver].
const (
	DriverMySQL    = "mysql"
	DriverPostgres = "postgres"
	DriverSQLite   = "sqlite"
)

// MaxOpenConns is the limit of open connections of a pool made by [DB.Open]. A test with a higher
// need sets its own limit, and must not run in parallel with many others like it.
const MaxOpenConns = 8

// DB is an empty database of one test.
type DB struct {
	// Driver is "mysql", "postgres" or "sqlite".
	Driver string
	// DSN is in the form of the bare driver: go-sql-driver/mysql, pgx (a URL
	// or keywords and values) or modernc.org/sqlite. It may carry a password:
	// do not print it.
	DSN string
	// Name is the database's name on its server; for SQLite the file's path.
	Name string
}

// SQLDriver is the name of the bare driver in database/sql: "mysql", "pgx" or "sqlite".
func (db DB) SQLDriver() string {
	if db.Driver == DriverPostgres {
		return "pgx"
	}
	return db.Driver
}

// Open returns a pool of the bare driver, limited to [MaxOpenConns] and closed
// when the test ends. It does not dial.
func (db DB) Open(t testing.TB) *sql.DB {
	t.Helper()
	pool, err := sql.Open(db.SQLDriver(), db.DSN)
	if err != nil {
		t.Fatalf("testdb: open %s database %s: %v", db.Driver, db.Name, err)
	}
	pool.SetMaxOpenConns(MaxOpenConns)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// Addr is the address of the database's server: "host:port", or the path of its Unix socket. It is
// "" for SQLite.
func (db DB) Addr() string {
	switch db.Driver {
	case DriverMySQL:
		if cfg, err := mysql.ParseDSN(db.DSN); err == nil {
			return cfg.Addr
		}
	case DriverPostgres:
		return postgresAddr(db.DSN)
	}
	return ""
}

// Via returns the same database as reached through addr ("host:port"), for
// example a proxy in front of its server. For SQLite it is db itself.
func (db DB) Via(addr string) DB {
	switch db.Driver {
	case DriverMySQL:
		if cfg, err := mysql.ParseDSN(db.DSN); err == nil {
			cfg.Net, cfg.Addr = "tcp", addr
			db.DSN = cfg.FormatDSN()
		}
	case DriverPostgres:
		db.DSN = postgresVia(db.DSN, addr)
	}
	return db
}

// MySQL returns a fresh database on the shared MySQL or MariaDB server; it is
// dropped when the test ends. With -short the test is skipped.
func MySQL(t testing.TB) DB {
	t.Helper()
	return shared(t, DriverMySQL, sharedMySQL)
}

// Postgres returns an empty database on the shared PostgreSQL server; it is dropped, or
// emptied for another test, when the test ends. With -short the test is skipped.
func Postgres(t testing.TB) DB {
	t.Helper()
	return shared(t, DriverPostgres, sharedPostgres)
}

// SQLite returns a fresh database file in a directory of its own, in WAL mode
// and with a busy timeout of five seconds, as an application would have it.
func SQLite(t testing.TB) DB {
	t.Helper()
	return SQLiteAt(filepath.Join(t.TempDir(), "test.db"))
}

// SQLiteAt is a SQLite database in a file of a name.
func SQLiteAt(path string) DB {
	return DB{
		Driver: DriverSQLite,
		DSN:    "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)",
		Name:   path,
	}
}

// By holds a value for each kind of database. A literal names all of them: a test of internal/docs
// finds incomplete ones.
type By[T any] struct{ MySQL, Postgres, SQLite T }

// For returns the value for a driver ("mysql", "postgres" or "sqlite").
func (b By[T]) For(driver string) T {
	for kind, v := range b.All() {
		if kind == driver {
			return v
		}
	}
	panic("testdb: no database of driver " + driver)
}

// All returns the value for each driver.
func (b By[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		_ = yield(DriverMySQL, b.MySQL) && yield(DriverPostgres, b.Postgres) && yield(DriverSQLite, b.SQLite)
	}
}

// New gives a fresh database of a driver ("mysql", "postgres" or "sqlite").
func New(t testing.TB, driver string) DB {
	t.Helper()
	return By[func(testing.TB) DB]{MySQL: MySQL, Postgres: Postgres, SQLite: SQLite}.For(driver)(t)
}

// NewLog is New for the database of a transaction log.
func NewLog(t testing.TB, driver string) DB {
	t.Helper()
	if driver == DriverMySQL {
		return shared(t, driver, sharedMySQLLog)
	}
	return New(t, driver)
}

// Each runs f against every kind of database, in parallel subtests named
// mysql, postgres and sqlite. With -short there is only the last one, as on MySQL
// (see [EnvMySQLPath]) only the first.
func Each(t *testing.T, f func(t *testing.T, db DB)) {
	t.Helper()
	kinds := []string{DriverMySQL, DriverPostgres, DriverSQLite}
	switch {
	case testing.Short():
		t.Log("-short: runs on SQLite only, not on MySQL and PostgreSQL")
		kinds = kinds[2:]
	case MySQLPath():
		kinds = kinds[:1]
	}
	for _, driver := range kinds {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f(t, New(t, driver))
		})
	}
}

// Knows reports whether the server of a pool can parse a statement. Otherwise it leaves a skipped
// subtest for the report.
func Knows(t *testing.T, pool interface {
	PrepareContext(context.Context, string) (*sql.Stmt, error)
}, text string) bool {
	t.Helper()
	st, err := pool.PrepareContext(t.Context(), text)
	if err == nil {
		_ = st.Close()
		return true
	}
	if code := dberr.Of(err); code.State != "42601" && code.Number != 1064 { // PostgreSQL's and MySQL's syntax errors
		return true
	}
	t.Run("not on this server", func(t *testing.T) { t.Skipf("%s: %v", text, err) })
	return false
}

func shared(t testing.TB, driver string, find func() (admin, error)) DB {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: needs a %s server", driver)
	}
	server, err := find()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	db, err := server.take()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	t.Cleanup(func() {
		if err := server.give(db.Name); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	return db
}

// Create makes an empty database outside of a test, on the server of a driver ("mysql" or
// "postgres"). dsn is an account there with the right to create databases. drop removes it.
func Create(driver, dsn string) (db DB, drop func() error, err error) {
	server := admin{driver: driver, dsn: dsn}
	db, err = server.create()
	if err != nil {
		return DB{}, nil, fmt.Errorf("testdb: %w", err)
	}
	return db, func() error { return server.drop(db.Name) }, nil
}

// postgresVia points a DSN at another address.
func postgresVia(dsn, addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return dsn
	}
	return postgresWith(dsn, func(u *url.URL) { u.Host = addr }, "host", host, "port", port)
}

// postgresNamed points a DSN at another database of the same server.
func postgresNamed(dsn, name string) string {
	return postgresWith(dsn, func(u *url.URL) { u.Path = "/" + name }, "dbname", name)
}

// postgresWith changes a DSN: a URL by change, in place of these keywords among its parameters, and
// a DSN in keyword/value form by appending the keywords, because later ones win.
func postgresWith(dsn string, change func(*url.URL), keywords ...string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		for pair := range slices.Chunk(keywords, 2) {
			dsn += " " + pair[0] + "=" + pair[1]
		}
		return dsn
	}
	change(u)
	q := u.Query()
	for pair := range slices.Chunk(keywords, 2) {
		q.Del(pair[0])
	}
	u.RawQuery = q.Encode()
	return u.String()
}
