package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/test/testdb"
)

// site holds the databases of a run and removes them.
type site struct {
	mysql, postgres *server
	// farMySQL and farPostgres are the same servers a round trip away.
	farMySQL, farPostgres *distance
	dir                   string
	files                 int
	undo                  []func() error
}

func newSite(ctx context.Context, roundTrip time.Duration, need demands) (_ *site, err error) {
	s := &site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "bed-bench-"); err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() error { return os.RemoveAll(s.dir) })
	for _, one := range []struct {
		driver string
		server **server
		far    **distance
	}{{testdb.DriverMySQL, &s.mysql, &s.farMySQL}, {testdb.DriverPostgres, &s.postgres, &s.farPostgres}} {
		if *one.server, err = findServer(ctx, one.driver, need); err != nil {
			return nil, err
		}
		s.undo = append(s.undo, (*one.server).stop)
		addr := testdb.DB{Driver: one.driver, DSN: (*one.server).dsn}.Addr()
		if *one.far, err = newDistance(addr, roundTrip); err != nil {
			return nil, err
		}
		s.undo = append(s.undo, (*one.far).close)
	}
	return s, nil
}

// close undoes everything, the last first.
func (s *site) close() error {
	var errs []error
	for _, v := range slices.Backward(s.undo) {
		errs = append(errs, v())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// create makes a database of a driver.
func (s *site) create(driver string) (*place, error) {
	p := &place{site: s}
	if driver == testdb.DriverSQLite {
		s.files++
		path := filepath.Join(s.dir, fmt.Sprintf("%d.db", s.files))
		p.db = testdb.DB{Driver: driver, Name: path, DSN: "file:" + path + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"}
		return p, nil
	}
	server := s.mysql
	if driver == testdb.DriverPostgres {
		server = s.postgres
	}
	db, drop, err := testdb.Create(driver, server.dsn)
	if err != nil {
		return nil, err
	}
	if !server.own {
		s.undo = append(s.undo, drop)
	}
	p.db = db
	return p, nil
}

// place is a measured database.
type place struct {
	site  *site
	db    testdb.DB
	admin *sql.DB
}

// dsn leads to it, near or far. SQLite is always on the caller's disk.
func (p *place) dsn(far, prepared bool) (string, error) {
	db := p.db
	if far {
		switch db.Driver {
		case testdb.DriverMySQL:
			db = db.Via(p.site.farMySQL.addr())
		case testdb.DriverPostgres:
			db = db.Via(p.site.farPostgres.addr())
		}
	}
	if db.Driver != testdb.DriverMySQL || prepared {
		return db.DSN, nil
	}
	cfg, err := mysql.ParseDSN(db.DSN)
	if err != nil {
		return "", err
	}
	cfg.InterpolateParams = true
	return cfg.FormatDSN(), nil
}

// open opens a pool of the bare driver with as many connections as callers.
func (p *place) open(far, prepared bool, conns int) (*sql.DB, error) {
	dsn, err := p.dsn(far, prepared)
	if err != nil {
		return nil, err
	}
	pool, err := sql.Open(p.db.SQLDriver(), dsn)
	if err != nil {
		return nil, err
	}
	limit(pool, conns)
	return pool, nil
}

func limit(pool *sql.DB, conns int) {
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
}

// look is a pool for setting up and checking, never through the distance.
func (p *place) look() (*sql.DB, error) {
	if p.admin != nil {
		return p.admin, nil
	}
	pool, err := p.open(false, false, 2)
	if err != nil {
		return nil, err
	}
	p.admin = pool
	p.site.undo = append(p.site.undo, pool.Close)
	return pool, nil
}

func (p *place) exec(ctx context.Context, statements ...string) error {
	pool, err := p.look()
	if err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := pool.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (p *place) number(ctx context.Context, query string, args ...any) (n int64, err error) {
	pool, err := p.look()
	if err != nil {
		return 0, err
	}
	if err := pool.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%s: %w", query, err)
	}
	return n, nil
}

// accounts makes a table account_… of rows with the balance 0 and returns its name.
func (p *place) accounts(ctx context.Context, name string, rows int) (string, error) {
	table := "account_" + strings.ReplaceAll(name, "-", "_")
	return table, p.exec(ctx,
		"CREATE TABLE "+table+" (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)",
		"INSERT INTO "+table+" "+p.series("i, 0", 1, rows))
}

// series is a SELECT of columns over the whole numbers i from … to.
func (p *place) series(columns string, from, to int) string {
	switch {
	case p.db.Driver == testdb.DriverPostgres:
		return fmt.Sprintf("SELECT %s FROM generate_series(%d, %d) AS s(i)", columns, from, to)
	case p.site != nil && p.site.mysql != nil && !p.site.mysql.isMariaDB():
		return fmt.Sprintf("WITH RECURSIVE s(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM s WHERE i < %d) "+
			"SELECT /*+ SET_VAR(cte_max_recursion_depth=%d) */ %s FROM s", from, to, to-from+1, columns)
	default:
		return fmt.Sprintf("SELECT %s FROM (SELECT seq AS i FROM seq_%d_to_%d) AS s", columns, from, to)
	}
}

// update is the work: one row, found by its key.
func (p *place) update(table string) string {
	if p.db.Driver == testdb.DriverPostgres {
		return "UPDATE " + table + " SET balance = balance + 1 WHERE id = $1"
	}
	return "UPDATE " + table + " SET balance = balance + 1 WHERE id = ?"
}

// placeholders writes ? as the database wants it.
func (p *place) placeholders(text string) string {
	if p.db.Driver != testdb.DriverPostgres {
		return text
	}
	return sqltext.Numbered(text)
}
