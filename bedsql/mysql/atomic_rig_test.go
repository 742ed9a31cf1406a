package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/bedsql/bed/internal/attempt"
	"github.com/bedsql/bed/internal/dialect"
	"github.com/bedsql/bed/internal/test/testdb"
	"github.com/bedsql/bed/internal/test/testproxy"
)

// exactlyOnce is a database with the table of receipts and one connection to
// it.
type exactlyOnce struct {
	t      *testing.T
	target testdb.DB
	pool   *sql.DB
	d      *dialect.Dialect
	c      *sql.Conn
}

// receiptful makes the tables of a test. The test is skipped on servers without compound
// statements.
func receiptful(t *testing.T, param string, texts ...string) *exactlyOnce {
	t.Helper()
	target := testdb.MySQL(t)
	return receiptfulOn(t, target, target, param, texts...)
}

func receiptfulOn(t *testing.T, direct, target testdb.DB, param string, texts ...string) *exactlyOnce {
	t.Helper()
	ddl, err := attempt.ReceiptSchema(name)
	if err != nil {
		t.Fatal(err)
	}
	pool := direct.Open(t)
	var version string
	if err := pool.QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if !runsCompounds(version) {
		t.Skipf("%s has no compound statements outside of procedures", version)
	}
	must(t, pool, append([]string{ddl}, texts...)...)
	param, prepared := strings.CutPrefix(param, asPrepared)
	if param = strings.TrimPrefix(param, "&"); param != "" {
		target.DSN = withParam(target.DSN, param)
	}
	d := newDialect(nil)
	if prepared {
		d = preparing(t, target.DSN)
	}
	pool = target.Open(t)
	e := &exactlyOnce{t: t, target: target, pool: pool, d: d, c: conn(t, pool)}
	e.greet()
	return e
}

func (e *exactlyOnce) greet() {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) {
		if _, err := e.d.Greet(e.t.Context(), dc); err != nil {
			e.t.Fatal(err)
		}
	})
}

// asPrepared, in front of the DSN's parameters, lets calls be run prepared from
// their first use on.
const asPrepared = "prepared"

// preparing is a dialect with a session for each connection.
func preparing(t *testing.T, dsn string) *dialect.Dialect {
	t.Helper()
	cfg, _, err := readDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	d := dialectOf(&compounds{prepareFrom: 1}, cfg)
	var sessions sync.Map
	atomic := d.Atomic
	d.Atomic = func(ctx context.Context, conn driver.Conn, calls []dialect.Call) ([]driver.Result, bool, error) {
		s, _ := sessions.LoadOrStore(conn, &attempt.Session{Conn: conn})
		return atomic(ctx, s.(*attempt.Session), calls)
	}
	return d
}

// bothWays runs a test with calls sent as text, and prepared.
func bothWays(t *testing.T, test func(t *testing.T, way string)) {
	t.Parallel()
	for _, way := range []string{"", asPrepared} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			test(t, way)
		})
	}
}

func call(text string, args ...any) dialect.Call {
	c := dialect.Call{SQL: text}
	for i, v := range args {
		c.Args = append(c.Args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c
}

const writeReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until, fingerprint, result) VALUES (?, ?, ?, ?, 1, 1 + ?, ?, ?)`

const writePlainReceipt = `INSERT INTO bed_receipt (id, unit_id, log_id, void, creation_time, keep_until) VALUES (?, ?, ?, 0, 1, creation_time + ?)`

func receipt(id string) dialect.Call { return plainReceipt(id, "log", 1000) }

func plainReceipt(id, log string, keep int64) dialect.Call {
	return call(writePlainReceipt, id, "unit", log, keep)
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

func atomicOn(t *testing.T, d *dialect.Dialect, c *sql.Conn, calls ...dialect.Call) (results []driver.Result, handled bool, err error) {
	t.Helper()
	raw(t, c, func(dc driver.Conn) { results, handled, err = d.Atomic(context.Background(), dc, calls) })
	return results, handled, err
}

func (e *exactlyOnce) atomic(calls ...dialect.Call) ([]driver.Result, error) {
	e.t.Helper()
	results, handled, err := atomicOn(e.t, e.d, e.c, calls...)
	if !handled {
		e.t.Fatal("the calls were not handled")
	}
	return results, err
}

func (e *exactlyOnce) commitWith(calls ...dialect.Call) (handled bool, err error) {
	e.t.Helper()
	raw(e.t, e.c, func(dc driver.Conn) { handled, err = e.d.CommitWith(context.Background(), dc, calls) })
	return handled, err
}

func (e *exactlyOnce) int(query string) (n int64) {
	e.t.Helper()
	if err := e.c.QueryRowContext(context.Background(), query).Scan(&n); err != nil {
		e.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (e *exactlyOnce) is(query string, want int64) {
	e.t.Helper()
	if got := e.int(query); got != want {
		e.t.Errorf("%s is %d, want %d", query, got, want)
	}
}

func (e *exactlyOnce) noneOpen() {
	e.t.Helper()
	e.is("SELECT @@in_transaction", 0)
}

const stock = "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL CHECK (n >= 0), UNIQUE KEY only_n (n)) ENGINE=InnoDB"

// readEnded ends the transaction opened by a read with autocommit off.
func (e *exactlyOnce) readEnded() {
	must(e.t, e.c, "COMMIT AND NO CHAIN")
	e.noneOpen()
}

func (e *exactlyOnce) contents(table string) string {
	e.t.Helper()
	rows, err := e.c.QueryContext(context.Background(), "SELECT * FROM "+table+" ORDER BY 1")
	if err != nil {
		e.t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		columns, _ := rows.Columns()
		row := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			e.t.Fatal(err)
		}
		fmt.Fprintln(&b, row)
	}
	return b.String()
}

// execution matches the message that runs the compound.
func execution(message []byte) bool {
	return testproxy.MySQLExecute(message) || testproxy.Text("NOT ATOMIC")(message) && message[4] == 0x03
}
