package txlog

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// runner runs the log's statements: each on its own, or in a local transaction.
type runner interface {
	exec(ctx context.Context, text string, args ...any) (int64, error)
	run(ctx context.Context, sh shape, args ...any) (int64, error)
	query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error)
}

// database is the log's own, with its statements prepared. As a runner it runs
// each of them on its own.
type database struct {
	*sql.DB
	backend Backend
	// unlocked says that FOR UPDATE SKIP LOCKED is not to be used, because it
	// locks nothing (TiDB).
	unlocked bool

	mu    sync.RWMutex
	stmts map[shape]*sql.Stmt
}

var _ runner = (*database)(nil)

// openDatabase makes the log's connections; conns below 1 means the default.
func openDatabase(backend Backend, connector driver.Connector, conns int) *database {
	lite := backend.Flavor == FlavorSQLite
	db := sql.OpenDB(&session{Connector: connector, setup: sessionSetup(backend.Flavor), keeps: lite})
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
	return &database{DB: db, backend: backend, stmts: map[shape]*sql.Stmt{}}
}

// sessionSetup is run on each new connection.
func sessionSetup(f Flavor) []string {
	switch f {
	case FlavorMySQL:
		// READ COMMITTED: claims and removals lock records, never gaps.
		return []string{
			"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
			// Where sql_safe_updates is set for all, a DELETE with a hint is not
			// safe enough.
			"SET autocommit = 1, completion_type = 0, sql_safe_updates = 0, NAMES utf8mb4",
		}
	case FlavorSQLite:
		return []string{"PRAGMA busy_timeout = 10000", "PRAGMA synchronous = FULL"}
	}
	return nil
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

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (db *database) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(db.ExecContext(ctx, text, args...))
}

func (db *database) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	stmt, err := db.stmt(ctx, sh)
	if err != nil {
		return 0, err
	}
	return affected(stmt.ExecContext(ctx, args...))
}

func (db *database) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	stmt, err := db.stmt(ctx, sh)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// stmt gives the prepared statement of a shape.
func (db *database) stmt(ctx context.Context, sh shape) (*sql.Stmt, error) {
	if stmt := db.prepared(sh); stmt != nil {
		return stmt, nil
	}
	stmt, err := db.PrepareContext(ctx, db.backend.Flavor.text(sh))
	if err != nil {
		// A statement that could not be prepared was not sent.
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

// within runs statements in a local transaction. It never prepares one on
// another connection: there may be none to spare.
type within struct {
	db *database
	tx *sql.Tx
}

func (r within) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(r.tx.ExecContext(ctx, text, args...))
}

func (r within) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	if stmt := r.db.prepared(sh); stmt != nil {
		return affected(r.tx.StmtContext(ctx, stmt).ExecContext(ctx, args...))
	}
	return r.exec(ctx, r.db.backend.Flavor.text(sh), args...)
}

func (r within) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	if stmt := r.db.prepared(sh); stmt != nil {
		return r.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...)
	}
	return r.tx.QueryContext(ctx, r.db.backend.Flavor.text(sh), args...)
}

// immediate runs statements on a connection of SQLite after BEGIN IMMEDIATE.
type immediate struct {
	*sql.Conn
}

func (r immediate) exec(ctx context.Context, text string, args ...any) (int64, error) {
	return affected(r.ExecContext(ctx, text, args...))
}

func (r immediate) run(ctx context.Context, sh shape, args ...any) (int64, error) {
	return r.exec(ctx, FlavorSQLite.text(sh), args...)
}

func (r immediate) query(ctx context.Context, sh shape, args ...any) (*sql.Rows, error) {
	return r.QueryContext(ctx, FlavorSQLite.text(sh), args...)
}

// inTx runs f in one local transaction. After an error of COMMIT or ROLLBACK its
// connection is not used again: the transaction may still be open (Galera's 1047),
// what is written next would be part of it, and the next BEGIN would commit it.
func (db *database) inTx(ctx context.Context, f func(context.Context, runner) error) error {
	if db.backend.Flavor == FlavorSQLite {
		return db.inImmediate(ctx, f)
	}
	conn, tx, err := db.begin(ctx)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	clean := false
	defer func() {
		if !clean { // or f panicked
			_ = tx.Rollback()
			discard(conn)
		}
		_ = conn.Close()
	}()
	if err := f(ctx, within{db, tx}); err != nil {
		// Without COMMIT nothing is written, whatever became of the connection.
		clean = tx.Rollback() == nil
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	err = tx.Commit()
	clean = err == nil
	return err
}

// begin begins a local transaction on a connection of its own. The pool may hold
// connections that are dead; as database/sql does, it passes over them.
func (db *database) begin(ctx context.Context) (conn *sql.Conn, tx *sql.Tx, err error) {
	var opts *sql.TxOptions
	if db.backend.Flavor == FlavorPostgres {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
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

// discard keeps a connection from going back to the pool.
func discard(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

// inImmediate takes SQLite's write lock at once: a transaction that reads first
// and writes later fails when another one wrote in between.
func (db *database) inImmediate(ctx context.Context, f func(context.Context, runner) error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	committed := false
	defer func() {
		if !committed { // or f panicked
			rollback(ctx, conn)
		}
	}()
	if err := f(ctx, immediate{conn}); err != nil {
		return fmt.Errorf("%w (%w)", err, errNotSent)
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	committed = err == nil
	return err
}

// rollback ends the transaction even if ctx is done. A connection on which that
// fails does not go back to the pool: it may have no transaction left, or one.
func rollback(ctx context.Context, conn *sql.Conn) {
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); err != nil {
		discard(conn)
	}
}

// onUnit runs f on its own when it is one statement, else in a transaction.
func (db *database) onUnit(ctx context.Context, u *Unit, f func(context.Context, runner) error) error {
	if len(u.Statements) <= maxRows {
		return f(ctx, db)
	}
	return db.inTx(ctx, f)
}

// runFenced runs a fenced statement over the rows of one unit and reports whether
// the unit was owned. All its rows have the same owner, so one of them is enough
// to tell.
func runFenced(ctx context.Context, q runner, k kind, before []any, id, token string, rows int) (owned bool, err error) {
	if rows <= 1 {
		n, err := q.run(ctx, shape{kind: k, rows: 1}, append(before, id, token)...)
		return n > 0, err
	}
	err = chunks(rowIDs(id, rows), func(ids []any) error {
		args := append(slices.Clone(before), ids...)
		n, err := q.run(ctx, shape{kind: k, rows: len(ids)}, append(args, token)...)
		owned = owned || n > 0
		return err
	})
	return owned, err
}

// tokens reads who owns the units; those that are not there are left out.
func (db *database) tokens(ctx context.Context, heads []string) (map[string]string, error) {
	return tokensOf(ctx, db, heads)
}

func tokensOf(ctx context.Context, q runner, heads []string) (map[string]string, error) {
	tokens := make(map[string]string, len(heads))
	err := chunks(heads, func(ids []any) error {
		rows, err := q.query(ctx, shape{kind: selectTokens, rows: len(ids)}, ids...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			var token sql.NullString
			if err := rows.Scan(&id, &token); err != nil {
				return err
			}
			tokens[id] = token.String
		}
		return rows.Err()
	})
	return tokens, err
}
