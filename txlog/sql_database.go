package txlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bedsql/bed/internal/dberr"
	"github.com/bedsql/bed/internal/dbserver"
	"github.com/bedsql/bed/internal/entry"
	"github.com/bedsql/bed/internal/logdb"
	"github.com/bedsql/bed/internal/sqltext"
	"github.com/bedsql/bed/internal/tables"
)

// runner runs the log's statements, separately or in a local transaction.
type runner interface {
	stmt(ctx context.Context, sh shape) (*sql.Stmt, error)
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// database is the log's own database with its prepared statements. As a runner it runs each
// statement separately.
type database struct {
	*sql.DB
	backend backend
	// unlocked disables FOR UPDATE SKIP LOCKED, which locks no rows on TiDB.
	unlocked bool
	// inSchema is the quoted name of the tables' schema; nil before its first use.
	inSchema atomic.Pointer[string]

	mu    sync.RWMutex
	stmts map[shape]*sql.Stmt
}

// openDatabase opens the log's connections; conns below 1 means the default.
func openDatabase(of logdb.Backend, connector driver.Connector, conns int) *database {
	lite := of.Flavor == sqltext.SQLite
	db := sql.OpenDB(&session{connector, of.Flavor})
	if conns < 1 {
		conns = defaultMaxConns
		if lite {
			conns = 1
		}
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	// An in-memory SQLite log lives as long as its connection.
	if !lite {
		db.SetConnMaxIdleTime(5 * time.Minute)
	}
	return &database{DB: db, backend: backend{of}, stmts: map[shape]*sql.Stmt{}}
}

// sessionSetup returns the statements for each new connection.
func sessionSetup(f sqltext.Flavor) []string {
	switch f {
	case sqltext.MySQL:
		// READ COMMITTED: claims and removals lock records, never gaps.
		return []string{
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
			// If sql_safe_updates is on globally, even a DELETE with a hint is not safe enough.
			// MariaDB bounds the wait for a key's row for one statement. MySQL cannot: there the
			// bound applies to all of the log's statements.
			"SET autocommit = 1, completion_type = 0, sql_safe_updates = 0 /*!80000 , innodb_lock_wait_timeout = 10 */, NAMES utf8mb4",
		}
	case sqltext.SQLite:
		return []string{"PRAGMA busy_timeout = 10000", "PRAGMA synchronous = FULL"}
	}
	return nil
}

// checkSkipLocked rejects a server whose claims would fail. Some products have backported the
// clause, so the server's answer decides, not its version.
func (db *database) checkSkipLocked(ctx context.Context, product, version string) error {
	older, oldest := dbserver.Older(product, version, true)
	if !older {
		return nil
	}
	const parseError = 1064
	if _, err := db.ExecContext(ctx, "SELECT 1 FROM information_schema.tables WHERE 1 = 0 FOR UPDATE SKIP LOCKED"); dberr.Of(err).Number != parseError {
		return err
	}
	return fmt.Errorf("%w: its server, %s %s, has no SKIP LOCKED, by which jobs claim entries: keep the log on %s %s or newer; this server can still be a target",
		ErrUnusable, product, version, product, oldest)
}

// pingSome measures the round trip to the database.
func (db *database) pingSome(ctx context.Context, took func(time.Duration)) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	for range pings {
		start := time.Now()
		if conn.PingContext(ctx) != nil {
			return
		}
		took(time.Since(start))
	}
}

// run runs a statement and returns the number of affected rows.
func run(ctx context.Context, q runner, sh shape, args ...any) (int64, error) {
	stmt, err := q.stmt(ctx, sh)
	if err != nil {
		return 0, err
	}
	result, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// each runs a query and calls f for each of its rows.
func each(ctx context.Context, q runner, sh shape, args []any, f func(*sql.Rows) error) error {
	stmt, err := q.stmt(ctx, sh)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	return tables.Each(rows, err, f)
}

// stmt returns the prepared statement of a shape.
func (db *database) stmt(ctx context.Context, sh shape) (*sql.Stmt, error) {
	if stmt := db.prepared(sh); stmt != nil {
		return stmt, nil
	}
	stmt, err := db.PrepareContext(ctx, sh.text(db.backend.Flavor))
	if err != nil {
		// An unprepared statement was not sent.
		return nil, fmt.Errorf("%w (%w)", err, errNotSent)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if other := db.stmts[sh]; other != nil {
		stmt.Close()
		return other, nil
	}
	if db.stmts == nil {
		stmt.Close()
		return nil, ErrClosed
	}
	db.stmts[sh] = stmt
	return stmt, nil
}

func (db *database) prepared(sh shape) *sql.Stmt {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.stmts[sh]
}

// Close closes the prepared statements and the connections.
func (db *database) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, stmt := range db.stmts {
		stmt.Close()
	}
	db.stmts = nil
	return db.DB.Close()
}

// local runs statements in a local transaction. It never prepares one on another
// connection, because there may be none to spare. It prepares the new ones after its end.
type local struct {
	*sql.Tx
	db    *database
	stmts map[shape]*sql.Stmt // on its connection
	fresh []shape
}

func (r *local) stmt(ctx context.Context, sh shape) (stmt *sql.Stmt, err error) {
	if stmt = r.stmts[sh]; stmt != nil {
		return stmt, nil
	}
	if stmt = r.db.prepared(sh); stmt != nil {
		stmt = r.StmtContext(ctx, stmt)
	} else {
		r.fresh = append(r.fresh, sh)
		if stmt, err = r.PrepareContext(ctx, sh.text(r.db.backend.Flavor)); err != nil {
			return nil, err
		}
	}
	r.stmts[sh] = stmt
	return stmt, nil
}

// inTx runs f in one local transaction. It drops the connection after an error of COMMIT or
// ROLLBACK, because the transaction may still be open (Galera's 1047): the next write would
// join it, and the next BEGIN would commit it.
func (db *database) inTx(ctx context.Context, f func(context.Context, runner) error) error {
	conn, tx, err := db.begin(ctx)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	clean, q := false, &local{Tx: tx, db: db, stmts: map[shape]*sql.Stmt{}}
	defer func() {
		if !clean { // or f panicked
			_ = tx.Rollback()
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close()
		for _, sh := range q.fresh {
			_, _ = db.stmt(ctx, sh)
		}
	}()
	if err := f(ctx, q); err != nil {
		// Without COMMIT there is no write, whatever became of the connection.
		clean = tx.Rollback() == nil
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	err = tx.Commit()
	clean = err == nil
	return err
}

// begin begins a local transaction on a connection of its own. Like database/sql, it skips
// dead connections of the pool.
func (db *database) begin(ctx context.Context) (conn *sql.Conn, tx *sql.Tx, err error) {
	var opts *sql.TxOptions
	switch db.backend.Flavor {
	case sqltext.Postgres:
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	case sqltext.SQLite:
		// ctx ends only the wait of BEGIN for the write lock: a rollback by database/sql itself
		// may fail unseen and leave the transaction open.
		begin, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer context.AfterFunc(ctx, cancel)()
		ctx = begin
	}
	for range db.Stats().MaxOpenConnections + 1 {
		if conn, err = db.Conn(ctx); err != nil {
			return nil, nil, err
		}
		if tx, err = conn.BeginTx(ctx, opts); err == nil {
			return conn, tx, nil
		}
		_ = conn.Close()
		if !errors.Is(err, driver.ErrBadConn) {
			break
		}
	}
	return nil, nil, err
}

// fenced runs a fenced statement over the rows of one unit and reports whether the unit was owned.
// All rows of a unit have the same owner, so one match is enough. If it takes several statements
// outside of a local transaction, they get one.
func fenced(ctx context.Context, q runner, k kind, before []any, u *owned) (found bool, err error) {
	db, alone := q.(*database)
	switch {
	case alone && u.rows > maxRows:
		err = db.inTx(ctx, func(ctx context.Context, q runner) (err error) {
			found, err = fenced(ctx, q, k, before, u)
			return err
		})
		return found, err
	case u.rows == 1:
		n, err := run(ctx, q, shape{kind: k, rows: 1}, append(before[:len(before):len(before)], u.id, u.token)...)
		return n > 0, err
	}
	n, err := runIn(ctx, q, k, before, entry.RowIDs(u.id, u.rows), u.token)
	return n > 0, err
}

// texts runs a query of one text column.
func texts(ctx context.Context, q runner, sh shape, args ...any) (all []string, err error) {
	err = each(ctx, q, sh, args, func(rows *sql.Rows) error {
		var text string
		err := rows.Scan(&text)
		all = append(all, text)
		return err
	})
	return all, err
}

// tokensOf reads the owners of units and omits missing units.
func tokensOf(ctx context.Context, q runner, heads []string) (map[string]string, error) {
	tokens := make(map[string]string, len(heads))
	err := eachIn(ctx, q, selectTokens, heads, func(rows *sql.Rows) error {
		var id string
		var token sql.NullString
		err := rows.Scan(&id, &token)
		tokens[id] = token.String
		return err
	})
	return tokens, err
}

// schemaOf returns the schema of the log's tables, as other sessions of its server name it.
// It queries the database once.
func schemaOf(ctx context.Context, db *database) (string, error) {
	if known := db.inSchema.Load(); known != nil {
		return *known, nil
	}
	query := db.backend.Flavor.Pick(sqltext.Texts{
		MySQL: `SELECT DATABASE()`,
		Postgres: `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = to_regclass('transaction_log') AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('bed_log'))`,
		SQLite: ``})
	name := "main"
	if query != "" {
		if err := db.QueryRowContext(ctx, query).Scan(&name); err != nil {
			return "", err
		}
	}
	quote := db.backend.Flavor.Pick(sqltext.Texts{MySQL: "`", Postgres: `"`, SQLite: `"`})
	name = quote + strings.ReplaceAll(name, quote, quote+quote) + quote
	db.inSchema.Store(&name)
	return name, nil
}

// isElsewhere reports whether err means that the log's tables are missing, different or not
// writable.
func isElsewhere(f sqltext.Flavor, err error) bool {
	code := dberr.Of(err)
	return code.Among("42P01 3F000 42703 42501 25006 42S02 42S22", // no table, schema or column; no right; read-only
		1049, 1146, 1054, 1290, 1792, 1836) || // MySQL's: no database, table or column; read-only
		code.Denied() || f == sqltext.SQLite && (strings.Contains(err.Error(), "no such table") || strings.Contains(err.Error(), "has no column") || code.Number&0xff == 8)
}
