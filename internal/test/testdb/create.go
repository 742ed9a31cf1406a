package testdb

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	namePrefix = "bedtest_"
	// staleAfter is longer than any test run: older databases belong to killed runs.
	staleAfter = 24 * time.Hour
	// A busy server makes a checkpoint for each, which may take more than a minute.
	createTimeout = 5 * time.Minute
	dropTimeout   = 5 * time.Minute
)

// admin is an account with the right to create databases on a server.
type admin struct {
	driver string
	dsn    string
}

// newName is unique over all processes and machines sharing a server. It contains the second of its
// creation, so that a later run can tell a forgotten database from one in use.
func newName() string {
	return fmt.Sprintf("%s%d_%s", namePrefix, time.Now().Unix(), strings.ToLower(rand.Text()[:16]))
}

// madeAt reads the creation time back from a name.
func madeAt(name string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return time.Time{}, false
	}
	second, _, _ := strings.Cut(rest, "_")
	n, err := strconv.ParseInt(second, 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	return time.Unix(n, 0), true
}

func (a admin) create() (DB, error) {
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	name := newName()
	db := DB{Driver: a.driver, Name: name}
	err := a.do(ctx, func(pool *sql.DB) error {
		if a.driver == DriverMySQL {
			cfg, err := mysql.ParseDSN(a.dsn)
			if err != nil {
				return err
			}
			cfg.DBName, cfg.ParseTime = name, true
			db.DSN = cfg.FormatDSN()
			_, err = pool.ExecContext(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4")
			return err
		}
		db.DSN = postgresNamed(a.dsn, name)
		return createPostgres(ctx, pool, name)
	})
	if err != nil {
		return DB{}, fmt.Errorf("create database %s: %w", name, err)
	}
	return db, nil
}

// createPostgres copies template0, because no session can be connected to it.
func createPostgres(ctx context.Context, pool *sql.DB, name string) error {
	return onceFree(ctx, pool, "CREATE DATABASE "+name+" TEMPLATE template0")
}

// onceFree repeats a statement while a database is in use: another running copy or drop keeps
// template0 busy, and sessions that are told to end may take longer than the server waits for them.
func onceFree(ctx context.Context, pool *sql.DB, text string) error {
	const objectInUse = "55006"
	for {
		_, err := pool.ExecContext(ctx, text)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != objectInUse {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// drop drops the database although connections to it may be open.
func (a admin) drop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	err := a.do(ctx, func(pool *sql.DB) error {
		if a.driver == DriverMySQL {
			return dropMySQL(ctx, pool, name)
		}
		return onceFree(ctx, pool, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
	if err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// dropMySQL first ends the database's sessions: DROP DATABASE would wait for the metadata locks of
// open transactions.
func dropMySQL(ctx context.Context, pool *sql.DB, name string) error {
	ids, err := column(ctx, pool, "SELECT id FROM information_schema.processlist WHERE db = ?", name)
	if err != nil {
		return err
	}
	for _, id := range ids {
		const noSuchThread = 1094
		var myErr *mysql.MySQLError
		_, err := pool.ExecContext(ctx, "KILL "+id)
		if err != nil && (!errors.As(err, &myErr) || myErr.Number != noSuchThread) {
			return err
		}
	}
	_, err = pool.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
	return err
}

// column reads the only column of a query.
func column(ctx context.Context, pool *sql.DB, query string, args ...any) (all []string, err error) {
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}

// sweep drops the databases of killed runs. It ignores errors: another process may be sweeping too,
// and a failure costs only disk space.
func (a admin) sweep() {
	query := "SELECT schema_name FROM information_schema.schemata"
	if a.driver == DriverPostgres {
		query = "SELECT datname FROM pg_database"
	}
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	var stale []string
	_ = a.do(ctx, func(pool *sql.DB) error {
		names, err := column(ctx, pool, query)
		for _, name := range names {
			if made, ok := madeAt(name); ok && time.Since(made) > staleAfter {
				stale = append(stale, name)
			}
		}
		return err
	})
	for _, name := range stale {
		_ = a.drop(name)
	}
}
