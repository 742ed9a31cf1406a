package testdb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// PostgreSQL copies three hundred files for each CREATE DATABASE. That takes longer than most
// tests. So a used database is emptied, and renamed for the next test of any process: its name
// marks it as free, and a renaming takes it. Unused ones are swept like all others.
const free = "_free_"

// freeNames selects the free databases by their names. LIKE would not do, because its underscore
// matches any letter: the random part of a used name may spell "free".
const freeNames = "SELECT datname FROM pg_database WHERE starts_with(datname, '" + namePrefix + "') AND strpos(datname, '" + free + "') > 0"

// take returns an empty database. It makes a new one if there is no free one.
func (a admin) take() (DB, error) {
	if a.driver != DriverPostgres {
		return a.create()
	}
	ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
	defer cancel()
	name, taken := newName(), false
	err := a.do(ctx, func(pool *sql.DB) error {
		some, err := column(ctx, pool, freeNames+" ORDER BY random() LIMIT 3")
		for _, one := range some { // another process may be faster
			if taken = renamePostgres(ctx, pool, one, name) == nil; taken {
				break
			}
		}
		return err
	})
	if err != nil || taken {
		return DB{Driver: a.driver, Name: name, DSN: postgresNamed(a.dsn, name)}, err
	}
	return a.create()
}

// give returns a database to the free ones: when it returns, the old name is gone.
func (a admin) give(name string) error {
	if a.driver != DriverPostgres {
		return a.drop(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	aside := newName() // nobody connects to it by this name
	err := a.do(ctx, func(pool *sql.DB) error {
		if _, err := pool.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name); err != nil {
			return err
		}
		return renamePostgres(ctx, pool, name, aside)
	})
	if err != nil { // it is not there, or somebody connects to it all the time
		return a.drop(name)
	}
	if err := (admin{a.driver, postgresNamed(a.dsn, aside)}).do(ctx, func(pool *sql.DB) error { return emptyPostgres(ctx, pool) }); err != nil {
		return a.drop(aside)
	}
	err = a.do(ctx, func(pool *sql.DB) error {
		return renamePostgres(ctx, pool, aside, fmt.Sprintf("%s%d%s%s", namePrefix, time.Now().Unix(), free, aside[strings.LastIndex(aside, "_")+1:]))
	})
	if err != nil {
		return a.drop(aside)
	}
	return nil
}

func renamePostgres(ctx context.Context, pool *sql.DB, from, to string) error {
	_, err := pool.ExecContext(ctx, "ALTER DATABASE "+from+" RENAME TO "+to)
	return err
}

// emptyPostgres restores a database to its initial state, or fails.
func emptyPostgres(ctx context.Context, pool *sql.DB) error {
	// What is in no schema.
	var odd int
	err := pool.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql') +
		(SELECT count(*) FROM pg_default_acl) +
		(SELECT count(*) FROM pg_publication) +
		(SELECT count(*) FROM pg_event_trigger) +
		(SELECT count(*) FROM pg_foreign_data_wrapper) +
		(SELECT count(*) FROM pg_largeobject_metadata) +
		(SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()) +
		(SELECT count(*) FROM pg_replication_slots WHERE database = current_database()) +
		(SELECT count(*) FROM pg_db_role_setting WHERE setdatabase = d.oid) +
		(d.datacl IS NOT NULL OR d.datconnlimit <> -1 OR d.datdba <> current_user::regrole)::int
		FROM pg_database d WHERE datname = current_database()`).Scan(&odd)
	if err != nil {
		return err
	}
	if odd > 0 {
		return errors.New("it was changed beyond its schemas")
	}
	_, err = pool.ExecContext(ctx, `DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
			EXECUTE format('DROP SCHEMA %I CASCADE', name);
		END LOOP;
		CREATE SCHEMA public;
		IF current_setting('server_version_num')::int >= 150000 THEN
			ALTER SCHEMA public OWNER TO pg_database_owner;
			GRANT USAGE ON SCHEMA public TO PUBLIC;
		ELSE
			GRANT ALL ON SCHEMA public TO PUBLIC;
		END IF;
	END $$`)
	return err
}
