package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	atomicCounter "sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
)

var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec}

// eachMode runs f in parallel for each of pgx's modes of sending statements, in schemas of one
// database.
func eachMode(t *testing.T, f func(t *testing.T, db testdb.DB, mode pgx.QueryExecMode)) {
	t.Helper()
	db := testdb.Postgres(t)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			f(t, db, mode)
		})
	}
}

// exactlyOnce is a schema with the table of receipts and one connection to it.
type exactlyOnce struct {
	t    *testing.T
	name string
	// direct is a second pool without the proxy.
	direct, pool *sql.DB
	c            *sql.Conn
}

var schemas atomicCounter.Int64

// receiptful makes the tables of a test. Its connection goes through the proxy at addr, unless that
// is empty.
func receiptful(t *testing.T, db testdb.DB, addr string, mode pgx.QueryExecMode, texts ...string) *exactlyOnce {
	t.Helper()
	ddl, err := attempt.ReceiptSchema(name)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprint("s", schemas.Add(1))
	e := &exactlyOnce{t: t, name: name}
	cfg := config(t, db)
	cfg.RuntimeParams["search_path"] = name
	e.direct = open(t, cfg)
	must(t, e.direct, append([]string{"CREATE SCHEMA " + name, ddl}, texts...)...)
	if addr != "" {
		cfg = config(t, db.Via(addr))
		cfg.RuntimeParams["search_path"] = name
	}
	cfg.DefaultQueryExecMode = mode
	e.pool = open(t, cfg)
	e.c = conn(t, e.pool)
	return e
}

func call(text string, args ...any) dialect.Call {
	c := dialect.Call{SQL: text}
	for i, v := range args {
		c.Args = append(c.Args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c
}

const writeReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result) VALUES ($1, $2, $3, $4, 1, 1 + $5, $6, $7)`

const lockReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES ('r', 'u', 'l', 0, 1, 1)`

func receipt(id string) dialect.Call {
	return call(writeReceipt, id, "unit", "log", int64(0), int64(1000), nil, nil)
}

func raw(t *testing.T, c *sql.Conn, f func(driver.Conn)) {
	t.Helper()
	if err := c.Raw(func(dc any) error {
		f(dc.(driver.Conn))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func atomicOn(t *testing.T, c *sql.Conn, calls ...dialect.Call) (results []driver.Result, handled bool, err error) {
	t.Helper()
	raw(t, c, func(dc driver.Conn) { results, handled, err = postgresDialect.Atomic(context.Background(), dc, calls) })
	return results, handled, err
}

func (e *exactlyOnce) atomic(calls ...dialect.Call) ([]driver.Result, error) {
	e.t.Helper()
	results, handled, err := atomicOn(e.t, e.c, calls...)
	if !handled {
		e.t.Fatal("the calls were not handled")
	}
	return results, err
}

func (e *exactlyOnce) commitWith(calls ...dialect.Call) (handled bool, err error) {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) { handled, err = postgresDialect.CommitWith(context.Background(), dc, calls) })
	return handled, err
}

func (e *exactlyOnce) is(query string, want int64) {
	e.t.Helper()
	var got int64
	if err := e.c.QueryRowContext(context.Background(), query).Scan(&got); err != nil {
		e.t.Fatalf("%s: %v", query, err)
	}
	if got != want {
		e.t.Errorf("%s is %d, want %d", query, got, want)
	}
}

// inState checks pgx's view of the connection's transaction.
func (e *exactlyOnce) inState(want byte) {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) {
		s, _, _ := openSession(dc, []dialect.Call{receipt("")})
		if closed, status := s.conn.IsClosed(), s.conn.PgConn().TxStatus(); closed || status != want {
			e.t.Errorf("closed %t, transaction status %c, want %c", closed, status, want)
		}
	})
}

const stock = "CREATE TABLE stock (id int PRIMARY KEY, n int NOT NULL CHECK (n >= 0) UNIQUE)"

func values(args []driver.NamedValue) []any {
	vals := make([]any, len(args))
	for i, a := range args {
		vals[i] = a.Value
	}
	return vals
}
