package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/bedsql/bed/internal/test/testdb"
)

// demands are the requirements for a measured server.
type demands struct {
	// conns is how many connections it must take.
	conns int
	// durable means that every commit is on the disk before its answer.
	durable bool
}

// measurable are the demands of 64 callers to two databases, and of the logs of all contenders of
// a scene, whose pools stay open between their turns.
var measurable = demands{conns: 800, durable: true}

// server is a measured MySQL/MariaDB or PostgreSQL.
type server struct {
	driver string
	dsn    string
	// what names its product and its settings.
	what string
	// own means that it was started for this run, and everything on it goes with it.
	own  bool
	stop func() error
}

// isMariaDB distinguishes it from MySQL, which has no tables of sequences.
func (s *server) isMariaDB() bool { return strings.HasPrefix(s.what, "MariaDB") }

// findServer uses the tests' server if it meets the demands, and otherwise starts one of the
// installed binaries.
func findServer(ctx context.Context, driver string, need demands) (*server, error) {
	dsn, err := testdb.Find(driver)
	if err == nil {
		s := &server{driver: driver, dsn: dsn, stop: func() error { return nil }}
		if err = s.fit(ctx, need); err == nil {
			return s, nil
		}
	}
	dsn, stop, started := testdb.Standalone(driver)
	if started != nil {
		return nil, errors.Join(err, fmt.Errorf("no other server of driver %s could be started: %w", driver, started))
	}
	s := &server{driver: driver, dsn: dsn, stop: stop}
	if err := s.fit(ctx, need); err != nil {
		return nil, errors.Join(err, stop())
	}
	s.own, s.what = true, s.what+", started for this run"
	return s, nil
}

// fit reads the settings and returns an error if they do not meet the demands.
func (s *server) fit(ctx context.Context, need demands) error {
	pool, err := sql.Open(testdb.DB{Driver: s.driver}.SQLDriver(), s.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }()
	query, durable := "SELECT @@version, @@max_connections, CONCAT('innodb_flush_log_at_trx_commit=', @@innodb_flush_log_at_trx_commit)",
		"innodb_flush_log_at_trx_commit=1"
	if s.driver == testdb.DriverPostgres {
		query, durable = "SELECT current_setting('server_version'), current_setting('max_connections'), "+
			"'fsync=' || current_setting('fsync') || ' synchronous_commit=' || current_setting('synchronous_commit')",
			"fsync=on synchronous_commit=on"
	}
	var version, conns, settings string
	if err := pool.QueryRowContext(ctx, query).Scan(&version, &conns, &settings); err != nil {
		return fmt.Errorf("read the settings of the %s server: %w", s.driver, err)
	}
	name := "PostgreSQL"
	if s.driver == testdb.DriverMySQL {
		name = "MySQL"
		if strings.Contains(version, "MariaDB") {
			name = "MariaDB"
		}
	}
	s.what = fmt.Sprintf("%s %s, %s", name, version, settings)
	if need.durable && settings != durable {
		return fmt.Errorf("%s: it must be set to %s", s.what, durable)
	}
	if n, err := strconv.Atoi(conns); err != nil || n < need.conns {
		return fmt.Errorf("%s: it takes %s connections, %d are needed", s.what, conns, need.conns)
	}
	return nil
}
