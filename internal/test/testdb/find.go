package testdb

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bedsql/bed/internal/dberr"
)

// These environment variables locate the shared servers. The DSNs are used unchanged; the ports
// only replace the usual ones in the search. EnvMySQLLogDSN moves the logs to a server of their own
// (see [NewLog]).
const (
	EnvMySQLDSN     = "BED_TEST_MYSQL_DSN"
	EnvPostgresDSN  = "BED_TEST_POSTGRES_DSN"
	EnvMySQLLogDSN  = "BED_TEST_MYSQL_LOG_DSN"
	EnvMySQLPort    = "BED_TEST_MYSQL_PORT"
	EnvPostgresPort = "BED_TEST_POSTGRES_PORT"
)

const dialTimeout = 30 * time.Second

var (
	sharedMySQL    = sync.OnceValues(func() (admin, error) { return findAndSweep(DriverMySQL) })
	sharedPostgres = sync.OnceValues(func() (admin, error) { return findAndSweep(DriverPostgres) })
	// sharedMySQLLog is the server for logs if the shared MySQL is too old to hold one.
	sharedMySQLLog = sync.OnceValues(func() (admin, error) {
		a := admin{driver: DriverMySQL, dsn: os.Getenv(EnvMySQLLogDSN)}
		if a.dsn == "" {
			return sharedMySQL()
		}
		err := a.ping()
		if err == nil {
			a.sweep()
		}
		return a, err
	})
)

// Find returns the DSN of the shared server of a driver ("mysql" or "postgres"). Its error lists
// the searched places and gives advice.
func Find(driver string) (dsn string, err error) {
	a, err := find(driver)
	return a.dsn, err
}

func findAndSweep(driver string) (admin, error) {
	a, err := find(driver)
	if err == nil {
		err = a.checkPath()
	}
	if err == nil {
		a.sweep()
	}
	return a, err
}

func find(driver string) (admin, error) {
	env, usual := EnvMySQLDSN, mysqlDSN(cmp.Or(os.Getenv(EnvMySQLPort), "3306"))
	if driver == DriverPostgres {
		env, usual = EnvPostgresDSN, postgresDSN(cmp.Or(os.Getenv(EnvPostgresPort), "5432"))
	}
	named := os.Getenv(env)
	a := admin{driver: driver, dsn: cmp.Or(named, usual)}
	switch err := a.ping(); {
	case err == nil:
		return a, nil
	case named != "":
		return admin{}, fmt.Errorf("the server that %s names does not answer: %w; start it or correct the variable", env, err)
	default:
		return admin{}, fmt.Errorf("no %s server for the tests: run `make test`, which starts one, "+
			"or set %s to the DSN of an account that may create databases, or run with -short; tried %w", driver, env, err)
	}
}

func mysqlDSN(port string) string { return "root@tcp(127.0.0.1:" + port + ")/?parseTime=true" }

// postgresDSN leaves the password to pgx: pgx reads PGPASSWORD and the password file by itself.
func postgresDSN(port string) string {
	return "postgres://postgres@127.0.0.1:" + port + "/postgres?sslmode=disable"
}

func postgresAddr(dsn string) string {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return ""
	}
	_, addr := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	return addr
}

// ping dials the server and names the address, never the DSN, in its error.
func (a admin) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return a.do(ctx, func(*sql.DB) error { return nil })
}

// do opens a pool for one piece of work: a lasting pool would show as a leaked goroutine in
// packages with leak checks.
func (a admin) do(ctx context.Context, work func(*sql.DB) error) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if err = dial(ctx, db); err == nil {
		err = work(db)
	}
	if err != nil {
		return fmt.Errorf("%s at %s: %w", a.driver, DB{Driver: a.driver, DSN: a.dsn}.Addr(), err)
	}
	return ctx.Err()
}

// dial opens a connection. While other tests use all of the server's, it waits for one.
func dial(ctx context.Context, db *sql.DB) error {
	for {
		err := db.PingContext(ctx)
		if code := dberr.Of(err); code.State != "53300" && code.Number != 1040 { // PostgreSQL's and MySQL's "too many connections"
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (a admin) open() (*sql.DB, error) {
	switch a.driver {
	case DriverMySQL:
		cfg, err := mysql.ParseDSN(a.dsn)
		if err != nil {
			return nil, fmt.Errorf("mysql DSN: %w", err)
		}
		// A server being started or stopped breaks handshakes; the driver
		// would print each of them.
		cfg.Logger = &mysql.NopLogger{}
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, fmt.Errorf("mysql DSN: %w", err)
		}
		return sql.OpenDB(c), nil
	case DriverPostgres:
		return sql.Open("pgx", a.dsn)
	}
	return nil, fmt.Errorf("no server of driver %q; there are mysql and postgres", a.driver)
}

// EnvMySQLPath set to 1 runs the tests as on MySQL. The started MariaDB servers claim to be MySQL
// 8.0, so that bed and the libraries use no MariaDB extensions (compound statements, RETURNING).
// [Each] then runs on these servers alone.
const EnvMySQLPath = "BED_TEST_MYSQL_PATH"

const mysqlPathVersion = "8.0.36-bed-test"

// MySQLPath reports whether the tests run as on MySQL.
func MySQLPath() bool { return os.Getenv(EnvMySQLPath) == "1" }

// checkPath refuses a server recognizable as MariaDB.
func (a admin) checkPath() error {
	if !MySQLPath() || a.driver != DriverMySQL {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	return a.do(ctx, func(pool *sql.DB) error {
		var version string
		err := pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version)
		if strings.Contains(version, "MariaDB") {
			return fmt.Errorf("with %s=1 the server must not call itself MariaDB, as it does (%s): run `make test-mysql-path`, which starts one", EnvMySQLPath, version)
		}
		return err
	})
}
